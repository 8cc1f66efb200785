//! [`Transfers`]: which identities have units on their way between the store and this process.

use std::sync::{
    Arc,
    atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire},
    },
};

use tokio::sync::Notify;

use crate::{domain::settlement::Settlement, store::layers::give_backs::GiveBacks};

/// More than entries, so that few share one.
const SLOTS: usize = 16_384;

/// A reset that is under way: these are counted in the upper half of a slot, transfers in the lower.
const RESET: u64 = 1 << 32;

/// Counts the transfers that are under way, and numbers those that have ended. Policies and keys are hashed to slots.
#[derive(Debug)]
pub(super) struct Transfers {
    slots: Box<[AtomicU64]>,
    give_backs: GiveBacks,
    ended: Notify,
}

/// Units of an identity on their way from the store to a lease, or back to the store.
///
/// Meanwhile they are charged and cannot be spent. A check that is denied for that may fit when they are there, so that
/// the denial must not be repeated.
#[derive(Debug)]
pub(super) struct Transfer {
    transfers: Arc<Transfers>,
    slot: usize,
}

/// Keeps leases from being fetched while the counts of an identity are reset: whether such a lease was charged before
/// the reset or after it would be unknown.
#[derive(Debug)]
pub(super) struct Bar {
    transfers: Arc<Transfers>,
    slot: usize,
}

impl Transfers {
    pub(super) fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            give_backs: GiveBacks::new(SLOTS),
            ended: Notify::new(),
        }
    }

    pub(super) fn slot(&self, hash: u64) -> usize {
        self.give_backs.slot(hash)
    }

    /// See [`GiveBacks::last`].
    pub(super) fn given_back(&self) -> u64 {
        self.give_backs.last()
    }

    /// Whether units may have arrived since the number was read, or may arrive soon.
    ///
    /// In this order: a transfer is noted before it has ended.
    pub(super) fn may_arrive(&self, given_back: u64, slot: usize) -> bool {
        self.is_under_way(slot) || !self.give_backs.none_since(given_back, slot)
    }

    /// Begins a transfer, before the units leave the place where they were.
    pub(super) fn begin(self: &Arc<Self>, slot: usize) -> Transfer {
        self.slots[slot].fetch_add(1, AcqRel);
        Transfer {
            transfers: Arc::clone(self),
            slot,
        }
    }

    /// Begins one from the store to a lease, unless the counts are being reset.
    pub(super) fn begin_fetch(self: &Arc<Self>, slot: usize) -> Option<Transfer> {
        let transfer = self.begin(slot);
        (self.slots[slot].load(Acquire) < RESET).then_some(transfer)
    }

    /// Keeps leases from being fetched until it is dropped.
    pub(super) fn bar(self: &Arc<Self>, slot: usize) -> Bar {
        self.slots[slot].fetch_add(RESET, AcqRel);
        Bar {
            transfers: Arc::clone(self),
            slot,
        }
    }

    pub(super) fn is_under_way(&self, slot: usize) -> bool {
        !self.slots[slot].load(Acquire).is_multiple_of(RESET)
    }

    /// Waits until no transfer is under way.
    pub(super) async fn all_ended(&self) {
        self.wait_until(|| (0..SLOTS).all(|slot| !self.is_under_way(slot)))
            .await;
    }

    async fn wait_until(&self, is_reached: impl Fn() -> bool) {
        loop {
            // Made before the look, so that a transfer which ends after the look wakes it.
            let ended = self.ended.notified();
            if is_reached() {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let transfers = &self.transfers;
        transfers.give_backs.note(self.slot);
        transfers.slots[self.slot].fetch_sub(1, AcqRel);
        transfers.ended.notify_waiters();
    }
}

impl Bar {
    /// Whether a lease is being fetched or returned, which the reset has to wait for.
    pub(super) fn must_wait(&self) -> bool {
        self.transfers.is_under_way(self.slot)
    }

    /// Waits until no transfer of this identity is under way.
    pub(super) async fn transfers_ended(&self) {
        self.transfers.wait_until(|| !self.must_wait()).await;
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.transfers.slots[self.slot].fetch_sub(RESET, AcqRel);
    }
}

/// The settlement of a lease that has ended, which returns what is unspent; under way until it is dropped.
#[derive(Debug)]
pub(super) struct Unspent {
    pub(super) settlement: Settlement,
    pub(super) _transfer: Transfer,
}
