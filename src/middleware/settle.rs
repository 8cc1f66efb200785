use std::{
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use http::{Response, response::Parts};
use tokio::runtime::Handle;

use super::plan::Plan;
use crate::{
    charge::Charge,
    decision::{Decision, Usage},
    error::StoreError,
    limiter::Limiter,
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

/// The future of a settlement, under the limiter's timeout.
pub(super) type Settling = Pin<Box<dyn Future<Output = Result<Usage, StoreError>> + Send>>;

/// What requests that were admitted finally cost.
#[derive(Clone, Default)]
pub(super) struct Settle {
    pub(super) cost_of: Option<Arc<CostOf>>,
    pub(super) refunds_unanswered: bool,
    in_background: Arc<AtomicUsize>,
}

/// A response that waits for its settlement.
pub(super) struct Unsettled<T> {
    settling: Settling,
    response: T,
    decision: Decision,
}

impl<T> Unsettled<T> {
    pub(super) const fn new(settling: Settling, response: T, decision: Decision) -> Self {
        Self {
            settling,
            response,
            decision,
        }
    }

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

    /// The settlement alone, when nobody waits for the response.
    pub(super) fn abandon(self) -> Settling {
        self.settling
    }
}

impl Plan {
    /// The settlement that a response asks for; `None` when it costs what was charged.
    pub(super) fn settling<B>(
        &self,
        response: &mut Response<B>,
        decision: &Decision,
    ) -> Option<Settling> {
        let cost_of = self.settle.cost_of.as_ref()?;
        let Decision::Allowed(usage) = decision else {
            return None;
        };
        with_head(response, |head| {
            settling(&self.limiter, usage, |charge| cost_of(head, charge))
        })
    }

    /// Gives back what was charged for a request that has got no response, if that is wanted.
    pub(super) fn unanswered(&self, decision: &Decision) {
        if self.settle.refunds_unanswered
            && let Decision::Allowed(usage) = decision
            && let Some(settling) = settling(&self.limiter, usage, |_| 0)
        {
            self.settle.in_background(settling);
        }
    }
}

impl Settle {
    /// Carries on with a settlement that nobody waits for any more; without a runtime, the charge stays.
    pub(super) fn in_background(&self, settling: Settling) {
        let (Ok(runtime), Some(place)) = (Handle::try_current(), Place::take(&self.in_background))
        else {
            return;
        };
        runtime.spawn(async move {
            let _place = place;
            let _ = settling.await;
        });
    }
}

/// The settlement of what was admitted and of what shadows admitted; `None` when all of it costs what was charged.
fn settling(
    limiter: &Limiter,
    usage: &Usage,
    cost_of: impl Fn(&Charge) -> u64,
) -> Option<Settling> {
    let counting = costs(usage, &cost_of);
    let shadow = match usage.shadow() {
        Some(Decision::Allowed(shadow)) => costs(shadow, &cost_of).map(|it| (shadow.clone(), it)),
        _ => None,
    };
    if counting.is_none() && shadow.is_none() {
        return None;
    }
    let (limiter, usage) = (limiter.clone(), usage.clone());
    Some(Box::pin(async move {
        let counting = async {
            match counting {
                Some(costs) => limiter.settle(&usage, costs).await,
                None => Ok(usage.clone()),
            }
        };
        let shadow = async {
            let (shadow, costs) = shadow?;
            // What goes wrong with a shadow is told to the observer alone.
            limiter.settle(&shadow, costs).await.ok()
        };
        let (settled, shadow) = both(counting, shadow).await;
        let shadow = shadow.map(Decision::Allowed);
        let settled = settled?;
        Ok(match shadow.or_else(|| usage.shadow().cloned()) {
            Some(shadow) => settled.with_shadow(shadow),
            None => settled,
        })
    }))
}

/// Waits for two answers at once: so their timeouts, which begin together, are one for whoever waits.
async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let mut known = (Poll::Pending, Poll::Pending);
    poll_fn(move |cx| {
        if known.0.is_pending() {
            known.0 = a.as_mut().poll(cx);
        }
        if known.1.is_pending() {
            known.1 = b.as_mut().poll(cx);
        }
        match mem::replace(&mut known, (Poll::Pending, Poll::Pending)) {
            (Poll::Ready(a), Poll::Ready(b)) => Poll::Ready((a, b)),
            so_far => {
                known = so_far;
                Poll::Pending
            }
        }
    })
    .await
}

/// The final cost of each charge; `None` when no charge has another than it had.
fn costs(usage: &Usage, cost_of: impl Fn(&Charge) -> u64) -> Option<Vec<u64>> {
    let charges = usage.check().charges();
    let costs: Vec<u64> = charges.iter().map(cost_of).collect();
    let mut both = charges.iter().zip(&costs);
    both.any(|(it, cost)| it.cost() != *cost).then_some(costs)
}

/// The head is lent out without the body, whose type has no value to stand in for it.
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
