//! [`RequestGuard`]: settles a request when its response has ended, however that happens.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Buf;
use http::{HeaderMap, Response, StatusCode, header, response::Parts};
use http_body::Frame;

use crate::{
    domain::{ActualCost, charge::Charge, decision::Usage},
    limiter::{
        Limiter, SETTLING, Slot,
        meter::{Readings, UNDER},
    },
    middleware::{admit::LayerConfig, respond::Decisions},
};

/// A usage report of a service is shorter, and at most twice as much is kept for each response under way.
const MAX_DATA: usize = 4_096;

type CostOf = dyn Fn(&ResponseEnd, &Charge) -> u64 + Send + Sync;

/// How a layer settles at the end of its responses.
#[derive(Clone, Default)]
pub(in crate::middleware) struct AtEnd {
    /// Whether a [`CostMeter`](crate::middleware::CostMeter) settles all policies.
    pub(in crate::middleware) meters_all: bool,
    /// Those that a `CostMeter` settles otherwise.
    pub(in crate::middleware) metered: Vec<Box<str>>,
    pub(in crate::middleware) cost_of: Option<Arc<CostOf>>,
    /// Whether a response ends when its slot is lost.
    pub(in crate::middleware) cuts_off: bool,
    /// The settings of the layer, which know its policies.
    pub(in crate::middleware) config: Option<LayerConfig>,
}

/// A settlement under the limiter's timeout; resolves to the usage afterwards, or `None` after a failure.
type Settling = Pin<Box<dyn Future<Output = Option<Usage>> + Send>>;

/// The guard of an admitted request, which is settled, returned or refunded once, however the request ends. The future
/// of the response owns it, and then the body.
///
/// The request ends when this is dropped, and all guards of its meter are.
#[doc(hidden)]
pub struct RequestGuard {
    pub(in crate::middleware) request: Arc<Admitted>,
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
    refunds_unanswered: bool,
    end: Mutex<ResponseEnd>,
}

/// How to settle a request whose response is followed to the end of the body.
pub(in crate::middleware) struct Followed {
    pub(in crate::middleware) at_end: Arc<AtEnd>,
    pub(in crate::middleware) readings: Readings,
    /// Whether the request was a `HEAD`, so that no client gets the body.
    pub(in crate::middleware) answers_head: bool,
}

impl RequestGuard {
    pub(in crate::middleware) fn new(
        limiter: Limiter,
        usage: Usage,
        slot: Option<Slot>,
        followed: Option<Followed>,
        refunds_unanswered: bool,
    ) -> Self {
        let request = Admitted {
            limiter,
            usage,
            slot,
            followed,
            refunds_unanswered,
            end: Mutex::default(),
        };
        Self {
            request: Arc::new(request),
            settling: None,
        }
    }

