//! [`RefundEpochs`]: numbers the refunds and blocks through this process, to find out whether one came after a
//! question.

use super::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Release},
};

/// Numbers everything that is given back, and keeps the last number of each group. Policies and keys are hashed to
/// groups. If two share a group, a refusal may be dropped without need.
#[derive(Debug)]
pub(super) struct RefundEpochs {
    last: AtomicU64,
    groups: Box<[AtomicU64]>,
}

impl RefundEpochs {
    pub(super) fn new(groups: usize) -> Self {
        Self {
            last: AtomicU64::new(0),
            groups: (0..groups).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The group for a hash.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low bits are as good as all"
    )]
    pub(super) fn group(&self, hash: u64) -> usize {
        hash as usize % self.groups.len()
    }

    /// The last number. Read it *before* you send a check: the store's answer includes everything with a number up to
    /// it, and anything that happens while the check is under way gets a greater number.
    pub(super) fn last(&self) -> u64 {
        self.last.load(Acquire)
    }

    /// Call this *after* the store has confirmed the refund or block, and before your caller gets the answer.
    pub(super) fn note(&self, group: usize) {
        let number = self.last.fetch_add(1, AcqRel) + 1;
        self.groups[group].fetch_max(number, Release);
    }

    /// Whether nothing was given back since the number was read.
    pub(super) fn none_since(&self, number: u64, group: usize) -> bool {
        self.groups[group].load(Acquire) <= number
    }
}
