//! [`Table`]: finds the entry of a charge.

use std::{
    array,
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, PoisonError, RwLock},
};

use smallvec::SmallVec;
use tokio::sync::Semaphore;

use super::{
    clock::{Clock, Moment},
    entry::{Entry, HOT, span},
    hot::HotCounts,
    transfer::{Bar, Transfer, Transfers},
};
use crate::domain::{
    charge::Charge, check::Check, decision::Decision, key::Key, policy::Policy, rule::millis,
};

/// The maximum number of identities with leases.
const MAX_ENTRIES: usize = 4_096;

const SHARDS: usize = 16;

type Shard = RwLock<HashMap<u64, Arc<Entry>>>;

/// Units of each charge of a check.
pub(super) type Units = SmallVec<[u64; 2]>;

/// The hot identities, in bounded memory.
#[derive(Debug)]
pub(super) struct Table {
    hasher: RandomState,
    counts: HotCounts,
    /// Indexed by the hash of the policy's name and the key. If two have the same hash, the second is never hot.
    shards: [Shard; SHARDS],
    transfers: Arc<Transfers>,
    /// Its permit is free while no task sweeps the entries.
    pub(super) sweeper: Arc<Semaphore>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            counts: HotCounts::new(),
            shards: array::from_fn(|_| RwLock::default()),
            transfers: Arc::new(Transfers::new()),
            sweeper: Arc::new(Semaphore::new(1)),
        }
    }

    /// The number of the last refund: see [`Transfers::given_back`].
    pub(super) fn given_back(&self) -> u64 {
        self.transfers.given_back()
    }

    /// Marks a denial as not to be repeated if units may make it fit sooner: units that can be spent here, or that were
    /// returned after `given_back` was read.
    pub(super) fn forbid_early_repeats(&self, decision: &Decision, given_back: u64) {
        let Decision::Denied(denial) = decision else {
            return;
        };
        let usage = denial.usage();
        let charges = usage.check().charges().iter().zip(usage.policies());
        let mut denying =
            charges.filter(|(_, usage)| usage.rules().iter().any(|rule| rule.is_exceeded()));
        let may_fit_sooner = denying.any(|(charge, _)| {
            let hash = self.hash(charge.policy(), charge.key());
            let has_units = self.get(hash).is_some_and(|entry| entry.has_units());
            has_units
                || self
                    .transfers
                    .may_arrive(given_back, self.transfers.slot(hash))
        });
        if may_fit_sooner {
            usage.forbid_repeats();
        }
    }

    /// The entry of a charge if it is hot. Creates one only if `may_lease`.
    pub(super) fn find(
        &self,
        charge: &Charge,
        clock: &Clock,
        may_lease: impl FnOnce() -> bool,
    ) -> Option<Arc<Entry>> {
        let span = span(charge)?;
        let hash = self.hash(charge.policy(), charge.key());
        if let Some(entry) = self.get(hash) {
            return entry.is_of(charge).then_some(entry);
        }
        let now = clock.now();
        let number = millis(now.monotonic) / millis(span).max(1);
        if self.counts.count(hash, number) < HOT || !may_lease() {
            return None;
        }
        let mut entries = self
            .shard(hash)
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // A full shard makes no room: entries leave when they cool down, and until then the store decides about this
        // identity.
        if entries.len() >= MAX_ENTRIES / SHARDS {
            return None;
        }
        let entry = entries.entry(hash).or_insert_with(|| {
            let slot = self.transfers.slot(hash);
            Arc::new(Entry::new(charge, span, now, &self.transfers, slot))
        });
        entry.is_of(charge).then(|| Arc::clone(entry))
    }

    /// The entry of a charge, if it is hot.
    pub(super) fn of(&self, charge: &Charge) -> Option<Arc<Entry>> {
        self.get(self.hash(charge.policy(), charge.key()))
    }

    /// The units of each charge that can be spent here.
    pub(super) fn unspent(&self, check: &Check, now: Moment) -> Units {
        let entry = |charge| self.of(charge).filter(|entry| entry.is_of(charge));
        let units = |charge| entry(charge).map_or(0, |entry| entry.unspent(now));
        check.charges().iter().map(units).collect()
    }

    fn get(&self, hash: u64) -> Option<Arc<Entry>> {
        let entries = self.shard(hash).read();
        let entries = entries.unwrap_or_else(PoisonError::into_inner);
        entries.get(&hash).cloned()
    }

    /// The entries that match, in no particular order.
    pub(super) fn entries(&self, is_wanted: impl Fn(&Entry) -> bool) -> Vec<Arc<Entry>> {
        let mut wanted = Vec::new();
        for shard in &self.shards {
            let entries = shard.read().unwrap_or_else(PoisonError::into_inner);
            wanted.extend(entries.values().filter(|entry| is_wanted(entry)).cloned());
        }
        wanted
    }

    /// Records that units of a charge are on their way back to the store.
    pub(super) fn begin_transfer(&self, charge: &Charge) -> Transfer {
        self.transfers
            .begin(self.slot(charge.policy(), charge.key()))
    }

    /// Stops fetches of leases of an identity.
    pub(super) fn bar(&self, policy: &Policy, key: &Key) -> Bar {
        self.transfers.bar(self.slot(policy, key))
    }

    /// Waits until no transfer is under way.
    pub(super) async fn transfers_ended(&self) {
        self.transfers.all_ended().await;
    }

    /// Drops the entries that do not match.
    pub(super) fn retain(&self, is_kept: impl Fn(&Entry) -> bool) {
        for shard in &self.shards {
            let mut entries = shard.write().unwrap_or_else(PoisonError::into_inner);
            entries.retain(|_, entry| is_kept(entry));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| {
            let entries = shard.read().unwrap_or_else(PoisonError::into_inner);
            entries.is_empty()
        })
    }

    fn slot(&self, policy: &Policy, key: &Key) -> usize {
        self.transfers.slot(self.hash(policy, key))
    }

    fn hash(&self, policy: &Policy, key: &Key) -> u64 {
        self.hasher.hash_one((policy.name(), key))
    }

    /// Uses other bits of the hash than the map does.
    fn shard(&self, hash: u64) -> &Shard {
        let index = usize::try_from(hash >> 32).unwrap_or(0) % SHARDS;
        &self.shards[index]
    }
}
