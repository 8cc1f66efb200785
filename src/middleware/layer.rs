use std::{fmt, sync::Arc, time::Duration};

use http::{request::Parts, response};
use tower_layer::Layer;

use super::{
    HeaderStyle, PolicySelector, ProblemJson, RateLimit, decide::AccessLists, shared::Shared,
};
use crate::{
    charge::Charge,
    extract::{AsyncKeyExtractor, KeyExtractor},
    key::Key,
    limiter::{FailurePolicy, Limiter},
    policy::Policy,
};

/// Layer that applies the [`RateLimit`] middleware, which limits how often a client may call a service.
///
/// See the [module docs](super) for an example. `R` makes the responses to requests that are not passed on.
pub struct RateLimitLayer<R = ProblemJson> {
    shared: Arc<Shared<R>>,
}

impl RateLimitLayer {
    /// Creates a layer over a store, or over a [`Limiter`], whose timeout and failure policy it takes.
    ///
    /// It limits nothing until [`limit`](Self::limit) is called.
    #[must_use]
    pub fn new(limiter: impl Into<Limiter>) -> Self {
        let shared = Shared::new(limiter.into(), ProblemJson::default());
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl<R> RateLimitLayer<R> {
    /// Adds a limit: the keys that `extractor` finds are charged under `policy`.
    ///
    /// A [`PolicySelector`] is a [`Policy`], or says which policy it is for each request.
    ///
    /// # Panics
    ///
    /// When another limit of this layer has a policy of the same name and other rules: they would share counts.
    #[must_use]
    pub fn limit(self, policy: impl Into<PolicySelector>, extractor: impl KeyExtractor) -> Self {
        let policy = self.without_twin(policy.into());
        self.change(|shared| shared.plan.limits.push((policy, Arc::new(extractor))))
    }

    /// Adds a limit whose keys have to be looked up.
    ///
    /// # Panics
    ///
    /// As [`limit`](Self::limit).
    #[must_use]
    pub fn limit_async(
        self,
        policy: impl Into<PolicySelector>,
        extractor: impl AsyncKeyExtractor,
    ) -> Self {
        let policy = self.without_twin(policy.into());
        self.change(|shared| shared.plan.look_ups.push((policy, Arc::new(extractor))))
    }

    fn without_twin(&self, selector: PolicySelector) -> PolicySelector {
        let selectors = self.shared.plan.selectors();
        let others: Vec<Policy> = selectors.flat_map(PolicySelector::known).collect();
        for policy in selector.known() {
            let mut twins = others.iter().filter(|it| it.name() == policy.name());
            if let Some(twin) = twins.find(|it| **it != policy) {
                panic!(
                    "two policies of one layer have the same name and different rules: {twin:?}, {policy:?}"
                );
            }
        }
        selector
    }

    /// Lets requests pass that this layer should not see, such as health checks: nothing is looked up, charged or added
    /// to the response. A request is skipped when one of these closures says so, unless it is [blocked](Self::block).
    ///
    /// A list of networks is a closure too: one that calls [`Cidr::contains`](crate::extract::Cidr::contains) with
    /// [`ForwardedIp::address`](crate::ForwardedIp::address).
    #[must_use]
    pub fn skip(self, skips: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.except(|lists| lists.skipped.push(Arc::new(skips)))
    }

    /// Lets keys pass, such as those on an allow list: they are charged under no policy of this layer.
    ///
    /// Compare whole keys with what the extractor answers, or the kind and the value of keys that you make yourself.
    ///
    /// Other keys of the same request are charged all the same: a partner's address that is not limited does not free a
    /// user from the limit by API key. Use [`skip`](Self::skip) to let the whole request pass.
    #[must_use]
    pub fn skip_keys(self, skips: impl Fn(&Key) -> bool + Send + Sync + 'static) -> Self {
        self.except(|lists| lists.skipped_keys.push(Arc::new(skips)))
    }

    /// Rejects requests with a 403, before any key is extracted or anything is charged.
    ///
    /// It goes before [`skip`](Self::skip). The response is made from
    /// [`Rejection::Blocked`](super::Rejection::Blocked).
    #[must_use]
    pub fn block(self, blocks: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.except(|lists| lists.blocked.push(Arc::new(blocks)))
    }

    /// Rejects requests with a 403 when an extractor answers such a key, for instance one on a deny list; nothing is
    /// charged to any of the request's keys.
    ///
    /// It goes before [`skip_keys`](Self::skip_keys), but not before [`skip`](Self::skip): the keys of a request that
    /// is skipped are not known.
    #[must_use]
    pub fn block_keys(self, blocks: impl Fn(&Key) -> bool + Send + Sync + 'static) -> Self {
        self.except(|lists| lists.blocked_keys.push(Arc::new(blocks)))
    }

    fn except(self, add: impl FnOnce(&mut AccessLists)) -> Self {
        self.change(|shared| add(&mut shared.plan.access_lists))
    }

    /// Sets what a request costs under each of its limits. The default is 1; 0 looks without charging.
    ///
    /// A cost above a limit can never fit, nor any cost under a limit of 0: the request is answered with a 413 and
    /// without a `Retry-After`. [`ProblemJson::status_if_never`] sets another status.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.change(|shared| shared.plan.cost = Some(Arc::new(cost)))
    }

    /// Sets what an admitted request finally costs, by the head of its response: called once for each of its charges.
    /// The default is what was charged.
    ///
    /// ```
    /// # use http::StatusCode;
    /// # use sluicegate::{Charge, MemoryStore, RateLimitLayer};
    /// # let layer = RateLimitLayer::new(MemoryStore::new());
    /// // Count wrong passwords only; other policies of the layer count every request.
    /// let layer = layer.settle(|response: &http::response::Parts, charge: &Charge| {
    ///     match (charge.policy().name(), response.status) {
    ///         ("wrong-passwords", StatusCode::UNAUTHORIZED) => charge.cost(),
    ///         ("wrong-passwords", _) => 0,
    ///         _ => charge.cost(),
    ///     }
    /// });
    /// # let _ = layer;
    /// ```
    ///
    /// The request is charged when it comes and settled when it is answered, so that requests under way count: of a
    /// hundred guesses at the same time, no more than the limit are served. A caller with that many good requests under
    /// way may be denied.
    ///
    /// A response waits for its settlement, within the timeout, and its headers tell what is left afterwards; where
    /// nothing differs, the store is not called. What [shadows](Policy::shadow) charged is settled in the same call. If
    /// the settlement fails, or takes too long, the response goes out as it is and **the charge stays**. If the client
    /// goes away meanwhile, the settlement is carried on in the background.
    ///
    /// What only the end of a streaming body can tell is for the handler to [settle](Limiter::settle), with the
    /// [`Decisions`](super::Decisions) in the request's extensions; a check is settled only once.
    #[must_use]
    pub fn settle(
        self,
        cost: impl Fn(&response::Parts, &Charge) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.change(|shared| shared.settle.cost_of = Some(Arc::new(cost)))
    }

    /// Gives back what was charged for requests that get no response: the client went away before there was one, or the
    /// inner service failed with an error. By default they keep their charge.
    ///
    /// This is done in the background, at most 1024 at a time and each within the timeout; where that fails, the charge
    /// stays. It also stays when the client has gone before the store decided, since it may not have been charged.
    ///
    /// **A client that always leaves early is then never limited**, whatever its requests have cost: use it only where
    /// the inner service stops working, too, when its caller has gone.
    #[must_use]
    pub fn refund_unanswered(self) -> Self {
        self.change(|shared| shared.settle.refunds_unanswered = true)
    }

    /// Sets how long a decision may take; and, before it, all look-ups of keys. The default is the limiter's, 100 ms.
    ///
    /// # Panics
    ///
    /// When `timeout` is zero.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        let limiter = self.shared.plan.limiter.clone().timeout(timeout);
        self.change(|shared| shared.plan.limiter = limiter)
    }

