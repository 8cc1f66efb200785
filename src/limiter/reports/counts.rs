//! [`Counts`]: the tallies of all accounts, in bounded memory.
//!
//! An account has one tally of its contributors. The denied identities are spread over many sets, by their hashes; a
//! filter in front of each, read without a lock, passes most admissions by.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    hash::IdentityHasher,
    tally::{REMEMBERED_MS, Tally},
};
use crate::domain::{
    charge::Charge,
    decision::{Decision, Denial, RuleUsage, Usage},
    denials::DENIED,
    key::Key,
    policy::Policy,
    report::{Account, DENIED_WITHIN, Kept, Label, Report, Span, longest},
    rule::Rule,
};

/// Enough that threads rarely meet.
const SHARDS: usize = 16;

/// How many accounts are kept; beyond that, the least recently used leave.
const MAX_TALLIES: usize = 1_024;

const SETS: usize = 256;

/// After this many flushes without use, the contributors to an account are forgotten.
const IDLE: u64 = 10;

/// Longer values are not counted: otherwise clients could choose how much memory denials take.
const MAX_VALUE: usize = 2_048;

/// A process counts denials in short spans, which are parts of the long ones.
const MINUTE: &Rule = &DENIED_WITHIN[0];

/// The counts of one limiter and its clones.
pub(in crate::limiter) struct Counts {
    hasher: IdentityHasher,
    /// The contributors.
    shards: [Mutex<Tallies>; SHARDS],
    denied: [Set; SETS],
    /// The number of flushes so far.
    flushes: AtomicU64,
    /// The time of the newest denial, in whole seconds, so that few denials write it; 0 if no denial is remembered.
    newest_ms: AtomicU64,
    /// Whether the store keeps no denials.
    denials_are_off: AtomicBool,
}

/// Keyed by a hash of policy and key. If two accounts share one of the 2^64 hashes, the second is not counted.
type Tallies = BTreeMap<u64, Box<Tally>>;

/// A part of the denied identities.
struct Set {
    /// The bits of the hashes of its identities, and of earlier ones. Written under the lock.
    filter: AtomicU64,
    tally: Mutex<Option<Box<Tally>>>,
}

impl Set {
    const fn new() -> Self {
        Self {
            filter: AtomicU64::new(0),
            tally: Mutex::new(None),
        }
    }

    fn may_know(&self, hash: u64) -> bool {
        self.filter.load(Relaxed) & bit(hash) != 0
    }

    fn take_unsent(&self) -> Vec<Report> {
        let mut tally = lock(&self.tally);
        let Some(tally) = tally.as_mut() else {
            return Vec::new();
        };
        let hashes = tally.hashes().iter();
        let bits = hashes.fold(0, |bits, hash| bits | bit(*hash));
        self.filter.store(bits, Relaxed);
        tally.take_unsent()
    }
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            hasher: IdentityHasher::default(),
            shards: Default::default(),
            denied: [const { Set::new() }; SETS],
            flushes: AtomicU64::new(0),
            newest_ms: AtomicU64::new(0),
            denials_are_off: AtomicBool::new(false),
        }
    }
}

impl Counts {
    /// Counts units for the contributor to a charge. `is_now` says that `at_ms` is the time of a decision just made.
    pub(in crate::limiter) fn contribute(
        &self,
        charge: &Charge,
        at_ms: u64,
        units: i64,
        is_now: bool,
    ) {
        let Some(contributor) = charge.label().filter(|_| units != 0) else {
            return;
        };
        let (policy, key) = (charge.policy(), charge.key());
        let (rule, id) = (longest(policy), self.hasher.hash(Some(policy), key));
        let label = || Label {
            policy: None,
            key: Arc::clone(contributor),
        };
        let mut tallies = self.shard(id);
        let new = || Tally::of_contributors(policy, key, rule, at_ms);
        let tally = self.tally(&mut tallies, id, new);
        // Two accounts may have the same hash. Then only the first one is counted.
        if tally.account.is_about(policy, key) {
            if is_now {
                tally.be_at(rule, at_ms);
            }
            let hash = self.hasher.hash(None, contributor);
            tally.add(rule, at_ms, hash, units, label);
        }
    }

