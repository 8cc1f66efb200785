//! The settings of a [`RateLimitLayer`] that make it follow responses to the end of their bodies.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use super::RateLimitLayer;
use crate::{
    domain::{
        charge::Charge,
        error::{ConfigError, valid},
    },
    extract::KeyExtractor,
    middleware::{
        admit::IntoPolicySelector,
        response_end::{AtEnd, ResponseEnd, ToBodyEnd},
    },
};

/// Final costs and slots, at the end of responses.
impl<R, E> RateLimitLayer<R, E> {
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

    /// Sets the wait in the response to a request that found no slot, unless another rule denies it for longer. The
    /// default is a second.
    pub fn slot_retry_after(self, wait: Duration) -> Self {
        self.change(|settings| settings.answers.slot_wait = wait)
    }

    /// Responds to a request that found no slot with a 503, as [`Rejection::NoSlot`](crate::middleware::Rejection), for
    /// clients that take a 429 as their own fault. By default, and when another rule denies the request as well, the
    /// response is a 429.
    ///
    /// `Retry-After` and the quota headers stay. A limit of 0 slots is still a 429.
    pub fn unavailable_without_slot(self) -> Self {
        self.change(|settings| settings.answers.unavailable_without_slot = true)
    }

    /// Ends a response whose slot was lost: its body fails with an error, and the server drops it. By default the
    /// response goes on, and the log has a warning.
    ///
    /// Choose this when more than the limit must not run for long. The body ends; work that does not depend on the body
    /// goes on, unless the handler watches the slot by a [`SlotWatch`](crate::limiter::SlotWatch). An outage of the
    /// store alone loses no slot before it expires.
    pub fn cut_off_without_slot(self) -> RateLimitLayer<R, ToBodyEnd> {
        self.at_end(|at_end| at_end.cuts_off = true)
    }

    /// Settles each request at the end of its response at the cost that the handler has counted by a
    /// [`CostMeter`](crate::middleware::CostMeter), under all policies of this layer. A handler can count [under each
    /// policy](crate::middleware::CostMeter::under) apart.
    ///
    /// For services whose costs are known while they answer, such as the tokens of a language model. If the client
    /// leaves in the middle, the request costs what was metered until then. If the handler meters nothing, the charge
    /// stays; but if a layer further in has rejected the request, the charge is refunded, unless something was metered. An
    /// [`ActualCost`](crate::middleware::ActualCost) in the extensions of the response wins over the meter, under the
    /// policies that it is for.
    ///
    /// Responses have a [`FollowedBody`](crate::middleware::FollowedBody) from here on; settlements run in the
    /// background, and delay no response. If one fails, the charge stays. Requests that pass because the store is late are
    /// metered as well: see [late answers](crate::limiter#late-answers). The headers of the response show the quota before
    /// the settlement.
    ///
    /// ```
    /// use axum::{Router, body::Body, http::Request, routing::get};
    /// use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy, RateLimitLayer, middleware::CostMeter};
    /// use tower::ServiceExt;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let (tokens, alice) = (Policy::parse("tokens", "1000/1m")?, Key::new("user", "alice"));
    /// let layer = RateLimitLayer::new(limiter.clone())
    ///     .limit(tokens.clone(), alice.clone())
    ///     .cost(|_head, _policy| 100)                                // charged on arrival
    ///     .meter_costs();
    /// let chat = async |meter: CostMeter| {
    ///     meter.add(7);                                              // or for each part of a stream
    ///     "a short answer"
    /// };
    /// let app: Router = Router::new().route("/", get(chat)).layer(layer);
    ///
    /// let response = app.oneshot(Request::get("/").body(Body::empty())?).await?;
    /// drop(response);
    /// tokio::task::yield_now().await;                                // settled in the background
    /// let left = limiter.peek([Charge::new(&tokens, alice, 0)]).await?;
    /// assert_eq!(left.policies().next().unwrap().rules()[0].remaining(), 993);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn meter_costs(self) -> RateLimitLayer<R, ToBodyEnd> {
        self.at_end(|at_end| at_end.meters_all = true)
    }

    /// Like [`meter_costs`](Self::meter_costs), under the policy of this name; others keep their charge. Call it for
    /// each policy to meter.
    ///
    /// You get a warning about a name that no policy has, in the cases that
    /// [`ActualCost`](crate::middleware::ActualCost) describes.
    pub fn meter_costs_under(self, policy: impl Into<Box<str>>) -> RateLimitLayer<R, ToBodyEnd> {
        self.at_end(|at_end| at_end.metered.push(policy.into()))
    }

    /// Sets the final cost of an admitted request at the end of its response: from its last data, its trailers or how
    /// it ended. The layer calls this once for each charge; return [`Charge::cost`] for no change.
    ///
    /// For services that report their usage last, such as in a trailer, or in one of the last events of a stream: you get
    /// the [last 4 KiB](crate::middleware::ResponseEnd::tail) and the last frame. It applies to every admitted request,
    /// with or without a response. An [`ActualCost`](crate::middleware::ActualCost) in the extensions of the response
    /// wins, and the closure wins over a [meter](Self::meter_costs), whose reading it gets.
    ///
    /// As with [`meter_costs`](Self::meter_costs), the settlement runs in the background. A charge for which the
    /// closure panics stays.
    ///
    /// ```
    /// # use sluicegate::{Charge, MemoryStore, RateLimitLayer, middleware::ResponseEnd};
    /// # let layer = RateLimitLayer::new(MemoryStore::new());
    /// let layer = layer.settle_at_end(|end: &ResponseEnd, charge: &Charge| {
    ///     let tokens = end.trailers.as_ref().and_then(|trailers| trailers.get("x-tokens"));
    ///     let tokens = tokens.and_then(|tokens| tokens.to_str().ok()?.parse().ok());
    ///     tokens.unwrap_or(charge.cost())
    /// });
    /// # let _ = layer;
    /// ```
    pub fn settle_at_end(
        self,
        cost: impl Fn(&ResponseEnd, &Charge) -> u64 + Send + Sync + 'static,
    ) -> RateLimitLayer<R, ToBodyEnd> {
        self.at_end(|at_end| at_end.cost_of = Some(Arc::new(cost)))
    }

    fn at_end(self, change: impl FnOnce(&mut AtEnd)) -> RateLimitLayer<R, ToBodyEnd> {
        let layer =
            self.change(|settings| change(Arc::make_mut(settings.at_end.get_or_insert_default())));
        RateLimitLayer {
            shared: layer.shared,
            end: PhantomData,
        }
    }
}
