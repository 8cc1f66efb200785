//! [`Counts`]: what this process has counted for operators since the last report, in bounded memory.
//!
//! ```text
//! denial, contribution ──▶ tally of the account and span ──▶ taken once a second ──▶ added up by the store
//! ```

use std::{
    collections::{BTreeMap, btree_map::Entry},
    hash::{BuildHasher, RandomState},
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use crate::domain::{
    charge::Charge,
    decision::Decision,
    denials::SPAN_OF_MINUTE_MS,
    key::Key,
    policy::Policy,
    report::{Account, Label, Report, Span, longest},
};

/// How many tallies there are in one second. Units of further accounts are not counted.
const MAX_TALLIES: usize = 1_024;

/// The tallies that are kept free for denials.
const OF_DENIALS: usize = 16;

/// How many labels a tally has.
const MAX_LABELS: usize = 64;

/// Longer values are not counted: otherwise clients could choose how much memory denials take.
const MAX_VALUE: usize = 2_048;

/// The hash of the account, which is 0 for denials, and the begin of the span. A client cannot choose two accounts of one hash.
type TallyId = (u64, u64);

/// The counts of one limiter and its clones.
#[derive(Default)]
pub(super) struct Counts {
    hasher: RandomState,
    tallies: Mutex<BTreeMap<TallyId, Tally>>,
    /// Whether the store keeps no denials.
    denials_are_off: AtomicBool,
}

/// The units of the labels of one account in one span.
struct Tally {
    account: Account,
    at_ms: u64,
    latest_ms: u64,
    /// The [mark] of each label, so that most searches look at no label.
    marks: Vec<u32>,
    labels: Vec<(Label, i64)>,
    /// The units of the labels that were replaced.
    others: i64,
    /// The place after the label that was replaced last.
    next: usize,
}

impl Counts {
    /// Counts units, at most 2^53, for the contributor to a charge; those below 0 are taken back. The charge was made at
    /// `at_ms`, and it is `now_ms` by the store.
    pub(super) fn contribute(&self, charge: &Charge, at_ms: u64, now_ms: u64, units: i64) {
        let Some(contributor) = charge.label().filter(|_| units != 0) else {
            return;
        };
        let (policy, key) = (charge.policy(), charge.key());
        let span = Span::at(longest(policy), at_ms);
        let id = (self.hasher.hash_one((policy.name(), key)), span.start_ms);
        let account = || Account::Contributors {
            policy: policy.clone(),
            key: key.clone(),
        };
        self.add(id, now_ms, account, (None, contributor), units);
    }

    /// Counts a denial for each policy and identity, or for the blocked identity. Returns whether anything was counted.
    pub(super) fn deny(&self, decision: &Decision) -> bool {
        if self.denials_are_off.load(Relaxed) {
            return false;
        }
        match decision {
            Decision::Allowed(_) => return false,
            Decision::Denied(denial) => {
                let (usage, at_ms) = (denial.usage(), denial.usage().decided_at_ms());
                let denying = usage.denying();
                denying.for_each(|it| self.deny_key(Some(it.policy()), it.key(), at_ms));
            }
            Decision::Blocked(blocked) => {
                self.deny_key(None, blocked.key(), blocked.decided_at_ms());
            }
        }
        true
    }

    /// Counts a denial under this policy, or by a block.
    fn deny_key(&self, policy: Option<&Policy>, key: &Key, at_ms: u64) {
        if key.value().len() > MAX_VALUE {
            return;
        }
        let id = (0, at_ms - at_ms % SPAN_OF_MINUTE_MS);
        self.add(id, at_ms, || Account::Denials, (policy, key), 1);
    }

    fn add(
        &self,
        id: TallyId,
        now_ms: u64,
        account: impl FnOnce() -> Account,
        label: (Option<&Policy>, &Key),
        units: i64,
    ) {
        let mut tallies = self.tallies();
        let most = if id.0 == 0 {
            MAX_TALLIES
        } else {
            MAX_TALLIES - OF_DENIALS
        };
        let has_room = tallies.len() < most;
        let tally = match tallies.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) if has_room => new.insert(Tally::new(account(), id.1)),
            Entry::Vacant(_) => return,
        };
        tally.latest_ms = tally.latest_ms.max(now_ms);
        tally.add(label, units);
    }

    /// Takes the counts of some accounts.
    pub(super) fn take(&self, is_asked: impl Fn(&Account) -> bool) -> Vec<Report> {
        let mut tallies = self.tallies();
        let (asked, others) = mem::take(&mut *tallies)
            .into_iter()
            .partition(|(_, tally)| is_asked(&tally.account));
        *tallies = others;
        drop(tallies);
        let asked: BTreeMap<TallyId, Tally> = asked;
        asked.into_values().map(Tally::into_report).collect()
    }

    /// Whether there is something to report.
    pub(super) fn has_news(&self) -> bool {
        !self.tallies().is_empty()
    }

    /// Whether half of the room for denials is used.
    pub(super) fn fills_up(&self) -> bool {
        self.tallies().len() >= OF_DENIALS / 2
    }

    /// Notes that the store keeps no denials.
    pub(super) fn switch_denials_off(&self) {
        self.denials_are_off.store(true, Relaxed);
    }

    fn tallies(&self) -> MutexGuard<'_, BTreeMap<TallyId, Tally>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tally {
    const fn new(account: Account, at_ms: u64) -> Self {
        Self {
            account,
            at_ms,
            latest_ms: 0,
            marks: Vec::new(),
            labels: Vec::new(),
            others: 0,
            next: 0,
        }
    }

    fn add(&mut self, (policy, key): (Option<&Policy>, &Key), units: i64) {
        let mark = mark(key);
        if let Some(place) = self.place(mark, policy, key) {
            let known = &mut self.labels[place].1;
            *known = known.saturating_add(units);
            return;
        }
        let (policy, key) = (policy.cloned(), key.clone());
        let new = (Label { policy, key }, units);
        if self.labels.len() < MAX_LABELS {
            self.marks.push(mark);
            self.labels.push(new);
            return;
        }
        let place = self.smallest();
        self.marks[place] = mark;
        let (_, replaced) = mem::replace(&mut self.labels[place], new);
        self.others = self.others.saturating_add(replaced);
        self.next = place + 1;
    }

    fn place(&self, mark: u32, policy: Option<&Policy>, key: &Key) -> Option<usize> {
        // Without an early end, the processor compares several at a time.
        let is_marked = |found, other: &u32| found | (*other == mark);
        if !self.marks.iter().fold(false, is_marked) {
            return None;
        }
        let name = policy.map(Policy::name);
        let mut places = self.marks.iter().zip(&self.labels);
        places.position(|(other, (label, _))| {
            *other == mark && label.key == *key && label.policy.as_ref().map(Policy::name) == name
        })
    }

    /// The place of the label with the fewest units. Among equals, the next in turn is replaced, so that a new label
    /// has time to grow.
    fn smallest(&self) -> usize {
        let size = |place: &usize| self.labels[*place].1.unsigned_abs();
        let places = (self.next..MAX_LABELS).chain(0..self.next);
        // Mostly there is one with the least.
        let least = places.clone().find(|place| size(place) <= 1);
        least.or_else(|| places.min_by_key(size)).unwrap_or(0)
    }

    fn into_report(self) -> Report {
        let units = self.labels.into_iter();
        Report {
            account: self.account,
            at_ms: self.at_ms,
            latest_ms: self.latest_ms,
            units: units.filter(|(_, units)| *units != 0).collect(),
            others: self.others,
        }
    }
}

/// A number that few keys share.
fn mark(key: &Key) -> u32 {
    let value = key.value();
    let words = value.first_chunk().zip(value.last_chunk());
    let word = match words {
        Some((first, last)) => {
            u64::from_le_bytes(*first) ^ u64::from_le_bytes(*last).rotate_left(23)
        }
        None => value
            .iter()
            .fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    let mixed = (word ^ value.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32) as u32
}

#[cfg(test)]
mod tests;
