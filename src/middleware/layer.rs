use std::{fmt, sync::Arc, time::Duration};

use http::request::Parts;
use tower_layer::Layer;

use super::{HeaderStyle, ProblemJson, RateLimit, plan::Plan, service::Shared};
use crate::{
    extract::{AsyncKeyExtractor, KeyExtractor},
    limiter::{FailurePolicy, Limiter},
    policy::Policy,
};

/// Layer that applies the [`RateLimit`] middleware, which limits how often somebody may call a service.
///
/// See the [module docs](super) for an example. `R` makes the responses to requests that are not passed on.
pub struct RateLimitLayer<R = ProblemJson> {
    shared: Arc<Shared<R>>,
}

impl RateLimitLayer {
    /// Creates a layer over a store, or over a [`Limiter`], whose deadline and failure policy it takes.
    ///
    /// It limits nothing until it is told [what to limit](Self::limit).
    #[must_use]
    pub fn new(limiter: impl Into<Limiter>) -> Self {
        let style = HeaderStyle::default();
        let shared = Shared {
            plan: Plan::new(limiter.into()),
            style,
            headers: style.prepare([].into_iter()),
            rejection: Arc::new(ProblemJson),
        };
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl<R> RateLimitLayer<R> {
    /// Adds a limit: the keys that `extractor` finds are charged under `policy`.
    ///
    /// # Panics
    ///
    /// When another limit of this layer has a policy of the same name and different rules: they would share their counts.
    #[must_use]
    pub fn limit(self, policy: Policy, extractor: impl KeyExtractor) -> Self {
        self.refuse_twin(&policy);
        self.change(|shared| shared.plan.limits.push((policy, Arc::new(extractor))))
    }

    /// Adds a limit whose keys have to be looked up.
    ///
    /// # Panics
    ///
    /// As [`limit`](Self::limit).
    #[must_use]
    pub fn limit_async(self, policy: Policy, extractor: impl AsyncKeyExtractor) -> Self {
        self.refuse_twin(&policy);
        self.change(|shared| shared.plan.look_ups.push((policy, Arc::new(extractor))))
    }

    fn refuse_twin(&self, policy: &Policy) {
        let mut others = self.shared.plan.policies();
        if let Some(twin) = others.find(|twin| twin.name() == policy.name() && *twin != policy) {
            panic!(
                "two policies of one layer have the same name and different rules: {twin:?}, {policy:?}"
            );
        }
    }

    /// Sets what a request costs under each of its limits. The default is 1; 0 looks without charging.
    ///
    /// A cost above a limit can never fit: the request is refused without a `Retry-After`.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.change(|shared| shared.plan.cost = Some(Arc::new(cost)))
    }

    /// Sets how long a decision may take, look-ups of keys included. The default is the limiter's, 100 ms.
    ///
    /// # Panics
    ///
    /// When `deadline` is zero.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        let limiter = self.shared.plan.limiter.clone().deadline(deadline);
        self.change(|shared| shared.plan.limiter = limiter)
    }

    /// Sets what to do with a request that could not be decided. The default is the limiter's, [`FailurePolicy::Open`].
    #[must_use]
    pub fn on_failure(self, policy: FailurePolicy) -> Self {
        let limiter = self.shared.plan.limiter.clone().on_failure(policy);
        self.change(|shared| shared.plan.limiter = limiter)
    }

    /// Sets which headers tell clients their quota. The default is [`HeaderStyle::Draft11`].
    #[must_use]
    pub fn headers(self, style: HeaderStyle) -> Self {
        self.change(|shared| shared.style = style)
    }

    /// Sets what makes the responses to requests that are not passed on. The default is [`ProblemJson`].
    ///
    /// A [`MakeRejection`](super::MakeRejection): a closure `|rejection: &Rejection, head: &Parts| -> Response<B>`, or
    /// [`EmptyBody`](super::EmptyBody) for bodies that cannot be made from a `String`.
    #[must_use]
    pub fn rejection<M>(self, make: M) -> RateLimitLayer<M> {
        let Shared {
            plan,
            style,
            headers,
            rejection: _,
        } = Arc::unwrap_or_clone(self.shared);
        let shared = Shared {
            plan,
            style,
            headers,
            rejection: Arc::new(make),
        };
        RateLimitLayer {
            shared: Arc::new(shared),
        }
    }

    /// All that can be known is known here, and not when a service is made: axum makes new ones for each connection.
    fn change(mut self, change: impl FnOnce(&mut Shared<R>)) -> Self {
        let shared = Arc::make_mut(&mut self.shared);
        change(shared);
        shared.headers = shared.style.prepare(shared.plan.policies());
        self
    }
}

impl<S, R> Layer<S> for RateLimitLayer<R> {
    type Service = RateLimit<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, self.shared.clone())
    }
}

impl<R> Clone for RateLimitLayer<R> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<R> fmt::Debug for RateLimitLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("plan", &self.shared.plan)
            .field("headers", &self.shared.style)
            .finish_non_exhaustive()
    }
}
