//! Limits that an operator changes while the service runs; the counts so far are kept.
//!
//!     cargo run --example hot_swap --features axum,serde
//!
//! Use up two requests, raise the limit, and you have room again:
//!
//!     curl -i localhost:3000                                          # 200, "ip/1m";r=1
//!     curl -i localhost:3000                                          # 200, "ip/1m";r=0
//!     curl -i localhost:3000                                          # 429
//!     curl -i localhost:3000/limits -X PUT -d 'ip = "5/1m,100/1h"'    # 200
//!     curl -i localhost:3000                                          # 200, "ip/1m";r=2, "ip/1h";r=97
//!     curl -i localhost:3000/limits -X PUT -d 'ip = "many"'           # 422, rule `many`
//!     curl -i localhost:3000                                          # 200, "ip/1m";r=1, "ip/1h";r=96
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum tokio toml -F tokio/full
//!     cargo add --path ../sluicegate -F axum,serde

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    routing::{get, put},
};
use sluicegate::{
    MemoryStore, PeerIp, RateLimitLayer,
    policies::{Policies, ReloadablePolicies},
};
use tokio::net::TcpListener;

/// Replaces all policies, or none.
async fn replace(
    State(live): State<ReloadablePolicies>,
    text: String,
) -> Result<String, (StatusCode, String)> {
    let wrong = |why: String| (StatusCode::UNPROCESSABLE_ENTITY, why + "\n");
    let policies: Policies = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let told = format!("{policies:?}\n");
    live.replace(policies)
        .map_err(|error| wrong(error.to_string()))?;
    Ok(told)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let live = ReloadablePolicies::new(toml::from_str(r#"ip = "2/1m,100/1h""#)?);
    let limits = RateLimitLayer::new(MemoryStore::new()).limit(live.policy("ip")?, PeerIp);

    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route_layer(limits)
        // A real service lets only its operators do this.
        .route("/limits", put(replace))
        .with_state(live);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
