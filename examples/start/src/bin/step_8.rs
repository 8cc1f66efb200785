//! Step 8 of the first hour, docs/guide/start.md: tests.

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, routing::get};
use metrics_exporter_prometheus::PrometheusBuilder;
use sluicegate::{
    FailurePolicy, ForwardedIp, Header, KeyExtractor, Limiter, Policy, RateLimitLayer, RedisStore,
    extract::TrustedProxies,
    observe::{MetricsObserver, TracingObserver},
};
use tokio::net::TcpListener;

/// The service over any store.
fn app(limiter: Limiter) -> Result<Router, Box<dyn Error>> {
    let address = Policy::parse("address", "5/1m")?;
    let account = Policy::parse("account", "2/1m,1000/1d")?.on_failure(FailurePolicy::Closed);
    let trial = Policy::parse("trial", "3/1h")?.shadow();
    let proxies = TrustedProxies::networks(["127.0.0.1/32".parse()?]);
    let client = ForwardedIp::x_forwarded_for(proxies);
    let limits = RateLimitLayer::new(limiter)
        .limit(address, client.clone())
        .limit(trial, client)
        .limit(account, Header::new("x-api-key").or_skip());
    Ok(Router::new()
        .route("/", get(async || "hello\n"))
        .layer(limits))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt::init(); // shows the warnings of the crate
    let store = RedisStore::connect(env::var("REDIS_URL")?).await?;
    let metrics = PrometheusBuilder::new().install_recorder()?; // before the observer
    let limiter = Limiter::new(store)
        .on_failure(FailurePolicy::Local)
        .replicas(2)
        .observer((TracingObserver::new(), MetricsObserver::new()));
    let app = app(limiter)?.route("/metrics", get(async move || metrics.render())); // not limited

    // The first argument is another address to listen on.
    let listen = env::args().nth(1);
    let listener = TcpListener::bind(listen.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, time::Duration};

    use axum::{body::Body, extract::connect_info::MockConnectInfo, http::Request};
    use sluicegate::{Limiter, MemoryStore, manual_clock::ManualClock};
    use tower::ServiceExt;

    #[tokio::test]
    async fn a_sixth_request_has_to_wait_for_a_minute_and_a_second() {
        let clock = ManualClock::new(1_700_000_000_000); // ms since 1970; it stands still
        let store = MemoryStore::new().clock(clock.clone());
        let proxy: SocketAddr = "127.0.0.1:50000".parse().unwrap();
        let app = super::app(Limiter::new(store)).unwrap();
        let app = app.layer(MockConnectInfo(proxy));
        let ask = async || {
            let request = Request::get("/").header("x-forwarded-for", "203.0.113.7");
            let request = request.body(Body::empty()).unwrap();
            app.clone().oneshot(request).await.unwrap().status()
        };
        for _ in 0..5 {
            assert_eq!(ask().await, 200);
        }
        clock.advance(Duration::from_millis(60_999));
        assert_eq!(ask().await, 429);
        clock.advance(Duration::from_millis(1));
        assert_eq!(ask().await, 200);
    }
}
