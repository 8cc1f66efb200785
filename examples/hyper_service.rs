//! A plain hyper server, without axum: the server puts the peer's address where `PeerIp` finds it.
//!
//!     cargo run --example hyper_service
//!
//! Two requests a minute are served, and then:
//!
//!     curl -i localhost:3000    # 200, "ip";r=1
//!     curl -i localhost:3000    # 200, "ip";r=0
//!     curl -i localhost:3000    # 429, retry-after, "violated-policies":["ip"]
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add http http-body-util hyper tokio tower -F hyper/server,tokio/full,tower/util
//!     cargo add hyper-util -F http1,server,service,tokio
//!     cargo add --path ../sluicegate

use std::{convert::Infallible, env, error::Error};

use http::{Request, Response};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use sluicegate::{MemoryStore, PeerIp, Policy, RateLimitLayer};
use tokio::net::TcpListener;
use tower::ServiceBuilder;

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello\n")))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let layer = RateLimitLayer::new(MemoryStore::new()).limit(Policy::parse("ip", "2/1m")?, PeerIp);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        let service = ServiceBuilder::new()
            .map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(peer);
                request
            })
            .layer(layer.clone())
            .service_fn(hello);
        tokio::spawn(async move {
            let service = TowerToHyperService::new(service);
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                eprintln!("connection: {error}");
            }
        });
    }
}
