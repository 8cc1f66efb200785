//! Limits shared through a `bb8` pool that the service has anyway.
//!
//!     cargo run --example pool --features axum -- redis://127.0.0.1/
//!     for i in 1 2 3 4; do curl -i http://127.0.0.1:3000/; done
//!
//! The fourth request within ten seconds is answered 429. Stop Redis and requests pass, unlimited; start it again and
//! the next one is limited.

use std::{error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use bb8_redis::RedisConnectionManager;
use sluicegate::{PeerIp, Policy, RateLimitLayer, RedisStore, Rule};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1);
    let url = url.unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let pool = bb8::Pool::builder()
        .build(RedisConnectionManager::new(url)?)
        .await?;

    // The store makes a connection of its own, as the pool makes its connections.
    let policy = Policy::new("ip", [Rule::new(3, Duration::from_secs(10))])?;
    let layer = RateLimitLayer::new(RedisStore::from(pool)).limit(policy, PeerIp);
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(layer);

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, app).await?)
}
