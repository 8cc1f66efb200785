//! [`Sent`]: whether an operation that waits for its turn was sent, or its caller left first.

use std::sync::{
    Arc,
    atomic::{
        AtomicU8,
        Ordering::{AcqRel, Acquire},
    },
};

/// Shared by the caller of an operation and its sender. The first of them decides.
#[derive(Clone, Debug)]
pub(crate) enum Sent {
    /// [`QUEUED`], `SENT` or [`LEFT`].
    #[cfg_attr(
        not(feature = "redis"),
        expect(dead_code, reason = "only a store over a network has a queue")
    )]
    One(Arc<AtomicU8>),
    /// Several operations that are answered together.
    All(Arc<[Self]>),
}

const QUEUED: u8 = 0;
#[cfg(feature = "redis")]
const SENT: u8 = 1;
const LEFT: u8 = 2;

#[cfg(feature = "redis")]
impl Sent {
    pub(crate) fn queued() -> Self {
        Self::One(Arc::new(AtomicU8::new(QUEUED)))
    }

    /// Notes that the operation, or one of those that share the mark, is sent now. Returns `false` if the caller has left:
    /// do not send it.
    pub(crate) fn begin(&self) -> bool {
        match self {
            Self::One(state) => becomes(state, SENT),
            Self::All(each) => each.iter().all(Self::begin),
        }
    }
}

impl Sent {
    /// Notes that the caller leaves. Returns whether the operation is never sent; of several operations, none.
    pub(crate) fn leave(&self) -> bool {
        match self {
            Self::One(state) => becomes(state, LEFT),
            // Every one leaves, whatever the others did.
            Self::All(each) => each.iter().filter(|one| !one.leave()).count() == 0,
        }
    }
}

/// Whether the operation was in the queue, or is already what it becomes.
fn becomes(state: &AtomicU8, next: u8) -> bool {
    let last = state.compare_exchange(QUEUED, next, AcqRel, Acquire);
    last.is_ok() || last == Err(next)
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_sent_or_left_whichever_comes_first() {
        let (left, sent) = (Sent::queued(), Sent::queued());
        assert!(left.leave() && left.leave());
        assert!(!left.begin());
        assert!(sent.begin());
        assert!(!sent.leave());
        let both = |parts: [&Sent; 2]| Sent::All(Arc::new(parts.map(Sent::clone)));
        assert!(both([&left, &left]).leave());
        let waits = Sent::queued();
        assert!(!both([&sent, &waits]).leave());
        assert!(!waits.begin(), "the caller of both has left");
    }
}
