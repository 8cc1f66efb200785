use std::{borrow::Cow, mem, pin::Pin, sync::Arc};

use http::{Response, response::Parts};
use tokio::{runtime::Handle, sync::Semaphore};

use super::Decisions;
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
/// A layer with several policies counts different things under them: name the policies that the cost is for, and the
/// others keep what they were charged.
///
/// ```
/// use http::{Request, Response};
/// use sluicegate::{Key, MemoryStore, Policy, RateLimitLayer, middleware::ActualCost};
/// use tower::{ServiceBuilder, ServiceExt};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let layer = RateLimitLayer::new(MemoryStore::new())
///     .limit(Policy::parse("requests", "100/1h")?, Key::new("user", "alice"))
///     .limit(Policy::parse("tokens", "10000/1h")?, Key::new("user", "alice"))
///     .settle(ActualCost::or_charged);
///
/// let service = ServiceBuilder::new().layer(layer).service_fn(async |_: Request<()>| {
///     let mut response = Response::new("a long answer".to_owned());
///     response.extensions_mut().insert(ActualCost::of("tokens", 1_300));
///     Ok::<_, std::convert::Infallible>(response)
/// });
/// let response = service.oneshot(Request::new(())).await?;
/// let left = response.headers()["ratelimit"].to_str()?;
/// assert!(left.starts_with(r#""requests";r=99;"#) && left.contains(r#""tokens";r=8700;"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ActualCost {
    /// Under the policies that are not named.
    others: Option<u64>,
    named: Vec<(Cow<'static, str>, u64)>,
}

impl ActualCost {
    /// The cost under every policy.
    #[must_use]
    pub const fn new(cost: u64) -> Self {
        Self {
            others: Some(cost),
            named: Vec::new(),
        }
    }

    /// The cost under the policy of this name; the others keep what they were charged.
    #[must_use]
    pub fn of(policy: impl Into<Cow<'static, str>>, cost: u64) -> Self {
        Self {
            others: None,
            named: vec![(policy.into(), cost)],
        }
    }

    /// Adds the cost under another policy, or replaces it.
    #[must_use]
    pub fn and(mut self, policy: impl Into<Cow<'static, str>>, cost: u64) -> Self {
        let policy = policy.into();
        self.named.retain(|(name, _)| *name != policy);
        self.named.push((policy, cost));
        self
    }

    /// What the handler has said for the charge's policy, or what was charged if it has said nothing. For
    /// [`settle`](super::RateLimitLayer::settle).
    #[must_use]
    pub fn or_charged(response: &Parts, charge: &Charge) -> u64 {
        let said = response.extensions.get::<Self>();
        let said = said.and_then(|it| it.under(charge.policy().name()));
        said.unwrap_or_else(|| charge.cost())
    }

    fn under(&self, policy: &str) -> Option<u64> {
        let named = self.named.iter().find(|(name, _)| name == policy);
        named.map(|(_, cost)| *cost).or(self.others)
    }
}

type CostOf = dyn Fn(&Parts, &Charge) -> u64 + Send + Sync;

/// The future of a settlement, under the limiter's timeout: what is left after it, `None` where it has failed.
pub(super) type Settling = Pin<Box<dyn Future<Output = Option<Usage>> + Send>>;

/// What requests that were admitted finally cost.
#[derive(Clone)]
pub(super) struct Settle {
    pub(super) cost_of: Option<Arc<CostOf>>,
    pub(super) refunds_unanswered: bool,
    /// The places for settlements in the background.
    in_background: Arc<Semaphore>,
}

impl Default for Settle {
    fn default() -> Self {
        Self {
            cost_of: None,
            refunds_unanswered: false,
            in_background: Arc::new(Semaphore::new(MAX_IN_BACKGROUND)),
        }
    }
}

/// A response that waits for its settlement.
pub(super) struct Unsettled<T> {
    pub(super) settling: Settling,
    pub(super) response: T,
    pub(super) admitted: Decisions,
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
        let place = Arc::clone(&self.in_background).try_acquire_owned();
        let (Ok(runtime), Ok(place)) = (Handle::try_current(), place) else {
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
    if both.all(|(charge, cost)| charge.cost() == *cost) {
        return None;
    }
    Settlement::new(usage, costs).ok()
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
