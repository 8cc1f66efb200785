#![doc = include_str!("../../docs/guide/observers.md")]

mod event;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "tracing")]
mod tracing;

use std::{sync::Arc, time::Duration};

pub(crate) use event::Timing;
pub use event::{
    BanEvent, BlockEvent, BreakerEvent, CallInfo, CallKind, CompletionEvent, DecisionEvent,
    ErrorEvent, MissingKeyEvent, NearLimitEvent, PauseEvent, RequestOutcome, SlotChange,
};

#[cfg(feature = "metrics")]
pub use self::metrics::MetricsObserver;
#[cfg(feature = "tracing")]
pub use self::tracing::TracingObserver;
use crate::domain::policy::Policy;

/// Receives an event for each decision and each failure.
///
/// By default a method does nothing, and later versions may add methods. The limiter calls them in the path of
/// requests: if your code takes long or may block, move the work to another task. No argument gives access to a key.
pub trait Observer: Send + Sync + 'static {
    /// A [`RateLimitLayer`](crate::RateLimitLayer) that limits by this policy was put around a service.
    ///
    /// You get one call for each policy that the layer knows before the first request: not for policies from a closure
    /// or a look-up, and not again after a reload.
    fn on_policy(&self, policy: &Policy) {
        let _ = policy;
    }

    /// The store is about to be called. Every poll of the call runs within the scope that you return.
    fn on_call(&self, call: &CallInfo<'_>) -> Option<Box<dyn PollScope>> {
        let _ = call;
        None
    }

    /// A check was allowed or denied.
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        let _ = event;
    }

    /// A call that decides nothing was answered: a peek, a settlement, a reset, a block; or a check was blocked.
    fn on_completion(&self, event: &CompletionEvent<'_>) {
        let _ = event;
    }

    /// The store could not answer within the timeout, was not called, or the check could not be built.
    fn on_error(&self, event: &ErrorEvent<'_>) {
        let _ = event;
    }

    /// The breaker in front of the store has opened or closed.
    ///
    /// Clones of a limiter share one breaker. If they have different observers, the observer of the clone that opens
    /// the breaker is notified, even when another clone closes the breaker.
    fn on_breaker(&self, event: &BreakerEvent<'_>) {
        let _ = event;
    }

    /// A limit found no key in a request, or the key could not be looked up.
    fn on_missing_key(&self, missing: &MissingKeyEvent<'_>) {
        let _ = missing;
    }

    /// A request was rejected because the request, or one of its keys, was on a deny list or blocked in the store.
    fn on_blocked(&self, event: &BlockEvent<'_>) {
        let _ = event;
    }

    /// An identity has reached a share of a limit, 80 % by default: see
    /// [notice before the limit](crate::limiter#notice-before-the-limit).
    fn on_near_limit(&self, event: &NearLimitEvent<'_>) {
        let _ = event;
    }

    /// An identity was banned because the limiter denied it too often.
    fn on_ban(&self, event: &BanEvent<'_>) {
        let _ = event;
    }

    /// Another service has asked us to wait, and an account was paused. You get one call for each pause in each process
    /// that was asked.
    fn on_pause(&self, event: &PauseEvent<'_>) {
        let _ = event;
    }

    /// A request or a job has taken this many slots for one key, has lost them, or does not need them any more.
    fn on_slots(&self, policy: &Policy, slots: u64, change: SlotChange) {
        let _ = (policy, slots, change);
    }

    /// A caller of [`acquire`](crate::Limiter::acquire), or a request under a layer's
    /// [`max_wait`](crate::RateLimitLayer::max_wait), begins to wait: `waited` is `None`. The second call is for its
    /// answer, or for a caller that leaves. You get no call for one that is answered at once.
    ///
    /// A check without policies waits for the end of a [block](crate::block).
    fn on_wait(&self, check: &CallInfo<'_>, waited: Option<Duration>) {
        let _ = (check, waited);
    }
}

/// A scope that every poll of one call runs in. You can enter a span before the poll and leave that span afterwards.
pub trait PollScope: Send {
    /// Runs `poll`, once.
    fn enter(&mut self, poll: &mut dyn FnMut());
}

/// Implements the methods that notify: each notifies all of these observers, in this order.
macro_rules! notify {
    ($self:ident => $($observer:expr),+) => {
        fn on_policy(&$self, policy: &Policy) {
            $($observer.on_policy(policy);)+
        }

        fn on_decision(&$self, event: &DecisionEvent<'_>) {
            $($observer.on_decision(event);)+
        }

        fn on_completion(&$self, event: &CompletionEvent<'_>) {
            $($observer.on_completion(event);)+
        }

        fn on_error(&$self, event: &ErrorEvent<'_>) {
            $($observer.on_error(event);)+
        }

        fn on_breaker(&$self, event: &BreakerEvent<'_>) {
            $($observer.on_breaker(event);)+
        }

        fn on_missing_key(&$self, missing: &MissingKeyEvent<'_>) {
            $($observer.on_missing_key(missing);)+
        }

        fn on_blocked(&$self, event: &BlockEvent<'_>) {
            $($observer.on_blocked(event);)+
        }

        fn on_near_limit(&$self, event: &NearLimitEvent<'_>) {
            $($observer.on_near_limit(event);)+
        }

        fn on_ban(&$self, event: &BanEvent<'_>) {
            $($observer.on_ban(event);)+
        }

        fn on_pause(&$self, event: &PauseEvent<'_>) {
            $($observer.on_pause(event);)+
        }

        fn on_slots(&$self, policy: &Policy, slots: u64, change: SlotChange) {
            $($observer.on_slots(policy, slots, change);)+
        }

        fn on_wait(&$self, check: &CallInfo<'_>, waited: Option<Duration>) {
            $($observer.on_wait(check, waited);)+
        }
    };
}

/// A shared observer is an observer.
impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn on_call(&self, call: &CallInfo<'_>) -> Option<Box<dyn PollScope>> {
        (**self).on_call(call)
    }

    notify!(self => (**self));
}

/// Notifies both observers, the first one first.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn on_call(&self, call: &CallInfo<'_>) -> Option<Box<dyn PollScope>> {
        match (self.0.on_call(call), self.1.on_call(call)) {
            (Some(outer), Some(inner)) => Some(Box::new(Nested { outer, inner })),
            (outer, inner) => outer.or(inner),
        }
    }

    notify!(self => self.0, self.1);
}

struct Nested {
    outer: Box<dyn PollScope>,
    inner: Box<dyn PollScope>,
}

impl PollScope for Nested {
    fn enter(&mut self, poll: &mut dyn FnMut()) {
        self.outer.enter(&mut || self.inner.enter(poll));
    }
}
