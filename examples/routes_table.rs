//! One layer with a table of routes: other policies, other weights, and a route that is not limited.
//!
//!     cargo run --example routes_table --features axum
//!
//! A search costs as much as ten other requests, and an item may be written ten times a minute:
//!
//!     curl -i http://127.0.0.1:3000/                       # "general";r=99
//!     curl -i http://127.0.0.1:3000/search                 # "general";r=89
//!     curl -i -X PUT http://127.0.0.1:3000/api/items/1     # "writes";r=9
//!     curl -i http://127.0.0.1:3000/health                 # not limited

use std::{error::Error, net::SocketAddr};

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
        // The whole template, with the prefixes of nested routers: one limit for all items.
        .route("PUT /api/items/{id}", Policy::parse("writes", "10/1m")?);

    let item = get(async || "an item\n").put(async || "written\n");
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route("/search", get(async || "found nothing\n"))
        .route("/health", get(async || "ok\n"))
        .nest("/api", Router::new().route("/items/{id}", item))
        .layer(RateLimitLayer::new(MemoryStore::new()).limit(routes, PeerIp));

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
