//! The costs of requests under a [`RateLimitLayer`]: before the response, by its head, and at its end.

use std::sync::Arc;

use http::{request, response::Parts};

use super::RateLimitLayer;
#[cfg(doc)]
use crate::limiter::Limiter;
use crate::{
    domain::{ActualCost, charge::Charge, policy::Policy},
    middleware::response_end::{ResponseEnd, ToBodyEnd},
};

impl ActualCost {
    /// Returns the cost that the handler has set for the charge's policy, or the charged cost by default. Use this with
    /// [`RateLimitLayer::settle`](crate::RateLimitLayer::settle).
    #[must_use]
    pub fn or_charged(response: &Parts, charge: &Charge) -> u64 {
        let said = response.extensions.get::<Self>();
        said.map_or_else(|| charge.cost(), |cost| cost.under(charge))
    }
}

/// Costs.
impl<R, E> RateLimitLayer<R, E> {
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
    /// a request holds one slot at any cost. The body is not read yet: if your cost stands in the body, put a
    /// [`ReadBodyLayer`](crate::middleware::ReadBodyLayer) around this layer. You get one warning if the first 1 000
    /// charges are all 0, unless a layer settles or meters them.
    ///
    /// A cost above a limit can never fit: the response is a 413 without a `Retry-After`. A limit of 0 denies every
    /// cost above 0, with a 429 and without a `Retry-After`. Use
    /// [`ProblemJson::status_if_never`](crate::middleware::ProblemJson::status_if_never) to set another status for both.
    pub fn cost(
        self,
        cost: impl Fn(&request::Parts, &Policy) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.change(|settings| settings.config.cost = Some(Arc::new(cost)))
    }

    /// Sets the final cost of an admitted request, from the head of its response. The layer calls this once for each
    /// charge. The default is the cost charged before.
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
    /// The request is charged on arrival and settled after the response, so requests in progress count: out of a
    /// hundred simultaneous password guesses, no more than the limit are served. A caller with as many good requests in
    /// progress may be denied.
    ///
    /// A response waits for its settlement, within the timeout, and its headers show the quota afterwards; if the cost
    /// is unchanged, the store is not called. Charges of [shadows](crate::Policy::shadow) are settled at the same time.
    /// If the settlement fails or times out, the response goes out unchanged and **the charge stays**. If the client
    /// disconnects, the settlement continues in the background. A response whose request has passed because the store is
    /// late waits for no settlement: its cost is that of the [late answer](crate::limiter#late-answers).
    ///
    /// If you know the cost only at the end of a streaming body, [meter](Self::meter_costs) it. A handler can also
    /// [settle](Limiter::settle) with the [`Decisions`](crate::middleware::Decisions) in the request's extensions; a check
    /// can be settled only once.
    pub fn settle(self, cost: impl Fn(&Parts, &Charge) -> u64 + Send + Sync + 'static) -> Self {
        self.change(|settings| settings.settles = Some(Arc::new(cost)))
    }

    /// Refunds requests that get no response: the client disconnected first, or the inner service returned an error or
    /// panicked. By default such requests keep their charge.
    ///
    /// Refunds run in the background. A refund that could not be sent is tried again for a minute; if it fails otherwise,
    /// the charge stays. If the client disconnects before the store has decided, the check is not sent, or the charge is
    /// refunded when the [late answer](crate::limiter#late-answers) comes. The charge stays if that answer is lost with its
    /// connection, or does not come within a minute. A guard of
    /// [`CostMeter::delay_end`](crate::middleware::CostMeter::delay_end) delays the refund, and a metered cost wins over
    /// it.
    ///
    /// **A client that always disconnects early is then never limited**, whatever its requests cost: use this only if
    /// the inner service stops working when its caller is gone.
    pub fn refund_unanswered(self) -> Self {
        self.change(|settings| {
            settings.refunds_unanswered = true;
            let limiter = &mut settings.config.limiter;
            *limiter = limiter.clone().refund_left();
        })
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
}
