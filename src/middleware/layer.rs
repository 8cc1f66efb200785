use std::{fmt, sync::Arc, time::Duration};

use http::{request::Parts, response};
use tower_layer::Layer;

use super::{
    HeaderStyle, PolicySelector, ProblemJson, RateLimit,
    admit::{AccessLists, ChargeLookUp, IntoPolicySelector, Limit, Newest},
    shared::Shared,
};
use crate::{
    domain::{FailurePolicy, charge::Charge, error::PolicyError, key::Key, policy::Policy},
    extract::{AsyncKeyExtractor, ChargesFuture, IntoCharges, KeyExtractor},
    limiter::{FOR_EVER, IntoLimiter, Limiter},
    observe::Observer,
};

/// Layer that applies the [`RateLimit`] middleware, which limits how often a client may call a service.
///
/// In axum, add it *after* the routes: `Router::layer` covers those that the router has by then, and no others.
///
/// See the [module docs](super) for an example. `R` makes the responses to requests that are not passed on.
pub struct RateLimitLayer<R = ProblemJson> {
    pub(super) shared: Arc<Shared<R>>,
}

impl RateLimitLayer {
    /// Creates a layer over a store, or over a [`Limiter`], whose timeout and failure policy it takes.
    ///
    /// It limits nothing until [`limit`](Self::limit) is called.
    #[must_use]
    pub fn new(limiter: impl IntoLimiter) -> Self {
        let shared = Shared::new(limiter.into_limiter(), ProblemJson::default());
        Self {
            shared: Arc::new(shared),
        }
    }
}

impl<R> RateLimitLayer<R> {
    /// Adds a limit: the keys that `extractor` finds are charged under `policy`.
    ///
    /// A [`PolicySelector`] is a [`Policy`](crate::Policy), or says which policy it is for each request. A closure as
    /// either of them needs the type of its argument, `|head: &http::request::Parts| …`, or
    /// [`from_fn`](crate::extract::from_fn).
    ///
    /// # Panics
    ///
    /// When another limit of this layer has a policy of the same name that differs (rules, ban, failure policy or
    /// shadow), or that could differ after a [reload](crate::policies::ReloadablePolicies): they would share counts; or
    /// when a name in a table of [`Routes`](super::Routes) is no route. For policies and routes that are not known before
    /// the service runs, use [`try_limit`](Self::try_limit).
    #[must_use]
    #[track_caller]
    pub fn limit(self, policy: impl IntoPolicySelector, extractor: impl KeyExtractor) -> Self {
        valid(self.try_limit(policy, extractor))
    }

    /// As [`limit`](Self::limit), for policies and routes from a configuration file.
    ///
    /// ```
    /// use sluicegate::{MemoryStore, PeerIp, Policy, RateLimitLayer, error::PolicyError};
    ///
    /// let layer = RateLimitLayer::new(MemoryStore::new());
    /// let layer = layer.try_limit(Policy::parse("ip", "10/1s")?, PeerIp)?;
    /// let error = layer.try_limit(Policy::parse("ip", "20/1s")?, PeerIp.ipv6_prefix(48)).unwrap_err();
    /// assert!(matches!(error, PolicyError::Conflict { .. }));
    /// # Ok::<(), PolicyError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PolicyError::Conflict`], [`PolicyError::ReloadConflict`] or [`PolicyError::Route`], where `limit` panics.
    pub fn try_limit(
        self,
        policy: impl IntoPolicySelector,
        extractor: impl KeyExtractor,
    ) -> Result<Self, PolicyError> {
        let policy = self.without_mistake(policy.into_selector())?;
        Ok(self.change(|shared| {
            let limit = Limit::new(policy, Arc::new(extractor) as _);
            shared.plan.limits.push(limit);
            shared.plan.newest = Newest::Limits;
        }))
    }

    /// Adds a limit whose keys have to be looked up: see [`AsyncKeyExtractor`].
    ///
    /// # Panics
    ///
    /// As [`limit`](Self::limit).
    #[must_use]
    #[track_caller]
    pub fn limit_async(
        self,
        policy: impl IntoPolicySelector,
        extractor: impl AsyncKeyExtractor,
    ) -> Self {
        valid(self.try_limit_async(policy, extractor))
    }