    /// Sets what to do with a request that could not be decided, for policies that do not
    /// [say it themselves](Policy::on_failure). The default is the limiter's, [`FailurePolicy::Open`].
    ///
    /// For [`Local`](FailurePolicy::Local), give the layer a [`Limiter`] that knows
    /// [how many replicas](Limiter::replicas) there are.
    #[must_use]
    pub fn on_failure(self, policy: FailurePolicy) -> Self {
        let limiter = self.shared.plan.limiter.clone().on_failure(policy);
        self.change(|shared| shared.plan.limiter = limiter)
    }

    /// Makes every policy of this layer a [shadow](Policy::shadow): it decides, charges and reports, and rejects no
    /// request, for whatever reason.
    #[must_use]
    pub fn shadow(self) -> Self {
        self.change(|shared| shared.plan.shadow = true)
    }

    /// Lets requests wait for room, up to this time; a request that would have to wait longer is denied at once. By
    /// default none waits.
    ///
    /// Requests under the same policies and keys go in order of arrival: see [`Limiter::acquire`], and
    /// [around a client](super#around-a-client). The timeout is then that of each call of the store.
    #[must_use]
    pub fn max_wait(self, most: Duration) -> Self {
        self.change(|shared| shared.plan.max_wait = Some(most))
    }

