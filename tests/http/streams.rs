//! Streams of real servers, of which clients leave early: each costs the frames that the server has sent.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Path, ws::WebSocketUpgrade},
    response::{IntoResponse, Response},
    routing::get,
};
use futures::{SinkExt, Stream, StreamExt, stream};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use sluicegate::{
    Charge, Key, Limiter, MemoryStore, Policy, RateLimitLayer,
    middleware::{CostMeter, ToBodyEnd},
};
use tokio::{net::TcpListener, time::timeout};
use tokio_tungstenite::tungstenite::Message;

const BUDGET: u64 = 1_000_000;
/// Charged on arrival: more than short streams cost, and less than long ones.
const ESTIMATE: u64 = 5;
/// Clients of HTTP/2 take a flood of small frames for an attack.
const TOKEN: [u8; 1_024] = [b't'; 1_024];

/// A budget of tokens, and how many the server has sent.
#[derive(Clone)]
struct Tokens {
    limiter: Limiter,
    policy: Policy,
    sent: Arc<AtomicU64>,
}

impl Tokens {
    fn new() -> Self {
        Self {
            limiter: Limiter::new(MemoryStore::new()),
            policy: Policy::parse("tokens", "1000000/1h").unwrap(),
            sent: Arc::default(),
        }
    }

    fn layer(&self) -> RateLimitLayer<sluicegate::middleware::ProblemJson, ToBodyEnd> {
        RateLimitLayer::new(self.limiter.clone())
            .limit(self.policy.clone(), Key::new("user", "alice"))
            .cost(|_, _| ESTIMATE)
            .meter_costs()
    }

    /// A stream of this many tokens, each metered as the stream sends it.
    fn stream(
        &self,
        tokens: u64,
        meter: CostMeter,
    ) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + use<> {
        let sent = Arc::clone(&self.sent);
        meter.add(0); // a stream of nothing is free
        stream::iter(0..tokens).map(move |_| {
            meter.add(1);
            sent.fetch_add(1, SeqCst);
            Ok(Bytes::from_static(&TOKEN))
        })
    }

    /// Waits until exactly the sent tokens are charged.
    async fn settled(&self) -> u64 {
        let all = async {
            loop {
                let charge = Charge::new(&self.policy, Key::new("user", "alice"), 0);
                let usage = self.limiter.peek([charge]).await.unwrap();
                let left = usage.policies().next().unwrap().rules()[0].remaining();
                if BUDGET - left == self.sent.load(SeqCst) {
                    return BUDGET - left;
                }
                tokio::task::yield_now().await;
            }
        };
        let settled = timeout(Duration::from_secs(20), all).await;
        settled.expect("the charge becomes the number of tokens sent")
    }
}

async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("127.0.0.1:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async { axum::serve(listener, router).await });
    address
}

fn streams(tokens: &Tokens) -> Router {
    let own = tokens.clone();
    let stream = async move |Path(length): Path<u64>, meter: CostMeter| {
        Body::from_stream(own.stream(length, meter))
    };
    Router::new().route("/{length}", get(stream))
}

/// Reads this many frames of a stream, and leaves.
async fn read(
    client: &Client<hyper_util::client::legacy::connect::HttpConnector, Empty<Bytes>>,
    url: String,
    frames: u64,
) {
    let request = Request::get(url).body(Empty::new()).unwrap();
    let response = client.request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    for _ in 0..frames {
        if !matches!(body.frame().await, Some(Ok(_))) {
            return;
        }
    }
}

#[tokio::test]
async fn streams_cost_what_was_sent_of_them_wherever_clients_leave() {
    for http2 in [false, true] {
        let tokens = Tokens::new();
        let address = serve(streams(&tokens).layer(tokens.layer())).await;
        let client = Client::builder(TokioExecutor::new())
            .http2_only(http2)
            .build_http();
        let mut random = fastrand::Rng::with_seed(7);
        let reads = (0..300).map(|_| {
            let length = [0, 1, 3, 40, 5_000][random.usize(..5)];
            let url = format!("http://{address}/{length}");
            read(&client, url, random.u64(..=10))
        });
        let reads: Vec<_> = reads.collect();
        stream::iter(reads)
            .buffer_unordered(50)
            .collect::<Vec<()>>()
            .await;
        drop(client);
        assert_ne!(tokens.settled().await, 0);
    }
}

#[tokio::test]
async fn a_web_socket_costs_its_messages_until_it_is_closed() {
    let tokens = Tokens::new();
    let own = tokens.clone();
    let chat = async move |upgrade: WebSocketUpgrade, meter: CostMeter| -> Response {
        let guard = meter.delay_end();
        upgrade
            .on_upgrade(async move |mut socket| {
                while let Some(Ok(message)) = socket.recv().await {
                    if matches!(message, axum::extract::ws::Message::Text(_)) {
                        meter.add(1);
                        own.sent.fetch_add(1, SeqCst);
                    }
                }
                drop(guard);
            })
            .into_response()
    };
    let address = serve(Router::new().route("/", get(chat)).layer(tokens.layer())).await;
    let url = format!("ws://{address}/");
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    for _ in 0..9 {
        socket.send(Message::text("hello")).await.unwrap();
    }
    socket.close(None).await.unwrap();
    while socket.next().await.is_some() {}
    assert_eq!(tokens.settled().await, 9);
}

#[tokio::test]
async fn a_handler_without_a_layer_that_meters_gets_a_meter_that_settles_nothing() {
    let read = Arc::new(Mutex::new(None));
    let own = Arc::clone(&read);
    let handler = async move |meter: CostMeter| {
        meter.add(3);
        *own.lock().unwrap() = meter.units();
    };
    let address = serve(Router::new().route("/", get(handler))).await;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let request = Request::get(format!("http://{address}/")).body(Empty::new());
    assert_eq!(
        client.request(request.unwrap()).await.unwrap().status(),
        StatusCode::OK
    );
    assert_eq!(*read.lock().unwrap(), Some(3));
}
