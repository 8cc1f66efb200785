//! A language model's tokens: requests and tokens are limited, and the number of tokens is known only at the end.
//!
//!     cargo run --example streaming_tokens --features axum
//!
//! A request is charged 100 tokens when it comes, and settled with the number of words in the answer:
//!
//!     curl -i localhost:3000/whole -d 'a b c'     # 200, "requests";r=9, "tokens";r=297, a b c
//!     curl -i localhost:3000/stream -d 'd e f'    # 200, "requests";r=8, "tokens";r=197, d e f
//!     curl -i localhost:3000/whole -d 'g'         # 200, "requests";r=7, "tokens";r=293
//!
//! The head of a stream goes out before its end, so only the next response shows the settled number. A client that goes
//! away early pays for the tokens that it was sent.
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum futures tokio -F tokio/full
//!     cargo add --path ../sluicegate -F axum

use std::{convert::Infallible, env, error::Error, net::SocketAddr};

use axum::{
    Extension, Router,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
    routing::post,
};
use futures::stream;
use sluicegate::{
    Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer,
    middleware::{ActualCost, Decisions},
};
use tokio::{net::TcpListener, sync::mpsc};

/// Stands for the model.
fn answer(prompt: &str) -> impl Iterator<Item = String> {
    prompt.split_whitespace().map(|word| format!("{word} "))
}

/// The cost is known before the response, so the handler puts it into the extensions.
async fn whole(prompt: String) -> Response {
    let tokens: Vec<String> = answer(&prompt).collect();
    let cost = ActualCost::of("tokens", tokens.len() as u64);
    (Extension(cost), tokens.concat()).into_response()
}

/// The cost is known after the response, so the task that sends the tokens settles it.
async fn stream(
    State(limiter): State<Limiter>,
    decisions: Option<Decisions>,
    prompt: String,
) -> Body {
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        let mut sent = 0;
        for token in answer(&prompt) {
            if sender.send(token).await.is_err() {
                break; // the client has gone away
            }
            sent += 1;
        }
        // If the store could not decide and the request has passed, there is no decision to settle.
        let decision = decisions.as_ref().and_then(|it| it.by_policy("tokens"));
        if let Some(decision) = decision {
            // Other policies keep their charges. If the call fails, the 100 stay charged.
            let cost = ActualCost::of("tokens", sent);
            let _ = limiter
                .settle(decision.usage(), |charge| cost.under(charge))
                .await;
        }
    });
    Body::from_stream(stream::unfold(receiver, async |mut receiver| {
        let token = receiver.recv().await?;
        Some((Ok::<_, Infallible>(token), receiver))
    }))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(MemoryStore::new());
    let requests = Policy::parse("requests", "10/1m")?;
    let tokens = Policy::parse("tokens", "300/1m")?;
    let limits = RateLimitLayer::new(limiter.clone())
        .limit(requests, PeerIp)
        .limit(tokens, PeerIp)
        // Requests under way count as 100 tokens each, so that many at once cannot use more tokens than are left.
        .cost(|_head, policy| if policy.name() == "tokens" { 100 } else { 1 })
        .settle(ActualCost::or_charged);
    let app = Router::new()
        .route("/whole", post(whole))
        .route("/stream", post(stream))
        .layer(limits)
        .with_state(limiter);

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
