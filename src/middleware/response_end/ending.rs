//! [`Ending`]: settles a request when its response has ended, however that happens.

use std::{
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use bytes::Buf;
use http::{HeaderMap, Method, StatusCode, header, response::Parts};
use http_body::Frame;
use tokio::{runtime::Handle, sync::Semaphore};

use super::reading::Reading;
use crate::{
    domain::{ActualCost, charge::Charge, decision::Usage},
    limiter::{Limiter, SETTLING, Slot, SlotWatch},
};

/// A usage report of a service is far shorter, and this much is kept for each response under way.
const MAX_DATA: usize = 4_096;

type CostOf = dyn Fn(&ResponseEnd, &Charge) -> u64 + Send + Sync;

/// How a layer settles at the end of its responses.
#[derive(Clone, Default)]
pub(in crate::middleware) struct AtEnd {
    pub(in crate::middleware) metered: Metered,
    pub(in crate::middleware) cost_of: Option<Arc<CostOf>>,
    /// Whether a response ends when its slot is lost.
    pub(in crate::middleware) cuts_off: bool,
}

/// The policies that a [`CostMeter`](super::CostMeter) settles.
#[derive(Clone, Default)]
pub(in crate::middleware) enum Metered {
    #[default]
    Never,
    All,
    Under(Vec<Box<str>>),
}

impl Metered {
    fn includes(&self, policy: &str) -> bool {
        match self {
            Self::Never => false,
            Self::All => true,
            Self::Under(names) => names.iter().any(|name| **name == *policy),
        }
    }

    /// Adds a policy, if not all are metered anyway.
    pub(in crate::middleware) fn add(&mut self, policy: Box<str>) {
        match self {
            Self::All => {}
            Self::Never => *self = Self::Under(vec![policy]),
            Self::Under(names) => names.push(policy),
        }
    }

    pub(in crate::middleware) fn names(&self) -> &[Box<str>] {
        match self {
            Self::Under(names) => names,
            Self::Never | Self::All => &[],
        }
    }
}

/// A request during its response, which ends when all clones are dropped: with the response's body, with the future of
/// a request that gets no response, or with a panic. Guards of a meter hold clones.
#[doc(hidden)]
#[derive(Clone)]
pub struct Ending(Arc<Admitted>);

/// An admitted request, to be settled when this is dropped.
pub(in crate::middleware) struct Admitted {
    limiter: Limiter,
    usage: Usage,
    at_end: Arc<AtEnd>,
    reading: Arc<Reading>,
    answers_head: bool,
    /// That of the request, since a body may be dropped by a thread outside of any runtime.
    runtime: Option<Handle>,
    end: Mutex<ResponseEnd>,
    /// Returned when this is dropped.
    slot: Option<Slot>,
    /// The places of refunds, if a request without a response is refunded.
    refund_places: Option<Arc<Semaphore>>,
}

impl Ending {
    pub(in crate::middleware) fn of(
        limiter: Limiter,
        usage: Usage,
        at_end: Arc<AtEnd>,
        reading: Arc<Reading>,
        method: &Method,
    ) -> Admitted {
        Admitted {
            limiter,
            usage,
            at_end,
            reading,
            answers_head: method == Method::HEAD,
            runtime: Handle::try_current().ok(),
            end: Mutex::default(),
            slot: None,
            refund_places: None,
        }
    }

    /// For a layer that does not follow bodies: the request ends with the head.
    pub(in crate::middleware) fn of_head(limiter: &Limiter, usage: Usage) -> Admitted {
        let (at_end, reading) = (Arc::default(), Arc::default());
        Self::of(limiter.clone(), usage, at_end, reading, &Method::GET)
    }

    /// Notes that there is a response, even if its body fails.
    pub(in crate::middleware) fn answered(&self, status: StatusCode) {
        let end = self.0.end.lock();
        end.unwrap_or_else(PoisonError::into_inner).status = Some(status);
    }

    pub(super) fn downgrade(&self) -> WeakEnding {
        WeakEnding(Arc::downgrade(&self.0))
    }
}

/// Notices the end of a response without delaying it.
#[derive(Clone, Debug)]
pub(super) struct WeakEnding(Weak<Admitted>);

impl WeakEnding {
    /// `None` if the response has ended.
    pub(super) fn upgrade(&self) -> Option<Ending> {
        self.0.upgrade().map(Ending)
    }
}

impl Admitted {
    /// Begins to watch for the end, with the slots that are returned then, and the places of refunds.
    pub(in crate::middleware) fn holding(
        mut self,
        slot: Option<Slot>,
        refund_places: Option<&Arc<Semaphore>>,
    ) -> Ending {
        self.slot = slot;
        self.refund_places = refund_places.cloned();
        Ending(Arc::new(self))
    }

    /// Refunds the parts that no response, meter or closure has settled.
    fn refund(&self, places: Arc<Semaphore>, runtime: &Handle) {
        let Ok(place) = places.try_acquire_owned() else {
            return; // the charge stays
        };
        let parts = Limiter::changed_parts(&self.usage, |_| 0);
        if parts.is_empty() {
            return;
        }
        let limiter = self.limiter.clone();
        self.limiter.in_background(runtime, async move {
            let _place = place;
            // One that hangs makes room for others.
            let settled = limiter.settle_patiently(parts, limiter.call_timeout(), SETTLING);
            settled.await;
        });
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        end.metered = self.reading.units();
        let is_answered = end.status.is_some();
        // This may run while a handler's panic unwinds: a second panic, of your closure, would abort the process.
        let parts = catch_unwind(AssertUnwindSafe(|| {
            Limiter::final_parts(&self.usage, |charge| self.at_end.cost(end, charge))
        }));
        let parts = parts.unwrap_or_default();
        let Some(runtime) = self.runtime.take().or_else(|| Handle::try_current().ok()) else {
            return;
        };
        if !parts.is_empty() {
            let limiter = self.limiter.clone();
            self.limiter.in_background(&runtime, async move {
                // An error goes to the observer, and the charge stays.
                limiter.settle_patiently(parts, SETTLING, SETTLING).await;
            });
        }
        if let Some(places) = self.refund_places.take().filter(|_| !is_answered) {
            self.refund(places, &runtime);
        }
    }
}

impl AtEnd {
    /// The final cost; `None` if the handler and the response left it open.
    fn cost(&self, end: &ResponseEnd, charge: &Charge) -> Option<u64> {
        let policy = charge.policy().name();
        let actual = end
            .actual
            .as_ref()
            .and_then(|actual| actual.of_policy(policy));
        let by_closure = || self.cost_of.as_ref().map(|cost_of| cost_of(end, charge));
        let by_meter = || end.metered.filter(|_| self.metered.includes(policy));
        actual.or_else(by_closure).or_else(by_meter)
    }
}

/// How a response ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndOutcome {
    /// The body was sent to its end.
    Complete,
    /// The body failed.
    Failed,
    /// The response was dropped before its end, or there was none: the client left, the service failed or panicked, or
    /// a timeout ended the request.
    #[default]
    Dropped,
}

