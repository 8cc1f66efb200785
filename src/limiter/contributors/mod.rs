//! [`Tracker`]: counts contributors in this process, and reports them to the store.
//!
//! ```text
//!  decision ──▶ record ──▶ account ──▶ sketch          on the request's path: a lock, no waiting
//!                             │
//!               flush, once a second ──▶ Operation::Contribute ──▶ what was kept ──▶ sketch
//! ```

mod account;
mod flush;
mod sketch;

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::{Limiter, caller::To, delivery::Delivery};
use crate::{
    domain::{
        charge::Charge,
        check::Check,
        contributors::{Contribution, Contributors, Kept},
        decision::{Decision, Usage},
        error::StoreError,
        key::Key,
        policy::Policy,
        settlement::Settlement,
    },
    observe::{CallInfo, CallKind},
    store::{Store, StoreExt, StoreFuture},
};
use account::Account;
use sketch::Label;

/// Enough that threads rarely meet.
const SHARDS: usize = 16;

/// How many accounts are kept; beyond that, the least recently used leave.
const MAX_ACCOUNTS: usize = 1_024;

/// The accounts of one limiter and its clones.
#[derive(Default)]
pub(super) struct Tracker {
    hasher: RandomState,
    shards: [Mutex<Accounts>; SHARDS],
    pub(super) delivery: Delivery,
    /// The number of flushes so far.
    flushes: AtomicU64,
}

/// Keyed by a hash of policy and key. If two accounts share one of the 2^64 hashes, the second is not counted.
type Accounts = HashMap<u64, Account>;

impl Tracker {
    /// Counts units for the contributor to a charge. `is_now` says that `at_ms` is the time of a decision just made.
    fn add(&self, charge: &Charge, at_ms: u64, units: i64, is_now: bool) {
        let Some(label) = charge.label().filter(|_| units != 0) else {
            return;
        };
        let (policy, key) = (charge.policy(), charge.key());
        let now = self.flushes.load(Relaxed);
        let label = self.label(label);
        let hash = self.hash(policy, key);
        let mut accounts = self.shard(hash);
        let account = match accounts.get_mut(&hash) {
            Some(account) => account,
            None => {
                make_room(&mut accounts);
                let new = Account::new(policy, key, at_ms);
                accounts.entry(hash).or_insert(new)
            }
        };
        // Two accounts may have the same hash. Then only the first one is counted.
        if account.is(policy, key) {
            if is_now {
                account.be_at(policy, at_ms);
            }
            account.used = now;
            account.add(policy, label, at_ms, units);
        }
    }

    /// Notes how much of a contribution the store has kept.
    fn note(&self, sent: &Contribution, kept: &Kept) {
        let hash = self.hash(&sent.policy, &sent.key);
        if let Some(account) = self.shard(hash).get_mut(&hash)
            && account.is(&sent.policy, &sent.key)
        {
            let labels = sent.units.iter().map(|(key, _)| self.label(key));
            account.note(sent, labels, kept);
        }
    }

    fn label<'a>(&self, key: &'a Arc<Key>) -> Label<'a> {
        Label {
            key,
            hash: self.hasher.hash_one(key),
        }
    }

    fn hash(&self, policy: &Policy, key: &Key) -> u64 {
        self.hasher
            .hash_one((policy.name(), key.kind(), key.value()))
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Accounts> {
        lock(&self.shards[(hash & 0xFFFF) as usize % SHARDS])
    }
}

fn lock(accounts: &Mutex<Accounts>) -> MutexGuard<'_, Accounts> {
    accounts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops the least recently used account if the shard is full.
fn make_room(accounts: &mut Accounts) {
    if accounts.len() >= MAX_ACCOUNTS / SHARDS {
        let oldest = accounts.iter().min_by_key(|(_, account)| account.used);
        if let Some(hash) = oldest.map(|(hash, _)| *hash) {
            accounts.remove(&hash);
        }
    }
}

impl Limiter {
    /// Lists the contributors to the charges of `key` under `policy`, in the current window and across all processes:
    /// see [`contributors`](crate::contributors).
    ///
    /// The limiter first reports the newest contributions of this process. Those of the last second or so of other
    /// processes may be missing. The observer sees a [peek](crate::observe::CallKind::Peek).
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout;
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when the store keeps no contributors.
    pub async fn contributors(
        &self,
        policy: &Policy,
        key: &Key,
    ) -> Result<Contributors, StoreError> {
        let charges = [Charge::new(policy, key.clone(), 0)];
        let info = CallInfo::of(CallKind::Peek, &charges);
        let reports = Arc::clone(&self.inner.jobs.reporter.0);
        let (policy, key) = (policy.clone(), key.clone());
        let begin = |_: &dyn Store| {
            StoreFuture::pending(async move {
                let (tracker, store) = (&reports.contributors, &reports.store);
                tracker.flush_account(&**store, &policy, &key).await?;
                store.contributors(&policy, &key).await
            })
        };
        self.inner.caller.ask(To::Store, info, begin).await
    }

    /// Counts an admission by the store for its contributors.
    pub(super) fn record_contributors(&self, decision: &Decision, check: &Check) {
        let Decision::Allowed(usage) = decision else {
            return;
        };
        if usage.is_local() {
            return;
        }
        self.record(check.charges(), usage);
        if let Some(Decision::Allowed(shadow)) = usage.shadow() {
            self.record(check.shadow_charges(), shadow);
        }
    }

    fn record(&self, charges: &[Charge], usage: &Usage) {
        let at_ms = usage.decided_at_ms();
        let reports = &self.inner.jobs.reporter.0;
        for charge in charges {
            let units = charge.cost().cast_signed();
            reports.contributors.add(charge, at_ms, units, true);
        }
        reports.ensure_running();
    }

    /// Counts the difference that a settlement makes: units that are given back in the span of the original charge, and
    /// further ones in that of `settled`, the usage after the settlement.
    pub(super) fn record_settled_contributors(&self, settlement: &Settlement, settled: &Usage) {
        let usage = settlement.usage();
        if !settlement.check().has_contributors() || usage.is_local() {
            return;
        }
        let reports = &self.inner.jobs.reporter.0;
        let charges = settlement.check().charges().iter();
        for (charge, cost) in charges.zip(settlement.costs()) {
            let difference = cost.cast_signed() - charge.cost().cast_signed();
            let is_now = difference > 0;
            let at_ms = if is_now { settled } else { usage }.decided_at_ms();
            reports.contributors.add(charge, at_ms, difference, is_now);
        }
        reports.ensure_running();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_keeps_the_accounts_that_were_used_last() {
        let policy = Policy::parse("api", "1000/1m").unwrap();
        let mut accounts = Accounts::new();
        for number in 0..100 {
            make_room(&mut accounts);
            let mut account = Account::new(&policy, &Key::new("account", "acme"), 0);
            account.used = if number == 7 { 1_000 } else { number };
            accounts.insert(number, account);
        }
        let mut kept: Vec<_> = accounts.into_keys().collect();
        kept.sort_unstable();
        let expected: Vec<_> = [7].into_iter().chain(37..100).collect();
        assert_eq!(kept, expected);
    }
}
