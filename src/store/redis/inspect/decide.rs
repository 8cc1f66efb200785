//! [`decide`]: computes the script's decision without the server.

use super::StoredValue;
use crate::domain::{
    check::Check,
    decision::Decision,
    error::StoreError,
    rule::Rule,
    window::{Section, Spec},
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
    let now_ms = now_ms.min(super::value::MAX_TIME_MS);
    let (mut counts, mut charged) = (Vec::new(), Vec::new());
    let mut fits = true;
    for (charge, value) in check.charges().iter().zip(values) {
        for rule in charge.policy().rules() {
            let mut section = section(*value, rule);
            let count = section.look(now_ms, rule.limit(), charge.cost());
            let room = rule.limit().checked_sub(charge.cost());
            fits &= room.is_some_and(|room| count.units(rule) <= room);
            counts.push(count);
            // These counts are used only if every rule has room, so charge while all rules so far have.
            charged.push(if fits && charge.cost() > 0 {
                section.charge(now_ms, rule.limit(), charge.cost());
                section.kept()
            } else {
                count
            });
        }
    }
    Decision::new(check, fits, now_ms, if fits { &charged } else { &counts })
}

fn section(value: Option<&StoredValue>, rule: &Rule) -> Section {
    let stored = value.and_then(|value| value.section(rule));
    stored.map_or_else(
        || Section::new(Spec::of(rule)),
        |section| section.counted().clone(),
    )
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
