//! [`Ending`]: settles a request when its response has ended, however that happens.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Buf;
use http::{HeaderMap, Method, StatusCode, header, response::Parts};
use http_body::Frame;
use tokio::sync::OwnedSemaphorePermit;

use super::reading::Reading;
use crate::{
    domain::{ActualCost, charge::Charge, decision::Usage},
    limiter::{Limiter, SETTLING, Slot, SlotWatch},
    middleware::settle::Settle,
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

/// A settlement under the limiter's timeout; resolves to the usage afterwards, or `None` after a failure.
type Settling = Pin<Box<dyn Future<Output = Option<Usage>> + Send>>;

/// The guard of an admitted request, which is settled, returned or refunded once, however the request ends. The future
/// of the response owns it, and then the body.
///
/// The request ends when this is dropped, and all guards of its meter are.
#[doc(hidden)]
pub struct Ending {
    request: Arc<Admitted>,
    /// The settlement that the response waits for.
    settling: Option<Settling>,
}

/// An admitted request, to be settled when this is dropped.
pub(in crate::middleware) struct Admitted {
    limiter: Limiter,
    usage: Usage,
    /// Returned when this is dropped.
    slot: Option<Slot>,
    /// `None` if the request ends with the head of its response.
    followed: Option<Followed>,
    settle: Settle,
    end: Mutex<ResponseEnd>,
}

/// How to settle a request whose response is followed to the end of the body.
pub(in crate::middleware) struct Followed {
    at_end: Arc<AtEnd>,
    reading: Arc<Reading>,
    answers_head: bool,
}

impl Followed {
    pub(in crate::middleware) fn new(
        at_end: &Arc<AtEnd>,
        reading: &Arc<Reading>,
        method: &Method,
    ) -> Self {
        Self {
            at_end: Arc::clone(at_end),
            reading: Arc::clone(reading),
            answers_head: method == Method::HEAD,
        }
    }
}

impl From<Admitted> for Ending {
    fn from(request: Admitted) -> Self {
        Self {
            request: Arc::new(request),
            settling: None,
        }
    }
}

impl Ending {
    /// Begins a settlement at the costs that are known with the head. Returns whether there is one: not if no cost is
    /// changed, or if the handler has settled the check.
    pub(in crate::middleware) fn settle_early(&mut self, cost_of: impl Fn(&Charge) -> u64) -> bool {
        let Admitted { limiter, usage, .. } = &*self.request;
        let parts = Limiter::changed_parts(usage, cost_of);
        if parts.is_empty() {
            return false;
        }
        let (limiter, usage) = (limiter.clone(), usage.clone());
        let settling = async move { limiter.settle_parts(&usage, &parts).await.ok() };
        self.settling = Some(Box::pin(settling));
        true
    }

    /// Waits for the settlement that has begun; returns the usage afterwards, or `None` after a failure.
    pub(in crate::middleware) fn poll_settled(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Usage>> {
        let Some(settling) = &mut self.settling else {
            return Poll::Ready(None);
        };
        let usage = ready!(settling.as_mut().poll(cx));
        self.settling = None;
        Poll::Ready(usage)
    }

    /// Notes that there is a response, even if its body fails.
    pub(in crate::middleware) fn answered(&self, status: StatusCode) {
        self.end().status = Some(status);
    }

    /// Notes the head of the response, and begins to follow the body.
    pub(super) fn begin_body(&self, head: &Parts) {
        let length = head.headers.get(header::CONTENT_LENGTH);
        let mut end = self.end();
        end.actual = head.extensions.get().cloned();
        end.length = length.and_then(|value| value.to_str().ok()?.parse().ok());
    }

    /// Whether the request was a `HEAD`, so that no client gets the body.
    pub(super) fn answers_head(&self) -> bool {
        let followed = &self.request.followed;
        followed.as_ref().is_some_and(|it| it.answers_head)
    }

    /// If this slot is lost, the response is cut off.
    pub(super) fn slot_to_watch(&self) -> Option<SlotWatch> {
        let followed = self.request.followed.as_ref()?;
        let slot = self.request.slot.as_ref()?;
        followed.at_end.cuts_off.then(|| slot.watch())
    }

    pub(super) fn see<D: Buf>(&self, frame: &Frame<D>) {
        // The data is copied only for a closure that may read it.
        let followed = &self.request.followed;
        let keeps_data = followed
            .as_ref()
            .is_some_and(|it| it.at_end.cost_of.is_some());
        let mut end = self.end();
        if let Some(data) = frame.data_ref() {
            end.data_bytes += data.remaining() as u64;
            if keeps_data && data.has_remaining() {
                let chunk = data.chunk();
                let tail = &chunk[chunk.len().saturating_sub(MAX_DATA)..];
                end.last_data.clear();
                end.last_data.extend_from_slice(tail);
            }
        } else if keeps_data && let Some(trailers) = frame.trailers_ref() {
            end.trailers = Some(trailers.clone());
        }
    }

    /// Ends the body.
    pub(super) fn end_body(self, outcome: EndOutcome) {
        self.end().outcome = outcome;
    }

    fn end(&self) -> MutexGuard<'_, ResponseEnd> {
        let end = self.request.end.lock();
        end.unwrap_or_else(PoisonError::into_inner)
    }

    /// The request, for an owner that delays the end.
    pub(super) const fn request(&self) -> &Arc<Admitted> {
        &self.request
    }
}

/// Continues a settlement that has begun in the background, at once: guards of a meter do not delay it.
impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(settling) = self.settling.take()
            && let Some(place) = self.request.place()
        {
            self.request.limiter.in_background(async move {
                settling.await;
                drop(place);
            });
        }
    }
}

