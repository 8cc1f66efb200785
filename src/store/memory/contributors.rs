//! The contributors of accounts, in the form that the Redis store uses: a table for each sixth of a window.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::domain::{
    contributors::{Contribution, Contributors, KEPT_LABELS, Kept, Span, label},
    key::Key,
    policy::Policy,
};

/// The maximum number of tables, which is enough for some thousand accounts.
const MAX_TABLES: usize = 8_192;

/// A new table drops at most this number of tables that are no longer needed, so that no call waits for all of them.
const DROPPED_AT_ONCE: usize = 4;

#[derive(Default)]
pub(super) struct ContributorTables {
    tables: Mutex<Tables>,
    /// Hashes the labels that cannot be shown.
    hasher: RandomState,
}

#[derive(Default)]
struct Tables {
    by_id: HashMap<Arc<TableId>, Table>,
    /// All tables by the time at which they leave the window.
    by_release: BTreeMap<u64, Vec<Arc<TableId>>>,
}

/// The name of the policy, the key, and the span.
type TableId = (Box<str>, Key, u64, u64);

#[derive(Default)]
struct Table {
    units: HashMap<Arc<Key>, i64>,
    total: i64,
    error: i64,
}

impl ContributorTables {
    pub(super) fn contribute(&self, contribution: &Contribution, now_ms: u64) -> Kept {
        let id = id(contribution.policy(), contribution.key(), contribution.span);
        let mut tables = self.tables();
        tables
            .table(id, contribution.span.release_ms(), now_ms)
            .add(contribution)
    }

    pub(super) fn contributors(&self, policy: &Policy, key: &Key, now_ms: u64) -> Contributors {
        let (mut units, mut total, mut error) = (Vec::new(), 0_u64, 0_u64);
        let tables = self.tables();
        for span in Span::window(policy, now_ms) {
            let Some(table) = tables.by_id.get(&id(policy, key, span)) else {
                continue;
            };
            units.extend(table.units.iter().map(|(label, units)| {
                let text = label::text(label, |label| self.hash(label));
                (text, positive(*units))
            }));
            total = total.saturating_add(positive(table.total));
            error = error.saturating_add(positive(table.error).saturating_add(table.floor()));
        }
        Contributors::new(units, total, error)
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hash has no meaning outside of this process.
    fn hash(&self, label: &Key) -> String {
        let [first, second] = [0, 1].map(|half| self.hasher.hash_one((half, label)));
        format!("{first:016x}{second:016x}")
    }
}

impl Tables {
    /// The table of this span. A new table takes a free place, or replaces the table that leaves its window first.
    fn table(&mut self, id: TableId, release_ms: u64, now_ms: u64) -> &mut Table {
        let id = Arc::new(id);
        if !self.by_id.contains_key(&id) {
            self.make_room(now_ms);
            let released = self.by_release.entry(release_ms).or_default();
            released.push(Arc::clone(&id));
        }
        self.by_id.entry(id).or_default()
    }

    /// Drops a few tables that have left their window. If there are none and all places are taken, drops the table that
    /// leaves first.
    fn make_room(&mut self, now_ms: u64) {
        for _ in 0..DROPPED_AT_ONCE {
            let Some(mut first) = self.by_release.first_entry() else {
                return;
            };
            if *first.key() > now_ms && self.by_id.len() < MAX_TABLES {
                return;
            }
            if let Some(id) = first.get_mut().pop() {
                self.by_id.remove(&id);
            }
            if first.get().is_empty() {
                first.remove();
            }
        }
    }
}

impl Table {
    fn add(&mut self, contribution: &Contribution) -> Kept {
        for (label, units) in &contribution.units {
            let sum = self.units.entry(Arc::clone(label)).or_default();
            *sum = sum.saturating_add(*units);
        }
        self.total = self.total.saturating_add(contribution.total);
        self.error = self.error.saturating_add(contribution.error);
        self.trim();
        let units = contribution.units.iter();
        let units = units.map(|(label, _)| self.units.get(label).copied().map_or(0, positive));
        Kept::new(units.collect(), self.floor())
    }

    fn trim(&mut self) {
        while self.units.len() > KEPT_LABELS {
            let least = self.units.iter().min_by_key(|(_, units)| **units);
            if let Some(label) = least.map(|(label, _)| Arc::clone(label)) {
                self.units.remove(&label);
            }
        }
    }

    fn floor(&self) -> u64 {
        if self.units.len() < KEPT_LABELS {
            return 0;
        }
        self.units.values().copied().min().map_or(0, positive)
    }
}

fn id(policy: &Policy, key: &Key, span: Span) -> TableId {
    (
        policy.name().into(),
        key.clone(),
        span.start_ms,
        span.length_ms,
    )
}

fn positive(units: i64) -> u64 {
    u64::try_from(units).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table_id(number: u64) -> TableId {
        ("api".into(), Key::new("account", number.to_string()), 0, 0)
    }

    #[test]
    fn a_new_table_drops_few_that_are_over_and_there_is_never_one_too_many() {
        let mut tables = Tables::default();
        let most = MAX_TABLES as u64;
        for number in 0..most {
            tables.table(table_id(number), 1_000 + number % 7, 0);
        }
        assert_eq!(tables.by_id.len(), MAX_TABLES);
        // None is over: one of those that are the first to be so makes room, and one that is there needs none.
        tables.table(table_id(most), 2_000, 0);
        tables.table(table_id(most), 2_000, 0);
        assert_eq!(tables.by_id.len(), MAX_TABLES);
        assert_eq!(tables.by_release[&1_000].len(), MAX_TABLES.div_ceil(7) - 1);
        // All are over.
        for number in 1..=MAX_TABLES {
            tables.table(table_id(most + number as u64), 5_000, 3_000);
            let dropped = DROPPED_AT_ONCE * number;
            let left = (MAX_TABLES + number).saturating_sub(dropped).max(number);
            assert_eq!(tables.by_id.len(), left);
        }
        let by_release = tables.by_release.values().map(Vec::len).sum::<usize>();
        assert_eq!(by_release, MAX_TABLES);
    }
}
