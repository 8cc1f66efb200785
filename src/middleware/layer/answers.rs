//! The responses of a [`RateLimitLayer`].

use std::{marker::PhantomData, sync::Arc, time::Duration};

#[cfg(feature = "axum")]
use axum::body::Body;
#[cfg(feature = "axum")]
use http::{StatusCode, request::Parts};

use super::RateLimitLayer;
#[cfg(feature = "axum")]
use crate::middleware::respond::{AxumRejection, MakeRejection, Rejection, grpc_answer};
use crate::middleware::{respond::HeaderStyle, response_end::ToBodyEnd, shared::Shared};

/// Responses.
impl<R, E> RateLimitLayer<R, E> {
    /// Sets the quota headers. The default is [`HeaderStyle::DRAFT_11`].
    pub fn headers(self, style: HeaderStyle) -> Self {
        self.change(|settings| settings.answers.headers.style = style)
    }

    /// Sets the responses to rejected requests. The default is [`ProblemJson`](crate::middleware::ProblemJson).
    ///
    /// Pass a [`MakeRejection`](crate::middleware::MakeRejection): a closure `|rejection: &Rejection, head: &Parts| ->
    /// Response<B>`, or [`StatusOnly`](crate::middleware::StatusOnly) for bodies that cannot be made from a `String`. A closure
    /// also gets gRPC calls, unless you wrap it in [`Grpc::or`](crate::middleware::Grpc::or).
    ///
    /// The compiler does not infer the types of such a closure's arguments: write them. In axum, use
    /// [`reject_with`](Self::reject_with), whose closure needs none.
    pub fn rejection<M>(self, make: M) -> RateLimitLayer<M, E> {
        let Shared { settings, .. } = Arc::unwrap_or_clone(self.shared);
        RateLimitLayer {
            shared: Arc::new(Shared::of(settings, Arc::new(make))),
            end: PhantomData,
        }
    }

    /// Sets the responses to rejected requests with an axum handler: a closure that returns any
    /// [`IntoResponse`](axum::response::IntoResponse) (feature `axum`). To write only the 429s, use
    /// [`reject_denied_with`](Self::reject_denied_with).
    ///
    /// The closure sets the status. A 200, as from a plain `Json`, becomes
    /// [`Rejection::status`](crate::middleware::Rejection::status). The layer adds `Retry-After` and the quota headers to the
    /// response.
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
    ///
    /// A function that returns `impl IntoResponse` needs `+ use<>` from edition 2024 on: without it, the response would
    /// borrow from the arguments.
    ///
    /// ```
    /// use axum::{http::request::Parts, response::IntoResponse};
    /// use sluicegate::middleware::Rejection;
    /// # use sluicegate::{MemoryStore, RateLimitLayer};
    /// # let layer = RateLimitLayer::new(MemoryStore::new());
    ///
    /// fn denied(rejection: &Rejection, _head: &Parts) -> impl IntoResponse + use<> {
    ///     (rejection.status(), "please slow down")
    /// }
    ///
    /// let layer = layer.reject_with(denied);
    /// # let _ = layer;
    /// ```
    #[cfg(feature = "axum")]
    pub fn reject_with<F, T>(self, handler: F) -> RateLimitLayer<AxumRejection<F>, E>
    where
        F: Fn(&Rejection, &Parts) -> T,
        T: axum::response::IntoResponse,
    {
        self.rejection(AxumRejection::new(handler))
    }

