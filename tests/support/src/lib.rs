//! Helpers that the test programs and the benches share, compiled once.
#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    clippy::return_self_not_must_use,
    reason = "a test fails by a panic, and these helpers are no interface"
)]

use std::path::Path;

use sluicegate::{Limiter, RateLimitLayer, Store, limiter::Background, store::Leases};
use tokio::runtime::{Builder, Runtime};

pub mod blocks;
pub mod calls;
pub mod cluster;
pub mod contract;
pub mod contributors;
pub mod cut_checks;
pub mod cut_streams;
pub mod denials;
pub mod example;
pub mod fated;
pub mod first_of;
pub mod flaky;
pub mod hand_over;
pub mod history;
pub mod kinds;
pub mod log;
pub mod lua;
pub mod model;
pub mod nginx;
pub mod outcome;
pub mod plain;
pub mod prelude;
pub mod promise;
pub mod proxy;
pub mod redis;
pub mod rows;
pub mod scripted;
pub mod sentence;
pub mod sentinel;
pub mod served;
pub mod sharing;
pub mod site;
pub mod store_ext;
pub mod stored;
pub mod stores;
pub mod tls;
pub mod trace;
pub mod twemproxy;
pub mod vectors;
pub mod verified;

pub fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).unwrap_or(own)
}

/// A runtime of one thread, for a test that needs several, or that stops driving one.
pub fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// Such a runtime whose clock only the test moves.
pub fn paused_runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap()
}

/// A limiter whose work that no request waits for is done in the runtime of the test, whose clock the test may pause.
pub fn limiter(store: impl Store) -> Limiter {
    Limiter::new(store).background(Background::Here)
}

pub fn layer(limiter: impl Into<Limiter>) -> RateLimitLayer {
    RateLimitLayer::new(limiter.into().background(Background::Here))
}

/// Leases that are fetched and returned in the runtime of the test.
pub fn leases(store: impl Store) -> Leases {
    Leases::new(store).background(Background::Here)
}

/// Waits for the work that no request waits for, and returns the slots that are held.
pub async fn finished(limiter: &Limiter) {
    let most = std::time::Duration::from_secs(120);
    assert_eq!(limiter.finish(most).await, 0, "jobs are left");
}
