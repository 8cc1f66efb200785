//! A login that may fail three times a minute from one address; only wrong passwords count.
//!
//!     cargo run --example login_failures --features axum
//!
//! Right passwords cost nothing. After three wrong ones every login from that address is denied for a minute:
//!
//!     curl -i localhost:3000/login -d sesame    # 200, "login-failures/1m";r=3
//!     curl -i localhost:3000/login -d guess     # 401, "login-failures/1m";r=2
//!     curl -i localhost:3000/login -d guess     # 401, "login-failures/1m";r=1
//!     curl -i localhost:3000/login -d sesame    # 200, "login-failures/1m";r=1
//!     curl -i localhost:3000/login -d guess     # 401, "login-failures/1m";r=0
//!     curl -i localhost:3000/login -d guess     # 429, retry-after
//!     curl -i localhost:3000/login -d sesame    # 429, retry-after
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum tokio -F tokio/full
//!     cargo add --path ../sluicegate -F axum

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Router,
    http::{StatusCode, response::Parts},
    routing::post,
};
use sluicegate::{Charge, FailurePolicy, MemoryStore, PeerIp, Policy, RateLimitLayer};
use tokio::net::TcpListener;

async fn login(password: String) -> StatusCode {
    match &*password {
        "sesame" => StatusCode::OK,
        _ => StatusCode::UNAUTHORIZED,
    }
}

/// The charge is made at the start, so that many guesses at once gain nothing, and given back unless the password was
/// wrong.
///
/// This names the status of a failure, because many other responses are no success: the redirection after a good login
/// (303), a page that was not modified (304), a WebSocket (101), and the 429 of a limit further in. If you answer a
/// wrong password with a page and a 200, have the handler put `ActualCost::of("login-failures", 1)` or `0` into its
/// response, and settle with `ActualCost::or_charged`.
fn actual_cost(response: &Parts, charge: &Charge) -> u64 {
    match response.status {
        StatusCode::UNAUTHORIZED => charge.cost(),
        _ => 0,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::new(MemoryStore::new())
        .limit(Policy::parse("login-failures", "3/1m,20/1h")?, PeerIp)
        .settle(actual_cost)
        // While the store is down, every login is denied, and so is every guess of a password.
        .on_failure(FailurePolicy::Closed);
    let app = Router::new()
        .route("/login", post(login))
        .route_layer(limits);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
