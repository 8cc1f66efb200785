//! [`CallId`]: in which call an operation travels.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// In which call an operation travels, known once it is sent; shared between who waits for it and who sends it.
///
/// Calls are numbered in the order in which they are sent, throughout the process.
#[derive(Clone, Debug)]
pub(crate) struct CallId(Arc<AtomicU64>);

/// The number of an operation that was not sent.
#[cfg(feature = "redis")]
const UNSENT: u64 = 0;

#[cfg(feature = "redis")]
impl CallId {
    pub(crate) fn unsent() -> Self {
        Self(Arc::new(AtomicU64::new(UNSENT)))
    }

    /// The number of the next call.
    pub(crate) fn next() -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(UNSENT);
        LAST.fetch_add(1, Relaxed) + 1
    }

    pub(crate) fn set(&self, call: u64) {
        self.0.store(call, Relaxed);
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.get() != UNSENT
    }
}

impl CallId {
    /// 0 before the operation is sent.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