    /// Counts the result of a check, and returns whether the task may have to be started.
    pub(in crate::limiter) fn count(&self, decision: &Decision) -> bool {
        match decision {
            Decision::Allowed(usage) => self.newest_ms.load(Relaxed) > 0 && self.admitted(usage),
            _ if self.denials_are_off.load(Relaxed) => false,
            Decision::Denied(denial) => {
                self.denied(denial);
                true
            }
            Decision::Blocked(blocked) => {
                self.deny(None, blocked.key(), blocked.decided_at_ms());
                true
            }
        }
    }

    fn denied(&self, denial: &Denial) {
        let usage = denial.usage();
        for (charge, policy) in usage.check().charges().iter().zip(usage.policies()) {
            if policy.rules().iter().any(RuleUsage::is_exceeded) {
                self.deny(Some(charge.policy()), charge.key(), usage.decided_at_ms());
            }
        }
    }

    /// Counts a denial under this policy, or by a block.
    fn deny(&self, policy: Option<&Policy>, key: &Key, at_ms: u64) {
        if key.value().len() > MAX_VALUE {
            return;
        }
        let newest_ms = (at_ms - at_ms % 1_000).max(1);
        if self.newest_ms.load(Relaxed) != newest_ms {
            self.newest_ms.store(newest_ms, Relaxed);
        }
        let hash = self.hasher.hash(policy, key);
        let set = self.set(hash);
        let mut tally = lock(&set.tally);
        let tally = tally.get_or_insert_with(|| Box::new(Tally::of_denials(MINUTE, at_ms)));
        tally.used = self.flushes.load(Relaxed);
        tally.be_at(MINUTE, at_ms);
        let label = || denied(policy, key);
        tally.add(MINUTE, at_ms, hash, DENIED.cast_signed(), label);
        if !set.may_know(hash) {
            set.filter.fetch_or(bit(hash), Relaxed);
        }
    }

    /// Returns whether the task may have ended since the last count.
    fn admitted(&self, usage: &Usage) -> bool {
        let at_ms = usage.decided_at_ms();
        if at_ms > self.newest_ms.load(Relaxed).saturating_add(REMEMBERED_MS) {
            self.newest_ms.store(0, Relaxed);
            return false;
        }
        let mut is_first = false;
        let charges = usage.check().charges().iter();
        for charge in charges.filter(|charge| charge.cost() > 0) {
            is_first |= self.admit(charge.policy(), charge.key(), at_ms);
        }
        is_first
    }

    /// Counts an admission, if this policy has denied the identity within the hour. Returns whether this is the first
    /// count of the set since the last report.
    fn admit(&self, policy: &Policy, key: &Key, at_ms: u64) -> bool {
        let hash = self.hasher.hash(Some(policy), key);
        let set = self.set(hash);
        if !set.may_know(hash) {
            return false;
        }
        let mut tally = lock(&set.tally);
        let Some(tally) = tally.as_mut() else {
            return false;
        };
        tally.be_at(MINUTE, at_ms);
        if !tally.knows(hash) {
            return false;
        }
        let is_first = !tally.has_news();
        tally.used = self.flushes.load(Relaxed);
        tally.add(MINUTE, at_ms, hash, 1, || denied(Some(policy), key));
        is_first
    }

    /// Takes the unreported counts of some accounts. Denials have a report for each span of both lengths.
    pub(in crate::limiter) fn take(&self, is_asked: impl Fn(&Account) -> bool) -> Vec<Report> {
        let mut reports = Vec::new();
        for shard in &self.shards {
            let mut tallies = lock(shard);
            let asked = tallies.values_mut().filter(|it| is_asked(&it.account));
            reports.extend(asked.flat_map(|tally| tally.take_unsent()));
        }
        if is_asked(&Account::Denials) {
            reports.extend(of_both_lengths(
                self.denied.iter().flat_map(Set::take_unsent),
            ));
        }
        reports
    }

