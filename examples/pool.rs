//! Limits shared through a `bb8` pool that the service already uses.
//!
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example pool --features axum,bb8
//!
//! Three requests in any ten minutes are served:
//!
//!     curl -i localhost:3000    # 200, "ip";r=2
//!     curl -i localhost:3000    # 200, "ip";r=1
//!     curl -i localhost:3000    # 200, "ip";r=0
//!     curl -i localhost:3000    # 429, retry-after
//!
//! Stop Redis and requests pass, unlimited. Start Redis again and the next request is limited.
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum bb8 bb8-redis tokio tracing-subscriber -F tokio/full
//!     cargo add --path ../sluicegate -F axum,bb8

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, routing::get};
use bb8_redis::RedisConnectionManager;
use sluicegate::{PeerIp, Policy, RateLimitLayer, RedisStore};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Shows the warnings: that a limit is misconfigured, or that the store does not answer.
    tracing_subscriber::fmt::init();

    let url = env::var("REDIS_URL").map_err(|_| "set REDIS_URL")?;
    let pool = bb8::Pool::builder()
        .build(RedisConnectionManager::new(url)?)
        .await?;

    // The store opens one connection for itself, the way the pool opens connections.
    let policy = Policy::parse("ip", "3/10m")?;
    let layer = RateLimitLayer::new(RedisStore::from(pool)).limit(policy, PeerIp);
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(layer);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, app).await?)
}