    /// Like [`reject_with`](Self::reject_with), for requests that a limit denies, and the others with
    /// [status](crate::middleware::Rejection::status) 429: without a slot, or of a client with a ban or a pause (feature
    /// `axum`). For a cost that can never fit, `rejection.status()` is 413.
    ///
    /// All others keep the response that the layer has when you call this, by default
    /// [`ProblemJson`](crate::middleware::ProblemJson): a missing key, a deny list, an operator's block, a request
    /// without a slot if that is a 503, and a store that cannot decide. So do gRPC calls.
    ///
    /// ```
    /// use axum::{Json, Router, body::Body, http::Request, routing::get};
    /// use serde_json::json;
    /// use sluicegate::{Header, MemoryStore, Policy, RateLimitLayer};
    /// use tower::ServiceExt;
    ///
    /// # mod over_http { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/over_http.rs")); }
    /// # over_http::run(async |http| {
    /// let layer = RateLimitLayer::new(MemoryStore::new())
    ///     .limit(Policy::parse("reports", "0/1h")?, Header::new("x-api-key"))
    ///     .reject_denied_with(|_rejection, _head| Json(json!({ "error": "please slow down" })));
    /// let app: Router = Router::new().route("/", get(async || "a report")).layer(layer);
    /// # let app = http.serve(app);
    ///
    /// let request = Request::get("/").header("x-api-key", "alice").body(Body::empty())?;
    /// let response = app.clone().oneshot(request).await?;
    /// assert_eq!((response.status().as_u16(), &response.headers()["content-type"]), (429, &"application/json".parse()?));
    ///
    /// let response = app.oneshot(Request::get("/").body(Body::empty())?).await?;
    /// assert_eq!(response.status(), 400);
    /// assert_eq!(response.headers()["content-type"], "application/problem+json");
    /// # Ok(())
    /// # });
    /// ```
    #[cfg(feature = "axum")]
    pub fn reject_denied_with<F, T>(
        self,
        handler: F,
    ) -> RateLimitLayer<impl MakeRejection<Body> + Send + Sync + 'static, E>
    where
        F: Fn(&Rejection, &Parts) -> T + Send + Sync + 'static,
        T: axum::response::IntoResponse,
        R: MakeRejection<Body> + Send + Sync + 'static,
    {
        let (denied, others) = (AxumRejection::new(handler), self.shared.rejection.clone());
        self.rejection(move |rejection: &Rejection, head: &Parts| {
            let is_denied = matches!(rejection, Rejection::Denied(_))
                || rejection.status() == StatusCode::TOO_MANY_REQUESTS;
            if is_denied && grpc_answer::answered_type(head).is_none() {
                denied.make_rejection(rejection, head)
            } else {
                others.make_rejection(rejection, head)
            }
        })
    }

    /// Puts the [`Decisions`](crate::middleware::Decisions) into the extensions of every response, for instance for an access log.
    /// This takes as long as writing the headers. By default you find them in the extensions of requests and
    /// rejections.
    ///
    /// With layers around each other, set this on any one that decides about the request. A layer that only [looks
    /// up](Self::deny_blocked) blocks makes no decision about requests that pass.
    ///
    /// From them, a layer around this one writes headers under names of your own:
    ///
    /// ```
    /// use axum::{Router, body::Body, http::Request, middleware::map_response, response::Response, routing::get};
    /// use sluicegate::{Key, MemoryStore, Policy, RateLimitLayer, middleware::{Decisions, HeaderStyle}};
    /// use tower::ServiceExt;
    ///
    /// async fn show(mut response: Response) -> Response {
    ///     let decisions = response.extensions().get::<Decisions>();
    ///     let usage = decisions.and_then(|it| it.by_policy("calls")).map(|it| it.usage());
    ///     if let Some(rule) = usage.and_then(|it| it.rules().next()) {
    ///         let left = rule.remaining().into();
    ///         response.headers_mut().insert("acme-calls-left", left);
    ///     }
    ///     response
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let layer = RateLimitLayer::new(MemoryStore::new())
    ///     .limit(Policy::parse("calls", "9/1h")?, Key::new("user", "alice"))
    ///     .headers(HeaderStyle::NONE)
    ///     .decisions_in_response();
    /// let app: Router = Router::new()
    ///     .route("/", get(async || "hello"))
    ///     .layer(layer)
    ///     .layer(map_response(show));
    ///
    /// let response = app.oneshot(Request::get("/").body(Body::empty())?).await?;
    /// assert_eq!(response.headers()["acme-calls-left"], "8");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn decisions_in_response(self) -> Self {
        self.change(|settings| settings.decisions_in_response = true)
    }

    /// Adds a random time, up to `most`, to the wait sent to each client, so that clients denied together do not return
    /// together. The default is none.
    ///
    /// The time is added to `Retry-After`, to `t` or `Reset`, and to the [`Rejection`](crate::middleware::Rejection), never
    /// subtracted. The [`Decisions`](crate::middleware::Decisions) in the extensions keep the store's times.
    pub fn jitter(self, most: Duration) -> Self {
        self.change(|settings| settings.answers.jitter = most)
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
}
