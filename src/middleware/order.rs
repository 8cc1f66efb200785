//! Where the layer goes among others: a page without items.
//!
//! From the outside in, for a service that has them all:
//!
//! ```text
//! request ──▶ trace · CORS · compression · load shedding ──▶ limit by address ──▶ authentication ──▶ limit by user ──▶ timeout ──▶ handler
//! ```
//!
//! | layer | outside the limit | inside the limit |
//! |---|---|---|
//! | authentication | the limit may go by [user](crate::extract::Extension); guesses of passwords are free | guesses are limited, by [address](struct@crate::PeerIp) |
//! | CORS | **here**: preflights are free, pages may see a 429 with the [exposed](super::EXPOSED_HEADERS) headers | preflights are charged, and pages see an error of CORS instead of a 429 |
//! | compression | refusals are compressed, too | its body must be one that the [rejection](super::MakeRejection) can make |
//! | trace | **here**: refusals are traced | only what is served is traced; the body as for compression |
//! | timeout | covers the decision, which has a [timeout](crate::RateLimitLayer::timeout) of its own | **here**: its error, or its 408, passes through |
//! | load shedding, `ConcurrencyLimit` | **here**: what is shed is not charged | what is shed was charged |
//! | `Buffer` | the decision is made in the buffer's order | decisions are made before there is a place in the buffer |
//! | a retry, around a client | each try waits and is charged | **not here**: tries are not counted, and come too early |
//!
//! The inner service that was ready is held while the store is asked. So a `ConcurrencyLimit` counts a request that waits for
//! the store, on whichever side it is.
//!
//! In axum, [`Router::layer`] covers the fallback, and [`Router::route_layer`] only what has matched, whose `MatchedPath` is
//! then known. The layer that is added last is the outermost; in a `ServiceBuilder`, the first.
//!
//! # Two layers, one store
//!
//! Layers over clones of one [`Limiter`](crate::Limiter), or of one `Arc` of a store, share their counts: the same policy and key is
//! one count, wherever it is charged. A request passes one after the other, so that one which the inner layer refuses has been
//! charged by the outer one. Where that must not be, put both limits in one layer: they are decided together.
//!
//! ```
//! use http::{Request, Response, request::Parts};
//! use sluicegate::{Key, Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer};
//! use std::{convert::Infallible, net::SocketAddr};
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! #[derive(Clone)]
//! struct User(String);
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let limiter = Limiter::new(MemoryStore::new());
//! let by_address = RateLimitLayer::new(limiter.clone()).limit(Policy::parse("address", "100/1m")?, PeerIp);
//! let by_user = RateLimitLayer::new(limiter)
//!     .limit(Policy::parse("user", "1/1m")?, |head: &Parts| {
//!         head.extensions.get::<User>().map(|user| Key::new("user", &user.0))
//!     });
//!
//! let service = ServiceBuilder::new()
//!     .layer(by_address)                                          // also those who are refused below
//!     .map_request(|mut request: Request<String>| {               // stands for authentication
//!         let user = User(request.headers()["authorization"].to_str().unwrap().to_owned());
//!         request.extensions_mut().insert(user);
//!         request
//!     })
//!     .layer(by_user)                                             // knows who it is
//!     .service_fn(async |_| Ok::<_, Infallible>(Response::new("hello".to_owned())));
//!
//! for (user, status, left) in [("alice", 200, Some("99")), ("alice", 429, None), ("bob", 200, Some("97"))] {
//!     let mut request = Request::get("/").header("authorization", user).body(String::new())?;
//!     request.extensions_mut().insert("203.0.113.7:50000".parse::<SocketAddr>()?);
//!     let response = service.clone().oneshot(request).await?;
//!     assert_eq!(response.status(), status);
//!     let items = response.headers().get_all("ratelimit").iter();
//!     let address = items.filter_map(|it| it.to_str().ok()?.strip_prefix(r#""address";r="#)).next();
//!     assert_eq!(address.and_then(|it| it.split(';').next()), left);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! [`Router::layer`]: https://docs.rs/axum/0.8/axum/struct.Router.html#method.layer
//! [`Router::route_layer`]: https://docs.rs/axum/0.8/axum/struct.Router.html#method.route_layer
