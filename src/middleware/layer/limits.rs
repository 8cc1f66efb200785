//! The limits of a [`RateLimitLayer`], and the requests that they apply to.

use std::{future::ready, marker::PhantomData, sync::Arc};

use http::request::Parts;

use super::RateLimitLayer;
use crate::{
    domain::{
        error::{ConfigError, valid},
        key::Key,
        policy::Policy,
    },
    extract::{ChargesFuture, IntoCharges, KeyExtractor},
    limiter::IntoLimiter,
    middleware::{
        admit::{Alternative, ChargeSource, IntoPolicySelector},
        respond::ProblemJson,
        shared::Shared,
    },
};
#[cfg(doc)]
use crate::{limiter::Limiter, middleware::PolicySelector};

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

/// Limits, and the requests that they apply to.
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
    /// counts; or when a table of [`Routes`](crate::middleware::Routes) has a name that is not a route. If you know policies and
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
    /// database those look-ups, put the other limits into a [layer around this one](crate::middleware#two-layers-one-store).
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
    /// weight](crate::middleware::Route::weight) multiplies the result. Under a [concurrency policy](crate::Rule::concurrent),
    /// a request holds one slot at any cost. The body is not read yet: if your cost depends on the body,
    /// check in the handler, and respond with [`Rejection::response`].
    ///
    /// [`Rejection::response`]: crate::middleware::Rejection::response
    ///
    /// A cost above a limit can never fit: the response is a 413 without a `Retry-After`. A limit of 0 denies every
    /// cost above 0, with a 429 and without a `Retry-After`. Use [`ProblemJson::status_if_never`] to set another status
    /// for both.
    pub fn cost(self, cost: impl Fn(&Parts, &Policy) -> u64 + Send + Sync + 'static) -> Self {
        self.change(|settings| settings.config.cost = Some(Arc::new(cost)))
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
}
