//! [`SentCall`]: a call that was sent, and whether a failure of it was reported.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

/// A call that was sent, shared by all its callers: however many see it fail, the breaker gets one report.
#[derive(Debug)]
pub(crate) struct SentCall {
    at: Instant,
    is_reported: AtomicBool,
}

/// Which call an operation travels in, known once it is sent; shared between its caller and the sender.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journey(Arc<OnceLock<Arc<SentCall>>>);

/// The call that a failure is the fault of.
#[derive(Clone, Debug)]
pub(crate) enum Blame {
    /// None: the caller has waited for others.
    NoCall,
    Call(Arc<SentCall>),
}

#[cfg(feature = "redis")]
impl SentCall {
    pub(crate) fn now() -> Arc<Self> {
        Arc::new(Self {
            at: Instant::now(),
            is_reported: AtomicBool::new(false),
        })
    }
}

#[cfg(feature = "redis")]
impl Journey {
    /// Notes that the operation travels in this call, once.
    pub(crate) fn begin(&self, call: &Arc<SentCall>) {
        let _ = self.0.set(Arc::clone(call));
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.get().is_some()
    }
}

impl Journey {
    /// The call, if it has been in flight for at least this long.
    pub(crate) fn blame(&self, in_flight: Duration) -> Blame {
        match self.0.get() {
            Some(call) if call.at.elapsed() >= in_flight => Blame::Call(Arc::clone(call)),
            _ => Blame::NoCall,
        }
    }
}

impl Blame {
    /// Whether a failure is to be reported: the first of each call, and the first that is the fault of none.
    pub(crate) fn take_report(&self, of_no_call: &AtomicBool) -> bool {
        let is_reported = match self {
            Self::NoCall => of_no_call,
            Self::Call(call) => &call.is_reported,
        };
        !is_reported.swap(true, Relaxed)
    }
}