    /// Sets which headers tell clients their quota. The default is [`HeaderStyle::DRAFT_11`].
    #[must_use]
    pub fn headers(self, style: HeaderStyle) -> Self {
        self.change(|shared| shared.style = style)
    }

    /// Adds a random time, up to this one, to the wait that each client is sent, so that those that were denied
    /// together do not come back together. The default is none.
    ///
    /// It is added to `Retry-After`, to `t` or `Reset`, and to what the [`Rejection`](super::Rejection) says; never
    /// taken away. The [`Decisions`](super::Decisions) in the extensions are as the store made them.
    #[must_use]
    pub fn jitter(self, most: Duration) -> Self {
        self.change(|shared| shared.jitter = most)
    }

    /// Sets what makes the responses to requests that are not passed on. The default is [`ProblemJson`].
    ///
    /// A [`MakeRejection`](super::MakeRejection): a closure `|rejection: &Rejection, head: &Parts| -> Response<B>`, or
    /// [`EmptyBody`](super::EmptyBody) for bodies that cannot be made from a `String`. A closure also gets gRPC calls,
    /// unless it is within [`Grpc::or`](super::Grpc::or).
    #[must_use]
    pub fn rejection<M>(self, make: M) -> RateLimitLayer<M> {
        let shared = Arc::unwrap_or_clone(self.shared);
        RateLimitLayer {
            shared: Arc::new(shared.with_rejection(make)),
        }
    }

    /// Sets what makes the responses to requests that are not passed on, as an axum handler: a closure that answers
    /// anything that is [`IntoResponse`](axum::response::IntoResponse) (feature `axum`).
    ///
    /// ```
    /// use axum::Json;
    /// use serde_json::json;
    /// # use sluicegate::{MemoryStore, RateLimitLayer};
    /// # let layer = RateLimitLayer::new(MemoryStore::new());
    ///
    /// let layer = layer.reject_with(|rejection, _head| {
    ///     (rejection.status(), Json(json!({ "error": "please slow down" })))
    /// });
    /// # let _ = layer;
    /// ```
    #[cfg(feature = "axum")]
    #[must_use]
    pub fn reject_with<F, T>(self, handler: F) -> RateLimitLayer<super::AxumRejection<F>>
    where
        F: Fn(&super::Rejection, &Parts) -> T,
        T: axum::response::IntoResponse,
    {
        self.rejection(super::AxumRejection::new(handler))
    }

    fn change(mut self, change: impl FnOnce(&mut Shared<R>)) -> Self {
        let shared = Arc::make_mut(&mut self.shared);
        change(shared);
        shared.prepare();
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
