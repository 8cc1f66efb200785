//! A tonic server whose calls are limited by address, but not its health checks, and a client that learns when to call again.
//!
//!     cargo run -p example-grpc
//!
//! A denied call gets `RESOURCE_EXHAUSTED`, with the time to wait in its details:
//!
//!     cargo run -p example-grpc -- call http://127.0.0.1:3000
//!     # hello
//!     # hello
//!     # ResourceExhausted: too many requests, call again in
//!     # Serving
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add http tokio tonic tonic-health tonic-prost tonic-types tower-service -F tokio/full
//!     cargo add --path ../sluicegate -F tonic

use std::{
    convert::Infallible,
    env,
    error::Error,
    future::{Future, Ready, ready},
    pin::Pin,
    task::{Context, Poll},
};

use http::{request::Parts, uri::PathAndQuery};
use sluicegate::{MemoryStore, PeerIp, Policy, RateLimitLayer, middleware::Grpc};
use tonic::{
    Request, Response, Status,
    body::Body,
    server::{NamedService, UnaryService},
    transport::{Channel, Server, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;
use tower_service::Service;

/// Stands for a service that is generated from your `.proto` file.
#[derive(Clone)]
struct Greeter;

impl NamedService for Greeter {
    const NAME: &'static str = "greet.Greeter";
}

impl UnaryService<String> for Greeter {
    type Response = String;
    type Future = Ready<Result<Response<String>, Status>>;

    fn call(&mut self, _: Request<String>) -> Self::Future {
        ready(Ok(Response::new("hello".to_owned())))
    }
}

impl Service<http::Request<Body>> for Greeter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let mut server = tonic::server::Grpc::new(ProstCodec::<String, String>::default());
        Box::pin(async move { Ok(server.unary(Self, request).await) })
    }
}

/// A supervisor asks this, and must not be denied.
fn is_health_check(head: &Parts) -> bool {
    head.uri.path().starts_with("/grpc.health.v1.Health/")
}

async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::new(MemoryStore::new())
        .limit(Policy::parse("ip", "2/1m")?, PeerIp)
        .skip(is_health_check)
        .rejection(Grpc::new());
    let (_reporter, health) = tonic_health::server::health_reporter();

    let incoming = TcpIncoming::bind(address.parse()?)?;
    println!("listening on http://{}", incoming.local_addr()?);
    let server = Server::builder()
        .layer(limits)
        .add_service(health)
        .add_service(Greeter);
    Ok(server.serve_with_incoming(incoming).await?)
}

async fn greet(channel: &Channel) -> Result<String, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    let ready = client.ready().await;
    ready.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static("/greet.Greeter/Greet");
    let request = Request::new("alice".to_owned());
    let answer = client.unary(request, path, ProstCodec::<String, String>::default());
    Ok(answer.await?.into_inner())
}

async fn call(url: String) -> Result<(), Box<dyn Error>> {
    let channel = Channel::from_shared(url)?.connect().await?;
    for _ in 0..3 {
        match greet(&channel).await {
            Ok(answer) => println!("{answer}"),
            Err(status) => {
                let details = status.get_error_details();
                // If there is no retry info, the call would never pass.
                let wait = details.retry_info().and_then(|info| info.retry_delay);
                let seconds = wait.map_or(f64::INFINITY, |delay| delay.as_secs_f64().ceil());
                let (code, message) = (status.code(), status.message());
                println!("{code:?}: {message}, call again in {seconds} s");
            }
        }
    }
    let mut health = HealthClient::new(channel);
    let answer = health.check(HealthCheckRequest::default()).await?;
    println!("{:?}", answer.get_ref().status());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match &env::args().skip(1).collect::<Vec<_>>()[..] {
        [] => serve("127.0.0.1:3000").await,
        [address] => serve(address).await,
        [_call, url, ..] => call(url.clone()).await,
    }
}
