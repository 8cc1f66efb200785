//! A login: only failures count, by user name and by address, and a success resets the failures of the name.
//!
//!     cargo run --example login --features axum,json
//!
//! A name may fail three times in an hour:
//!
//!     curl -i localhost:3000/login -d '{"user":"alice","password":"guess"}'     # 401, "login-user";r=2
//!     curl -i localhost:3000/login -d '{"user":" Alice","password":"guess"}'    # 401, "login-user";r=1
//!     curl -i localhost:3000/login -d '{"user":"alice","password":"sesame"}'    # 200
//!     curl -i localhost:3000/login -d '{"user":"alice","password":"guess"}'     # 401, "login-user";r=2
//!     curl -i localhost:3000/login -d '{"user":"alice","password":"guess"}'     # 401, "login-user";r=1
//!     curl -i localhost:3000/login -d '{"user":"alice","password":"guess"}'     # 401, "login-user";r=0
//!     curl -i localhost:3000/login -d '{"user":"alice","password":"sesame"}'    # 429, retry-after, login-user
//!
//! An address may fail ten times in a minute, by any names. A success gives nothing of that back:
//!
//!     curl -i localhost:3000/login -d '{"user":"bob","password":"sesame"}'      # 200, "login-ip";r=5
//!     curl -i localhost:3000/login -d '{"user":"carol","password":"guess"}'     # 401, "login-user";r=2
//!     curl -i localhost:3000/login -d '{"user":null}'                           # 400, line 1
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum serde tokio -F serde/derive,tokio/full
//!     cargo add --path ../sluicegate -F axum,json

use std::{env, net::SocketAddr};
use tokio::net::TcpListener;

use std::error::Error;

use axum::{
    Extension, Router,
    extract::State,
    http::{StatusCode, request, response},
    routing::post,
};
use serde::Deserialize;
use sluicegate::{
    Charge, FailurePolicy, Key, Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer,
    middleware::{ParsedBody, ReadBodyLayer},
};

#[derive(Deserialize)]
struct Login {
    user: String,
    password: String,
}

impl Login {
    /// One spelling for each user; stored as a hash.
    fn key(&self) -> Key {
        Key::secret("login", self.user.trim().to_lowercase())
    }
}

#[derive(Clone)]
struct Failures {
    limiter: Limiter,
    of_user: Policy,
}

async fn login(
    State(failures): State<Failures>,
    Extension(login): Extension<ParsedBody<Login>>,
) -> StatusCode {
    if login.password != "sesame" {
        return StatusCode::UNAUTHORIZED;
    }
    // If the store is away, the failures count on, and the login succeeds.
    let _ = failures
        .limiter
        .reset(&failures.of_user, &login.key())
        .await;
    StatusCode::OK
}

/// Each try is charged at the start, so that many guesses at once gain nothing, and gets its charge back unless it fails.
/// This names the status of a failure, since many others are no success: a redirection, or the 429 of a limit further in.
fn final_cost(response: &response::Parts, charge: &Charge) -> u64 {
    match response.status {
        StatusCode::UNAUTHORIZED => charge.cost(),
        _ => 0,
    }
}

fn app() -> Result<Router, Box<dyn Error>> {
    // While the store is down, every login is denied, and so is every guess of a password.
    let limiter = Limiter::new(MemoryStore::new()).on_failure(FailurePolicy::Closed);
    let of_user = Policy::parse("login-user", "3/1h")?;
    let by_user = |head: &request::Parts| ParsedBody::of(head).map(Login::key);
    let logins = RateLimitLayer::new(limiter.clone())
        .limit(Policy::parse("login-ip", "10/1m")?, PeerIp)
        .limit(of_user.clone(), by_user)
        .settle(final_cost);
    let by_address =
        RateLimitLayer::new(limiter.clone()).limit(Policy::parse("ip", "60/1m")?, PeerIp);
    Ok(Router::new()
        .route("/login", post(login))
        .with_state(Failures { limiter, of_user })
        .layer(logins)
        .layer(ReadBodyLayer::json::<Login>(4_096))
        .layer(by_address)) // also counts what cannot be read
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
