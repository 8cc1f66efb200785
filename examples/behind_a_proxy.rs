//! Limits by the client's address behind proxies, at three widths of IPv6 at once.
//!
//!     cargo run --example behind_a_proxy --features axum
//!
//! The proxies are on this machine or in 10/8, and write `X-Forwarded-For`; curl stands for the proxy here:
//!
//!     curl -i http://127.0.0.1:3000/ -H 'X-Forwarded-For: 203.0.113.7'             # counts for 203.0.113.7
//!     curl -i http://127.0.0.1:3000/ -H 'X-Forwarded-For: 6.6.6.6, 203.0.113.7'    # the same client
//!     curl -i http://127.0.0.1:3000/ -H 'X-Forwarded-For: 2001:db8:1:2::1'         # counts for a /64, a /56 and a /48
//!     curl -i http://127.0.0.1:3000/ -H 'X-Forwarded-For: unknown'                 # 400: no address
//!     curl -i http://127.0.0.1:3000/health                                         # no header: not limited
//!
//! The page of `sluicegate::extract::forwarded` says which proxy needs what.

use std::{error::Error, net::SocketAddr};

use axum::{Router, http::request::Parts, routing::get};
use sluicegate::{
    ForwardedIp, KeyExtractor, MemoryStore, Policy, RateLimitLayer, extract::TrustedProxies,
};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let proxies = [
        "127.0.0.0/8".parse()?,
        "::1".parse()?,
        "10.0.0.0/8".parse()?,
    ];
    let ip = ForwardedIp::x_forwarded_for(TrustedProxies::networks(proxies));

    // A client with a /48 has 65,536 networks of /64; the wider the network, the higher its limit.
    let clients = |width| {
        let ip = ip.clone().ipv6_prefix(width);
        ip.only_when(|head: &Parts| head.uri.path() != "/health")
    };
    let layer = RateLimitLayer::new(MemoryStore::new())
        .limit(Policy::parse("ip-64", "5/10s")?, clients(64))
        .limit(Policy::parse("ip-56", "20/10s")?, clients(56))
        .limit(Policy::parse("ip-48", "80/10s")?, clients(48));

    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route("/health", get(async || "ok\n"))
        .layer(layer);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
