//! A rejection of your own, as JSON; `Retry-After` and the quota headers are added to it.
//!
//!     cargo run --example custom_rejection --features axum
//!
//! Two exports a minute are served. An export that costs more than the limit is never served:
//!
//!     curl -i localhost:3000/export -H 'x-api-key: alice'            # 200
//!     curl -i localhost:3000/export -H 'x-api-key: alice'            # 200
//!     curl -i localhost:3000/export -H 'x-api-key: alice'            # 429, retry-after, {"error":"wait","seconds":
//!     curl -i 'localhost:3000/export?all' -H 'x-api-key: alice'      # 413, {"error":"too much at once"}
//!     curl -i localhost:3000/export                                  # 400, {"error":"send your key in x-api-key"}
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum serde_json tokio -F tokio/full
//!     cargo add --path ../sluicegate -F axum

use std::{env, error::Error};

use axum::{
    Json, Router,
    http::{StatusCode, request::Parts},
    routing::get,
};
use serde_json::{Value, json};
use sluicegate::{
    Header, MemoryStore, Policy, RateLimitLayer, error::ExtractErrorKind, middleware::Rejection,
};
use tokio::net::TcpListener;

/// You can return anything that is `IntoResponse`, as in a handler, and use the head of the request.
fn explain(rejection: &Rejection, _head: &Parts) -> (StatusCode, Json<Value>) {
    let error = match rejection {
        Rejection::Denied(denial) => match denial.retry_after() {
            Some(wait) => json!({ "error": "wait", "seconds": wait.as_millis().div_ceil(1000) }),
            None => json!({ "error": "too much at once" }),
        },
        // The client can mend only some of these: the key could not be found out now, or the service lacks a layer.
        Rejection::MissingKey(error) => match error.kind() {
            ExtractErrorKind::Unavailable => json!({ "error": "try again later" }),
            ExtractErrorKind::Misconfigured => json!({ "error": "we made a mistake" }),
            _ => json!({ "error": "send your key in x-api-key" }),
        },
        Rejection::Undecided(_) if rejection.status().as_u16() == 503 => {
            json!({ "error": "try again later" })
        }
        Rejection::Undecided(_) => json!({ "error": "we made a mistake" }),
        // A blocked client, and the variants that later versions add.
        _ => json!({ "error": "not allowed" }),
    };
    (rejection.status(), Json(error))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::new(MemoryStore::new())
        .limit(Policy::parse("exports", "2/1m")?, Header::new("x-api-key"))
        .cost(|head, _policy| {
            if head.uri.query() == Some("all") {
                100
            } else {
                1
            }
        })
        .reject_with(explain);
    let app = Router::new()
        .route("/export", get(async || "exported\n"))
        .layer(limits);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
