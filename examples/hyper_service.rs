//! A plain hyper server, without axum: the server puts the peer's address where `PeerIp` finds it.
//!
//!     cargo run --example hyper_service
//!
//! Three requests in any ten seconds are served, and then:
//!
//!     curl -i http://127.0.0.1:3000/        # 429, with Retry-After

use std::{convert::Infallible, error::Error};

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
    let layer =
        RateLimitLayer::new(MemoryStore::new()).limit(Policy::parse("ip", "3/10s")?, PeerIp);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
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