    /// As [`limit_async`](Self::limit_async), for policies from a configuration file.
    ///
    /// # Errors
    ///
    /// As [`try_limit`](Self::try_limit).
    pub fn try_limit_async(
        self,
        policy: impl IntoPolicySelector,
        extractor: impl AsyncKeyExtractor,
    ) -> Result<Self, PolicyError> {
        let policy = self.without_mistake(policy.into_selector())?;
        Ok(self.change(|shared| {
            let limit = Limit::new(policy, Arc::new(extractor) as _);
            shared.plan.look_ups.push(limit);
            shared.plan.newest = Newest::LookUps;
        }))
    }

    /// Names the contributors to the limit that was added last, so that [`Limiter::contributors`] can list those that
    /// used it up: see [`contributors`](crate::contributors).
    ///
    /// The label is the first key that `extractor` finds; a request without one is counted without a label. It changes
    /// no decision, and no response shows it. A [`Header`](crate::Header) or a cookie is [secret](Key::secret) and is
    /// listed as a hash: where operators may read the value, take a closure. A charge that
    /// [`charge_async`](Self::charge_async) has looked up keeps the contributor that [`Charge::by`] names.
    ///
    /// ```
    /// use http::{Request, Response, request::Parts};
    /// use sluicegate::{Header, Key, Limiter, MemoryStore, Policy, RateLimitLayer};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # mod over_http { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/over_http.rs")); }
    /// # over_http::run(async |http| {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let policy = Policy::parse("api", "3/1h")?;
    /// let layer = RateLimitLayer::new(limiter.clone())
    ///     .limit(policy.clone(), Header::new("x-account"))
    ///     .contributors(|head: &Parts| Some(Key::new("user", head.headers.get("x-user")?)));
    ///
    /// let service = layer.layer(service_fn(async |_: Request<String>| {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// }));
    /// # let service = http.serve(service);
    /// for user in ["alice", "bob", "alice", "bob"] {
    ///     let request = Request::get("/").header("x-account", "acme").header("x-user", user);
    ///     service.clone().oneshot(request.body(String::new())?).await?;
    /// }
    /// let account = Header::new("x-account").key("acme");
    /// let contributors = limiter.contributors(&policy, &account).await?;
    /// let first = contributors.iter().next().unwrap();
    /// assert_eq!((first.label(), first.units()), ("user=alice", 2));         // bob's second one was denied
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Panics
    ///
    /// When no limit was added before.
    #[must_use]
    #[track_caller]
    pub fn contributors(self, extractor: impl KeyExtractor) -> Self {
        let mut is_set = false;
        let layer = self.change(|shared| {
            is_set = shared.plan.set_contributor(Arc::new(extractor));
        });
        assert!(
            is_set,
            "`contributors` is about the limit before it, and there is none"
        );
        layer
    }

