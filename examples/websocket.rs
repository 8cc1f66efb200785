//! A chat over WebSockets: an address may open ten a minute, and send three messages a second over all of them together.
//!
//!     cargo run --example websocket --features axum
//!
//! Send four messages at once, with any client: `websocat ws://localhost:3000/chat`, for example. The answers are
//!
//!     # you said: one
//!     # you said: two
//!     # you said: three
//!     # say that again in
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum tokio -F axum/ws,tokio/full
//!     cargo add --path ../sluicegate -F axum

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Router,
    extract::{
        ConnectInfo, State, WebSocketUpgrade,
        ws::{Message, WebSocket},
    },
    response::Response,
    routing::any,
};
use sluicegate::{Charge, Decision, Key, Limiter, MemoryStore, PeerIp, Policy, RateLimitLayer};
use tokio::net::TcpListener;

#[derive(Clone)]
struct Chat {
    limiter: Limiter,
    messages: Policy,
}

/// The layer sees this request alone. The handler charges the messages, which are no requests.
async fn open(
    State(chat): State<Chat>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let key = PeerIp.key(peer.ip());
    // Longer messages end the connection before they are in memory.
    let upgrade = upgrade.max_message_size(4_096);
    upgrade.on_upgrade(async move |socket| chat.talk(socket, key).await)
}

impl Chat {
    async fn talk(self, mut socket: WebSocket, key: Key) {
        while let Some(Ok(message)) = socket.recv().await {
            // Any kind counts: a ping takes work, too.
            let charge = Charge::new(&self.messages, key.clone(), 1);
            let answer = match self.limiter.check([charge]).await {
                Ok(Decision::Allowed(_)) => match message {
                    Message::Text(text) => format!("you said: {text}"),
                    _ => continue, // axum answers pings
                },
                Ok(Decision::Denied(denial)) => {
                    let wait = denial.retry_after().unwrap_or_default().as_millis();
                    format!("say that again in {wait} ms")
                }
                // A blocked address, or a failure of the store under `FailurePolicy::Closed`.
                _ => return,
            };
            if socket.send(Message::text(answer)).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(MemoryStore::new());
    let connections = Policy::parse("connections", "10/1m")?;
    let layer = RateLimitLayer::new(limiter.clone()).limit(connections, PeerIp);
    let messages = Policy::parse("messages", "3/1s")?;
    let app = Router::new()
        .route("/chat", any(open))
        .layer(layer)
        .with_state(Chat { limiter, messages });

    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
