//! A language model's tokens: requests and tokens are limited, and the number of tokens is known only at the end.
//!
//!     cargo run --example streaming_tokens --features axum
//!
//! A request is charged 100 tokens when it comes, and settled with the number of words in the answer:
//!
//!     curl -i localhost:3000/whole -d 'a b c'     # 200, "requests";r=9, "tokens";r=200, a b c
//!     curl -i localhost:3000/stream -d 'd e f'    # 200, "requests";r=8, "tokens";r=197, d e f
//!     curl -i localhost:3000/whole -d 'g'         # 200, "requests";r=7, "tokens";r=194, g
//!
//! The head of a response goes out before its end, so only the next response shows the settled number. A client that
//! goes away early pays for the tokens that it was sent.
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum futures tokio -F tokio/full
//!     cargo add --path ../sluicegate -F axum

use std::{convert::Infallible, env, error::Error, net::SocketAddr};

use axum::{Router, body::Body, routing::post};
use futures::{StreamExt, stream};
use sluicegate::{MemoryStore, PeerIp, Policy, RateLimitLayer, middleware::CostMeter};
use tokio::net::TcpListener;

/// Stands for the model.
fn answer(prompt: &str) -> Vec<String> {
    let words = prompt.split_whitespace();
    words.map(|word| format!("{word} ")).collect()
}

async fn whole(meter: CostMeter, prompt: String) -> String {
    let tokens = answer(&prompt);
    meter.set(tokens.len() as u64);
    tokens.concat()
}

async fn stream(meter: CostMeter, prompt: String) -> Body {
    let tokens = stream::iter(answer(&prompt));
    Body::from_stream(tokens.map(move |token| {
        meter.add(1);
        Ok::<_, Infallible>(token)
    }))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limits = RateLimitLayer::new(MemoryStore::new())
        .limit(Policy::parse("requests", "10/1m")?, PeerIp)
        .limit(Policy::parse("tokens", "300/1m")?, PeerIp)
        // Requests under way count as 100 tokens each, so that many at once cannot use more tokens than are left.
        .cost(|_head, policy| if policy.name() == "tokens" { 100 } else { 1 })
        .meter_costs_under("tokens");
    let app = Router::new()
        .route("/whole", post(whole))
        .route("/stream", post(stream))
        .layer(limits);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
