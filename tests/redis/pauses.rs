//! Processes that share a Redis server obey the limit of a real server that they do not know.

use std::{
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
    Key, Limiter, RateLimitLayer, RedisStore,
    middleware::{EmptyBody, HeaderStyle, ObeyLayer},
    observe::{CallKind, CompletionEvent, Observer},
};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder, ServiceExt};

use support::{contract::patient, redis::Server};

/// How many processes send how much, and what the other service admits.
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

const LONG: Scale = Scale {
    processes: 20,
    tasks: 50,
    rest: Duration::from_secs(1),
    window: Duration::from_secs(10),
    limit: 100,
    run: Duration::from_secs(300),
};

/// In the long form, a request that had passed the limiter up to so long after the store had the pause counts as
/// checked before: a thousand tasks share two threads.
const SCHEDULING: Duration = Duration::from_millis(20);

/// When a request passed the limiter, in microseconds.
const PASSED: &str = "x-passed-us";

#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Duration,
    passed: Duration,
    is_admitted: bool,
}

/// A server with a fixed window, which names the rest of the window in whole seconds.
struct Other {
    scale: Scale,
    start: Instant,
    seen: Mutex<Vec<Seen>>,
    /// When a process learned that the store has a pause.
    stored: Mutex<Vec<Duration>>,
}

struct Pauses(Arc<Other>);

impl Observer for Pauses {
    fn on_completion(&self, event: &CompletionEvent<'_>) {
        if event.call().kind() == CallKind::Block {
            self.0.stored.lock().unwrap().push(self.0.start.elapsed());
        }
    }
}

impl Scale {
    fn window(&self, at: Duration) -> u128 {
        at.as_nanos() / self.window.as_nanos()
    }
}

async fn answer(State(other): State<Arc<Other>>, headers: HeaderMap) -> impl IntoResponse {
    let passed_us = headers[PASSED].to_str().unwrap().parse().unwrap();
    let scale = other.scale;
    let (is_admitted, rest) = {
        let mut seen = other.seen.lock().unwrap();
        let at = other.start.elapsed();
        let of_window = seen.iter().rev();
        let of_window = of_window.take_while(|it| scale.window(it.at) == scale.window(at));
        let is_admitted = of_window.filter(|it| it.is_admitted).count() < scale.limit;
        seen.push(Seen {
            at,
            passed: Duration::from_micros(passed_us),
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

/// One process: a limiter with a connection of its own, and tasks that share a client.
async fn process(server: &Server, address: SocketAddr, other: &Arc<Other>, obeys: bool) {
    let (scale, start) = (other.scale, other.start);
    let limiter: Limiter = patient(RedisStore::connect(server.url()).await.unwrap());
    let limiter = limiter.observer(Pauses(other.clone()));
    let account = Key::new("account", "ours");
    let waiting = RateLimitLayer::new(limiter.clone())
        .deny_blocked(account.clone())
        .max_wait(Duration::from_secs(60))
        .headers(HeaderStyle::NONE)
        .rejection(EmptyBody);
    let client: Client<HttpConnector, Empty<Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let client = ServiceBuilder::new()
        .layer(waiting)
        .map_response(|response: http::Response<Incoming>| response.map(|_| String::new()))
        .option_layer(obeys.then(|| ObeyLayer::new(limiter, account)))
        .map_request(move |mut request: Request<Empty<Bytes>>| {
            let passed_us = u64::try_from(start.elapsed().as_micros()).unwrap();
            request.headers_mut().insert(PASSED, passed_us.into());
            request
        })
        .service(client);
    let tasks = (0..scale.tasks).map(|_| {
        let mut client = client.clone();
        async move {
            loop {
                let request = Request::get(format!("http://{address}/"));
                let request = request.body(Empty::new()).unwrap();
                client.ready().await.unwrap().call(request).await.unwrap();
                tokio::time::sleep(scale.rest).await;
            }
        }
    });
    let _ = tokio::time::timeout(scale.run, join_all::<_>(tasks)).await;
}

async fn run(scale: Scale, obeys: bool) -> Arc<Other> {
    let server = Server::start();
    let (address, other) = serve(scale).await;
    let processes = (0..scale.processes).map(|_| process(&server, address, &other, obeys));
    join_all(processes).await;
    other
}

impl Other {
    fn refused(&self) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|it| !it.is_admitted).count()
    }

    /// What happened in each window.
    fn windows(&self) -> impl Iterator<Item = Vec<Seen>> {
        let windows = self.scale.window(self.scale.run);
        (0..windows).map(|number| {
            let seen = self.seen.lock().unwrap();
            let of_window = seen.iter().filter(|it| self.scale.window(it.at) == number);
            of_window.copied().collect()
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_obey_a_limit_that_they_do_not_know() {
    let (obeying, careless) = tokio::join!(run(SHORT, true), run(SHORT, false));
    for of_window in obeying.windows() {
        let Some(first) = of_window.iter().find(|it| !it.is_admitted) else {
            continue;
        };
        // The requests that had been checked before, and nothing after them.
        let late = of_window.iter().filter(|it| it.at > first.at);
        assert!(
            late.clone().count() < SHORT.processes * SHORT.tasks,
            "{of_window:?}"
        );
        let last = late.map(|it| it.at).max().unwrap_or(first.at);
        assert!(
            last - first.at < Duration::from_millis(500),
            "{of_window:?}"
        );
    }
    let (obeyed, ignored) = (obeying.refused(), careless.refused());
    assert!(
        obeyed * 3 < ignored,
        "{obeyed} refused, {ignored} without the layer"
    );
}

/// Prints a line for each window of the other service.
///
/// On 2026-11-26: all 3 000 units used; in 29 of 30 windows no request left after the pause was stored, and 1 to 103 of
/// those that had left before were refused. In the first window the assertion fails, with 678 of 900: a thousand tasks
/// pass at once, and share two threads with the other service.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes five and a half minutes"]
async fn twenty_processes_obey_for_five_minutes() {
    let other = run(LONG, true).await;
    let (mut admitted, mut worst) = (0, 0);
    for (number, of_window) in other.windows().enumerate() {
        let refused = of_window.iter().filter(|it| !it.is_admitted);
        let stored = other.stored.lock().unwrap();
        let stored = stored.iter().find(|at| LONG.window(**at) == number as u128);
        let is_further = |it: &Seen| stored.is_some_and(|stored| it.passed > *stored + SCHEDULING);
        let further = refused.clone().filter(|it| is_further(it)).count();
        let admitted_here = of_window.len() - refused.clone().count();
        println!(
            "window {number}: {admitted_here} admitted, {} refused, {further} of them after the pause was stored",
            refused.count()
        );
        admitted += admitted_here;
        worst = worst.max(further);
    }
    let windows = usize::try_from(LONG.window(LONG.run)).unwrap();
    let careless = run(
        Scale {
            run: 2 * LONG.window,
            ..LONG
        },
        false,
    );
    println!(
        "used {admitted} of {}; at most {worst} further refusals in a window; without the layer {} refused in 20 s",
        windows * LONG.limit,
        careless.await.refused()
    );
    assert!(admitted * 100 >= windows * LONG.limit * 95, "{admitted}");
    assert!(worst <= LONG.processes, "{worst}");
}
