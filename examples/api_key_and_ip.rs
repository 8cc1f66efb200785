//! Two limits in one atomic step: by the client's address, and by its API key if it has one.
//!
//!     cargo run --example api_key_and_ip --features axum
//!
//! Without a key, only the address counts; with one, both count, and what one of them denies is charged to neither:
//!
//!     curl -i http://127.0.0.1:3000/                         # RateLimit: "ip/1s";…, "ip/1m";…
//!     curl -i http://127.0.0.1:3000/ -H 'x-api-key: alice'   # … and "api-key";r=4;…
//!
//! The sixth request with one key within a minute is answered with 429, and another key is still served.

use std::{error::Error, net::SocketAddr};

use axum::{Router, routing::get};
use sluicegate::{Header, KeyExtractor, MemoryStore, PeerIp, Policy, RateLimitLayer};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let ip = Policy::parse("ip", "10/1s,120/1m")?;
    let api_key = Policy::parse("api-key", "5/1m")?;

    // A client can make up API keys, but its address is charged for every request.
    let layer = RateLimitLayer::new(MemoryStore::new())
        .limit(ip, PeerIp)
        .limit(api_key, Header::new("x-api-key").or_skip());

    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(layer);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
