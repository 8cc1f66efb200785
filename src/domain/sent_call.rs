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
#[derive(Clone, Debug)]
pub(crate) enum Journey {
    /// `None` if the caller left first: then the operation is never sent.
    One(Arc<OnceLock<Option<Arc<SentCall>>>>),
    /// Several operations that are answered together.
    All(Arc<Vec<Self>>),
}

impl Default for Journey {
    fn default() -> Self {
        Self::One(Arc::default())
    }
}

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
    /// Notes the call that carries the operation. Returns `false` if the caller has left: do not send it.
    pub(crate) fn begin(&self, call: &Arc<SentCall>) -> bool {
        match self {
            Self::One(first) => first.set(Some(Arc::clone(call))).is_ok(),
            Self::All(each) => each.iter().all(|it| it.begin(call)),
        }
    }
}

impl Journey {
    /// Notes that the caller leaves. Returns whether the operation is never sent.
    pub(crate) fn leave(&self) -> bool {
        if let Self::One(first) = self {
            let _ = first.set(None); // no effect once it has begun
        }
        self.has_left()
    }

    /// Whether the caller left before the operation was sent; of several operations, all callers.
    pub(crate) fn has_left(&self) -> bool {
        match self {
            Self::One(first) => matches!(first.get(), Some(None)),
            Self::All(each) => each.iter().all(Self::has_left),
        }
    }

    /// Returns the call, if it has been in flight for at least this long; of several operations, that of the first.
    pub(crate) fn blame(&self, in_flight: Duration) -> Blame {
        match self {
            Self::One(first) => match first.get() {
                Some(Some(call)) if call.at.elapsed() >= in_flight => Blame::Call(Arc::clone(call)),
                _ => Blame::NoCall,
            },
            Self::All(each) => {
                let first = each.first();
                first.map_or(Blame::NoCall, |first| first.blame(in_flight))
            }
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

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_sent_or_left_whichever_comes_first() {
        let (call, left, sent) = (SentCall::now(), Journey::default(), Journey::default());
        assert!(left.leave());
        assert!(!left.begin(&call));
        assert!(sent.begin(&call));
        assert!(!sent.leave() && !sent.has_left());
        let both = |first: &Journey, second: &Journey| {
            Journey::All(Arc::new(vec![first.clone(), second.clone()]))
        };
        assert!(both(&left, &left).has_left());
        assert!(!both(&left, &sent).has_left());
    }
}
