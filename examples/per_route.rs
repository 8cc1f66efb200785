//! Different rules for different routes of one axum router, over one store.
//!
//!     cargo run --example per_route --features axum
//!
//! One address may send 100 requests a minute, and only 2 of them to the search:
//!
//!     curl -i localhost:3000/search    # 200, "all";r=99, "search";r=1
//!     curl -i localhost:3000/search    # 200, "all";r=98, "search";r=0
//!     curl -i localhost:3000/search    # 429, retry-after, "violated-policies":["search"]
//!     curl -i localhost:3000           # 200, "all";r=96
//!
//! The third search was charged to `all`, the first limit on its way. Use one layer with both limits to charge neither.
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum tokio -F tokio/full
//!     cargo add --path ../sluicegate -F axum

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, routing::get};
use sluicegate::{Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Clones of a limiter share its store, and so do their layers.
    let limiter = Limiter::new(MemoryStore::new());
    let all = RateLimitLayer::new(limiter.clone()).limit(Policy::parse("all", "100/1m")?, PeerIp);
    let few = RateLimitLayer::new(limiter).limit(Policy::parse("search", "2/1m")?, PeerIp);

    let search = Router::new()
        .route("/search", get(async || "found nothing\n"))
        .route_layer(few);
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .merge(search)
        .layer(all);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
