//! [`decide`]: computes the script's decision without the server.

use super::StoredValue;
use crate::{
    domain::{
        check::Check,
        decision::{Count, Decision},
        error::StoreError,
        rule::Rule,
    },
    store::{
        engine::{self, Cells},
        entry::Entry,
        redis::value::MAX_TIME_MS,
    },
};

/// Returns the decision for a check at this time of the store's clock, in ms, without charging anything.
///
/// You pass the stored `values` for the charges of the check, in their order. Shadows are ignored. The decision is the
/// script's, to the millisecond, but another request may come first.
///
/// # Errors
///
/// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) if there are more or fewer values than charges.
pub fn decide(
    check: &Check,
    now_ms: u64,
    values: &[Option<&StoredValue>],
) -> Result<Decision, StoreError> {
    if values.len() != check.charges().len() {
        return Err(StoreError::invalid_request(
            "each charge of a check needs what is stored for it",
        ));
    }
    let values = values.iter();
    let entries = values.map(|value| {
        let sections = value.map_or(&[][..], StoredValue::sections).iter();
        Entry::of(sections.map(|it| it.counted().clone()).collect())
    });
    let mut stored = Copies {
        now_ms: now_ms.min(MAX_TIME_MS),
        entries: entries.collect(),
    };
    engine::check(&check.without_shadows(), &mut stored)
}

/// Copies of the stored counts of each charge.
struct Copies {
    now_ms: u64,
    entries: Vec<Entry>,
}

impl Cells for Copies {
    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn look<T>(&mut self, cell: usize, read: impl FnOnce(&Entry) -> T) -> Result<T, StoreError> {
        Ok(read(&self.entries[cell]))
    }

    fn write(
        &mut self,
        cell: usize,
        _rules: impl Iterator<Item = Rule> + Clone,
        counts: &mut [Count],
        change: impl FnOnce(&mut Entry, &mut [Count]),
    ) -> Result<(), StoreError> {
        change(&mut self.entries[cell], counts);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{charge::Charge, key::Key, policy::Policy};

    #[test]
    fn each_charge_needs_its_value() {
        let policy = Policy::parse("p", "1/1s").unwrap();
        let check = Check::new([Charge::new(&policy, Key::new("user", "alice"), 1)]).unwrap();
        assert!(decide(&check, 1_000, &[]).is_err());
        assert!(decide(&check, 1_000, &[None]).unwrap().is_allowed());
    }
}