/// The end of a response, for [`RateLimitLayer::settle_at_end`](crate::RateLimitLayer::settle_at_end).
#[derive(Clone, Default)]
pub struct ResponseEnd {
    outcome: EndOutcome,
    status: Option<StatusCode>,
    actual: Option<ActualCost>,
    metered: Option<u64>,
    data_bytes: u64,
    last_data: Vec<u8>,
    trailers: Option<HeaderMap>,
}

impl ResponseEnd {
    /// Returns how the response ended.
    #[must_use]
    pub const fn outcome(&self) -> EndOutcome {
        self.outcome
    }

    /// Returns the status; `None` if the request got no response.
    #[must_use]
    pub const fn status(&self) -> Option<StatusCode> {
        self.status
    }

    /// Returns the reading of the request's [`CostMeter`](super::CostMeter); `None` if nothing was metered.
    #[must_use]
    pub const fn metered(&self) -> Option<u64> {
        self.metered
    }

    /// Returns how many bytes of data the body had, up to its end. Trailers do not count.
    #[must_use]
    pub const fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Returns the last frame of data that was not empty, or its last 4 KiB; empty if there was none.
    ///
    /// A frame in several pieces of memory counts as its first piece.
    #[must_use]
    pub fn last_data(&self) -> &[u8] {
        &self.last_data
    }

    /// Returns the trailers that the body ended with.
    #[must_use]
    pub const fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_ref()
    }
}

// Without the data: it may be a client's secret.
impl fmt::Debug for ResponseEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseEnd")
            .field("outcome", &self.outcome)
            .field("status", &self.status)
            .field("metered", &self.metered)
            .field("data_bytes", &self.data_bytes)
            .finish_non_exhaustive()
    }
}

/// A body under way. Dropping this ends the response, as [`Dropped`](EndOutcome::Dropped).
#[derive(Debug)]
pub(super) struct Following {
    ending: Ending,
    end: ResponseEnd,
    /// The length in the head: after this many bytes, a server drops the body.
    length: Option<u64>,
}

impl Following {
    pub(super) fn new(ending: Ending, head: &Parts) -> Self {
        let end = ResponseEnd {
            status: Some(head.status),
            actual: head.extensions.get().cloned(),
            ..ResponseEnd::default()
        };
        let length = head.headers.get(header::CONTENT_LENGTH);
        Self {
            ending,
            end,
            length: length.and_then(|value| value.to_str().ok()?.parse().ok()),
        }
    }

    /// Whether the request was a `HEAD`, so that no client gets the body.
    pub(super) fn answers_head(&self) -> bool {
        self.ending.0.answers_head
    }

    /// If this slot is lost, the response is cut off.
    pub(super) fn slot_to_watch(&self) -> Option<SlotWatch> {
        let admitted = &self.ending.0;
        let slot = admitted.slot.as_ref().filter(|_| admitted.at_end.cuts_off);
        slot.map(Slot::watch)
    }

    pub(super) fn see<D: Buf>(&mut self, frame: &Frame<D>) {
        // The data is copied only for a closure that may read it.
        let keeps_data = self.ending.0.at_end.cost_of.is_some();
        if let Some(data) = frame.data_ref() {
            self.end.data_bytes += data.remaining() as u64;
            if keeps_data && data.has_remaining() {
                let chunk = data.chunk();
                self.end.last_data.clear();
                let tail = &chunk[chunk.len().saturating_sub(MAX_DATA)..];
                self.end.last_data.extend_from_slice(tail);
            }
        } else if keeps_data && let Some(trailers) = frame.trailers_ref() {
            self.end.trailers = Some(trailers.clone());
        }
    }

    pub(super) fn end(mut self, outcome: EndOutcome) {
        self.end.outcome = outcome;
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let is_whole = self
            .length
            .is_some_and(|length| length <= self.end.data_bytes);
        if self.end.outcome == EndOutcome::Dropped && is_whole {
            self.end.outcome = EndOutcome::Complete;
        }
        let end = self.ending.0.end.lock();
        *end.unwrap_or_else(PoisonError::into_inner) = mem::take(&mut self.end);
    }
}

impl fmt::Debug for AtEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtEnd").finish_non_exhaustive()
    }
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ending").finish_non_exhaustive()
    }
}
