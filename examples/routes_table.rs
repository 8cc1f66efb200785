//! One layer with a table of routes: other policies, other weights, and a route that is not limited.
//!
//!     cargo run --example routes_table --features axum
//!
//! A search costs as much as ten other requests, and an item may be written ten times a minute:
//!
//!     curl -i localhost:3000                        # 200, "general";r=99
//!     curl -i localhost:3000/search                 # 200, "general";r=89
//!     curl -i localhost:3000/api/items/1 -X PUT     # 200, "writes";r=9
//!     curl -i localhost:3000/api/items/2 -X PUT     # 200, "writes";r=8
//!     curl -i localhost:3000/api/items/2            # 200, "general";r=88
//!     curl -s localhost:3000/health                 # ok
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum tokio -F tokio/full
//!     cargo add --path ../sluicegate -F axum

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, routing::get};
use sluicegate::{
    MemoryStore, PeerIp, Policy, RateLimitLayer,
    middleware::{Route, Routes},
};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let general = Policy::parse("general", "100/1m")?;
    let routes = Routes::new(general.clone())
        .route("/health", Route::skip())
        .route("GET /search", Route::new(general).weight(10))
        // Use the whole template, with the prefixes of nested routers: one limit for all items.
        .route("PUT /api/items/{id}", Policy::parse("writes", "10/1m")?);

    let item = get(async || "an item\n").put(async || "written\n");
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route("/search", get(async || "found nothing\n"))
        .route("/health", get(async || "ok\n"))
        .nest("/api", Router::new().route("/items/{id}", item))
        .layer(RateLimitLayer::new(MemoryStore::new()).limit(routes, PeerIp));

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
