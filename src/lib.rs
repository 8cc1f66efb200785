//! Rate limiting for tower, axum and hyper services: several sliding-window rules, for several identities at once,
//! decided in one atomic step. The counts are kept in memory, or in Redis, where all replicas of a service share them.
//!
//! # Quick start
//!
//! With axum, the feature `axum`. The README has a complete `main` and the lines for your `Cargo.toml`.
//!
//! ```
//! # mod over_http { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/over_http.rs")); }
//! use axum::{Router, body::Body, http::Request, routing::get};
//! use sluicegate::{Header, KeyExtractor, MemoryStore, PeerIp, Policy, RateLimitLayer};
//! use tower::ServiceExt;
//! # over_http::run(async |http| {
//!
//! let store = MemoryStore::new(); // or RedisStore::connect(url).await?
//! let ip = Policy::parse("ip", "3/10s,100/1h")?;
//! let user = Policy::parse("user", "600/1m,100000/1d")?;
//!
//! // The rules, and the identity that they limit: both policies in one atomic step.
//! let layer = RateLimitLayer::new(store)
//!     .limit(ip, PeerIp)
//!     .limit(user, Header::new("x-api-key").or_skip());
//! let app: Router = Router::new().route("/", get(async || "hello")).layer(layer);
//! # let app = http.serve(app);
//!
//! for status in [200, 200, 200, 429] {
//!     let request = Request::get("/").body(Body::empty())?;
//!     assert_eq!(app.clone().oneshot(request).await?.status(), status);
//! }
//! # Ok(())
//! # });
//! ```
//!
//! Over Redis, all replicas of a service share the limits:
//!
//! ```no_run
//! # #[cfg(feature = "redis")] {
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = sluicegate::RedisStore::connect("redis://127.0.0.1/").await?;
//! # Ok(())
//! # }
//! # }
//! ```
//!
//! # Guides
//!
//! [The first hour][start] leads from one limit in memory to a service over Redis, step by step.
//!
//! | you want to know | page |
//! |---|---|
//! | the way of a request, the rules that apply to it, and the place of the layer | [`middleware`] |
//! | the keys that a request is charged to, and clients behind proxies | [`extract`], [`extract::forwarded`] |
//! | how to limit without HTTP, and the answer when the store cannot decide | [`limiter`] |
//! | how limits are changed while the service runs, or read from a file | [`policies`] |
//! | when a rule should be a bucket, with a burst and a refill | [`buckets`] |
//! | how to limit by calendar months, and how durable such counts are | [`quotas`] |
//! | which clients use up a shared limit | [`contributors`] |
//! | which identities are denied, and how often | [`denials`] |
//! | the data in Redis, and how to set up the server | [`store::redis`], [`store::redis::deployment`] |
//! | Redis in a cloud, with passwords that expire; what a deploy does to counts | [`store::redis::clouds`], [`store::redis::deploys`] |
//! | the logs and metrics of a service | [`observe`] |
//! | how to make requests cheaper under load and under attack | [`under_load`] |
//! | how a limited service is tested | [`middleware::testing`] |
//! | how to limit concurrent requests over all replicas | [`middleware::concurrency`] |
//! | how to limit tokens or money, known when a response ends | [`middleware::costs`] |
//! | how all replicas obey a limit of another service | [`middleware::obey`] |
//! | how to move from `tower_governor`, and which crate you need | [`middleware::migration`] |
//!
//! # The life of a request
//!
//! 1. The layer's [extractors](extract) read the head of the request and answer with [keys](Key).
//! 2. Each key is [charged](Charge) under its [policy](Policy), all in one [check](store::Check): one call of the
//!    [store].
//! 3. *Allowed:* the inner service is called, and the response's headers show the remaining quota.
//! 4. *Denied:* the inner service is not called; the response is a 429 with the time after which the same request would
//!    pass. Nothing was charged, under any policy.
//! 5. *The store could not decide* within the timeout: the [failure policy](FailurePolicy) applies.
//!
//! # Rules
//!
//! A [`Rule`] admits at most `limit` units in any span of `window`, for any number of replicas, whatever their clocks
//! say: the [store's clock](store::redis#clocks) decides. Units are counted in steps of `precision`, a sixtieth of the
//! window by default, and are given back up to one step late, never early:
//!
//! ```text
//!        charged here                                   released here
//!             ▼                                               ▼
//!  ──┬────────x─┬──────────┬───  …  ───┬──────────┬───────────┬──▶ time
//!    │  step s  │  s + 1   │           │          │           │
//!    └── prec. ─┘◀────────────── window ──────────────────────┘
//! ```
//!
//! A rule can also be [fixed](Rule::fixed) to windows that begin at the hour or at midnight, a [quota](quotas) for each
//! month of a time zone, or a [bucket](buckets) that refills continuously.
//!
//! # Keys and proxies
//!
//! [`PeerIp`](struct@PeerIp) is the address at the other end of the connection: behind a proxy, the proxy's.
//! [`ForwardedIp`] is the client's address as reported by proxies that you trust; [`extract::forwarded`] lists the
//! settings for each proxy. [`Header`] is any value that the client sends. The page of [`extract`] shows the order of
//! layers for each extractor, and the response to a request without a key.
//!
//! # When Redis is down
//!
//! Every decision has a timeout, 100 ms by default, which includes all waiting. After the timeout, requests pass
//! unlimited ([`FailurePolicy::Open`], the default), are limited by each process to a share of the limit
//! ([`FailurePolicy::Local`]), or are answered with a 503 ([`FailurePolicy::Closed`]); policies may
//! [differ](Policy::on_failure). After five failures in a row, one request each quarter of a second tries the server,
//! and the others do not wait. When the server is back, the store decides again within a second. See
//! [`limiter`](limiter#when-the-store-cannot-decide).
//!
//! # Features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `redis` | yes | [`RedisStore`](store::redis) |
//! | `bb8` | | `RedisStore` over a `bb8_redis` pool, also [without scripts](store::redis::transactions) |
//! | `cluster` | | [`RedisStore`](store::redis::deployment#cluster) over a Redis Cluster |
//! | `calendar` | | rules for [calendar months](Rule::per_month), weeks, days and years in time zones |
//! | `axum` | | `PeerIp` reads `ConnectInfo`; [rejections](RateLimitLayer::reject_with) that are `IntoResponse` |
//! | `metrics` | | `MetricsObserver`: counters and histograms of the crate `metrics` |
//! | `obey` | | a layer around a client that [obeys another service's limits](middleware::obey) |
//! | `serde` | | [`Rule`], [`Policy`] and [`Policies`](policies::Policies) in configuration files |
//! | `tls` | | `RedisStore` over [`rediss://`](store::redis::deployment#tls), by rustls |
//! | `tonic` | | gRPC: `RetryInfo` in [rejections](middleware::Grpc), and `PeerIp` reads tonic's `TcpConnectInfo` |
//! | `tracing` | yes | warnings about a misconfigured service and about the store, and `TracingObserver`: spans and events of the crate `tracing` |
//! | `json` | | [`ReadBodyLayer::json`](middleware::ReadBodyLayer::json): bodies of requests as JSON |
//! | `manual-clock` | | a clock that tests move |
//!
//! If you count in memory, you need no Redis crate: with `default-features = false` and
//! `features = ["axum", "tracing"]` a build has 60 crates, axum and tokio among them, instead of 101.
//!
//! The [tool] `sluicegate` for operators is a package of its own: `cargo install --path cli` in a clone.
//!
//! [start]: https://docs.rs/crate/sluicegate/latest/source/docs/guide/start.md
//! [tool]: https://docs.rs/crate/sluicegate-cli/latest/source/README.md
//!
//! # Limits of this crate
//!
//! - Requests are not slowed down, unless they [may wait](middleware#around-a-client): they are rejected.
//! - A response that goes on after its slot was lost is cut off only if you ask for that: see
//!   [`middleware::concurrency`].
//! - On a cluster, the policies of one identity are decided in one atomic step, but several identities are not: a
//!   request that is about to be denied may for one round trip
//!   [cause a denial of another](store::redis::deployment#cluster).
//! - Redis replicates asynchronously: charges from the last moments before a failover may be lost. See [how
//!   many](store::redis::deployment#sentinel-and-replication).
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod buckets {
    //! Buckets: rules with a burst and a refill, and which kind of rule to use.
    //!
    #![doc = concat!(include_str!("../docs/links.md"), include_str!("../docs/guide/buckets.md"))]
}
mod background;
mod bounded;
mod clock;
mod domain;
pub mod extract;
pub mod limiter;
mod lock;
pub mod middleware;
pub mod observe;
pub mod operating {
    //! Operating a service: from the alarm to the cause, and to the remedy.
    //!
    #![doc = concat!(include_str!("../docs/links.md"), include_str!("../docs/guide/operating.md"))]
}
pub mod quotas {
    //! Quotas per month: rates and a quota in one check, billing cycles, and how durable the counts are.
    //!
    #![doc = concat!(include_str!("../docs/links.md"), include_str!("../docs/guide/quotas.md"))]
}
#[cfg(feature = "manual-clock")]
pub mod manual_clock;
pub mod store;
pub mod under_load {
    //! Under load and under attack: how to make a request cheaper, when to do so, and the cost in accuracy.
    //!
    #![doc = concat!(include_str!("../docs/links.md"), include_str!("../docs/guide/under_load.md"))]
}
mod timer;
mod warning;

pub use domain::{
    FailurePolicy, Text, block, calendar,
    charge::Charge,
    contributors,
    decision::{self, Decision, Denial, Usage},
    denials,
    error::{self, StoreError},
    key::Key,
    policies,
    policy::Policy,
    rule::{CalendarRule, Rule},
};
#[doc(hidden)] // Their types are at the root, and their errors in `error`.
pub use domain::{charge, key, policy, rule};
pub use extract::{ForwardedIp, Header, KeyExtractor, PeerIp};
pub use limiter::Limiter;
pub use middleware::RateLimitLayer;
#[cfg(feature = "redis")]
pub use store::redis::{Credentials, RedisServer, RedisStore};
pub use store::{MemoryStore, Store};

/// The README's code, compiled as a documentation test.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