impl Admitted {
    pub(in crate::middleware) fn new(
        limiter: Limiter,
        usage: Usage,
        slot: Option<Slot>,
        followed: Option<Followed>,
        settle: Settle,
    ) -> Self {
        // The body may be dropped by a thread outside of any runtime.
        limiter.has_background();
        Self {
            limiter,
            usage,
            slot,
            followed,
            settle,
            end: Mutex::default(),
        }
    }

    /// Room for work in the background; `None` if all places are taken, or without a runtime: the charge stays.
    fn place(&self) -> Option<OwnedSemaphorePermit> {
        let places = Arc::clone(&self.settle.places);
        let place = places.try_acquire_owned().ok()?;
        self.limiter.has_background().then_some(place)
    }

    /// Settles the costs that are known at the end. These settlements need no place.
    fn settle_at_end(&mut self) {
        let Some(Followed {
            at_end, reading, ..
        }) = &self.followed
        else {
            return;
        };
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        end.metered = reading.units();
        end.complete_if_whole();
        // This may run while a handler's panic unwinds: a second panic, of your closure, would abort the process.
        let parts = catch_unwind(AssertUnwindSafe(|| {
            Limiter::final_parts(&self.usage, |charge| at_end.cost(end, charge))
        }));
        let parts = parts.unwrap_or_default();
        if parts.is_empty() {
            return;
        }
        let limiter = self.limiter.clone();
        self.limiter.in_background(async move {
            // An error goes to the observer, and the charge stays.
            limiter.settle_patiently(parts, SETTLING, SETTLING).await;
        });
    }

    /// Refunds the parts that no response, meter or closure has settled.
    fn refund(&self) {
        let Some(place) = self.place() else {
            return;
        };
        let parts = Limiter::changed_parts(&self.usage, |_| 0);
        if parts.is_empty() {
            return;
        }
        let limiter = self.limiter.clone();
        self.limiter.in_background(async move {
            // One that hangs makes room for others.
            let settled = limiter.settle_patiently(parts, limiter.call_timeout(), SETTLING);
            settled.await;
            drop(place);
        });
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.settle_at_end();
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.settle.refunds_unanswered && end.status.is_none() {
            self.refund();
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
    /// The length in the head: after this many bytes, a server drops the body.
    length: Option<u64>,
}

impl ResponseEnd {
    fn complete_if_whole(&mut self) {
        let is_whole = self.length.is_some_and(|length| length <= self.data_bytes);
        if self.outcome == EndOutcome::Dropped && is_whole {
            self.outcome = EndOutcome::Complete;
        }
    }

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

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.request.fmt(f)
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ending").finish_non_exhaustive()
    }
}
