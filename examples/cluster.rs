//! Limits that all replicas of a service share through a Redis Cluster.
//!
//!     REDIS_URLS=redis://127.0.0.1:7000,redis://127.0.0.1:7001 cargo run --example cluster --features axum,cluster
//!
//! The store needs one node that answers, and finds the others through it:
//!
//!     curl -i localhost:3000 -H 'x-api-key: alice'    # 200, "api-key";r=1
//!     curl -i localhost:3000 -H 'x-api-key: alice'    # 200, "api-key";r=0
//!     curl -i localhost:3000 -H 'x-api-key: alice'    # 429, retry-after
//!     curl -i localhost:3000 -H 'x-api-key: bob'      # 200, "api-key";r=1
//!
//! A second replica, `-- 127.0.0.1:3001`, answers as the first would. To use one server instead of a cluster, write
//! `RedisStore::connect(url)`.
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum tokio tracing-subscriber -F tokio/full
//!     cargo add --path ../sluicegate -F axum,cluster

use std::{env, error::Error};

use axum::{Router, routing::get};
use sluicegate::{FailurePolicy, Header, Policy, RateLimitLayer, RedisStore};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Shows the warnings: that a limit is misconfigured, or that the store does not answer.
    tracing_subscriber::fmt::init();

    let urls = env::var("REDIS_URLS").map_err(|_| "set REDIS_URLS")?;
    // Fails if no node answers. Use `connect_lazy_cluster` to start without them.
    let store = RedisStore::cluster(urls.split(',')).await?;

    // While nodes cannot be reached, each of 4 replicas admits a quarter.
    let limits = RateLimitLayer::new(store)
        .limit(Policy::parse("api-key", "2/1m")?, Header::new("x-api-key"))
        .on_failure(FailurePolicy::Local)
        .replicas(4);
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(limits);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
