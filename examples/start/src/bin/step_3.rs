//! Step 3 of the first hour, docs/guide/start.md: behind a proxy.

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, routing::get};
use sluicegate::{
    ForwardedIp, Header, KeyExtractor, MemoryStore, Policy, RateLimitLayer, extract::TrustedProxies,
};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt::init(); // shows the warnings of the crate
    let address = Policy::parse("address", "5/1m")?;
    let account = Policy::parse("account", "2/1m,1000/1d")?;
    let proxies = TrustedProxies::networks(["127.0.0.1/32".parse()?]);
    let client = ForwardedIp::x_forwarded_for(proxies);
    let limits = RateLimitLayer::new(MemoryStore::new())
        .limit(address, client)
        .limit(account, Header::new("x-api-key").or_skip());
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
