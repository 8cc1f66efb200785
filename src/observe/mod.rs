#![doc = concat!(include_str!("../../docs/links.md"), include_str!("../../docs/guide/observers.md"))]

mod event;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "tracing")]
mod tracing;

use std::sync::Arc;

pub use event::{CallInfo, CallKind, DecisionView, Event, RequestOutcome, SlotChange, Timing};

#[cfg(feature = "metrics")]
pub use self::metrics::MetricsObserver;
#[cfg(feature = "tracing")]
pub use self::tracing::TracingObserver;

/// Receives an event for each decision and each failure.
///
/// The limiter calls the methods in the path of requests, and in its [background](crate::limiter#background-work)
/// thread: if your code takes long or may block, move the work to another task. No argument gives access to a key.
pub trait Observer: Send + Sync + 'static {
    /// Something has happened. Ignore the events that you do not use: later versions may add some.
    fn on_event(&self, event: &Event<'_>);

    /// The store is about to be called. Every poll of the call runs within the scope that you return; by default there
    /// is none.
    fn on_call(&self, call: &CallInfo<'_>) -> Option<Box<dyn PollScope>> {
        let _ = call;
        None
    }
}

/// A scope that every poll of one call runs in. You can enter a span before the poll and leave that span afterwards.
pub trait PollScope: Send {
    /// Runs `poll`, once.
    fn enter(&mut self, poll: &mut dyn FnMut());
}

/// A shared observer is an observer.
impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn on_event(&self, event: &Event<'_>) {
        (**self).on_event(event);
    }

    fn on_call(&self, call: &CallInfo<'_>) -> Option<Box<dyn PollScope>> {
        (**self).on_call(call)
    }
}

/// Notifies both observers, the first one first.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn on_event(&self, event: &Event<'_>) {
        self.0.on_event(event);
        self.1.on_event(event);
    }

    fn on_call(&self, call: &CallInfo<'_>) -> Option<Box<dyn PollScope>> {
        match (self.0.on_call(call), self.1.on_call(call)) {
            (Some(outer), Some(inner)) => Some(Box::new(Nested { outer, inner })),
            (outer, inner) => outer.or(inner),
        }
    }
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
