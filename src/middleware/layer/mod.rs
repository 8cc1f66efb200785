//! [`RateLimitLayer`]: the settings of the middleware.

mod answers;
mod followed;
mod settled;

use std::{fmt, future::ready, marker::PhantomData, sync::Arc, time::Duration};

use http::request::Parts;

use super::{
    admit::{Alternative, ChargeSource, IntoPolicySelector, PolicySelector},
    respond::ProblemJson,
    response_end::AtHead,
    shared::{Settings, Shared},
};
use crate::{
    domain::{
        error::{ConfigError, valid},
        key::Key,
        policy::Policy,
    },
    extract::{ChargesFuture, IntoCharges, KeyExtractor},
    limiter::{FOR_EVER, IntoLimiter, Limiter},
};

/// Layer that applies the [`RateLimit`](crate::middleware::RateLimit) middleware, which limits how often a client may call a service.
///
/// In axum, add the layer *after* the routes: `Router::layer` covers only the routes added before.
///
/// See the [module docs](crate::middleware) for an example. `R` makes the responses to rejected requests.
#[must_use]
pub struct RateLimitLayer<R = ProblemJson, E = AtHead> {
    pub(super) shared: Arc<Shared<R>>,
    pub(super) end: PhantomData<fn() -> E>,
}

impl RateLimitLayer {
    /// Creates a layer over a store, or over a [`Limiter`], which has the settings of every decision: the timeout, the
    /// failure policy, the number of replicas, the observer. Layers over clones of one limiter share its breaker and
    /// its queues.
    ///
    /// ```
    /// use sluicegate::{FailurePolicy, Limiter, MemoryStore, RateLimitLayer};
    ///
    /// let limiter = Limiter::new(MemoryStore::new()).on_failure(FailurePolicy::Local).replicas(4);
    /// let layer = RateLimitLayer::new(limiter);
    /// # let _ = layer;
    /// ```
    ///
    /// The layer limits nothing until you call [`limit`](Self::limit).
    pub fn new(limiter: impl IntoLimiter) -> Self {
        let shared = Shared::new(limiter.into_limiter(), ProblemJson::default());
        Self {
            shared: Arc::new(shared),
            end: PhantomData,
        }
    }
}

impl<R, E> RateLimitLayer<R, E> {
    /// Adds a limit: charges the keys that `extractor` finds under `policy`.
    ///
    /// Pass a [`Policy`](crate::Policy), or a [`PolicySelector`] that chooses one for each request. If you use a
    /// closure for either argument, write the type of its argument, `|head: &http::request::Parts| …`, or use
    /// [`from_fn`](crate::extract::from_fn).
    ///
    /// # Panics
    ///
    /// When another limit of this layer has a policy of the same name that differs (rules, ban, failure policy or
    /// shadow), or that could differ after a [reload](crate::policies::ReloadablePolicies), since both would share
    /// counts; or when a table of [`Routes`](super::Routes) has a name that is not a route. If you know policies and
    /// routes only at run time, use [`try_limit`](Self::try_limit).
    #[track_caller]
    pub fn limit(self, policy: impl IntoPolicySelector, extractor: impl KeyExtractor) -> Self {
        valid(self.try_limit(policy, extractor))
    }

    /// Like [`limit`](Self::limit), for policies and routes from a configuration file.
    ///
    /// ```
    /// use sluicegate::{MemoryStore, PeerIp, Policy, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::new(MemoryStore::new());
    /// let layer = layer.try_limit(Policy::parse("ip", "10/1s")?, PeerIp)?;
    /// let error = layer.try_limit(Policy::parse("ip", "20/1s")?, PeerIp.ipv6_prefix(48)).unwrap_err();
    /// assert!(error.to_string().starts_with("two policies of one layer have the same name and differ: "));
    /// # Ok::<(), sluicegate::error::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// In the cases in which `limit` panics.
    pub fn try_limit(
        self,
        policy: impl IntoPolicySelector,
        extractor: impl KeyExtractor,
    ) -> Result<Self, ConfigError> {
        let policy = self.without_mistake(policy.into_selector())?;
        Ok(self.add_limit(ChargeSource::Head(policy, Arc::new(extractor))))
    }

