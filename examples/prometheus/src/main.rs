//! An axum service whose decisions are served to Prometheus, and one policy that is only tried out.
//!
//!     cargo run -p example-prometheus
//!
//! Three requests a minute are served; the policy that is tried out would have denied the second and the third:
//!
//!     curl -i localhost:3000            # 200
//!     curl -i localhost:3000            # 200
//!     curl -i localhost:3000            # 200
//!     curl -i localhost:3000            # 429
//!     curl -s localhost:3000/metrics    # sluicegate_decisions_total{policy="ip",outcome="denied"} 1
//!
//! Use the dashboard and the alert rules in `examples/grafana`.
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum metrics-exporter-prometheus tokio -F tokio/full
//!     cargo add --path ../sluicegate -F axum,metrics

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use sluicegate::{Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer, observe::MetricsObserver};
use tokio::{net::TcpListener, time};

/// In seconds: most answers of a store in the same network take less than a millisecond.
const BUCKETS: [f64; 8] = [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.05, 0.1];

/// In seconds, up to the longest `max_wait` that a service has.
const WAITS: [f64; 6] = [0.01, 0.1, 0.5, 1.0, 5.0, 30.0];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The recorder comes before the observer, which describes its metrics to it.
    let latency = Matcher::Full("sluicegate_store_seconds".to_owned());
    let wait = Matcher::Full("sluicegate_wait_seconds".to_owned());
    let prometheus = PrometheusBuilder::new()
        .set_buckets_for_metric(latency, &BUCKETS)?
        .set_buckets_for_metric(wait, &WAITS)?
        .install_recorder()?;

    let limiter = Limiter::new(MemoryStore::new()).observer(MetricsObserver::new());
    let limits = RateLimitLayer::new(limiter)
        .limit(Policy::parse("ip", "3/1m")?, PeerIp)
        .limit(Policy::parse("stricter", "1/1m")?.shadow(), PeerIp);

    // An exporter without a listener leaves the upkeep of its histograms to us.
    let upkeep = prometheus.clone();
    tokio::spawn(async move {
        let mut every = time::interval(Duration::from_secs(5));
        loop {
            every.tick().await;
            upkeep.run_upkeep();
        }
    });

    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route_layer(limits)
        .route("/metrics", get(async move || prometheus.render()));
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
