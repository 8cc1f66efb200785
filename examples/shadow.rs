//! A stricter policy on trial: a shadow decides and counts but never denies, and the service logs each denial that it
//! would have made.
//!
//!     cargo run --example shadow --features axum
//!
//! The policy that counts is `ip`, and `stricter` is on trial:
//!
//!     curl -i localhost:3000    # 200, "ip";r=4
//!     curl -i localhost:3000    # 200, "ip";r=3
//!     curl -i localhost:3000    # 200, "ip";r=2
//!
//! No header shows this to clients. The log does, as soon as the shadow would have denied the third request:
//!
//!     would be denied: stricter, by its rule 2/1m
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum tokio -F tokio/full
//!     cargo add --path ../sluicegate -F axum

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, routing::get};
use sluicegate::{
    Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer,
    observe::{Event, Observer},
};
use tokio::net::TcpListener;

/// Logs policies and rules, never the denied client. You can also use `TracingObserver` and `MetricsObserver`.
struct Log;

impl Observer for Log {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::Decision { call, decision, .. } = event
            && call.shadow
            && let Some((policy, rule)) = decision.denied_by()
        {
            eprintln!(
                "would be denied: {}, by its rule {}",
                policy.name(),
                rule.rule()
            );
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(MemoryStore::new()).observer(Log);
    let limits = RateLimitLayer::new(limiter)
        .limit(Policy::parse("ip", "5/1m")?, PeerIp)
        .limit(Policy::parse("stricter", "2/1m")?.shadow(), PeerIp);
    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(limits);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
