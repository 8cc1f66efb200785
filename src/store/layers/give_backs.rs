//! [`GiveBacks`]: what was given back through this process, and when.

use super::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Release},
};

/// Numbers what is given back, and keeps the last number of each slot. Policies and keys are hashed to slots; where two
/// share one, a refusal is forgotten for nothing.
#[derive(Debug)]
pub(super) struct GiveBacks {
    last: AtomicU64,
    slots: Box<[AtomicU64]>,
}

impl GiveBacks {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            last: AtomicU64::new(0),
            slots: (0..slots).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The slot for a hash.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low bits are as good as all"
    )]
    pub(super) fn slot(&self, hash: u64) -> usize {
        hash as usize % self.slots.len()
    }

    /// The last number. To be read *before* a check is sent: what the store has done until then, it knows of; and what
    /// it does while the check is on its way gets a greater number.
    pub(super) fn last(&self) -> u64 {
        self.last.load(Acquire)
    }

    /// To be called *after* the store has answered that it has given back, and before the caller is told.
    pub(super) fn note(&self, slot: usize) {
        let number = self.last.fetch_add(1, AcqRel) + 1;
        self.slots[slot].fetch_max(number, Release);
    }

    /// Whether nothing was given back since the number was read.
    pub(super) fn none_since(&self, number: u64, slot: usize) -> bool {
        self.slots[slot].load(Acquire) <= number
    }
}
