//! Two limits in one atomic step: by the client's address, and by its API key if it has one.
//!
//!     cargo run --example api_key_and_ip --features axum
//!
//! Without a key, only the address counts. With a key, both count, and a request that one of them denies is charged to
//! neither:
//!
//!     curl -i localhost:3000                          # 200, "ip/1m";r=119
//!     curl -i localhost:3000 -H 'x-api-key: alice'    # 200, "ip/1m";r=118, "api-key";r=2
//!     curl -i localhost:3000 -H 'x-api-key: alice'    # 200, "ip/1m";r=117, "api-key";r=1
//!     curl -i localhost:3000 -H 'x-api-key: alice'    # 200, "ip/1m";r=116, "api-key";r=0
//!     curl -i localhost:3000 -H 'x-api-key: alice'    # 429, retry-after, "violated-policies":["api-key"]
//!     curl -i localhost:3000 -H 'x-api-key: bob'      # 200, "ip/1m";r=115, "api-key";r=2
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum tokio tracing-subscriber -F tokio/full
//!     cargo add --path ../sluicegate -F axum

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, routing::get};
use sluicegate::{Header, KeyExtractor, MemoryStore, PeerIp, Policy, RateLimitLayer};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Shows the warnings: that a limit is misconfigured, or that the store does not answer.
    tracing_subscriber::fmt::init();

    let ip = Policy::parse("ip", "10/1s,120/1m")?;
    let api_key = Policy::parse("api-key", "3/1m")?;

    // A client can make up API keys, but every request is charged to the client's address.
    let layer = RateLimitLayer::new(MemoryStore::new())
        .limit(ip, PeerIp)
        .limit(api_key, Header::new("x-api-key").or_skip());

    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(layer);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
