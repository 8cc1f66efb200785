//! Streams that end at random points, in every way that a response can end: no slot stays taken, and under each of three
//! policies, a stream costs what was metered for the frames that the server has polled.

use std::{path::PathBuf, slice, time::Instant};

use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State},
    middleware::{Next, from_fn},
    routing::get,
};
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sluicegate::middleware::{CostMeter, ToBodyEnd};
use tokio::{
    net::{UnixListener, UnixStream},
    task::JoinSet,
};
use tower_http::timeout::{ResponseBodyTimeoutLayer, TimeoutLayer};

use super::prelude::*;

const WORKERS: usize = 64;
/// Charged on arrival: more than short streams cost, and less than long ones.
const ESTIMATE: u64 = 5;
/// Long streams fill the buffers of a connection, so that the server stops in the middle of them.
const FRAME: [u8; 4_096] = [b'f'; 4_096];
/// For work in the background.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How a stream ends, beside clients that leave.
const ENDS: [&str; 6] = ["whole", "whole", "whole", "panic", "stall", "hang"];

/// The budgets of a stream, and what a frame costs under each. The meter of all counts for the first one.
const BUDGETS: [(&str, u64); 3] = [("requests", 1), ("tokens", 2), ("money", 3)];

/// Frames that were polled, for each stream; [`NEVER`] if its handler has not begun.
type Polled = Arc<[AtomicU64]>;

const NEVER: u64 = u64::MAX;

/// The limits of every stream: one slot of all, and budgets of its own.
#[derive(Clone)]
struct Limits {
    limiter: Limiter,
    slots: Policy,
    budgets: [Policy; 3],
}

/// Runs so many streams, and fails unless, `soon` after the last of them has ended, all slots are free and all costs
/// right. `silence` is how long the server waits for a handler or a frame; returns how long the last return took.
pub async fn cut_streams(
    limiter: Limiter,
    streams: usize,
    silence: Duration,
    soon: Duration,
) -> Duration {
    let slots = Rule::concurrent(1_000_000).expires_after(Duration::from_secs(3_600));
    let limits = Limits {
        limiter,
        slots: Policy::new("slots", [slots]).unwrap(),
        budgets: BUDGETS.map(|(name, _)| policy(name, "1000000/1d")),
    };
    let polled: Polled = (0..streams).map(|_| AtomicU64::new(NEVER)).collect();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("server");
    let under_way = Arc::new(AtomicUsize::new(0));
    let server = serve(&limits, &polled, &under_way, socket.clone(), silence);

    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for seed in 0..WORKERS {
        let client = Client {
            socket: socket.clone(),
            polled: Arc::clone(&polled),
            random: fastrand::Rng::with_seed(seed as u64),
            shared: None,
        };
        workers.spawn(work(client, Arc::clone(&next), streams));
    }
    workers.join_all().await;
    // The clients have left, and the server drops the last responses.
    let all_ended = timeout(PATIENCE, async {
        while under_way.load(SeqCst) > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(all_ended.await.is_ok(), "responses are under way");
    let took = settled(&limits, &polled, soon).await;
    server.abort();
    took
}

fn serve(
    limits: &Limits,
    polled: &Polled,
    under_way: &Arc<AtomicUsize>,
    socket: PathBuf,
    silence: Duration,
) -> tokio::task::JoinHandle<()> {
    let under_way = Arc::clone(under_way);
    let counted = from_fn(move |request: Request, next: Next| {
        let counted = UnderWay::new(&under_way);
        async move {
            let response = next.run(request).await;
            response.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _ = &counted; // dropped after the body within
                    frame
                }))
            })
        }
    });
    let late = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, silence);
    let router = Router::new()
        .route("/{id}/{length}/{end}", get(respond))
        .with_state(Arc::clone(polled))
        .layer(limits.layer())
        .layer(ResponseBodyTimeoutLayer::new(silence))
        .layer(late)
        .layer(counted);
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() })
}

