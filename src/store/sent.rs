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
pub(crate) struct Sent(
    /// [`QUEUED`], `SENT` or [`LEFT`].
    Arc<AtomicU8>,
);

const QUEUED: u8 = 0;
#[cfg(feature = "redis")]
const SENT: u8 = 1;
const LEFT: u8 = 2;

#[cfg(feature = "redis")]
impl Sent {
    pub(crate) fn queued() -> Self {
        Self(Arc::new(AtomicU8::new(QUEUED)))
    }

    /// Notes that the operation, or one of those that share the mark, is sent now. Returns `false` if the caller has left:
    /// do not send it.
    pub(crate) fn begin(&self) -> bool {
        self.becomes(SENT)
    }
}

impl Sent {
    /// Notes that the caller leaves. Returns whether the operation is never sent.
    pub(crate) fn leave(&self) -> bool {
        self.becomes(LEFT)
    }

    /// Whether the operation was in the queue, or is already what it becomes.
    fn becomes(&self, next: u8) -> bool {
        let last = self.0.compare_exchange(QUEUED, next, AcqRel, Acquire);
        last.is_ok() || last == Err(next)
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_sent_or_left_whichever_comes_first() {
        let (left, sent) = (Sent::queued(), Sent::queued());
        assert!(left.leave() && left.leave());
        assert!(!left.begin());
        assert!(sent.begin() && sent.begin());
        assert!(!sent.leave());
    }
}
