//! The reports of limiters, in the form that the Redis store uses: a table for each account and span.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Mutex,
};

use super::token::{Token, Tokens};
use crate::domain::{
    contributors::label,
    key::Key,
    report::{Account, Ranking, Report, Span},
};
use crate::lock::lock;

/// The maximum number of tables, which is enough for some thousand accounts.
const MAX_TABLES: usize = 8_192;

/// A new table drops at most this number of tables that are no longer needed, so that no call waits for all of them.
const DROPPED_AT_ONCE: usize = 4;

#[derive(Default)]
pub(super) struct Reported {
    tables: Mutex<Tables>,
    tokens: Tokens,
}

type Tables = BTreeMap<TableId, Table>;

/// When the span leaves its window, its length, and the token of the account.
type TableId = (u64, u64, Token);

#[derive(Default)]
struct Table {
    units: HashMap<String, i64>,
    total: i64,
}

impl Reported {
    pub(super) fn add(&self, report: &Report, now_ms: u64) {
        let account = &report.account;
        let mut tables = lock(&self.tables);
        for span in report.spans() {
            let table = table(&mut tables, self.id(account, span), now_ms);
            table.total = table.total.saturating_add(report.total());
            for (label, units) in &report.units {
                let key = label::text(&label.key, |key| self.hash(key));
                let sum = table.units.entry(account.member(label, key)).or_default();
                *sum = sum.saturating_add(*units);
            }
            table.trim(account.kept());
        }
    }

    pub(super) fn rankings(&self, account: &Account, now_ms: u64) -> Vec<Ranking> {
        let tables = lock(&self.tables);
        let spans = account.spans(now_ms).into_iter();
        let rankings = spans.filter_map(|span| {
            let table = tables.get(&self.id(account, span))?;
            let members = table.units.iter();
            let members =
                members.map(|(member, units)| (member.clone(), (*units).max(0).unsigned_abs()));
            Some(Ranking {
                span,
                members: members.collect(),
                total: table.total.max(0).unsigned_abs(),
            })
        });
        rankings.collect()
    }

    fn id(&self, account: &Account, span: Span) -> TableId {
        let token = match account {
            Account::Contributors { policy, key } => self.tokens.token(policy.name(), key),
            Account::Denials => (0, 0),
        };
        (span.release_ms(), span.length_ms, token)
    }

    /// The hash has no meaning outside of this process.
    fn hash(&self, key: &Key) -> String {
        let (first, second) = self.tokens.token("", key);
        format!("{first:016x}{second:016x}")
    }
}

/// The table of this span. A new table drops a few that have left their window. If there are none and all places are
/// taken, it replaces the table that leaves first.
fn table(tables: &mut Tables, id: TableId, now_ms: u64) -> &mut Table {
    if !tables.contains_key(&id) {
        for _ in 0..DROPPED_AT_ONCE {
            let is_full = tables.len() >= MAX_TABLES;
            match tables.first_entry() {
                Some(first) if is_full || first.key().0 <= now_ms => drop(first.remove()),
                _ => break,
            }
        }
    }
    tables.entry(id).or_default()
}

impl Table {
    /// Keeps the members with the most units.
    fn trim(&mut self, most: usize) {
        if self.units.len() > most {
            let mut all: Vec<_> = self.units.drain().collect();
            // Every table keeps the same ones of equals, as Redis does.
            all.sort_unstable_by(|a, b| (b.1, &b.0).cmp(&(a.1, &a.0)));
            self.units.extend(all.into_iter().take(most));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_table_drops_few_that_are_over_and_there_is_never_one_too_many() {
        let mut tables = Tables::default();
        let most = MAX_TABLES as u64;
        let id = |release_ms, number| (release_ms, 0, (0, number));
        for number in 0..most {
            table(&mut tables, id(1_000 + number % 7, number), 0);
        }
        assert_eq!(tables.len(), MAX_TABLES);
        // No table is over: the one that will be over first makes room, and a table that is there needs none.
        table(&mut tables, id(2_000, most), 0);
        table(&mut tables, id(2_000, most), 0);
        assert_eq!(tables.len(), MAX_TABLES);
        assert!(!tables.contains_key(&id(1_000, 0)));
        // All are over.
        for number in 1..=MAX_TABLES {
            table(&mut tables, id(5_000, most + number as u64), 3_000);
            let dropped = DROPPED_AT_ONCE * number;
            let left = (MAX_TABLES + number).saturating_sub(dropped).max(number);
            assert_eq!(tables.len(), left);
        }
    }
}
