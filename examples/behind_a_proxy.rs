//! Limits by the client's address behind nginx, at three prefixes of IPv6 at once.
//!
//!     cargo run --example behind_a_proxy --features axum
//!
//! nginx must write the caller's address into a header. The service reads that header and no other:
//!
//!     server {
//!         listen 8080;
//!         location / {
//!             proxy_pass http://127.0.0.1:3000;
//!             proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
//!         }
//!     }
//!
//! Ask through nginx, as two clients (Linux has all of 127/8; on other systems, ask from other machines):
//!
//!     via=http://127.0.0.1:8080/ direct=http://127.0.0.1:3000/ fake='X-Forwarded-For: 203.0.113.7'
//!
//!     curl -i --interface 127.0.0.2 $via                 # 200, five times a minute; then 429
//!     curl -i --interface 127.0.0.2 $via -H "$fake"      # still 429: nginx appends who sent it
//!     curl -i --interface 127.0.0.3 $via -H "$fake"      # 200: another client
//!
//! A client that goes around nginx is counted by its own address, whatever headers it sends. But the service believes a
//! trusted proxy. By default that is 127.0.0.1, and so every program on this machine:
//!
//!     curl -i --interface 127.0.0.2 $direct -H "$fake"   # 429: counts for 127.0.0.2, as above
//!     curl -i --interface 127.0.0.1 $direct -H "$fake"   # 200: counts for 203.0.113.7
//!     curl -i --interface 127.0.0.1 $direct              # 400: a trusted proxy that does not name its client
//!     curl -i --interface 127.0.0.1 ${direct}health      # 200: never limited
//!
//! So trust only networks that contain nothing but proxies, and, if you can, close the service's port to everyone else.
//! Arguments set the address to listen on, the header to read, and the proxies to trust. Behind two nginx in a row,
//! with the configuration above in both, trust the addresses of both:
//!
//!     cargo run --example behind_a_proxy --features axum -- 10.0.0.9:3000 x-forwarded-for 10.0.0.1 10.0.1.0/24
//!
//! With a single nginx you can use `x-real-ip` instead, because nginx replaces the value that clients send:
//!
//!             proxy_set_header X-Real-IP $remote_addr;
//!
//! You can also use `forwarded`, the standard header (RFC 7239), which nginx does not write unless you configure it:
//!
//!     map $remote_addr $forwarded_element {
//!         ~^[0-9.]+$         "for=$remote_addr";
//!         ~^[0-9A-Fa-f:.]+$  "for=\"[$remote_addr]\"";
//!         default            "for=unknown";
//!     }
//!     map $http_forwarded $add_forwarded {
//!         ""       $forwarded_element;
//!         default  "$http_forwarded, $forwarded_element";
//!     }
//!             proxy_set_header Forwarded $add_forwarded;
//!
//! The page of `sluicegate::extract::forwarded` lists the settings that other proxies need, and the attacks that it
//! defeats.
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum tokio tracing-subscriber -F tokio/full
//!     cargo add --path ../sluicegate -F axum

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Router,
    http::{HeaderName, request::Parts},
    routing::get,
};
use sluicegate::{
    ForwardedIp, KeyExtractor, MemoryStore, Policy, RateLimitLayer,
    extract::{Cidr, TrustedProxies},
};
use tokio::net::TcpListener;
use tracing_subscriber::filter::LevelFilter;

/// Finds the client by the one header that the proxies write.
fn client(header: HeaderName, proxies: TrustedProxies) -> ForwardedIp {
    match header.as_str() {
        "x-forwarded-for" => ForwardedIp::x_forwarded_for(proxies),
        "forwarded" => ForwardedIp::forwarded(proxies),
        _ => ForwardedIp::header(header, proxies),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A warning reports a mistake about the proxies: networks that do not match, a header that is not sent.
    let warnings = tracing_subscriber::fmt().with_max_level(LevelFilter::WARN);
    warnings.with_writer(std::io::stderr).init();

    let mut args = env::args().skip(1);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let header = args.next().unwrap_or_else(|| "x-forwarded-for".to_owned());
    let header: HeaderName = header.parse()?;
    let mut proxies: Vec<Cidr> = args
        .map(|network| network.parse())
        .collect::<Result<_, _>>()?;
    if proxies.is_empty() {
        proxies.push("127.0.0.1".parse()?);
    }
    let ip = client(header, TrustedProxies::networks(proxies));

    // A client with a /48 has 65,536 networks of /64; the shorter the prefix, the higher its limit.
    let clients = |bits| {
        let ip = ip.clone().ipv6_prefix(bits);
        ip.only_when(|head: &Parts| head.uri.path() != "/health")
    };
    let layer = RateLimitLayer::new(MemoryStore::new())
        .limit(Policy::parse("ip-64", "5/1m")?, clients(64))
        .limit(Policy::parse("ip-56", "20/1m")?, clients(56))
        .limit(Policy::parse("ip-48", "80/1m")?, clients(48));

    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route("/health", get(async || "ok\n"))
        .layer(layer);

    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    // Without the addresses of peers, no proxy can be trusted by its network.
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
