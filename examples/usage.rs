//! Users see their own usage, and operators act on it: the plan of a month is charged first, then credits that were bought.
//!
//!     OPERATOR_TOKEN=sesame cargo run --example usage --features axum,calendar,serde
//!
//! Alice sees her limits, and looking costs nothing. `/me/limits` shows the limits that her next request meets, and
//! `/me/account` the credits, too:
//!
//!     curl -i localhost:3000 -H 'x-user: alice'               # 200, "plan";r=1
//!     curl -i localhost:3000/me/limits -H 'x-user: alice'     # 200, "policy":"plan", "limit":2,"remaining":1
//!     curl -i localhost:3000 -H 'x-user: alice'               # 200, "plan";r=0
//!     curl -i localhost:3000 -H 'x-user: alice'               # 200, "credits";r=2
//!     curl -i localhost:3000/me/account -H 'x-user: alice'    # 200, "limit":2,"remaining":0
//!     curl -i localhost:3000/me/account -H 'x-user: alice'    # 200, "unit":"credits","limit":3,"remaining":2
//!     curl -i localhost:3000/me/account                       # 401
//!
//! An operator blocks her, ends the block, and deletes her counts. Her spent credits come back, too:
//!
//!     curl -i localhost:3000/blocks -d 'user=alice&seconds=60' -H 'authorization: Bearer guess'    # 401
//!     curl -i localhost:3000/blocks -d 'user=alice&seconds=60' -H 'authorization: Bearer sesame'   # 204
//!     curl -i localhost:3000 -H 'x-user: alice'                                                    # 403
//!     curl -i localhost:3000/me/account -H 'x-user: alice'                                         # 200, "source":"operator"
//!     curl -i -X DELETE localhost:3000/blocks/alice -H 'authorization: Bearer sesame'              # 204
//!     curl -i localhost:3000/resets -d 'user=alice' -H 'authorization: Bearer sesame'              # 204
//!     curl -i localhost:3000 -H 'x-user: alice'                                                    # 200, "plan";r=1
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum serde tokio tracing-subscriber -F tokio/full,serde/derive
//!     cargo add --path ../sluicegate -F axum,calendar,serde

use std::{env, error::Error, sync::Arc, time::Duration};

use axum::{
    Extension, Form, Json, Router,
    extract::{Path, Request, State},
    http::{StatusCode, header},
    middleware::{Next, from_fn, from_fn_with_state},
    response::Response,
    routing::{delete, get, post},
};
use serde::Deserialize;
use sluicegate::{
    Key, Limiter, MemoryStore, Policy, RateLimitLayer, StoreError,
    decision::Report,
    extract::FromExtension,
    middleware::{Decisions, Route, Routes},
};
use tokio::net::TcpListener;

#[derive(Clone)]
struct User(String);

fn key(user: &str) -> Key {
    Key::new("user", user)
}

/// Stands for a service's own authentication.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let name = request.headers().get("x-user");
    let name = name.and_then(|value| value.to_str().ok());
    let user = User(name.ok_or(StatusCode::UNAUTHORIZED)?.to_owned());
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}

/// Stands for the authentication of operators.
async fn only_operators(
    State(token): State<Arc<str>>,
    request: Request,
    next: Next,
) -> Result<Response, StatusCode> {
    let sent = request.headers().get(header::AUTHORIZATION);
    match sent.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer ")) {
        Some(sent) if *sent == *token => Ok(next.run(request).await),
        _ => Err(StatusCode::UNAUTHORIZED),
    }
}

#[derive(Clone)]
struct Limits {
    limiter: Limiter,
    policies: [Policy; 2],
}

/// The layer's decisions, at a weight of 0: a user above both limits gets a 429.
async fn my_limits(decisions: Option<Decisions>) -> Result<Json<Report>, StatusCode> {
    let decisions = decisions.ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(Json(decisions.report()))
}

/// Both alternatives, and the block if there is one. The layer, which rejects blocked users, is not around this route.
async fn my_account(
    State(limits): State<Limits>,
    Extension(User(name)): Extension<User>,
) -> Result<Json<Report>, StatusCode> {
    let report = limits.limiter.report(&limits.policies, &key(&name)).await;
    report.map(Json).map_err(unavailable)
}

#[derive(Deserialize)]
struct Block {
    user: String,
    seconds: u64,
}

async fn block(
    State(limits): State<Limits>,
    Form(block): Form<Block>,
) -> Result<StatusCode, StatusCode> {
    let time = Duration::from_secs(block.seconds);
    let blocked = limits.limiter.block(&key(&block.user), time).await;
    blocked.map_err(unavailable)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn unblock(
    State(limits): State<Limits>,
    Path(user): Path<String>,
) -> Result<StatusCode, StatusCode> {
    limits
        .limiter
        .unblock(&key(&user))
        .await
        .map_err(unavailable)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct Reset {
    user: String,
}

/// Under both policies. `Limiter::reset` of the plan alone spares the credits.
async fn reset(
    State(limits): State<Limits>,
    Form(reset): Form<Reset>,
) -> Result<StatusCode, StatusCode> {
    let reset = limits.limiter.reset_all(&key(&reset.user)).await;
    reset.map_err(unavailable)?;
    Ok(StatusCode::NO_CONTENT)
}

fn unavailable(_: StoreError) -> StatusCode {
    StatusCode::SERVICE_UNAVAILABLE
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Shows the warnings: that a limit is misconfigured, or that the store does not answer.
    tracing_subscriber::fmt::init();
    let token: Arc<str> = env::var("OPERATOR_TOKEN")
        .map_err(|_| "set OPERATOR_TOKEN to the token of the operators")?
        .into();

    let plan = Policy::parse("plan", "2/month@UTC")?;
    // Bought once, for good. Raise the limit with each purchase.
    let credits = Policy::parse("credits", "3/36500d@fixed")?.unit("credits".parse()?);
    let limiter = Limiter::new(MemoryStore::new());
    let user = || FromExtension::new(|user: &User| key(&user.0));
    let by_route = |policy: &Policy| {
        let look = Route::new(policy).weight(0);
        Routes::new(policy).route("GET /me/limits", look)
    };
    let layer = RateLimitLayer::new(limiter.clone())
        .limit_first_of([(by_route(&plan), user()), (by_route(&credits), user())]);

    let limits = Limits {
        limiter,
        policies: [plan, credits],
    };
    let users = Router::new()
        .route("/", get(async || "hello\n"))
        .route("/me/limits", get(my_limits))
        .route_layer(layer)
        .route("/me/account", get(my_account))
        .layer(from_fn(authenticate));
    let operators = Router::new()
        .route("/blocks", post(block))
        .route("/blocks/{identity}", delete(unblock))
        .route("/resets", post(reset))
        .layer(from_fn_with_state(token, only_operators));
    let app = users.merge(operators).with_state(limits);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