    /// Notes how much of a report the store has kept. Denials are not reported again.
    pub(in crate::limiter) fn note(&self, sent: &Report, kept: &Kept) {
        let Account::Contributors { policy, key } = &sent.account else {
            return;
        };
        let id = self.hasher.hash(Some(policy), key);
        if let Some(tally) = self.shard(id).get_mut(&id)
            && tally.account.is_about(policy, key)
        {
            let labels = sent.units.iter();
            let hashes = labels.map(|(label, _)| self.hasher.hash(None, &label.key));
            tally.note(sent, hashes, kept);
        }
    }

    /// Notes that the store keeps no denials.
    pub(in crate::limiter) fn switch_denials_off(&self) {
        self.denials_are_off.store(true, Relaxed);
        self.newest_ms.store(0, Relaxed);
    }

    /// Ends a flush: forgets the contributors to accounts that have not been used lately, and returns whether something
    /// was.
    pub(in crate::limiter) fn end_flush(&self) -> bool {
        let flush = self.flushes.fetch_add(1, Relaxed) + 1;
        let mut is_used = false;
        for shard in &self.shards {
            let mut tallies = lock(shard);
            tallies.retain(|_, tally| tally.used + IDLE > flush);
            is_used |= !tallies.is_empty();
        }
        let is_recent = |tally: &Tally| tally.used + IDLE > flush;
        is_used || self.any_denied(is_recent)
    }

    /// Whether there is something to report.
    pub(in crate::limiter) fn has_news(&self) -> bool {
        let mut shards = self.shards.iter();
        shards.any(|shard| lock(shard).values().any(|tally| tally.has_news()))
            || self.any_denied(Tally::has_news)
    }

    fn any_denied(&self, is_meant: impl Fn(&Tally) -> bool) -> bool {
        let mut tallies = self.denied.iter().map(|set| lock(&set.tally));
        tallies.any(|tally| tally.as_ref().is_some_and(|tally| is_meant(tally)))
    }

    fn shard(&self, id: u64) -> MutexGuard<'_, Tallies> {
        lock(&self.shards[(id & 0xFFFF) as usize % SHARDS])
    }

    /// The set of an identity with this hash.
    fn set(&self, hash: u64) -> &Set {
        &self.denied[(hash & 0xFFFF) as usize % SETS]
    }

    /// The tally, which may be a new one.
    fn tally<'a>(
        &self,
        tallies: &'a mut Tallies,
        id: u64,
        new: impl FnOnce() -> Tally,
    ) -> &'a mut Tally {
        if tallies.len() >= MAX_TALLIES / SHARDS && !tallies.contains_key(&id) {
            make_room(tallies);
        }
        let tally = tallies.entry(id).or_insert_with(|| Box::new(new()));
        tally.used = self.flushes.load(Relaxed);
        tally
    }
}

fn lock<T>(tallies: &Mutex<T>) -> MutexGuard<'_, T> {
    tallies.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops the least recently used tally.
fn make_room(tallies: &mut Tallies) {
    let oldest = tallies.iter().min_by_key(|(_, tally)| tally.used);
    if let Some(id) = oldest.map(|(id, _)| *id) {
        tallies.remove(&id);
    }
}

/// Joins the denials of all sets: a report for each span of both lengths, with the identities that were denied most.
fn of_both_lengths(denials: impl Iterator<Item = Report>) -> impl Iterator<Item = Report> {
    let mut short = Vec::<Report>::new();
    for report in denials {
        match short.iter_mut().find(|it| it.span == report.span) {
            Some(sum) => sum.join(report),
            None => short.push(report),
        }
    }
    short.iter_mut().for_each(Report::trim);
    short.into_iter().flat_map(|report| {
        let span = Span::at(&DENIED_WITHIN[1], report.span.start_ms);
        let long = Report {
            span,
            ..report.clone()
        };
        [report, long]
    })
}

fn denied(policy: Option<&Policy>, key: &Key) -> Label {
    Label {
        policy: policy.cloned(),
        key: Arc::new(key.clone()),
    }
}

/// The bit of a hash in a filter.
const fn bit(hash: u64) -> u64 {
    1 << (hash >> 58)
}

#[cfg(test)]
mod tests;
