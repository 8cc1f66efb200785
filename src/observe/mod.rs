//! [`Observer`]: is told of each decision and each failure, and never of a key.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//! use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy, observe::{Decided, Observer}};
//!
//! /// Writes down what was refused, and why.
//! #[derive(Clone, Default)]
//! struct Log(Arc<Mutex<Vec<String>>>);
//!
//! impl Observer for Log {
//!     fn decided(&self, decided: &Decided<'_>) {
//!         for (policy, rule) in decided.refusals() {
//!             let shadow = if decided.asked().is_shadow() { ", only pretending" } else { "" };
//!             self.0.lock().unwrap().push(format!("{} {}{shadow}", policy.name(), rule.rule()));
//!         }
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let log = Log::default();
//! let limiter = Limiter::new(MemoryStore::new()).observer(log.clone());
//! let api = Policy::parse("api", "3/1s,2/1m")?;
//! let trial = Policy::parse("trial", "1/1m")?.shadow();
//! for _ in 0..3 {
//!     let alice = || Key::new("user", "alice");
//!     limiter.check([Charge::new(&api, alice(), 1), Charge::new(&trial, alice(), 1)]).await?;
//! }
//! assert_eq!(*log.0.lock().unwrap(), ["trial 1/1m, only pretending", "api 2/1m"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Two are shipped, each behind a feature: `TracingObserver` (`tracing`) and `MetricsObserver` (`metrics`). A pair of
//! observers is an observer. Without one, nothing is measured and nothing is paid.
//!
//! # What is told
//!
//! | what happened | method |
//! |---|---|
//! | a check was allowed or refused | [`decided`](Observer::decided) |
//! | another call of the store was answered | [`done`](Observer::done) |
//! | the store could not answer in time, or at all | [`failed`](Observer::failed) |
//! | the store is [asked no more, or again](crate::limiter#when-the-store-cannot-decide) | [`switched`](Observer::switched) |
//! | a request did not say who is asking | [`on_missing_key`](Observer::on_missing_key) |
//! | a request, or one of its keys, was on a deny list | [`blocked`](Observer::blocked) |
//!
//! A check that the memory of this process decides, since the store could not, is told of twice: as `failed`, and then as
//! `decided`. A request whose client goes away before its decision is known is not told of.

mod event;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "tracing")]
mod tracing;
mod watch;

use std::sync::Arc;

pub use event::{Asked, Blocked, Call, Decided, Done, Failed, MissingKey, Outcome, Switched};

#[cfg(feature = "metrics")]
pub use self::metrics::MetricsObserver;
#[cfg(feature = "tracing")]
pub use self::tracing::TracingObserver;
pub(crate) use watch::Watch;

/// Is told of each decision and each failure.
///
/// Every method does nothing unless it is written, and more may come. They are called in the path of requests: what takes
/// long or may wait goes elsewhere. No argument leads to a key.
pub trait Observer: Send + Sync + 'static {
    /// The store is about to be asked; what is returned is around every poll of its answer, until it is dropped.
    fn asks(&self, asked: &Asked<'_>) -> Option<Box<dyn Span>> {
        let _ = asked;
        None
    }

    /// A check was allowed or refused.
    fn decided(&self, decided: &Decided<'_>) {
        let _ = decided;
    }

    /// A call that decides nothing was answered: a peek, a settlement, a reset.
    fn done(&self, done: &Done<'_>) {
        let _ = done;
    }

    /// The store could not answer within the timeout.
    fn failed(&self, failed: &Failed<'_>) {
        let _ = failed;
    }

    /// The breaker in front of the store has opened or closed.
    ///
    /// Clones of a limiter share it: of those with observers of their own, the one that opens it has its observer told, also when
    /// another one closes it again.
    fn switched(&self, switched: &Switched<'_>) {
        let _ = switched;
    }

    /// A request did not say who is asking, or that could not be found out.
    fn on_missing_key(&self, missing: &MissingKey<'_>) {
        let _ = missing;
    }

    /// A request, or one of its keys, was on a deny list.
    fn blocked(&self, blocked: &Blocked<'_>) {
        let _ = blocked;
    }
}

/// Is around every poll of the answer to one call.
pub trait Span: Send {
    /// Runs `poll`, once.
    fn enter(&mut self, poll: &mut dyn FnMut());
}

/// A shared observer is an observer.
impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn asks(&self, asked: &Asked<'_>) -> Option<Box<dyn Span>> {
        (**self).asks(asked)
    }

    fn decided(&self, decided: &Decided<'_>) {
        (**self).decided(decided);
    }

    fn done(&self, done: &Done<'_>) {
        (**self).done(done);
    }

    fn failed(&self, failed: &Failed<'_>) {
        (**self).failed(failed);
    }

    fn switched(&self, switched: &Switched<'_>) {
        (**self).switched(switched);
    }

    fn on_missing_key(&self, missing: &MissingKey<'_>) {
        (**self).on_missing_key(missing);
    }

    fn blocked(&self, blocked: &Blocked<'_>) {
        (**self).blocked(blocked);
    }
}

/// Two observers are told one after the other.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn asks(&self, asked: &Asked<'_>) -> Option<Box<dyn Span>> {
        match (self.0.asks(asked), self.1.asks(asked)) {
            (Some(outer), Some(inner)) => Some(Box::new(Both(outer, inner))),
            (outer, inner) => outer.or(inner),
        }
    }

    fn decided(&self, decided: &Decided<'_>) {
        self.0.decided(decided);
        self.1.decided(decided);
    }

    fn done(&self, done: &Done<'_>) {
        self.0.done(done);
        self.1.done(done);
    }

    fn failed(&self, failed: &Failed<'_>) {
        self.0.failed(failed);
        self.1.failed(failed);
    }

    fn switched(&self, switched: &Switched<'_>) {
        self.0.switched(switched);
        self.1.switched(switched);
    }

    fn on_missing_key(&self, missing: &MissingKey<'_>) {
        self.0.on_missing_key(missing);
        self.1.on_missing_key(missing);
    }

    fn blocked(&self, blocked: &Blocked<'_>) {
        self.0.blocked(blocked);
        self.1.blocked(blocked);
    }
}

struct Both(Box<dyn Span>, Box<dyn Span>);

impl Span for Both {
    fn enter(&mut self, poll: &mut dyn FnMut()) {
        let Self(outer, inner) = self;
        outer.enter(&mut || inner.enter(poll));
    }
}
