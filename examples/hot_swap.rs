//! Limits that an operator changes while the service runs; what has been counted stays counted.
//!
//!     cargo run --example hot_swap --features axum,serde
//!
//! Use up three requests, raise the limit, and there is room again:
//!
//!     for i in 1 2 3 4; do curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:3000/; done
//!     curl -X PUT http://127.0.0.1:3000/limits -d 'ip = "5/1m,100/1h"'
//!     curl -i http://127.0.0.1:3000/                       # "ip/1m";r=1
//!     curl -X PUT http://127.0.0.1:3000/limits -d 'ip = "many"'

use std::{error::Error, net::SocketAddr};

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

/// All policies are replaced, or none.
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
    let live = ReloadablePolicies::new(toml::from_str(r#"ip = "3/1m,100/1h""#)?);
    let limits = RateLimitLayer::new(MemoryStore::new()).limit(live.policy("ip")?, PeerIp);

    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route_layer(limits)
        // A real service lets only its operators do this.
        .route("/limits", put(replace))
        .with_state(live);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
