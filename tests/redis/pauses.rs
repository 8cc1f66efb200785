//! Processes that share a Redis server obey the limit of a real server that they do not know.

use std::{
    cell::Cell,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, header::RETRY_AFTER},
    response::IntoResponse,
};
use futures::future::join_all;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use sluicegate::{
    Decision, Key, Limiter, RateLimitLayer, RedisStore, Store,
    block::Until,
    middleware::{HeaderStyle, ObeyLayer, StatusOnly},
    store::{CallFuture, Check, Operation, Reply, StoreFuture},
};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder, ServiceExt};

use support::{contract::patient, redis::Server};

/// The load of all processes, and the rate that the other service admits.
#[derive(Clone, Copy)]
struct Scale {
    processes: usize,
    tasks: usize,
    /// Between an answer and the next request of a task.
    rest: Duration,
    window: Duration,
    limit: usize,
    run: Duration,
}

const SHORT: Scale = Scale {
    processes: 3,
    tasks: 8,
    rest: Duration::from_millis(40),
    window: Duration::from_secs(2),
    limit: 40,
    run: Duration::from_secs(8),
};

/// The process of a request, and when the store decided its check, in ms since the Unix epoch.
const PROCESS: &str = "x-process";
const CHECKED: &str = "x-checked-ms";

tokio::task_local! {
    /// When the store decided the last check of this task.
    static DECIDED_MS: Cell<u64>;
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    process: usize,
    checked_ms: u64,
    at: Duration,
    is_admitted: bool,
}

/// A pause in the store.
#[derive(Clone, Copy, Debug)]
struct Stored {
    /// When a process learned of it.
    at: Duration,
    /// When the store wrote it, by its clock.
    written_ms: u64,
}

/// A server with a fixed window, which names the rest of the window in whole seconds.
struct Other {
    scale: Scale,
    start: Instant,
    seen: Mutex<Vec<Seen>>,
    stored: Mutex<Vec<Stored>>,
}

/// Notes when the store decides checks and writes pauses.
struct Noting {
    store: RedisStore,
    other: Arc<Other>,
}

impl fmt::Debug for Noting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl Store for Noting {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.store.check(check).map(|decision| {
            DECIDED_MS.with(|it| it.set(decision.usage().decided_at_ms()));
            decision
        })
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        let span = match &operation {
            Operation::Block { request, .. } => match request.until() {
                Until::After(span) => Some(span),
                _ => None,
            },
            _ => None,
        };
        let other = self.other.clone();
        self.store.execute(operation).map(move |reply| {
            if let (Reply::Block(block), Some(span)) = (&reply, span) {
                // If another pause ended last, this is later than its time; the earliest counts.
                let span_ms = u64::try_from(span.as_millis()).unwrap();
                other.stored.lock().unwrap().push(Stored {
                    at: other.start.elapsed(),
                    written_ms: block.until_ms().unwrap() - span_ms,
                });
            }
            reply
        })
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        self.store.call(operations)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }
}

impl Scale {
    fn window(&self, at: Duration) -> u128 {
        at.as_nanos() / self.window.as_nanos()
    }
}

async fn answer(State(other): State<Arc<Other>>, headers: HeaderMap) -> impl IntoResponse {
    let number = |name: &str| headers[name].to_str().unwrap().parse().unwrap();
    let scale = other.scale;
    let (is_admitted, rest) = {
        let mut seen = other.seen.lock().unwrap();
        let at = other.start.elapsed();
        let of_window = seen.iter().rev();
        let of_window = of_window.take_while(|it| scale.window(it.at) == scale.window(at));
        let is_admitted = of_window.filter(|it| it.is_admitted).count() < scale.limit;
        seen.push(Seen {
            process: usize::try_from(number(PROCESS)).unwrap(),
            checked_ms: number(CHECKED),
            at,
            is_admitted,
        });
        let gone_ms = at.as_millis() % scale.window.as_millis();
        let rest_ms = scale.window.as_millis() - gone_ms;
        (is_admitted, rest_ms.div_ceil(1_000).to_string())
    };
    // Others may be under way meanwhile, as on a network.
    tokio::time::sleep(Duration::from_millis(5)).await;
    match is_admitted {
        true => StatusCode::OK.into_response(),
        false => (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, rest)]).into_response(),
    }
}

