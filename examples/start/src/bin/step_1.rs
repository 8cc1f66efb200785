//! Step 1 of the first hour, docs/guide/start.md: one limit in memory.

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, routing::get};
use sluicegate::{MemoryStore, PeerIp, Policy, RateLimitLayer};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt::init(); // shows the warnings of the crate
    let address = Policy::parse("address", "3/1m")?;
    let limits = RateLimitLayer::new(MemoryStore::new()).limit(address, PeerIp);
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(limits);

    // The first argument is another address to listen on.
    let listen = env::args().nth(1);
    let listener = TcpListener::bind(listen.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
