//! [`SentCall`]: a call that was sent, and whether a failure of this call was reported.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

/// A call that was sent, shared by all callers: if the call fails, the breaker gets one report.
#[derive(Debug)]
pub(crate) struct SentCall {
    at: Instant,
    is_reported: AtomicBool,
}

/// The call that carries an operation, known once that call is sent; shared between the caller and the sender.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journey(Arc<OnceLock<Arc<SentCall>>>);

/// The call that caused a failure.
#[derive(Clone, Debug)]
pub(crate) enum Blame {
    /// No call: the caller waited for others.
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
    /// Notes the call that carries the operation. Only the first note counts.
    pub(crate) fn begin(&self, call: &Arc<SentCall>) {
        let _ = self.0.set(Arc::clone(call));
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.get().is_some()
    }
}

impl Journey {
    /// Returns the call, if it has been in flight for at least this long.
    pub(crate) fn blame(&self, in_flight: Duration) -> Blame {
        match self.0.get() {
            Some(call) if call.at.elapsed() >= in_flight => Blame::Call(Arc::clone(call)),
            _ => Blame::NoCall,
        }
    }
}

impl Blame {
    /// Returns whether to report a failure: only the first for each call, and the first without a call.
    pub(crate) fn take_report(&self, of_no_call: &AtomicBool) -> bool {
        let is_reported = match self {
            Self::NoCall => of_no_call,
            Self::Call(call) => &call.is_reported,
        };
        !is_reported.swap(true, Relaxed)
    }
}
