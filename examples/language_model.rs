//! A gateway to a language model: input tokens, output tokens and money of each user, and three streams at a time.
//!
//!     cargo run --example language_model --features axum,calendar,json
//!
//! A request is charged the `max_tokens` that stand in its body, and settled with the words of the stream:
//!
//!     curl -i localhost:3000/chat -H 'x-user: alice' -d '{"prompt":"a b c","max_tokens":20}'    # 200, "output-tokens";r=980, a b c
//!     curl -i localhost:3000/chat -H 'x-user: alice' -d '{"prompt":"d","max_tokens":20}'        # 200, "output-tokens";r=977, d
//!     curl -i localhost:3000/chat -H 'x-user: alice' -d '{"prompt":"e","max_tokens":2000}'      # 413, invalid_request_error
//!     curl -i localhost:3000/chat -H 'x-user: alice' -d '{"prompt":1}'                          # 400, line 1, column 11
//!
//! A client that goes away early pays for the words that it was sent. The client libraries of language models understand the
//! rejections, and wait as they say.
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum futures serde tokio -F tokio/full,serde/derive
//!     cargo add --path ../sluicegate -F axum,calendar,json

use std::{convert::Infallible, env, error::Error, net::SocketAddr};

use axum::{
    Extension, Router,
    body::Body,
    http::{StatusCode, request::Parts},
    routing::post,
};
use futures::{StreamExt, stream};
use serde::Deserialize;
use sluicegate::{
    Header, Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer,
    middleware::{CostMeter, HeaderStyle, OpenAiJson, ParsedBody, ReadBodyLayer},
};
use tokio::net::TcpListener;

#[derive(Deserialize)]
struct Chat {
    prompt: String,
    max_tokens: u64,
}

impl Chat {
    /// Stands for the model's tokenizer.
    fn input_tokens(&self) -> u64 {
        self.prompt.split_whitespace().count() as u64
    }
}

/// In micro-dollars: 3 and 15 dollars for a million tokens. A client can state any number.
const fn price(input: u64, output: u64) -> u64 {
    input
        .saturating_mul(3)
        .saturating_add(output.saturating_mul(15))
}

/// The most that a request can cost, by its body.
fn at_most(head: &Parts, policy: &Policy) -> u64 {
    let Some(chat) = ParsedBody::<Chat>::of(head) else {
        return 0; // without a body, the handler rejects it
    };
    match policy.name() {
        "input-tokens" => chat.input_tokens(),
        "output-tokens" => chat.max_tokens,
        _ => price(chat.input_tokens(), chat.max_tokens),
    }
}

/// Streams words of the prompt, in the place of a model, and at most as many as were charged.
async fn chat(
    meter: CostMeter,
    chat: Option<Extension<ParsedBody<Chat>>>,
) -> Result<Body, StatusCode> {
    let chat = chat.ok_or(StatusCode::BAD_REQUEST)?; // without a body
    let input = chat.input_tokens();
    meter.under("input-tokens").set(input);
    let (output, money) = (meter.under("output-tokens"), meter.under("micro-dollars"));
    output.set(0);
    money.set(price(input, 0));
    let words = chat
        .prompt
        .split_whitespace()
        .map(|word| format!("{word} "));
    let words: Vec<String> = words
        .zip(0..chat.max_tokens)
        .map(|(word, _)| word)
        .collect();
    Ok(Body::from_stream(stream::iter(words).map(move |word| {
        output.add(1);
        money.add(price(0, 1));
        Ok::<_, Infallible>(word)
    })))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(MemoryStore::new()); // or RedisStore::connect(…), for many replicas
    let user = || Header::new("x-user");
    let layer = || {
        RateLimitLayer::new(limiter.clone())
            .headers(HeaderStyle::DRAFT_11.and(HeaderStyle::RETRY_AFTER_MS))
            .rejection(OpenAiJson)
    };
    let by_address = layer().limit(Policy::parse("ip", "30/50s")?, PeerIp);
    let costs = layer()
        .limit_concurrent(Policy::parse("streams", "3/30s@concurrent")?, user())
        .limit(Policy::parse("input-tokens", "5000/50s")?, user())
        .limit(Policy::parse("output-tokens", "1000/50s")?, user())
        .limit(
            Policy::parse("micro-dollars", "20000000/month@UTC")?,
            user(),
        )
        .cost(at_most)
        .meter_costs();
    // From the inside out: slots and costs by the body, the layer that reads it, the address. With both in one layer, a
    // request without a slot costs no tokens, and one without tokens holds no slot.
    let app = Router::new()
        .route("/chat", post(chat))
        .layer(costs)
        .layer(ReadBodyLayer::json::<Chat>(1 << 20))
        .layer(by_address);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, service)
        .with_graceful_shutdown(stop)
        .await?;
    limiter.finish(std::time::Duration::from_secs(5)).await;
    Ok(())
}