async fn serve(scale: Scale) -> (SocketAddr, Arc<Other>) {
    let other = Arc::new(Other {
        scale,
        start: Instant::now(),
        seen: Mutex::default(),
        stored: Mutex::default(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().fallback(answer).with_state(other.clone());
    tokio::spawn(axum::serve(listener, app).into_future());
    (address, other)
}

/// One process: a limiter with its connection, and tasks that share a client.
async fn process(
    number: usize,
    server: &Server,
    address: SocketAddr,
    other: &Arc<Other>,
    obeys: bool,
) {
    let scale = other.scale;
    let limiter: Limiter = patient(Noting {
        store: RedisStore::connect(server.url()).await.unwrap(),
        other: other.clone(),
    });
    let account = Key::new("account", "ours");
    let waiting = RateLimitLayer::new(limiter.clone())
        .deny_blocked(account.clone())
        .max_wait(Duration::from_secs(60))
        .headers(HeaderStyle::NONE)
        .rejection(StatusOnly);
    let client: Client<HttpConnector, Empty<Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let client = ServiceBuilder::new()
        .layer(waiting)
        .map_response(|response: http::Response<Incoming>| response.map(|_| String::new()))
        .option_layer(obeys.then(|| ObeyLayer::new(limiter, account)))
        .map_request(move |mut request: Request<Empty<Bytes>>| {
            let headers = request.headers_mut();
            headers.insert(PROCESS, number.into());
            headers.insert(CHECKED, DECIDED_MS.with(Cell::get).into());
            request
        })
        .service(client);
    let tasks = (0..scale.tasks).map(|_| {
        let mut client = client.clone();
        DECIDED_MS.scope(Cell::new(0), async move {
            loop {
                let request = Request::get(format!("http://{address}/"));
                let request = request.body(Empty::new()).unwrap();
                client.ready().await.unwrap().call(request).await.unwrap();
                tokio::time::sleep(scale.rest).await;
            }
        })
    });
    let _ = tokio::time::timeout(scale.run, join_all::<_>(tasks)).await;
}

async fn run(scale: Scale, obeys: bool) -> Arc<Other> {
    let server = Server::start();
    let (address, other) = serve(scale).await;
    let processes =
        (0..scale.processes).map(|number| process(number, &server, address, &other, obeys));
    join_all(processes).await;
    other
}

impl Other {
    fn refused(&self) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|it| !it.is_admitted).count()
    }

    /// The requests of each window, and the first pause that the store got in it.
    fn windows(&self) -> impl Iterator<Item = (Vec<Seen>, Option<Stored>)> {
        let windows = self.scale.window(self.scale.run);
        (0..windows).map(|number| {
            let seen = self.seen.lock().unwrap();
            let of_window = seen.iter().filter(|it| self.scale.window(it.at) == number);
            let stored = self.stored.lock().unwrap();
            let stored = stored
                .iter()
                .filter(|it| self.scale.window(it.at) == number);
            let first = stored.min_by_key(|it| it.written_ms);
            (of_window.copied().collect(), first.copied())
        })
    }
}

/// The process of each request that the store decided after it had the pause.
fn checked_after(seen: &[Seen], pause: Stored) -> Vec<usize> {
    assert!(seen.iter().all(|it| it.checked_ms > 0), "{seen:?}");
    let after = |it: &&Seen| it.checked_ms > pause.written_ms;
    seen.iter().filter(after).map(|it| it.process).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_obey_a_limit_that_they_do_not_know() {
    let (obeying, careless) = tokio::join!(run(SHORT, true), run(SHORT, false));
    let mut paused = 0;
    for (of_window, pause) in obeying.windows() {
        let Some(pause) = pause else {
            continue;
        };
        paused += 1;
        // The requests that had been checked before, and nothing after them.
        let after = checked_after(&of_window, pause);
        assert!(after.is_empty(), "{after:?} after {pause:?}");
        let last = of_window.iter().map(|it| it.at).max().unwrap();
        assert!(
            last < pause.at + Duration::from_millis(500),
            "{pause:?}: {of_window:?}"
        );
    }
    assert!(paused >= 2, "{paused}");
    let (obeyed, ignored) = (obeying.refused(), careless.refused());
    assert!(
        obeyed * 3 < ignored,
        "{obeyed} refused, {ignored} without the layer"
    );
}
