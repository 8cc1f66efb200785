//! Limits the requests of a tower service: [`RateLimitLayer`].
//!
//! ```
//! use http::{Request, Response, StatusCode};
//! use sluicegate::{Header, Key, MemoryStore, Policy, RateLimitLayer};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let layer = RateLimitLayer::new(MemoryStore::new())
//!     .limit(Policy::parse("client", "2/1m,10/1h")?, Header::new("x-api-key"))
//!     .limit(Policy::parse("total", "1000/1s")?, Key::new("service", "reports"));
//!
//! let service = ServiceBuilder::new().layer(layer).service_fn(async |_: Request<String>| {
//!     Ok::<_, std::convert::Infallible>(Response::new("a report".to_owned()))
//! });
//! let ask = |key: &str| {
//!     let request = Request::get("/").header("x-api-key", key).body(String::new()).unwrap();
//!     service.clone().oneshot(request)
//! };
//!
//! let response = ask("alice").await?;
//! assert_eq!(response.status(), StatusCode::OK);
//! assert!(response.headers()["ratelimit"].to_str()?.starts_with(r#""client/1m";r=1;t="#));
//!
//! ask("alice").await?;
//! let response = ask("alice").await?;
//! assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
//! assert!(response.headers().contains_key("retry-after"));
//! assert!(response.body().contains(r#""violated-policies":["client/1m"]"#));
//!
//! assert_eq!(ask("bob").await?.status(), StatusCode::OK);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # What happens to a request
//!
//! Every limit whose extractor answers with keys adds charges to one check, which is decided in one step: a request
//! that one limit denies is charged to none. What has to be looked up, [keys](RateLimitLayer::limit_async) or
//! [policies, keys and costs](RateLimitLayer::charge_async), is looked up at the same time. Then
//!
//! - an **allowed** request goes to the inner service, with the [`Decision`](crate::Decision) in its extensions;
//! - a **denied** one is answered with [429](http::StatusCode::TOO_MANY_REQUESTS) and never reaches the inner service;
//! - one **without an identity** is answered with 400, unless its extractor says otherwise
//!   ([`extract`](crate::extract));
//! - one for which the service is **misconfigured**, so that no request could be limited, is answered with 500: a layer
//!   or a setting is missing, and a [warning](crate::extract#never-a-shared-key-by-accident) says once which;
//! - one that **could not be decided** within the timeout follows the [`FailurePolicy`](crate::FailurePolicy), the
//!   strictest of its policies: it is passed on without headers, decided by
//!   [this process](crate::limiter#when-the-store-cannot-decide), or answered with 503. A limit whose key could not be
//!   found out is left out if its failure policy is open; else the answer is 503: memory cannot count without a key
//!   either.
//!
//! A request that no limit applies to is passed on as it is. Responses carry the [quota headers](HeaderStyle), and in
//! their extensions the `Decision`, and the [`Rejection`] if there was one, for the layers further out. Of several such
//! layers around each other, only the one that rejects adds headers; when all allow, each adds its own `RateLimit`
//! items, and the outermost one's `Decision` stays in the response.
//!
//! # Which rules
//!
//! | what decides | how |
//! |---|---|
//! | the route | a layer of its own with `route_layer`, or one layer with a table of [`Routes`] |
//! | the caller | a closure that finds the caller's tier: see [`PolicySelector`] |
//! | the caller, by a database | a look-up of policy, key and cost: [`charge_async`](RateLimitLayer::charge_async) |
//! | an operator, while the service runs | [`ReloadablePolicies`](crate::policies::ReloadablePolicies), from a [file](crate::policies) |
//! | the cost of a request | [`cost`](RateLimitLayer::cost), or a route's [`weight`](Route::weight) |
//! | not limited: health checks, an allow list | [`skip`](RateLimitLayer::skip) for requests, [`skip_keys`](RateLimitLayer::skip_keys) for keys |
//! | not served: a deny list | [`block`](RateLimitLayer::block) for requests, [`block_keys`](RateLimitLayer::block_keys) for keys: a 403 |
//!
//! Requests are blocked first, then skipped; then the keys are extracted, blocked and skipped. Nothing is charged for
//! what is blocked. Lists need no store: they apply when it is down. They are no policies: they apply in a
//! [shadow layer](RateLimitLayer::shadow), too. But a key that could not be found out is on no
//! list, and then the failure policy applies.
//!
//! # What is counted
//!
//! A request is charged its cost when it is admitted. What it costs in the end may be known only from the response:
//! [`settle`](RateLimitLayer::settle) counts failures only, or nothing on a 304, or what a handler puts into an
//! [`ActualCost`].
//!
//! ```
//! use http::{Request, Response, StatusCode};
//! use sluicegate::{Charge, Key, MemoryStore, Policy, RateLimitLayer};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let layer = RateLimitLayer::new(MemoryStore::new())
//!     .limit(Policy::parse("failures", "2/1d")?, Key::new("user", "alice"))
//!     .settle(|response: &http::response::Parts, charge: &Charge| {
//!         if response.status.is_success() { 0 } else { charge.cost() }
//!     });
//! let login = ServiceBuilder::new().layer(layer).service_fn(async |request: Request<String>| {
//!     let status = if request.body() == "sesame" { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
//!     Response::builder().status(status).body(String::new())
//! });
//! let login = async |password: &str| {
//!     let response = login.clone().oneshot(Request::new(password.to_owned())).await?;
//!     Ok::<_, http::Error>(response.status())
//! };
//!
//! for _ in 0..10 {
//!     assert_eq!(login("sesame").await?, StatusCode::OK);
//! }
//! assert_eq!(login("guess").await?, StatusCode::UNAUTHORIZED);
//! assert_eq!(login("guess").await?, StatusCode::UNAUTHORIZED);
//! assert_eq!(login("guess").await?, StatusCode::TOO_MANY_REQUESTS);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A request that gets no response keeps its charge, unless it is [refunded](RateLimitLayer::refund_unanswered).
//!
//! # Trying it out
//!
//! A [shadow](crate::Policy::shadow) decides, charges and reports, and never denies: one policy of several, or a
//! [whole layer](RateLimitLayer::shadow).
//!
//! ```
//! use http::{Request, Response, StatusCode};
//! use sluicegate::{Key, MemoryStore, Policy, RateLimitLayer};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let layer = RateLimitLayer::new(MemoryStore::new())
//!     .limit(Policy::parse("now", "100/1h")?, Key::new("service", "reports"))
//!     .limit(Policy::parse("soon", "0/1h")?.shadow(), Key::new("service", "reports"));
//!
//! let inner = service_fn(async |_: Request<String>| {
//!     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
//! });
//! let response = layer.layer(inner).oneshot(Request::new(String::new())).await?;
//! assert_eq!(response.status(), StatusCode::OK);
//! assert_eq!(
//!     response.headers()["ratelimit-policy"],
//!     r#""now";q=100;w=3600, "soon";q=0;w=3600;sluicegate-shadow"#
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Shadows are decided in the same call of the store, after the other policies have admitted the request: see
//! [`limiter`](crate::limiter#trying-a-policy-out). A shadow that finds no key, or that cannot be decided, is left out.
//! In the headers, its items have the parameter `sluicegate-shadow`; what it decided is
//! [`Usage::shadow`](crate::Usage::shadow) of the `Decision` in the extensions, and an event for the
//! [observer](crate::Limiter::observer).
//!
#![doc = include_str!("order.md")]
//!
//! # Around a client
//!
//! The same layer keeps a *client* within the limits of another service, all replicas together: with
//! [`max_wait`](RateLimitLayer::max_wait), requests wait for room instead of being denied at once.
//!
//! ```
//! # use std::{convert::Infallible, time::Duration};
//! # use http::{Request, Response, StatusCode};
//! # use sluicegate::{FailurePolicy, Key, MemoryStore, Policy, RateLimitLayer, middleware::HeaderStyle};
//! # use tower::{ServiceBuilder, ServiceExt, service_fn};
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let client = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
//! let layer = RateLimitLayer::new(MemoryStore::new())             // or the store that all replicas share
//!     .limit(Policy::parse("their-api", "2/110ms,3/1h")?, Key::new("account", "ours"))
//!     .max_wait(Duration::from_secs(10))
//!     .headers(HeaderStyle::NONE)                                 // their headers, not ours
//!     .on_failure(FailurePolicy::Closed);
//!
//! let client = ServiceBuilder::new().layer(layer).service(client);
//! let mut statuses = Vec::new();
//! for _ in 0..4 {
//!     let response = client.clone().oneshot(Request::new(String::new())).await?;
//!     statuses.push(response.status());
//! }
//! assert_eq!(statuses, [200, 200, 200, 429]);                     // the third waited; an hour is too long to wait
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! - **Too long a wait is answered with a response, not an error.** The client's error type stays its own: a request
//!   that would have to wait longer is answered by [`MakeRejection`], as a server's is, with a 429 that did not come
//!   from the other side and has a [`Rejection`] in its extensions. The client's response body must be one that can be
//!   made: map a body that cannot, such as hyper's `Incoming`, first.
//! - **In order of arrival**, for each set of policies and keys, as far as one process can see; processes compete.
//! - **Few calls of the store.** Only the first in the queue calls it, and again when it said that there would be room,
//!   when something is given back, and at least every 2 s.
//! - **A request is counted when it leaves.** On its way it can be overtaken by later ones, and the other side sees
//!   two requests closer together than they left: make the window longer than theirs, by the variation of the network's
//!   delay.
//! - The ready inner service is kept while a request waits: a concurrency limit that others need goes *outside*.
//!
//! [`Limiter::acquire`](crate::Limiter::acquire) does the same without HTTP.
//!
//! # Differences from `tower::limit`
//!
//! `tower::limit::RateLimit` counts all requests of one service in one process and makes callers wait until there is
//! room. This one counts by identity, across processes, and waits for room only when
//! [configured to](RateLimitLayer::max_wait): else a request is answered at once, whatever the answer is. It is also
//! `Clone`, as axum and hyper want it. `tower::limit::ConcurrencyLimit` limits how many requests run at once.

mod decide;
mod future;
mod layer;
mod response;
mod service;
mod settle;
mod shared;

pub use decide::{IntoPolicy, PolicySelector, Route, Routes};
pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
#[cfg(feature = "tonic")]
pub use response::Grpc;
pub use response::{
    EXPOSED_HEADERS, EmptyBody, HeaderStyle, MakeRejection, ProblemJson, Rejection,
};
pub use service::RateLimit;
pub use settle::ActualCost;
