//! A policy for each caller: authentication finds the plan of each request, and a table holds its limits. All plans have
//! one policy name, so that an upgrade keeps the counts.
//!
//!     cargo run --example tiers --features axum
//!
//! Mallory's plan is not in the table, so the request is rejected instead of passing without a limit:
//!
//!     curl -i localhost:3000 -H 'x-user: alice'      # 200, "requests";r=59
//!     curl -i localhost:3000 -H 'x-user: bob'        # 200, "requests";r=599
//!     curl -i localhost:3000 -H 'x-user: mallory'    # 400
//!     curl -i localhost:3000                         # 401
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum tokio tracing-subscriber -F tokio/full
//!     cargo add --path ../sluicegate -F axum

use std::{collections::HashMap, env, error::Error};

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, request::Parts},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use sluicegate::{Key, MemoryStore, Policy, RateLimitLayer, extract::FromExtension};
use tokio::net::TcpListener;

#[derive(Clone)]
struct User {
    name: String,
    plan: &'static str,
}

/// Stands for a service's own authentication, which knows the plan of each user.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let name = request.headers().get("x-user");
    let Some(name) = name
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned)
    else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let plan = match &*name {
        "alice" => "free",
        "bob" => "pro",
        _ => "legacy",
    };
    request.extensions_mut().insert(User { name, plan });
    next.run(request).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Shows the warnings: that a limit is misconfigured, or that the store does not answer.
    tracing_subscriber::fmt::init();

    let plans = HashMap::from([
        ("free", Policy::parse("requests", "60/1m")?),
        ("pro", Policy::parse("requests", "600/1m")?),
    ]);
    let by_plan = move |head: &Parts| plans.get(head.extensions.get::<User>()?.plan).cloned();
    let user = FromExtension::new(|user: &User| Key::new("user", &user.name));

    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(RateLimitLayer::new(MemoryStore::new()).limit(by_plan, user))
        .layer(from_fn(authenticate));

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
