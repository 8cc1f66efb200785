//! A tonic server whose calls are limited by address, and a client that learns when to call again.
//!
//!     cargo run -p example-grpc
//!
//! The health service stands for yours. A denied call gets `RESOURCE_EXHAUSTED`, with the time to wait in its details:
//!
//!     cargo run -p example-grpc -- call http://127.0.0.1:3000
//!     # Serving
//!     # Serving
//!     # ResourceExhausted: too many requests, call again in
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add tokio tonic tonic-health tonic-types -F tokio/full
//!     cargo add --path ../sluicegate -F tonic

use std::{env, error::Error};

use sluicegate::{MemoryStore, PeerIp, Policy, RateLimitLayer, middleware::Grpc};
use tonic::transport::{Channel, Server, server::TcpIncoming};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;

async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::new(MemoryStore::new())
        .limit(Policy::parse("ip", "2/1m")?, PeerIp)
        .rejection(Grpc::new());
    let (_health, service) = tonic_health::server::health_reporter();

    let incoming = TcpIncoming::bind(address.parse()?)?;
    println!("listening on http://{}", incoming.local_addr()?);
    let server = Server::builder().layer(limits).add_service(service);
    Ok(server.serve_with_incoming(incoming).await?)
}

async fn call(url: String) -> Result<(), Box<dyn Error>> {
    let mut client = HealthClient::new(Channel::from_shared(url)?.connect().await?);
    for _ in 0..3 {
        match client.check(HealthCheckRequest::default()).await {
            Ok(answer) => println!("{:?}", answer.get_ref().status()),
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
