//! The limits of a [`RateLimitLayer`].

use std::{future::ready, marker::PhantomData, sync::Arc, time::Duration};

use http::request::Parts;

use super::RateLimitLayer;
#[cfg(doc)]
use crate::middleware::PolicySelector;
use crate::{
    domain::{
        error::{ConfigError, valid},
        policy::Policy,
    },
    extract::{ChargesFuture, IntoCharges, KeyExtractor},
    limiter::{FOR_EVER, IntoLimiter, Limiter},
    middleware::{
        admit::{Alternative, ChargeSource, IntoPolicySelector},
        respond::ProblemJson,
        response_end::ToBodyEnd,
        shared::Shared,
    },
};

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

/// Limits.
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
        let alternative: Alternative = (policy, Arc::new(extractor));
        Ok(self.add_limit(ChargeSource::FirstOf([alternative].into())))
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

    /// Adds a limit of requests at a time: each holds a slot of a [concurrency policy](crate::Rule::concurrent) from
    /// its admission to the end of the response's body.
    ///
    /// All replicas share the slots. The slots of a process that dies are released when they expire. A request holds one
    /// slot at any cost. Put limits of metered costs into the same layer, where a request is charged under all of them, or
    /// under none, and rates with bans into a layer [around](crate::middleware::concurrency) this one.
    ///
    /// A denied client may return after [a second](Self::slot_retry_after), or later if another rule denies it, too.
    /// The handler finds a [`SlotWatch`](crate::limiter::SlotWatch) in the request's extensions, and notices by it that
    /// the slot was lost. For work that goes on after the response, such as a web socket, see
    /// [`CostMeter::delay_end`](crate::middleware::CostMeter::delay_end).
    ///
    /// ```
    /// use http::{Request, Response, StatusCode};
    /// use sluicegate::{Header, MemoryStore, Policy, RateLimitLayer};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # mod over_http { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/over_http.rs")); }
    /// # over_http::run(async |http| {
    /// let layer = RateLimitLayer::new(MemoryStore::new())
    ///     .limit_concurrent(Policy::parse("exports", "1/30s@concurrent")?, Header::new("x-tenant"));
    ///
    /// let service = layer.layer(service_fn(async |_: Request<String>| {
    ///     Ok::<_, std::convert::Infallible>(Response::new("an export".to_owned()))
    /// }));
    /// let request = || Request::get("/").header("x-tenant", "acme").body(String::new());
    /// let first = service.clone().oneshot(request()?).await?;
    /// assert_eq!(first.headers()["ratelimit-policy"], r#""exports";q=1;qu="concurrent-requests""#);
    ///
    /// let second = service.clone().oneshot(request()?).await?;
    /// assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
    /// assert_eq!(second.headers()["retry-after"], "1");
    ///
    /// drop(first);                                                       // or its body has been sent
    /// # tokio::task::yield_now().await;
    /// assert_eq!(service.oneshot(request()?).await?.status(), StatusCode::OK);
    /// # let _ = http;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Panics
    ///
    /// Like [`limit`](Self::limit); and when the slots expire in less than six timeouts of the limiter, since they
    /// could not be renewed in time. If you know policies only at run time, use
    /// [`try_limit_concurrent`](Self::try_limit_concurrent).
    #[track_caller]
    pub fn limit_concurrent(
        self,
        policy: impl IntoPolicySelector,
        extractor: impl KeyExtractor,
    ) -> RateLimitLayer<R, ToBodyEnd> {
        valid(self.try_limit_concurrent(policy, extractor))
    }

    /// Like [`limit_concurrent`](Self::limit_concurrent), for policies from a configuration file.
    ///
    /// # Errors
    ///
    /// As [`try_limit`](Self::try_limit), and when slots expire in less than six timeouts of the limiter, so that they
    /// could not be renewed in time.
    pub fn try_limit_concurrent(
        self,
        policy: impl IntoPolicySelector,
        extractor: impl KeyExtractor,
    ) -> Result<RateLimitLayer<R, ToBodyEnd>, ConfigError> {
        self.at_end(|_| {}).try_limit(policy, extractor)
    }

    /// Labels the charges of the limit added last, so that [`Limiter::contributors`] can list the clients that used up
    /// that limit: see [`contributors`](crate::contributors).
    ///
    /// The label is the first key that `extractor` finds; a request without one is counted without a label. Labels
    /// change no decision, and appear in no response. [`Header`](crate::Header) and `Cookie` labels are
    /// [secret](crate::Key::secret) and listed as hashes; use a closure if operators may see the values. A charge from
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

    /// Lets requests wait for room, up to this time; a request that would be denied for longer even if no other waited is
    /// denied at once. By default, requests do not wait.
    ///
    /// Requests under the same policies and keys go in order of arrival: see [`Limiter::acquire`], and [around a
    /// client](crate::middleware#around-a-client). The timeout then limits each store call.
    ///
    /// If the store cannot be reached or does not answer, a request under [`Closed`](crate::FailurePolicy::Closed)
    /// keeps asking until its time is over. Under [`Open`](crate::FailurePolicy::Open) the request passes at once: an
    /// outage must not slow down each request by the longest wait.
    pub fn max_wait(self, most: Duration) -> Self {
        self.change(|settings| settings.config.max_wait = Some(most))
    }

    /// Makes every policy of this layer a [shadow](crate::Policy::shadow): policies decide, charge and report, but
    /// never reject a request. The [deny lists](Self::deny) still reject, since they are not policies.
    pub fn shadow(self) -> Self {
        self.change(|settings| {
            settings.config.limiter = Limiter::pass_undecided(settings.config.limiter.clone());
            settings.config.shadow = true;
        })
    }
}
