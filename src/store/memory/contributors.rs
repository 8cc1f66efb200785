//! Who has contributed to accounts, as the Redis store keeps it: a table for each sixth of a window.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    contributors::{Contribution, Contributors, KEPT_LABELS, Kept, Span, label},
    key::Key,
    policy::Policy,
};

/// How many tables are kept: those of some thousand accounts.
const MAX_TABLES: usize = 8_192;

#[derive(Default)]
pub(super) struct ContributorTables {
    tables: Mutex<HashMap<TableId, Table>>,
    /// For the hashes of labels that cannot be shown.
    hasher: RandomState,
}

/// The name of the policy, the key, and the span.
type TableId = (Box<str>, Key, u64, u64);

#[derive(Default)]
struct Table {
    units: HashMap<Arc<Key>, i64>,
    total: i64,
    error: i64,
    release_ms: u64,
}

impl ContributorTables {
    pub(super) fn contribute(&self, contribution: &Contribution, now_ms: u64) -> Kept {
        let release_ms = contribution.span.release_ms();
        let mut tables = self.tables();
        let id = id(contribution.policy(), contribution.key(), contribution.span);
        if tables.len() >= MAX_TABLES && !tables.contains_key(&id) {
            make_room(&mut tables, now_ms);
        }
        let table = tables.entry(id).or_default();
        table.release_ms = release_ms;
        table.add(contribution)
    }

    pub(super) fn contributors(&self, policy: &Policy, key: &Key, now_ms: u64) -> Contributors {
        let (mut units, mut total, mut error) = (Vec::new(), 0_u64, 0_u64);
        let tables = self.tables();
        for span in Span::window(policy, now_ms) {
            let Some(table) = tables.get(&id(policy, key, span)) else {
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

    fn tables(&self) -> MutexGuard<'_, HashMap<TableId, Table>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Useless outside of this process.
    fn hash(&self, label: &Key) -> String {
        let [first, second] = [0, 1].map(|half| self.hasher.hash_one((half, label)));
        format!("{first:016x}{second:016x}")
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

/// Drops the tables that are no longer part of a window; or else the one that is the first to be so.
fn make_room(tables: &mut HashMap<TableId, Table>, now_ms: u64) {
    tables.retain(|_, table| table.release_ms > now_ms);
    if tables.len() >= MAX_TABLES {
        let first = tables.iter().min_by_key(|(_, table)| table.release_ms);
        if let Some(id) = first.map(|(id, _)| id.clone()) {
            tables.remove(&id);
        }
    }
}

fn positive(units: i64) -> u64 {
    u64::try_from(units).unwrap_or(0)
}