/// A request or a response that has not ended.
struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    fn new(under_way: &Arc<AtomicUsize>) -> Self {
        under_way.fetch_add(1, SeqCst);
        Self(Arc::clone(under_way))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Limits {
    fn layer(&self) -> RateLimitLayer<sluicegate::middleware::ProblemJson, ToBodyEnd> {
        let id = |head: &Parts| head.uri.path().split('/').nth(1).map(str::to_owned);
        let layer = crate::layer(self.limiter.clone())
            .limit_concurrent(self.slots.clone(), Key::new("service", "all"))
            .cost(|_, _| ESTIMATE)
            .meter_costs();
        let stream = move |head: &Parts| Some(Key::new("stream", id(head)?));
        let budgets = self.budgets.iter().cloned();
        budgets.fold(layer, |layer, budget| layer.limit(budget, stream))
    }

    async fn used(&self, policies: &[Policy], key: Key) -> Vec<u64> {
        let charges = policies.iter();
        let charges = charges.map(|policy| Charge::new(policy, key.clone(), 0));
        let usage = self.limiter.peek(charges).await.unwrap();
        let used = usage.rules().map(|it| it.rule().limit() - it.remaining());
        used.collect()
    }
}

async fn respond(
    State(polled): State<Polled>,
    Path((id, length, end)): Path<(usize, u64, String)>,
    request: Request,
) -> Body {
    let meter = request.extensions().get::<CostMeter>().unwrap().clone();
    meter.set(0);
    let named = [1, 2].map(|budget| (meter.under(BUDGETS[budget].0), BUDGETS[budget].1));
    named.iter().for_each(|(meter, _)| meter.set(0));
    polled[id].store(0, SeqCst);
    let poll = move || {
        meter.add(BUDGETS[0].1);
        named.iter().for_each(|(meter, cost)| meter.add(*cost));
        polled[id].fetch_add(1, SeqCst);
    };
    if end == "hang" {
        (0..length).for_each(|_| poll());
        pending::<()>().await;
    }
    let frames = stream::iter(0..length).map(move |_| {
        poll();
        Ok::<_, Infallible>(Bytes::from_static(&FRAME))
    });
    match end.as_str() {
        // The same as a panic, without its message.
        "panic" => Body::from_stream(frames.chain(stream::once(async {
            std::panic::resume_unwind(Box::new("cut"))
        }))),
        "stall" => Body::from_stream(frames.chain(stream::pending())),
        _ => Body::from_stream(frames),
    }
}

type Sender2 = hyper::client::conn::http2::SendRequest<Empty<Bytes>>;

struct Client {
    socket: PathBuf,
    polled: Polled,
    random: fastrand::Rng,
    /// A connection of HTTP/2, until it breaks.
    shared: Option<Sender2>,
}

async fn work(mut client: Client, next: Arc<AtomicUsize>, streams: usize) {
    loop {
        let id = next.fetch_add(1, SeqCst);
        if id >= streams {
            return;
        }
        client.stream(id).await;
    }
}

impl Client {
    /// Reads a random part of a stream, by HTTP/1.1 or HTTP/2, and leaves.
    async fn stream(&mut self, id: usize) {
        let end = ENDS[self.random.usize(..ENDS.len())];
        let length = [0, 1, 3, 40, 300][self.random.usize(..5)];
        let reads = [0, 1, self.random.u64(..10), u64::MAX][self.random.usize(..4)];
        let request = Request::get(format!("http://server/{id}/{length}/{end}"));
        let request = request.body(Empty::<Bytes>::new()).unwrap();

        // Some clients leave before the head, at once or while the handler works, and all others read.
        let leaves_at_once = self.random.usize(..20) == 0;
        let leaves_early = end == "hang" && self.random.bool();
        let polled = Arc::clone(&self.polled);
        let leaves = async move {
            if leaves_at_once {
                return yield_now().await;
            }
            loop {
                sleep(Duration::from_millis(1)).await;
                let polled = polled[id].load(SeqCst);
                if leaves_early && polled != NEVER && polled >= length {
                    return;
                }
            }
        };
        if self.random.bool() {
            let mut sender = self.http2().await;
            let _ = futures::future::select(
                Box::pin(async { read(sender.send_request(request).await.ok(), reads).await }),
                Box::pin(leaves),
            )
            .await;
            return;
        }
        let handshake = hyper::client::conn::http1::handshake(self.connect().await);
        let (mut sender, connection) = handshake.await.unwrap();
        let connection = tokio::spawn(connection);
        let _ = futures::future::select(
            Box::pin(async { read(sender.send_request(request).await.ok(), reads).await }),
            Box::pin(leaves),
        )
        .await;
        connection.abort();
    }

    async fn connect(&self) -> TokioIo<UnixStream> {
        // The queue of connections may be full.
        for _ in 0..PATIENCE.as_millis() {
            match UnixStream::connect(&self.socket).await {
                Ok(stream) => return TokioIo::new(stream),
                Err(_) => sleep(ms(1)).await,
            }
        }
        panic!("no connection to the server")
    }

    async fn http2(&mut self) -> Sender2 {
        if let Some(sender) = self.shared.clone().filter(|sender| !sender.is_closed()) {
            return sender;
        }
        let io = self.connect().await;
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
        let (sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        self.shared = Some(sender.clone());
        sender
    }
}

async fn read(response: Option<http::Response<Incoming>>, frames: u64) {
    let Some(response) = response else {
        return; // the server panicked before it had sent the head
    };
    let mut body = response.into_body();
    for _ in 0..frames {
        if !matches!(body.frame().await, Some(Ok(_))) {
            return;
        }
    }
}

/// Fails unless, after so long at most, no slot is taken, and each stream costs the frames that were polled.
async fn settled(limits: &Limits, polled: &Polled, soon: Duration) -> Duration {
    let start = Instant::now();
    let end = start + soon;
    loop {
        let all = Key::new("service", "all");
        let used = limits.used(slice::from_ref(&limits.slots), all).await;
        if used == [0] {
            break;
        }
        assert!(Instant::now() < end, "{used:?} slots are still taken");
    }
    let took = start.elapsed();
    for (id, polled) in polled.iter().enumerate() {
        loop {
            let key = Key::new("stream", id.to_string());
            let is_late = Instant::now() >= end;
            let used = limits.used(&limits.budgets, key).await;
            let polled = polled.load(SeqCst);
            // A client that leaves before its handler begins is charged the estimates, or nothing.
            let is_early = polled == NEVER && (used == [0; 3] || used == [ESTIMATE; 3]);
            if is_early || used == BUDGETS.map(|(_, cost)| polled.saturating_mul(cost)) {
                break;
            }
            assert!(!is_late, "stream {id} costs {used:?} for {polled} frames");
        }
    }
    took
}
