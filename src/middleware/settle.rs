use std::{
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use http::{Response, response::Parts};
use tokio::runtime::Handle;

use crate::{
    charge::Charge,
    decision::{Decision, Usage},
    limiter::Limiter,
    settlement::Settlement,
};

/// More only when thousands of clients leave within one timeout, while the store is slow: then charges stay.
const MAX_IN_BACKGROUND: usize = 1_024;

/// What a request turned out to cost: a handler puts it into the extensions of its response.
///
/// ```
/// use sluicegate::{MemoryStore, RateLimitLayer, middleware::ActualCost};
///
/// let layer = RateLimitLayer::new(MemoryStore::new()).settle(ActualCost::or_charged);
///
/// let mut response = http::Response::new("a long report");
/// response.extensions_mut().insert(ActualCost(13));
/// # let _ = layer;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActualCost(pub u64);

impl ActualCost {
    /// What the handler has said, the same for each charge, or what was charged if it has said nothing. For
    /// [`settle`](super::RateLimitLayer::settle).
    #[must_use]
    pub fn or_charged(response: &Parts, charge: &Charge) -> u64 {
        let said = response.extensions.get::<Self>();
        said.map_or(charge.cost(), |cost| cost.0)
    }
}

type CostOf = dyn Fn(&Parts, &Charge) -> u64 + Send + Sync;

/// The future of a settlement, under the limiter's timeout: what is left after it, `None` where it has failed.
pub(super) type Settling = Pin<Box<dyn Future<Output = Option<Usage>> + Send>>;

/// What requests that were admitted finally cost.
#[derive(Clone, Default)]
pub(super) struct Settle {
    pub(super) cost_of: Option<Arc<CostOf>>,
    pub(super) refunds_unanswered: bool,
    in_background: Arc<AtomicUsize>,
}

/// A response that waits for its settlement.
pub(super) struct Unsettled<T> {
    pub(super) settling: Settling,
    pub(super) response: T,
    pub(super) decision: Decision,
}

impl<T> Unsettled<T> {
    /// The response, with what is left after the settlement, or before it if that has failed.
    pub(super) fn poll(this: &mut Option<Box<Self>>, cx: &mut Context<'_>) -> Poll<(T, Decision)> {
        let Some(mut it) = this.take() else {
            panic!("polled after completion");
        };
        match it.settling.as_mut().poll(cx) {
            Poll::Ready(settled) => {
                let decision = settled.map_or(it.decision, Decision::Allowed);
                Poll::Ready((it.response, decision))
            }
            Poll::Pending => {
                *this = Some(it);
                Poll::Pending
            }
        }
    }
}

impl Settle {
    /// The settlement that a response requires; `None` when it costs what was charged.
    pub(super) fn of_response<B>(
        &self,
        limiter: &Limiter,
        response: &mut Response<B>,
        decision: &Decision,
    ) -> Option<Settling> {
        let cost_of = self.cost_of.as_ref()?;
        let Decision::Allowed(usage) = decision else {
            return None;
        };
        with_head(response, |head| {
            settling(limiter, usage, |charge| cost_of(head, charge))
        })
    }

    /// Gives back what was charged for a request that has got no response, if that is wanted.
    pub(super) fn unanswered(&self, limiter: &Limiter, decision: &Decision) {
        if self.refunds_unanswered
            && let Decision::Allowed(usage) = decision
            && let Some(settling) = settling(limiter, usage, |_| 0)
        {
            self.in_background(settling);
        }
    }

    /// Carries on with a settlement whose caller has gone; without a runtime, the charge stays.
    pub(super) fn in_background(&self, settling: Settling) {
        let (Ok(runtime), Some(place)) = (Handle::try_current(), Place::take(&self.in_background))
        else {
            return;
        };
        runtime.spawn(async move {
            let _place = place;
            settling.await;
        });
    }
}

/// The settlement of what counts and of what shadows charged, in one call; `None` when nothing differs.
///
/// What a handler has settled by itself is left as it is.
fn settling(
    limiter: &Limiter,
    usage: &Usage,
    cost_of: impl Fn(&Charge) -> u64,
) -> Option<Settling> {
    let counting = settlement(usage, &cost_of);
    let shadow = match usage.shadow() {
        Some(Decision::Allowed(shadow)) => settlement(shadow, &cost_of),
        _ => None,
    };
    let counts = counting.is_some();
    let settlements: Vec<Settlement> = counting.into_iter().chain(shadow).collect();
    if settlements.is_empty() {
        return None;
    }
    let (limiter, usage) = (limiter.clone(), usage.clone());
    Some(Box::pin(async move {
        let mut settled = limiter.settle_all(settlements).await.into_iter();
        let counting = if counts {
            settled.next()?.ok()?
        } else {
            usage.clone()
        };
        // What goes wrong with a shadow changes nothing else.
        let shadow = settled.next().and_then(Result::ok).map(Decision::Allowed);
        Some(match shadow.or_else(|| usage.shadow().cloned()) {
            Some(shadow) => counting.with_shadow(shadow),
            None => counting,
        })
    }))
}

/// `None` when no charge has another cost than it had, or when it was settled before.
fn settlement(usage: &Usage, cost_of: impl Fn(&Charge) -> u64) -> Option<Settlement> {
    let charges = usage.check().charges();
    let costs: Vec<u64> = charges.iter().map(cost_of).collect();
    let mut both = charges.iter().zip(&costs);
    let differs = both.any(|(charge, cost)| charge.cost() != *cost);
    differs
        .then(|| Settlement::new(usage, costs).ok())
        .flatten()
}

/// Calls back with the head alone: the body's type has no value that could replace it meanwhile.
fn with_head<B, T>(response: &mut Response<B>, look: impl FnOnce(&Parts) -> T) -> T {
    let mut head = Response::new(()).into_parts().0;
    head.status = response.status();
    head.version = response.version();
    mem::swap(&mut head.headers, response.headers_mut());
    mem::swap(&mut head.extensions, response.extensions_mut());
    let seen = look(&head);
    mem::swap(&mut head.headers, response.headers_mut());
    mem::swap(&mut head.extensions, response.extensions_mut());
    seen
}

/// One of the places for settlements in the background, free again when dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(taken.clone());
        (taken.fetch_add(1, Ordering::Relaxed) < MAX_IN_BACKGROUND).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
