//! A service with mistakes about proxies logs one warning for each mistake.

use axum::{Router, routing::get};
use sluicegate::{MemoryStore, PeerIp, Policy, RateLimitLayer, extract::TrustedProxies};

use super::{
    LISTEN, LISTS, PROXIES, SPELLINGS, Spelling, X_FORWARDED_FOR, ask,
    hops::{counting, serve, trusting},
    newcomer,
};
use support::trace::traced_here;

/// The warnings while clients ask once each, for as many requests as two comparisons need.
async fn warned(server: std::net::SocketAddr) -> Vec<String> {
    let (trace, _tracing) = traced_here();
    for _ in 0..200 {
        ask(server, &newcomer(), "").await;
    }
    let lines = trace.lines.lock().unwrap();
    lines.clone()
}

fn assert_warned(lines: &[String], mend: &str) {
    let [line] = lines else {
        panic!("{lines:?}");
    };
    assert!(line.starts_with("WARN misconfigured: "), "{line}");
    assert!(line.contains(mend) && !line.contains("127.9."), "{line}");
}

fn networks(network: &str) -> TrustedProxies {
    TrustedProxies::networks([network.parse().unwrap()])
}

#[tokio::test]
async fn networks_without_the_proxy_are_warned_of() {
    for spelling in SPELLINGS {
        let service = serve(trusting(spelling, networks("10.0.0.0/8"))).await;
        let nginx = spelling.nginx(&service.to_string(), super::INNER, LISTEN);
        assert_warned(&warned(nginx.address()).await, "`TrustedProxies::networks`");
    }
}

#[tokio::test]
async fn networks_and_counts_without_the_outer_proxy_are_warned_of() {
    for spelling in LISTS {
        for app in [
            counting(spelling, 1),
            trusting(spelling, networks("127.0.1.1/32")),
        ] {
            let two = spelling.two(&serve(app).await.to_string());
            assert_warned(&warned(two.outer.address()).await, "add its network");
        }
    }
}

#[tokio::test]
async fn a_proxy_that_adds_no_header_is_warned_of() {
    for spelling in SPELLINGS {
        let service = serve(trusting(spelling, networks(PROXIES))).await;
        let silent = Spelling {
            set: "",
            ..*spelling
        };
        let nginx = silent.nginx(&service.to_string(), super::INNER, LISTEN);
        assert_warned(&warned(nginx.address()).await, "let the proxy add it");
    }
}

#[tokio::test]
async fn a_count_that_is_too_high_is_warned_of() {
    for spelling in LISTS {
        let service = serve(counting(spelling, 2)).await;
        let nginx = spelling.nginx(&service.to_string(), super::INNER, LISTEN);
        assert_warned(&warned(nginx.address()).await, "lower");
    }
}

#[tokio::test]
async fn the_address_of_a_proxy_as_the_peer_is_warned_of() {
    let policy = Policy::parse("ip", "5/1m").unwrap();
    let layer = RateLimitLayer::new(MemoryStore::new()).limit(policy, PeerIp);
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    let service = serve(app).await;
    let nginx = X_FORWARDED_FOR.nginx(&service.to_string(), super::INNER, LISTEN);
    assert_warned(&warned(nginx.address()).await, "use `ForwardedIp`");
}
