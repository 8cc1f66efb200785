//! Streams of real servers cost the frames that were sent, and a handler without a layer that meters has a meter too.

use axum::{
    extract::ws::{self, WebSocketUpgrade},
    response::{IntoResponse, Response},
};
use futures::SinkExt;
use tokio::time::timeout;
use tokio_tungstenite::{connect_async, tungstenite::Message};

use crate::prelude::*;

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_cut_anywhere_leave_no_slot_and_cost_what_was_polled() {
    use support::cut_streams::{PATIENCE, cut_streams};

    let limiter = support::limiter(MemoryStore::new().capacity(100_000));
    cut_streams(limiter, 2_000, Duration::from_millis(20), PATIENCE).await;
}

#[tokio::test]
async fn a_web_socket_costs_its_messages_until_it_is_closed() {
    let limiter = support::limiter(MemoryStore::new());
    let tokens = policy("tokens", "100/1h");
    let layer = support::layer(limiter.clone())
        .limit(tokens.clone(), alice())
        .cost(|_, _| 5)
        .meter_costs();
    let chat = async |upgrade: WebSocketUpgrade, meter: CostMeter| -> Response {
        let guard = meter.delay_end();
        let count = async move |mut socket: ws::WebSocket| {
            while let Some(Ok(message)) = socket.recv().await {
                meter.add(u64::from(matches!(message, ws::Message::Text(_))));
            }
            drop(guard);
        };
        upgrade.on_upgrade(count).into_response()
    };
    let site = Site::start(Router::new().route("/", get(chat)).layer(layer)).await;
    let url = format!("ws://{}/", site.address());
    let (mut socket, _) = connect_async(url).await.unwrap();
    for _ in 0..9 {
        socket.send(Message::text("hello")).await.unwrap();
    }
    assert_eq!(left_of(&limiter, &tokens, &alice()).await, 95, "it is open");
    socket.close(None).await.unwrap();
    let closed = async { while socket.next().await.is_some() {} };
    timeout(Duration::from_secs(20), closed)
        .await
        .expect("a close");
    let settled = async {
        while left_of(&limiter, &tokens, &alice()).await != 91 {
            tokio::task::yield_now().await;
        }
    };
    let settled = timeout(Duration::from_secs(20), settled).await;
    settled.expect("the charge becomes the number of messages");
}

#[tokio::test]
async fn a_handler_without_a_layer_that_meters_gets_a_meter_that_settles_nothing() {
    let read = Arc::new(Mutex::new(None));
    let own = Arc::clone(&read);
    let handler = async move |meter: CostMeter| {
        meter.add(3);
        *own.lock().unwrap() = meter.units();
    };
    let site = Site::start(Router::new().route("/", get(handler))).await;
    assert_eq!(site.status("/").await, 200);
    assert_eq!(*read.lock().unwrap(), Some(3));
}