    /// Labels the charges of the limit added last, so that [`Limiter::contributors`] can list the clients that used up
    /// that limit: see [`contributors`](crate::contributors).
    ///
    /// The label is the first key that `extractor` finds; a request without one is counted without a label. Labels
    /// change no decision, and appear in no response. [`Header`](crate::Header) and `Cookie` labels are
    /// [secret](Key::secret) and listed as hashes; use a closure if operators may see the values. A charge from
    /// [`charge_async`](Self::charge_async) keeps the contributor that you set with [`Charge::with_contributor`](crate::Charge::with_contributor).
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
    /// When the layer has no limit yet.
    #[track_caller]
    pub fn contributors(self, extractor: impl KeyExtractor) -> Self {
        assert!(
            !self.shared.settings.config.limits.is_empty(),
            "`contributors` is about the limit before it, and there is none"
        );
        self.change(|settings| {
            if let Some(newest) = settings.config.limits.last_mut() {
                newest.contributor = Some(Arc::new(extractor));
            }
        })
    }

    /// Adds a limit whose key comes from a look-up, with its policy and its cost, for instance from a user's tier in a
    /// database.
    ///
    /// The look-up returns a [`Charge`](crate::Charge), an `Option`, a `Vec`, or a `Result` of one of them. The limiter
    /// charges the cost of that charge, and ignores [`cost`](Self::cost). `None` rejects the request, as a missing key
    /// does; with an empty `Vec`, this limit does not apply. The future must own its data: copy from the head.
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
    ///     let user = head.headers.get("x-user").and_then(|value| value.to_str().ok()).map(str::to_owned);
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
    /// All look-ups of one request run at the same time, after all extractors, under one
    /// [timeout](Self::look_up_timeout). A look-up that takes longer, or returns
    /// [`ExtractError::unavailable`](crate::error::ExtractError::unavailable), follows the failure policy of
    /// the [limiter](Limiter::on_failure), since the policy is unknown. The default is
    /// [`Open`](crate::FailurePolicy::Open): **the request passes without this limit.** With
    /// [`Closed`](crate::FailurePolicy::Closed), the response is a 503. So
    /// put a [shadow](crate::Policy::shadow) that has to be looked up into a [shadow layer](Self::shadow).
    ///
    /// Look-ups run before the decision, even for a request that another limit of the layer denies. To spare the
    /// database those look-ups, put the other limits into a [layer around this one](super#two-layers-one-store).
    ///
    /// The layer caches no look-ups: if yours are slow, add a cache.
    ///
    /// Policies of one name share their counts. A request must not charge one key under two policies of one name that
    /// differ (rules, ban, failure policy or shadow): the response is a 500.
    pub fn charge_async<F, C>(self, look_up: impl Fn(&Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = C> + Send + 'static,
        C: IntoCharges,
    {
        let look_up = move |head: &Parts| -> ChargesFuture {
            let answer = look_up(head);
            Box::pin(async { answer.await.into_charges() })
        };
        self.add_limit(ChargeSource::LookUp(Arc::new(look_up)))
    }

    /// Like [`charge_async`](Self::charge_async), without waiting: one closure reads the head once, and chooses the
    /// policy, the key and the cost.
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use http::{Request, Response};
    /// use sluicegate::{Charge, Key, MemoryStore, Policy, RateLimitLayer};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// /// Inserted into the extensions by the layer that authenticates.
    /// #[derive(Clone)]
    /// struct User { name: String, plan: &'static str }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// // One name for all plans: an upgrade keeps the counts.
    /// let plans = HashMap::from([
    ///     ("free", Policy::parse("requests", "2/1h")?),
    ///     ("pro", Policy::parse("requests", "3/1h")?),
    /// ]);
    /// let layer = RateLimitLayer::new(MemoryStore::new()).charge(move |head| {
    ///     let user: &User = head.extensions.get()?;
    ///     Some(Charge::new(plans.get(user.plan)?, Key::new("user", &user.name), 1))
    /// });
    ///
    /// let service = layer.layer(service_fn(async |_: Request<String>| {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// }));
    /// for (plan, status) in [("free", 200), ("free", 200), ("free", 429), ("pro", 200), ("pro", 429), ("none", 400)] {
    ///     let mut request = Request::new(String::new());
    ///     request.extensions_mut().insert(User { name: "alice".to_owned(), plan });
    ///     assert_eq!(service.clone().oneshot(request).await?.status(), status);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// The closure must not block. If no user is found, be clear about why: `None` is a
    /// [400](crate::error::ExtractError::missing), and a layer that is missing is
    /// [`misconfigured`](crate::error::ExtractError::misconfigured).
    pub fn charge<C>(self, choose: impl Fn(&Parts) -> C + Send + Sync + 'static) -> Self
    where
        C: IntoCharges + Send + 'static,
    {
        self.charge_async(move |head| ready(choose(head)))
    }

    /// Adds a limit with alternatives, in order: a request is charged under the first one that has room, such as the
    /// plan, else the credits.
    ///
    /// Each alternative is a policy and an extractor, as [`limit`](Self::limit) takes them. If their types differ, use
    /// [`PolicySelector`] and `Box<dyn KeyExtractor>`. An alternative that does not apply to the request, or finds no key
    /// or no policy, is passed over; if none is left, the response is that of the first that found none.
    ///
    /// ```
    /// use sluicegate::{Header, MemoryStore, Policy, RateLimitLayer};
    ///
    /// let plan = Policy::parse("plan", "1000/month@UTC")?;
    /// let credits = Policy::parse("credits", "500/36500d@fixed")?;     // bought once, for good
    /// let user = Header::new("x-user");
    /// let layer = RateLimitLayer::new(MemoryStore::new())
    ///     .limit_first_of([(plan, user.clone()), (credits, user)]);
    /// # let _ = layer;
    /// # Ok::<(), sluicegate::error::ConfigError>(())
    /// ```
    ///
    /// Each try is one check, all or nothing, with the other limits of this layer: no request is charged under two
    /// alternatives. If only other limits deny, no further alternative is tried, and an identity that is blocked is
    /// rejected at once. If all alternatives are denied, the response is that of the one that is free first, and only
    /// its denial is counted. See [the plan, else the credits](crate::quotas#the-plan-else-the-credits).
    ///
    /// # Panics
    ///
    /// In the cases in which [`limit`](Self::limit) does; when there is no alternative, or when some alternatives are
    /// [shadows](crate::Policy::shadow) and others are not. If you know policies only at run time, use
    /// [`try_limit_first_of`](Self::try_limit_first_of).
    #[track_caller]
    pub fn limit_first_of<P, X>(self, alternatives: impl IntoIterator<Item = (P, X)>) -> Self
    where
        P: IntoPolicySelector,
        X: KeyExtractor,
    {
        valid(self.try_limit_first_of(alternatives))
    }

    /// Like [`limit_first_of`](Self::limit_first_of), for policies from a configuration file.
    ///
    /// # Errors
    ///
    /// In the cases in which `limit_first_of` panics.
    pub fn try_limit_first_of<P, X>(
        self,
        alternatives: impl IntoIterator<Item = (P, X)>,
    ) -> Result<Self, ConfigError>
    where
        P: IntoPolicySelector,
        X: KeyExtractor,
    {
        let mut all: Vec<Alternative> = Vec::new();
        for (policy, extractor) in alternatives {
            let selector = self.without_mistake(policy.into_selector())?;
            let mut others = all.iter();
            others.try_for_each(|(other, _)| other.agrees_with(&selector))?;
            all.push((selector, Arc::new(extractor)));
        }
        let known = all.iter().flat_map(|(selector, _)| selector.known());
        let (shadows, counting): (Vec<_>, Vec<_>) = known.partition(Policy::is_shadow);
        if let ([shadow, ..], [counting, ..]) = (&shadows[..], &counting[..]) {
            let (shadow, counting) = (shadow.name(), counting.name());
            return Err(ConfigError::new(format_args!(
                "alternatives are either all shadows or none of them: `{shadow}` is one, and `{counting}` is not"
            )));
        }
        if all.is_empty() {
            return Err(ConfigError::new(format_args!(
                "`limit_first_of` needs at least one alternative"
            )));
        }
        Ok(self.add_limit(ChargeSource::FirstOf(all.into())))
    }

    fn add_limit(self, source: ChargeSource) -> Self {
        self.change(|settings| settings.config.add_limit(source))
    }

    /// Checks the selector: its own errors, and policies that differ from another one of the same name.
    fn without_mistake(&self, selector: PolicySelector) -> Result<PolicySelector, ConfigError> {
        let Settings { config, at_end, .. } = &self.shared.settings;
        selector.check()?;
        let mut others = config.selectors();
        others.try_for_each(|other| other.agrees_with(&selector))?;
        for policy in selector.known().into_iter().filter(Policy::is_concurrency) {
            if at_end.is_none() {
                let problem = format_args!(
                    "policy `{}` limits concurrency: add it by `limit_concurrent`, so that its slots are held to the \
                     end of the response",
                    policy.name()
                );
                return Err(ConfigError::new(problem));
            }
            let too_early = config.limiter.expires_too_early(&policy);
            if let Some(error) = too_early.or_else(|| policy.idle_ban()) {
                return Err(error);
            }
        }
        Ok(selector)
    }

    /// Skips requests that this layer should ignore, such as health checks: no look-up, no charge, no header. A request
    /// is skipped when one of your closures returns `true`, unless a [deny list](Self::deny) matches.
    ///
    /// For a list of networks, use a closure that calls [`Cidr::contains`](crate::extract::Cidr::contains) with
    /// [`ForwardedIp::address`](crate::ForwardedIp::address).
    pub fn skip(self, skips: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.change(|settings| settings.config.access_lists.skipped.push(Arc::new(skips)))
    }

    /// Skips keys, such as those on an allow list: no policy of this layer charges them.
    ///
    /// Compare whole keys with those of the extractor, or the kind and value of keys that you create yourself.
    ///
    /// Other keys of the same request are still charged: a partner's skipped address does not free its user from the
    /// limit by API key. Use [`skip`](Self::skip) to let the whole request pass.
    pub fn skip_keys(self, skips: impl Fn(&Key) -> bool + Send + Sync + 'static) -> Self {
        self.change(|settings| {
            settings
                .config
                .access_lists
                .skipped_keys
                .push(Arc::new(skips))
        })
    }

    /// Rejects requests with a 403, before any key is extracted or charged.
    ///
    /// This takes precedence over [`skip`](Self::skip). The response is made from
    /// [`Rejection::OnDenyList`](super::Rejection::OnDenyList).
    pub fn deny(self, denies: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.change(|settings| settings.config.access_lists.denied.push(Arc::new(denies)))
    }

    /// Rejects requests with a 403 when an extractor returns a matching key, for instance one on a deny list. None of
    /// the request's keys is charged.
    ///
    /// This takes precedence over [`skip_keys`](Self::skip_keys), but not over [`skip`](Self::skip): a skipped request
    /// has no extracted keys.
    pub fn deny_keys(self, denies: impl Fn(&Key) -> bool + Send + Sync + 'static) -> Self {
        self.change(|settings| {
            settings
                .config
                .access_lists
                .denied_keys
                .push(Arc::new(denies))
        })
    }

    /// Denies [blocked](crate::block#blocks) identities without limiting them: the keys that `extractor` finds join the
    /// layer's check to be looked up as blocks, but are not charged and appear in no header.
    ///
    /// You can deny blocked addresses everywhere with one line around a whole router:
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
    /// A layer that also has limits makes one check for both. A separate layer around other layers makes a separate
    /// check: see [where blocks hold](crate::block#where-blocks-hold).
    ///
    /// A request without a key is rejected, as under a [`limit`](Self::limit), unless you add
    /// [`or_skip`](KeyExtractor::or_skip) to the extractor. [`skip`](Self::skip) and [`skip_keys`](Self::skip_keys)
    /// apply. Blocked identities are denied also in a [shadow layer](Self::shadow), and whatever the value of
    /// [`Limiter::enforce_blocks`]. When the store cannot decide and no limit applies to a request, the
    /// limiter's [failure policy](Limiter::on_failure) does; a shadow layer lets the request pass, unless this process
    /// [knows](crate::block#when-the-store-cannot-decide) the block.
    pub fn deny_blocked(self, extractor: impl KeyExtractor) -> Self {
        self.change(|settings| settings.config.deny_blocked.push(Arc::new(extractor)))
    }

    /// Sets the cost of a request, from its head and the policy of a limit. The layer calls this once for each limit
    /// that applies to the request. The default is 1; 0 checks without charging.
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
    /// You write one closure for all limits, like the final cost in [`settle`](Self::settle), so that all costs are in
    /// one place. If a limit chooses among policies, the closure gets the chosen one. A [route's
    /// weight](super::Route::weight) multiplies the result. Under a [concurrency policy](crate::Rule::concurrent),
    /// a request holds one slot at any cost. The body is not read yet: if your cost depends on the body,
    /// check in the handler, and respond with [`Rejection::response`].
    ///
    /// [`Rejection::response`]: super::Rejection::response
    ///
    /// A cost above a limit can never fit: the response is a 413 without a `Retry-After`. A limit of 0 denies every
    /// cost above 0, with a 429 and without a `Retry-After`. Use [`ProblemJson::status_if_never`] to set another status
    /// for both.
    pub fn cost(self, cost: impl Fn(&Parts, &Policy) -> u64 + Send + Sync + 'static) -> Self {
        self.change(|settings| settings.config.cost = Some(Arc::new(cost)))
    }

    /// Sets how long all [look-ups](Self::charge_async) of a request together may take. The default is 1 s, and the
    /// maximum a year.
    ///
    /// The default is longer than the [timeout](Limiter::timeout) of a decision because a database is slower than the
    /// store: a look-up of 150 ms must not switch the limit off. If a look-up takes longer, its limit follows the
    /// failure policy.
    ///
    /// # Panics
    ///
    /// When `timeout` is zero.
    #[track_caller]
    pub fn look_up_timeout(self, timeout: Duration) -> Self {
        assert!(
            !timeout.is_zero(),
            "a timeout of zero leaves no time to look up"
        );
        let timeout = timeout.min(FOR_EVER);
        self.change(|settings| settings.config.look_up_timeout = timeout)
    }

    /// Makes every policy of this layer a [shadow](crate::Policy::shadow): policies decide, charge and report, but
    /// never reject a request. The [deny lists](Self::deny) still reject, since they are not policies.
    pub fn shadow(self) -> Self {
        self.change(|settings| {
            settings.config.limiter = Limiter::pass_undecided(settings.config.limiter.clone());
            settings.config.shadow = true;
        })
    }

    /// Lets requests wait for room, up to this time; a request that would have to wait longer is denied at once. By
    /// default, requests do not wait.
    ///
    /// Requests under the same policies and keys go in order of arrival: see [`Limiter::acquire`], and [around a
    /// client](super#around-a-client). The timeout then limits each store call.
    ///
    /// If the store cannot be reached or does not answer, a request under [`Closed`](crate::FailurePolicy::Closed)
    /// keeps asking until its time is over. Under [`Open`](crate::FailurePolicy::Open) the request passes at once: an
    /// outage must not slow down each request by the longest wait.
    pub fn max_wait(self, most: Duration) -> Self {
        self.change(|settings| settings.config.max_wait = Some(most))
    }

    pub(super) fn change(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        Arc::make_mut(&mut self.shared).change(change);
        self
    }
}

impl<R, E> Clone for RateLimitLayer<R, E> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            end: PhantomData,
        }
    }
}

impl<R, E> fmt::Debug for RateLimitLayer<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            config, answers, ..
        } = &self.shared.settings;
        f.debug_struct("RateLimitLayer")
            .field("limiter", &config.limiter)
            .field("policies", &config.selectors().collect::<Vec<_>>())
            .field("headers", &answers.headers.style)
            .finish_non_exhaustive()
    }
}
