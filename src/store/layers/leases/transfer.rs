//! [`Transfers`]: the identities whose units are on their way between the store and this process.

use std::sync::{
    Arc,
    atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire},
    },
};

use tokio::sync::Notify;

use crate::{domain::settlement::Settlement, store::layers::refund_epochs::RefundEpochs};

/// More slots than entries, so that few entries share one.
const SLOTS: usize = 16_384;

/// A reset that is under way. The upper half of a slot counts these, the lower half transfers.
const RESET: u64 = 1 << 32;

/// Counts the transfers under way, and numbers those that have ended. Policies and keys are hashed to slots.
#[derive(Debug)]
pub(super) struct Transfers {
    slots: Box<[AtomicU64]>,
    refund_epochs: RefundEpochs,
    ended: Notify,
}

/// Units of an identity on their way from the store to a lease, or back to the store.
///
/// Meanwhile they are charged and cannot be spent. A check that is denied in this time may fit as soon as they arrive,
/// so that denial must not be repeated.
#[derive(Debug)]
pub(super) struct Transfer {
    transfers: Arc<Transfers>,
    slot: usize,
}

/// Stops fetches while the counts of an identity are reset. Otherwise a lease could be charged before the reset or
/// after it, and this process could not know which.
#[derive(Debug)]
pub(super) struct Bar {
    transfers: Arc<Transfers>,
    slot: usize,
}

impl Transfers {
    pub(super) fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            refund_epochs: RefundEpochs::new(SLOTS),
            ended: Notify::new(),
        }
    }

    pub(super) fn slot(&self, hash: u64) -> usize {
        self.refund_epochs.slot(hash)
    }

    /// See [`RefundEpochs::last`].
    pub(super) fn given_back(&self) -> u64 {
        self.refund_epochs.last()
    }

    /// Whether units may have arrived since the number was read, or may arrive soon.
    ///
    /// The order of both reads matters: a transfer records its number before it ends.
    pub(super) fn may_arrive(&self, given_back: u64, slot: usize) -> bool {
        self.is_under_way(slot) || !self.refund_epochs.none_since(given_back, slot)
    }

    /// Begins a transfer. Call this before the units leave their place.
    pub(super) fn begin(self: &Arc<Self>, slot: usize) -> Transfer {
        self.slots[slot].fetch_add(1, AcqRel);
        Transfer {
            transfers: Arc::clone(self),
            slot,
        }
    }

    /// Begins a transfer from the store to a lease, unless a reset is under way.
    pub(super) fn begin_fetch(self: &Arc<Self>, slot: usize) -> Option<Transfer> {
        let begin = |known| (known < RESET).then_some(known + 1);
        self.slots[slot].fetch_update(AcqRel, Acquire, begin).ok()?;
        Some(Transfer {
            transfers: Arc::clone(self),
            slot,
        })
    }

    /// Stops fetches until the bar is dropped.
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
            // Created before the test, so that a transfer that ends after the test wakes this task.
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
        transfers.refund_epochs.note(self.slot);
        transfers.slots[self.slot].fetch_sub(1, AcqRel);
        transfers.ended.notify_waiters();
    }
}

impl Bar {
    /// Whether a lease is being fetched or returned. The reset has to wait for this.
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

/// The settlement that returns the unspent units of a lease. The transfer is under way until this is dropped.
#[derive(Debug)]
pub(super) struct Unspent {
    pub(super) settlement: Settlement,
    pub(super) _transfer: Transfer,
}
