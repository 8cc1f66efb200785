//! A chat whose requests are charged the tokens that the answer may have, and then the tokens that it had.
//!
//!     cargo run --example max_tokens --features axum,json
//!
//! Bodies come as client libraries write them: with `max_tokens` or with `max_completion_tokens`, with several answers, and
//! with `null`, or nothing, where the model's own maximum of 8 is meant. The stand-in for a model answers with six words:
//!
//!     curl -i localhost:3000/chat -H 'x-user: ann' -d '{"max_tokens":2}'                            # 200, r=98, to be
//!     curl -i localhost:3000/chat -H 'x-user: ann' -d '{"max_completion_tokens":50}'                # 200, r=90, to be or not to be
//!     curl -i localhost:3000/chat -H 'x-user: ann' -d '{"max_tokens":9,"max_completion_tokens":1}'  # 200, r=91, to
//!     curl -i localhost:3000/chat -H 'x-user: ann' -d '{"max_tokens":null}'                         # 200, r=83
//!     curl -i localhost:3000/chat -H 'x-user: ann' -d '{"stream":true}'                             # 200, r=77
//!     curl -i localhost:3000/chat -H 'x-user: ann' -d '{"n":2,"max_tokens":3}'                      # 200, r=73, to be or, to be or
//!     curl -i localhost:3000/chat -H 'x-user: ann' -d '{"n":null}'                                  # 200, r=65
//!     curl -i localhost:3000/chat -H 'x-user: ann' -d '{"n":99,"max_tokens":3}'                     # 413
//!     curl -i localhost:3000/chat -H 'x-user: ann' -d '{"n":9,"max_tokens":9}'                      # 429, retry-after
//!     curl -i localhost:3000/chat -H 'x-user: ann' -d '{"max_tokens":"many"}'                       # 400, column 20
//!     curl -i localhost:3000/chat -H 'x-user: ann' -X POST                                          # 413
//!
//! The charge is in the first answer's head, before the rest comes back. A compressed body is decompressed before it is read:
//!
//!     echo '{"max_tokens":2}' | gzip | curl -i localhost:3000/chat -H 'x-user: bob' -H 'content-encoding: gzip' --data-binary @-    # 200, r=98, to be
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum serde tokio tower-http -F serde/derive,tokio/full,tower-http/decompression-gzip
//!     cargo add --path ../sluicegate -F axum,json

use std::{env, error::Error, net::SocketAddr};
use tokio::net::TcpListener;

use axum::{Extension, Router, routing::post};
use serde::Deserialize;
use sluicegate::{
    Header, Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer,
    error::ConfigError,
    middleware::{CostMeter, ParsedBody, ReadBodyLayer},
};
use tower_http::decompression::RequestDecompressionLayer;

/// The most that the model writes.
const MOST: u64 = 8;

#[derive(Deserialize)]
struct Chat {
    max_tokens: Option<u64>, // `None` for an absent field, and for null
    max_completion_tokens: Option<u64>,
    n: Option<u64>,
}

impl Chat {
    fn tokens_of_one(&self) -> u64 {
        let stated = self.max_completion_tokens.or(self.max_tokens);
        stated.unwrap_or(MOST).clamp(1, MOST)
    }

    fn tokens(&self) -> u64 {
        self.tokens_of_one().saturating_mul(self.n.unwrap_or(1))
    }
}

async fn chat(meter: CostMeter, Extension(chat): Extension<ParsedBody<Chat>>) -> String {
    let words = ["to", "be", "or", "not", "to", "be"].iter(); // from a model
    let words = words.zip(0..chat.tokens_of_one());
    let words: Vec<&str> = words.map(|(word, _)| *word).collect();
    let answers = (0..chat.n.unwrap_or(1)).map(|_| {
        meter.add(words.len() as u64);
        words.join(" ") + "\n"
    });
    answers.collect()
}

fn app() -> Result<Router, ConfigError> {
    let limiter = Limiter::new(MemoryStore::new());
    let tokens = RateLimitLayer::new(limiter.clone())
        .limit(Policy::parse("tokens", "100/1m")?, Header::new("x-user"))
        // A body that was not read is charged more than any limit: it gets a 413.
        .cost(|head, _| ParsedBody::of(head).map_or(u64::MAX, Chat::tokens))
        .meter_costs();
    let by_address = RateLimitLayer::new(limiter).limit(Policy::parse("ip", "60/1m")?, PeerIp);
    Ok(Router::new()
        .route("/chat", post(chat))
        .layer(tokens)
        .layer(ReadBodyLayer::json::<Chat>(1 << 20))
        .layer(RequestDecompressionLayer::new())
        .layer(by_address))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
