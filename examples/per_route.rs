//! Different rules for different routes of one axum router, over one store.
//!
//!     cargo run --example per_route --features axum
//!
//! One address may send 100 requests a minute, and only 3 of them to the search:
//!
//!     for i in 1 2 3 4; do curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:3000/search; done
//!
//! answers 200 three times and then 429, while `curl -i http://127.0.0.1:3000/` is still served.

use std::{error::Error, net::SocketAddr};

use axum::{Router, routing::get};
use sluicegate::{Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Clones of a limiter share its store, and so do their layers.
    let limiter = Limiter::new(MemoryStore::new());
    let limit = |name: &str, rules: &str| {
        let policy = Policy::parse(name, rules)?;
        Ok::<_, Box<dyn Error>>(RateLimitLayer::new(limiter.clone()).limit(policy, PeerIp))
    };

    let search = Router::new()
        .route("/search", get(async || "found nothing\n"))
        .route_layer(limit("search", "3/1m")?);
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .merge(search)
        .layer(limit("all", "100/1m")?);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
