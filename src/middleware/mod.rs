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
//! - an **allowed** request goes to the inner service, with the [`Decisions`] in its extensions; a handler takes them
//!   as an `Option<Extension<Decisions>>`, since one that could not be decided may be passed on without;
//! - a **denied** one is answered with [429](http::StatusCode::TOO_MANY_REQUESTS) and never reaches the inner service;
//!   one whose [cost](RateLimitLayer::cost) can never fit, with 413;
//! - one **without an identity** is answered with 400, unless its extractor says otherwise
//!   ([`extract`](crate::extract));
//! - one for which the service is **misconfigured**, so that no request could be limited, is answered with 500: a
//!   layer or a setting is missing, and a [warning](crate::extract#never-a-shared-key-by-accident) says once which;
//! - one that **could not be decided** within the timeout follows the [`FailurePolicy`](crate::FailurePolicy), the
//!   strictest of its policies: it is passed on without headers, decided by
//!   [this process](crate::limiter#when-the-store-cannot-decide), or answered with 503. A limit whose key could not be
//!   found out is left out if its failure policy is open; else the answer is 503: memory cannot count without a key
//!   either. A 503 has a `Retry-After`: the limiter's [`probe_interval`](crate::Limiter::probe_interval), at least 1
//!   s.
//!
//! gRPC calls get the same answers [as gRPC](Grpc): HTTP 200 and a status.
//!
//! A request that no limit applies to is passed on as it is. Responses carry the [quota headers](HeaderStyle). For the
//! layers further out, a rejection has the [`Rejection`] and the [`Decisions`] in its extensions; other responses have
//! the decisions, if [asked for](RateLimitLayer::decisions_in_response).
//!
//! Of several such layers around each other, only the one that denies adds quota headers. When all allow, each adds
//! its items to the lists of [`DRAFT_11`](HeaderStyle::DRAFT_11), and headers that can tell of one rule only tell of
//! the tightest of all layers. In the extensions there is a decision for each layer that made one; a handler finds
//! the one that it means by the name of a policy.
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
//! | not served: identities that are [blocked](crate::block) in the store | [`deny_blocked`](RateLimitLayer::deny_blocked), around everything |
//!
//! Requests are blocked first, then skipped; then the keys are extracted, blocked and skipped. Nothing is charged for
//! what is blocked. Lists need no store: they apply when it is down. They are no policies: they apply in a
//! [shadow layer](RateLimitLayer::shadow), too. But a key that could not be found out is on no
//! list, and then the failure policy applies.
//!
//! # What is counted
//!
//! A request is charged its cost when it is admitted. What it costs in the end may be known only from the response:
//! [`settle`](RateLimitLayer::settle) counts wrong passwords only, or nothing on a 304, or what a handler puts into an
//! [`ActualCost`].
//!
//! To count failures, name the statuses that are one. Whatever is not a success is more than that: the redirection
//! after a good login, a 304, a 101 that opens a WebSocket, and the 429 of another limit further in.
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
//!         if response.status == StatusCode::UNAUTHORIZED { charge.cost() } else { 0 }
//!     });
//! let login = ServiceBuilder::new().layer(layer).service_fn(async |request: Request<String>| {
//!     let status = if request.body() == "sesame" { StatusCode::SEE_OTHER } else { StatusCode::UNAUTHORIZED };
//!     Response::builder().status(status).body(String::new())
//! });
//! let login = async |password: &str| {
//!     let response = login.clone().oneshot(Request::new(password.to_owned())).await?;
//!     Ok::<_, http::Error>(response.status())
//! };
//!
//! for _ in 0..10 {
//!     assert_eq!(login("sesame").await?, StatusCode::SEE_OTHER);
//! }
//! assert_eq!(login("guess").await?, StatusCode::UNAUTHORIZED);
//! assert_eq!(login("guess").await?, StatusCode::UNAUTHORIZED);
//! assert_eq!(login("guess").await?, StatusCode::TOO_MANY_REQUESTS);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Where the status does not tell, as with a form that is shown again with a 200, the handler answers an `ActualCost`.
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
//! use sluicegate::{Key, MemoryStore, Policy, RateLimitLayer, middleware::Decisions};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let layer = RateLimitLayer::new(MemoryStore::new())
//!     .limit(Policy::parse("now", "100/1h")?, Key::new("service", "reports"))
//!     .limit(Policy::parse("soon", "0/1h")?.shadow(), Key::new("service", "reports"))
//!     .decisions_in_response();
//!
//! let inner = service_fn(async |_: Request<String>| {
//!     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
//! });
//! let response = layer.layer(inner).oneshot(Request::new(String::new())).await?;
//! assert_eq!(response.status(), StatusCode::OK);
//! assert_eq!(response.headers()["ratelimit-policy"], r#""now";q=100;w=3600"#);
//!
//! let decisions: &Decisions = response.extensions().get().unwrap();
//! let shadow = decisions.by_policy("soon").unwrap().usage().shadow().unwrap();
//! assert!(!shadow.is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Shadows are decided in the same call of the store, after the other policies have admitted the request: see
//! [`limiter`](crate::limiter#trying-a-policy-out). A shadow that finds no key, or that cannot be decided, is left
//! out. No header tells clients of it, unless [asked for](HeaderStyle::with_shadows); what it decided is
//! [`Usage::shadow`](crate::Usage::shadow) of the decision in the extensions, and an event for the
//! [observer](crate::Limiter::observer). `TracingObserver` writes it at the level debug, which
//! `tracing_subscriber::fmt::init()` shows with `RUST_LOG=sluicegate=debug`.
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
//! If the other service answers 429 all the same, block its account for the time that its `Retry-After` names. With
//! [`wait_for_blocks`](crate::Limiter::wait_for_blocks), requests through every replica then wait until the block ends,
//! as far as `max_wait` allows; without it, they are denied at once.
//!
//! ```
//! # use std::time::{Duration, Instant};
//! # use http::{Response, StatusCode};
//! # use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy};
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let limiter = Limiter::new(MemoryStore::new()).wait_for_blocks(true);   // also for `RateLimitLayer::new(limiter)`
//! let account = Key::new("account", "ours");
//! let theirs = Policy::parse("their-api", "100/1s")?;
//!
//! # let answer = Response::builder().status(429).header("retry-after", "1").body(())?;
//! if answer.status() == StatusCode::TOO_MANY_REQUESTS {
//!     let seconds: u64 = answer.headers()["retry-after"].to_str()?.parse()?;
//!     limiter.block(&account, Duration::from_secs(seconds)).await?;
//! }
//! let start = Instant::now();
//! let charge = Charge::new(&theirs, account, 1);
//! assert!(limiter.acquire([charge], Duration::from_secs(10)).await?.is_allowed());
//! assert!(start.elapsed() > Duration::from_millis(900));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! - **Too long a wait is answered with a response, not an error.** The client's error type stays its own: a request
//!   that would have to wait longer is answered by [`MakeRejection`], as a server's is, with a 429 that did not come
//!   from the other side and has a [`Rejection`] in its extensions. The client's response body must be one that can be
//!   made: map a body that cannot, such as hyper's `Incoming`, first.
//! - **A proxy makes new requests.** A limited server that passes such a response on adds its own quota headers. It
//!   takes the client's limit for one of its own layers if the request that it sends has the extensions of the one
//!   that it serves.
//! - **In order of arrival**, for each set of policies and keys, as far as one process can see; processes compete.
//! - **Few calls of the store.** Only the first in the queue calls it, and again when it said that there would be
//!   room, when something is given back, and at least every 2 s.
//! - **A request is counted when it leaves.** On its way it can be overtaken by later ones, and the other side sees
//!   two requests closer together than they left: make the window longer than theirs, by the variation of the
//!   network's delay.
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
mod decisions;
mod future;
mod layer;
pub mod migration {
    //! Migrating from the crate `tower_governor`: its settings, and what they are here.
    //!
    #![doc = include_str!("migration.md")]
}
mod response;
mod service;
mod settle;
mod shared;
pub mod testing {
    //! How to test a service that is limited.
    //!
    #![doc = include_str!("testing.md")]
}

pub use crate::limiter::ActualCost;
pub use decide::{IntoPolicy, PolicySelector, Route, Routes};
pub use decisions::Decisions;
pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
#[cfg(feature = "axum")]
pub use response::AxumRejection;
pub use response::{
    EXPOSED_HEADERS, EmptyBody, Grpc, HeaderStyle, MakeRejection, ProblemJson, Rejection,
};
pub use service::RateLimit;