    /// Adds a limit whose policy, key and cost have to be looked up, such as the tier of a user that is in a database.
    ///
    /// The look-up answers a [`Charge`], an `Option`, a `Vec`, or a `Result` of one of them. Its cost is what is
    /// charged: [`cost`](Self::cost) does not apply. `None` rejects the request, as a missing key does; an empty `Vec`
    /// means that this limit does not apply. The future owns what it needs: copy it from the head.
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use http::{Request, Response, StatusCode};
    /// use sluicegate::{Charge, Header, Key, MemoryStore, Policy, RateLimitLayer, error::ExtractError};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # #[derive(Clone)] struct Database;
    /// # impl Database {
    /// #     async fn tier_of(&self, user: &str) -> Result<Option<Policy>, std::io::Error> {
    /// #         Ok((user == "alice").then(|| Policy::parse("trial", "2/1d").unwrap()))
    /// #     }
    /// # }
    /// # mod over_http { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/over_http.rs")); }
    /// # over_http::run(async |http| {
    /// # let database = Database;
    /// let layer = RateLimitLayer::new(MemoryStore::new()).charge_async(move |head| {
    ///     let user = head.headers.get("x-user").and_then(|it| it.to_str().ok()).map(str::to_owned);
    ///     let database = database.clone();
    ///     async move {
    ///         let user = user.ok_or(ExtractError::unauthenticated("Bearer"))?;
    ///         match database.tier_of(&user).await {
    ///             Ok(Some(tier)) => Ok(Charge::new(&tier, Key::new("user", user), 1)),
    ///             Ok(None) => Err(ExtractError::unauthenticated("Bearer")),
    ///             Err(_) => Err(ExtractError::unavailable("the database did not answer")),
    ///         }
    ///     }
    /// });
    ///
    /// let service = layer.layer(service_fn(async |_: Request<String>| {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// }));
    /// # let service = http.serve(service);
    /// for (user, status) in [("alice", 200), ("alice", 200), ("alice", 429), ("mallory", 401)] {
    ///     let request = Request::get("/").header("x-user", user).body(String::new())?;
    ///     assert_eq!(service.clone().oneshot(request).await?.status(), status);
    /// }
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// All look-ups of one request run at the same time, those of [`limit_async`](Self::limit_async) too, under one
    /// [timeout](Self::look_up_timeout). One that takes longer, or answers
    /// [`ExtractError::unavailable`](crate::error::ExtractError::unavailable), follows the failure policy of the layer,
    /// since the policy is not known. By default that is [`Open`](FailurePolicy::Open): **the request passes without
    /// this limit.** With [`on_failure(FailurePolicy::Closed)`](Self::on_failure) it is answered with a 503.
    ///
    /// Look-ups come first: the request of a client that one of the layer's other limits denies is looked up all the
    /// same. To spare the database those, put the other limits into a
    /// [layer around this one](super#two-layers-one-store).
    ///
    /// Nothing is remembered from one request to the next: where a look-up is slow, keep what it has found in a cache.
    ///
    /// Policies of one name share their counts; two of one name that differ (rules, ban, failure policy or shadow) must
    /// not be charged to one key by one request, which is answered with a 500.
    #[must_use]
    pub fn charge_async<F, C>(self, look_up: impl Fn(&Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = C> + Send + 'static,
        C: IntoCharges,
    {
        let look_up = move |head: &Parts| -> ChargesFuture {
            let answer = look_up(head);
            Box::pin(async { answer.await.into_charges() })
        };
        self.change(|shared| {
            shared.plan.charge_look_ups.push(ChargeLookUp::new(look_up));
            shared.plan.newest = Newest::ChargeLookUps;
        })
    }

    /// The selector, unless it has a mistake, or one of its policies has the name of another one and differs.
    fn without_mistake(&self, selector: PolicySelector) -> Result<PolicySelector, PolicyError> {
        selector.check()?;
        let mut others = self.shared.plan.selectors();
        others.try_for_each(|other| other.agrees_with(&selector))?;
        Ok(selector)
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
    /// [`Rejection::OnDenyList`](super::Rejection::OnDenyList).
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

    /// Denies identities that are [blocked](crate::block#blocks), without limiting them: the keys that `extractor`
    /// finds join the layer's one check, and are looked up for blocks. They are charged nothing, and no header shows
    /// them.
    ///
    /// Around a whole router, this is one line that denies blocked addresses everywhere:
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{Router, body::Body, http::Request, routing::get};
    /// use std::time::Duration;
    /// use sluicegate::{Limiter, MemoryStore, PeerIp, RateLimitLayer};
    /// use tower::ServiceExt;
    ///
    /// # mod over_http { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/over_http.rs")); }
    /// # over_http::run(async |http| {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let app: Router = Router::new()
    ///     .route("/", get(async || "hello"))
    ///     .layer(RateLimitLayer::new(limiter.clone()).deny_blocked(PeerIp));
    /// # let app = http.serve(app);
    ///
    /// limiter.block(&PeerIp.key("127.0.0.1".parse()?), Duration::from_secs(60)).await?;
    /// let response = app.oneshot(Request::get("/").body(Body::empty())?).await?;
    /// assert_eq!(response.status(), 403);
    /// # Ok(())
    /// # });
    /// # }
    /// ```
    ///
    /// A layer that has limits, too, makes one check for both. A layer of its own around other layers makes a check of
    /// its own: see [where blocks hold](crate::block#where-blocks-hold).
    ///
    /// A request without a key is rejected, as under a [`limit`](Self::limit), unless the extractor has
    /// [`or_skip`](KeyExtractor::or_skip). [`skip`](Self::skip) and [`skip_keys`](Self::skip_keys) apply. It denies in a
    /// [shadow layer](Self::shadow), too, and whatever [`enforce_blocks`](Self::enforce_blocks) says.
    /// Where the store cannot decide, the layer's [failure policy](Self::on_failure) applies to a request that no limit
    /// applies to; a shadow layer lets it pass, unless this process [knows](crate::block#when-the-store-cannot-decide)
    /// the block.
    #[must_use]
    pub fn deny_blocked(self, extractor: impl KeyExtractor) -> Self {
        self.change(|shared| shared.plan.deny_blocked.push(Arc::new(extractor)))
    }

    /// Sets whether [blocks](crate::block#blocks) of the identities that this layer limits deny them. The default is
    /// the limiter's, `true`. See [`Limiter::enforce_blocks`].
    ///
    /// One check enforces the blocks of all its identities or of none. With `false`, they still deny a request for
    /// which the layer [looks up](Self::deny_blocked) an identity, or which it charges under a policy with a
    /// [ban](crate::Policy::ban).
    #[must_use]
    pub fn enforce_blocks(self, enforce: bool) -> Self {
        self.change_limiter(|limiter| limiter.enforce_blocks(enforce))
    }

    /// Sets whether the policies are published in the store, for operators' tools. The default is the limiter's,
    /// `true`. See [`Limiter::publish_policies`].
    #[must_use]
    pub fn publish_policies(self, publish: bool) -> Self {
        self.change_limiter(|limiter| limiter.publish_policies(publish))
    }

    fn except(self, add: impl FnOnce(&mut AccessLists)) -> Self {
        self.change(|shared| add(&mut shared.plan.access_lists))
    }

    /// Sets what a request costs, by its head and by the policy of a limit: called once for each limit that applies to
    /// the request. The default is 1; 0 looks without charging.
    ///
    /// ```
    /// use sluicegate::{Key, MemoryStore, Policy, RateLimitLayer};
    /// # use http::{Request, Response};
    /// # use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let alice = Key::new("user", "alice");
    /// let layer = RateLimitLayer::new(MemoryStore::new())
    ///     .limit(Policy::parse("requests", "60/1m")?, alice.clone())
    ///     .limit(Policy::parse("tokens", "10000/1m")?, alice)
    ///     .cost(|_head, policy| match policy.name() {
    ///         "tokens" => 500,
    ///         _ => 1,
    ///     });
    /// # let service = layer.layer(service_fn(async |_: Request<String>| {
    /// #     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// # }));
    /// # let response = service.oneshot(Request::new(String::new())).await?;
    /// assert_eq!(response.headers()["ratelimit"], r#""requests";r=59;t=61, "tokens";r=9500;t=61"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// One closure serves all limits, so that the cost of a request and of each of its limits is written in one place,
    /// as its final cost is in [`settle`](Self::settle). Where limits choose among several policies, it sees the one
    /// that was chosen. A [route's weight](super::Route::weight) multiplies its answer. The body is not known yet: for
    /// a cost that depends on it, check in the handler, and answer with [`Rejection::response`].
    ///
    /// [`Rejection::response`]: super::Rejection::response
    ///
    /// A cost above a limit can never fit: the request is answered with a 413 and without a `Retry-After`. A limit of 0
    /// denies every cost above 0, with a 429 and without a `Retry-After`. [`ProblemJson::status_if_never`] sets another
    /// status for both.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts, &Policy) -> u64 + Send + Sync + 'static) -> Self {
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
    /// nothing differs, the store is not called. What [shadows](crate::Policy::shadow) charged is settled at the same
    /// time. If the settlement fails, or takes too long, the response goes out as it is and **the charge stays**. If
    /// the client goes away meanwhile, the settlement is carried on in the background.
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
    /// inner service failed with an error or panicked. By default they keep their charge.
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

    /// Sets how long a decision may take. The default is the limiter's, 100 ms. Look-ups, which come before it, have
    /// [a timeout of their own](Self::look_up_timeout). See [`Limiter::timeout`].
    ///
    /// # Panics
    ///
    /// When `timeout` is zero.
    #[must_use]
    #[track_caller]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.change_limiter(|limiter| limiter.timeout(timeout))
    }

    /// Sets how long all look-ups of a request together may take: those of [`limit_async`](Self::limit_async) and of
    /// [`charge_async`](Self::charge_async). The default is 1 s, and the most a year.
    ///
    /// It is longer than the [timeout](Self::timeout) of a decision, since a database is slower than the store: a
    /// look-up that takes 150 ms must not mean no limit. A limit whose look-up takes longer follows the failure policy.
    ///
    /// # Panics
    ///
    /// When `timeout` is zero.
    #[must_use]
    #[track_caller]
    pub fn look_up_timeout(self, timeout: Duration) -> Self {
        assert!(
            !timeout.is_zero(),
            "a timeout of zero leaves no time to look up"
        );
        let timeout = timeout.min(FOR_EVER);
        self.change(|shared| shared.plan.look_up_timeout = timeout)
    }

    /// Sets what to do with a request that could not be decided, for policies that do not
    /// [say it themselves](crate::Policy::on_failure). The default is the limiter's, [`FailurePolicy::Open`].
    ///
    /// For [`Local`](FailurePolicy::Local), say [how many replicas](Self::replicas) there are.
    #[must_use]
    pub fn on_failure(self, policy: FailurePolicy) -> Self {
        self.change_limiter(|limiter| limiter.on_failure(policy))
    }

    /// Sets how many processes share the limits: where this one decides [locally](FailurePolicy::Local), it admits
    /// `1/replicas` of each. The default is the limiter's, 1. See [`Limiter::replicas`].
    ///
    /// # Panics
    ///
    /// When `replicas` is 0.
    #[must_use]
    #[track_caller]
    pub fn replicas(self, replicas: u32) -> Self {
        self.change_limiter(|limiter| limiter.replicas(replicas))
    }

    /// Sets the observer that is notified of each decision and each failure, in place of the limiter's. By default the
    /// limiter has none.
    #[must_use]
    pub fn observer(self, observer: impl Observer) -> Self {
        self.change_limiter(|limiter| limiter.observer(observer))
    }

    fn change_limiter(self, change: impl FnOnce(Limiter) -> Limiter) -> Self {
        let limiter = change(self.shared.plan.limiter.clone());
        self.change(|shared| shared.plan.limiter = limiter)
    }

    /// Makes every policy of this layer a [shadow](crate::Policy::shadow): it decides, charges and reports, and rejects
    /// no request, for whatever reason. Only what is [blocked](Self::block) is rejected: lists are no policies.
    #[must_use]
    pub fn shadow(self) -> Self {
        self.change_limiter(Limiter::pass_undecided)
            .change(|shared| shared.plan.shadow = true)
    }

    /// Lets requests wait for room, up to this time; a request that would have to wait longer is denied at once. By
    /// default none waits.
    ///
    /// Requests under the same policies and keys go in order of arrival: see [`Limiter::acquire`], and
    /// [around a client](super#around-a-client). The timeout is then that of each call of the store.
    ///
    /// Where the store cannot be reached or does not answer, a request under [`Closed`](FailurePolicy::Closed) asks
    /// again until this time is over. Under [`Open`](FailurePolicy::Open) it passes at once: an outage does not make
    /// each request slower by the longest wait.
    #[must_use]
    pub fn max_wait(self, most: Duration) -> Self {
        self.change(|shared| shared.plan.max_wait = Some(most))
    }

    /// Sets how many requests wait at the same time under the same policies and keys. The default is the limiter's, 1
    /// 024. See [`Limiter::max_queue`].
    #[must_use]
    pub fn max_queue(self, requests: usize) -> Self {
        self.change_limiter(|limiter| limiter.max_queue(requests))
    }

    /// Sets which headers tell clients their quota. The default is [`HeaderStyle::DRAFT_11`].
    #[must_use]
    pub fn headers(self, style: HeaderStyle) -> Self {
        self.change(|shared| shared.headers.style = style)
    }

    /// Puts the [`Decisions`](super::Decisions) into the extensions of every response, too: for an access log, or
    /// whatever else is further out. It takes as long as the headers. By default they are in the extensions of the
    /// request, and of rejections.
    ///
    /// Among layers around each other, it is enough that one does so that decides about the request. A layer that only
    /// [looks up](Self::deny_blocked) blocks decides about none that passes.
    #[must_use]
    pub fn decisions_in_response(self) -> Self {
        self.change(|shared| shared.decisions_in_response = true)
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
    ///
    /// The compiler does not infer the types of such a closure's arguments: write them. In axum, use
    /// [`reject_with`](Self::reject_with), whose closure needs none.
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
    /// The status is the closure's, but for a 200, as of a `Json` alone: that becomes
    /// [`Rejection::status`](super::Rejection::status). `Retry-After` and the quota headers are added to whatever is
    /// answered.
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

#[track_caller]
fn valid<T>(layer: Result<T, PolicyError>) -> T {
    // In a closure, the panic would not tell the caller's place.
    match layer {
        Ok(layer) => layer,
        Err(error) => panic!("{error}"),
    }
}

impl<S, R> Layer<S> for RateLimitLayer<R> {
    type Service = RateLimit<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, self.clone())
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
            .field("headers", &self.shared.headers.style)
            .finish_non_exhaustive()
    }
}
