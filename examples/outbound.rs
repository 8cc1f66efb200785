//! A client that stays within the limits of another service: its requests wait for room.
//!
//! A server takes five requests in any second, and counts those that come too early. Two clients, which share a store
//! as replicas do, have fourteen requests to make, all at once: this takes about two seconds, and no request comes too
//! early.
//!
//!     cargo run --example outbound
//!     # 200 OK after 0.
//!     # 200 OK after 1.
//!     # 200 OK after 2.
//!     # served 14, too early 0
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add futures http http-body-util hyper tokio tower -F hyper/http1,hyper/server,tokio/full,tower/util
//!     cargo add hyper-util -F client-legacy,http1,tokio
//!     cargo add --path ../sluicegate

use std::{
    convert::Infallible,
    error::Error,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use sluicegate::{
    FailurePolicy, Key, MemoryStore, Policy, RateLimitLayer,
    middleware::{EmptyBody, HeaderStyle},
};
use tokio::net::TcpListener;
use tower::{ServiceBuilder, ServiceExt};

/// Too early: five others came within the second before.
fn too_early(arrivals: &[Instant]) -> usize {
    let sixths = arrivals.windows(6);
    sixths
        .filter(|six| six[5] - six[0] < Duration::from_secs(1))
        .count()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (address, arrivals) = server().await?;
    let store = Arc::new(MemoryStore::new());
    // A tenth longer than the server's window: one request may be quicker on its way than another.
    let theirs = Policy::parse("their-api", "5/1100ms")?;
    let replica = || {
        let layer = RateLimitLayer::new(store.clone())
            .limit(theirs.clone(), Key::new("account", "ours"))
            .max_wait(Duration::from_secs(10))
            .headers(HeaderStyle::NONE)
            .on_failure(FailurePolicy::Closed)
            .rejection(EmptyBody);
        ServiceBuilder::new()
            .layer(layer)
            // The layer can make an empty body of this type, but no `Incoming`.
            .map_response(|response: Response<Incoming>| response.map(BodyExt::boxed))
            .service(Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>())
    };
    let replicas = [replica(), replica()];
    let start = Instant::now();
    try_join_all((0..14).map(|number| {
        let client = replicas[number % 2].clone();
        async move {
            let request = Request::get(format!("http://{address}/")).body(Empty::new())?;
            let response = client.oneshot(request).await?;
            let (status, seconds) = (response.status(), start.elapsed().as_secs_f32());
            println!("request {number:2}: {status} after {seconds:.1} s");
            Ok::<_, Box<dyn Error>>(())
        }
    }))
    .await?;
    let arrivals = arrivals.lock().map_err(|error| error.to_string())?;
    let (served, too_early) = (arrivals.len(), too_early(&arrivals));
    println!("served {served}, too early {too_early}");
    match (served, too_early) {
        (14, 0) => Ok(()),
        _ => Err("their limit was not kept".into()),
    }
}

/// A server that records when it is called.
async fn server() -> Result<(SocketAddr, Arc<Mutex<Vec<Instant>>>), Box<dyn Error>> {
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, noted) = (listener.local_addr()?, arrivals.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let noted = noted.clone();
            let service = service_fn(move |_| {
                if let Ok(mut noted) = noted.lock() {
                    noted.push(Instant::now());
                }
                async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }
            });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    Ok((address, arrivals))
}