    /// Begins a settlement at the costs that are known with the head. Returns whether there is one: not if no cost is
    /// changed, or if the handler has settled the check.
    pub(in crate::middleware) fn settle_early(&mut self, cost_of: impl Fn(&Charge) -> u64) -> bool {
        let Admitted { limiter, usage, .. } = &*self.request;
        let parts = Limiter::changed_parts(usage, cost_of);
        if parts.is_empty() {
            return false;
        }
        let (limiter, usage) = (limiter.clone(), usage.clone());
        let settling = async move { limiter.settle_parts(&usage, parts).await.ok() };
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

    /// Notes that there is a response, even if its body fails, and whether a layer further in has rejected the request.
    pub(in crate::middleware) fn answered<B>(&self, response: &Response<B>) {
        // A service may forward the rejection of a client of its own: that does not have this decision.
        let is_ours = |it: &Decisions| it.is_of_rejection && it.has(&self.request.usage);
        let mut end = self.end();
        end.status = Some(response.status());
        end.is_rejected = response.extensions().get().is_some_and(is_ours);
    }

    /// Notes the head of the response, and begins to follow the body.
    pub(super) fn begin_body(&self, head: &Parts) {
        let length = head.headers.get(header::CONTENT_LENGTH);
        let mut end = self.end();
        end.actual = head.extensions.get().cloned();
        end.length = length.and_then(|value| value.to_str().ok()?.parse().ok());
    }

    pub(super) fn answers_head(&self) -> bool {
        let followed = &self.request.followed;
        followed.as_ref().is_some_and(|it| it.answers_head)
    }

    /// Ready when the slot is lost, if the response is then cut off.
    pub(super) fn loss(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>> {
        let followed = self.request.followed.as_ref()?;
        let watch = self.request.slot.as_ref()?.watch();
        let cuts_off = followed.at_end.cuts_off;
        cuts_off.then(|| Box::pin(async move { watch.lost().await }) as _)
    }

    pub(super) fn see<D: Buf>(&self, frame: &Frame<D>) {
        // The data is copied only for a closure that may read it.
        let followed = self.request.followed.as_ref();
        let keeps_data = followed.is_some_and(|it| it.at_end.cost_of.is_some());
        let mut end = self.end();
        if let Some(data) = frame.data_ref() {
            end.data_bytes += data.remaining() as u64;
            if keeps_data && data.has_remaining() {
                end.keep(data.chunk());
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
}

impl Admitted {
    /// Settles the costs that are known at the end.
    fn settle_at_end(&mut self) {
        let Some(Followed {
            at_end, readings, ..
        }) = &self.followed
        else {
            return;
        };
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        end.metered = readings.units();
        end.complete_if_whole();
        if at_end.cost_of.is_some() {
            end.readings = Some(readings.clone());
            end.trim();
        }
        if let Some(config) = &at_end.config {
            let uncharged = readings.uncharged(&self.usage);
            uncharged
                .iter()
                .for_each(|name| config.warn_of_unknown(UNDER, name));
        }
        let cost = |charge: &Charge| at_end.cost(end, readings, charge);
        let parts = Limiter::final_parts(&self.usage, cost);
        self.limiter.settle_in_background(parts, SETTLING);
    }

    /// Refunds the parts that no response, meter or closure has settled.
    fn refund(&self) {
        let parts = Limiter::changed_parts(&self.usage, |_| 0);
        // One that hangs makes room for others.
        self.limiter
            .settle_in_background(parts, self.limiter.call_timeout());
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.settle_at_end();
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.refunds_unanswered && end.status.is_none() {
            self.refund();
        }
    }
}

impl AtEnd {
    /// Whether costs can change at the end.
    pub(in crate::middleware) fn settles(&self) -> bool {
        self.meters_all || !self.metered.is_empty() || self.cost_of.is_some()
    }

    /// The final cost; `None` if the handler and the response left it open.
    fn cost(&self, end: &ResponseEnd, readings: &Readings, charge: &Charge) -> Option<u64> {
        let policy = charge.policy().name();
        let actual = end.actual.as_ref();
        let is_metered = || self.meters_all || self.metered.iter().any(|name| **name == *policy);
        let by_closure = || {
            let cost_of = self.cost_of.as_ref()?;
            // This may run while a handler's panic unwinds: a second panic would abort the process.
            let cost = catch_unwind(AssertUnwindSafe(|| cost_of(end, charge)));
            Some(cost.unwrap_or_else(|_| charge.cost()))
        };
        let by_meter = || {
            let of_policy = readings.units_under(policy);
            of_policy.or_else(|| end.metered.filter(|_| is_metered()))
        };
        // No handler could meter the request.
        let unserved = || (end.is_rejected && is_metered()).then_some(0);
        let actual = actual.and_then(|actual| actual.of_policy(policy));
        let known = actual.or_else(by_closure).or_else(by_meter);
        known.or_else(unserved)
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
    /// How the response ended.
    pub outcome: EndOutcome,
    /// The status; `None` if the request got no response.
    pub status: Option<StatusCode>,
    /// The reading of the request's [`CostMeter`](crate::middleware::CostMeter); `None` if nothing was metered. For that of one
    /// policy, see [`metered_under`](Self::metered_under).
    pub metered: Option<u64>,
    /// How many bytes of data the body had, up to its end. Trailers do not count.
    pub data_bytes: u64,
    /// The last 4 KiB of the body's data, over frames: for a report that comes before the last frame, or in pieces.
    ///
    /// A frame in several pieces of memory counts as its first piece.
    pub tail: Vec<u8>,
    /// The trailers that the body ended with.
    pub trailers: Option<HeaderMap>,
    /// How much of the tail the last frame has.
    last: usize,
    readings: Option<Readings>,
    actual: Option<ActualCost>,
    /// Whether a layer further in has rejected the request.
    is_rejected: bool,
    /// The length in the head: after this many bytes, a server drops the body.
    length: Option<u64>,
}

impl ResponseEnd {
    /// Returns the last frame of data that was not empty, or its last 4 KiB; empty if there was none.
    #[must_use]
    pub fn last_data(&self) -> &[u8] {
        &self.tail[self.tail.len().saturating_sub(self.last)..]
    }

    /// Returns the reading of [`CostMeter::under`](crate::middleware::CostMeter::under) for the policy of this name; `None` if nothing
    /// was metered under it.
    #[must_use]
    pub fn metered_under(&self, policy: &str) -> Option<u64> {
        self.readings.as_ref()?.units_under(policy)
    }

    /// Adds data to the tail, which may be twice as long meanwhile: so each byte moves once at most.
    fn keep(&mut self, data: &[u8]) {
        let data = &data[data.len().saturating_sub(MAX_DATA)..];
        let length = self.tail.len() + data.len();
        if length > 2 * MAX_DATA {
            self.tail.drain(..length - MAX_DATA);
        }
        self.tail.extend_from_slice(data);
        self.last = data.len();
    }

    fn trim(&mut self) {
        let surplus = self.tail.len().saturating_sub(MAX_DATA);
        self.tail.drain(..surplus);
    }

    fn complete_if_whole(&mut self) {
        let is_whole = self.length.is_some_and(|length| length <= self.data_bytes);
        if self.outcome == EndOutcome::Dropped && is_whole {
            self.outcome = EndOutcome::Complete;
        }
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

impl fmt::Debug for RequestGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestGuard").finish_non_exhaustive()
    }
}
