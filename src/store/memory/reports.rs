//! What processes have reported, in the form that the Redis store uses: a table for each account and span.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::domain::{
    contributors::label,
    key::Key,
    report::{Account, Kept, Ranking, Report, Span},
};

/// The maximum number of tables, which is enough for some thousand accounts.
const MAX_TABLES: usize = 8_192;

/// A new table drops at most this number of tables that are no longer needed, so that no call waits for all of them.
const DROPPED_AT_ONCE: usize = 4;

#[derive(Default)]
pub(super) struct Reported {
    tables: Mutex<Tables>,
    /// Hashes the keys that cannot be shown.
    hasher: RandomState,
}

#[derive(Default)]
struct Tables {
    by_id: HashMap<Arc<TableId>, Table>,
    /// All tables by the time at which they leave the window.
    by_release: BTreeMap<u64, Vec<Arc<TableId>>>,
}

/// The name of the policy and the key of an account with contributors, and the span.
type TableId = (Option<(Box<str>, Key)>, u64, u64);

#[derive(Default)]
struct Table {
    units: HashMap<String, i64>,
    total: i64,
    error: i64,
}

impl Reported {
    pub(super) fn add(&self, report: &Report, now_ms: u64) -> Kept {
        let Report { account, span, .. } = report;
        let units = report.units.iter().map(|(label, units)| {
            let key = label::text(&label.key, |key| self.hash(key));
            (account.member(label, key), *units)
        });
        let units: Vec<_> = units.collect();
        let mut tables = self.tables();
        let table = tables.table(id(account, *span), span.release_ms(), now_ms);
        table.total = table.total.saturating_add(report.total);
        table.error = table.error.saturating_add(report.error);
        table.add(units, account.kept())
    }

    pub(super) fn rankings(&self, account: &Account, now_ms: u64) -> Vec<Ranking> {
        let tables = self.tables();
        let spans = account.spans(now_ms).into_iter();
        let rankings = spans.filter_map(|span| {
            let table = tables.by_id.get(&id(account, span))?;
            let members = table.units.iter();
            let members = members.map(|(member, units)| (member.clone(), positive(*units)));
            let (total, error) = (positive(table.total), positive(table.error));
            Some(Ranking::new(account, span, members.collect(), total, error))
        });
        rankings.collect()
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hash has no meaning outside of this process.
    fn hash(&self, key: &Key) -> String {
        let [first, second] = [0, 1].map(|half| self.hasher.hash_one((half, key)));
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
    /// Adds units, and keeps the members with the most.
    fn add(&mut self, added: Vec<(String, i64)>, most: usize) -> Kept {
        for (member, units) in &added {
            let sum = self.units.entry(member.clone()).or_default();
            *sum = sum.saturating_add(*units);
        }
        if self.units.len() > most {
            let mut all: Vec<_> = self.units.drain().collect();
            all.sort_unstable_by_key(|(_, units)| Reverse(*units));
            self.units.extend(all.into_iter().take(most));
        }
        let kept = |member| self.units.get(member).copied().map_or(0, positive);
        let is_full = self.units.len() >= most;
        let floor = self.units.values().copied().min().filter(|_| is_full);
        Kept {
            units: added.iter().map(|(member, _)| kept(member)).collect(),
            floor: floor.map_or(0, positive),
        }
    }
}

fn id(account: &Account, span: Span) -> TableId {
    let of = match account {
        Account::Contributors { policy, key } => Some((policy.name().into(), key.clone())),
        Account::Denials => None,
    };
    (of, span.start_ms, span.length_ms)
}

fn positive(units: i64) -> u64 {
    u64::try_from(units).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table_id(number: u64) -> TableId {
        let account = Key::new("account", number.to_string());
        (Some(("api".into(), account)), 0, 0)
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
