//! Processes that share a Redis server obey the limit of a real server that they do not know.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{Router, extract::State, http::header::RETRY_AFTER, response::IntoResponse};
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
};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder, ServiceExt};

use support::{contract::patient, redis::Server};

const PROCESSES: usize = 3;
const TASKS: usize = 8;
const WINDOW: Duration = Duration::from_secs(2);
const LIMIT: usize = 40;
const RUN: Duration = Duration::from_secs(8);

/// A server with a fixed window, which names the rest of the window in whole seconds.
struct Other {
    start: Instant,
    /// When each request arrived, and whether it was admitted.
    seen: Mutex<Vec<(Duration, bool)>>,
}

fn window(at: Duration) -> u128 {
    at.as_nanos() / WINDOW.as_nanos()
}

async fn answer(State(other): State<Arc<Other>>) -> impl IntoResponse {
    let (is_admitted, rest) = {
        let mut seen = other.seen.lock().unwrap();
        let at = other.start.elapsed();
        let of_window = seen.iter().filter(|(it, _)| window(*it) == window(at));
        let is_admitted = of_window.filter(|(_, admitted)| *admitted).count() < LIMIT;
        seen.push((at, is_admitted));
        let gone_ms = at.as_millis() % WINDOW.as_millis();
        let rest_ms = WINDOW.as_millis() - gone_ms;
        (is_admitted, rest_ms.div_ceil(1_000).to_string())
    };
    // Others may be under way meanwhile, as on a network.
    tokio::time::sleep(Duration::from_millis(5)).await;
    match is_admitted {
        true => StatusCode::OK.into_response(),
        false => (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, rest)]).into_response(),
    }
}

async fn serve() -> (SocketAddr, Arc<Other>) {
    let other = Arc::new(Other {
        start: Instant::now(),
        seen: Mutex::default(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().fallback(answer).with_state(other.clone());
    tokio::spawn(axum::serve(listener, app).into_future());
    (address, other)
}

/// One process: a limiter with a connection of its own, and tasks that share a client.
async fn process(server: &Server, address: SocketAddr, obeys: bool) {
    let limiter: Limiter = patient(RedisStore::connect(server.url()).await.unwrap());
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
        .service(client);
    let tasks = (0..TASKS).map(|_| {
        let mut client = client.clone();
        async move {
            loop {
                let request = Request::get(format!("http://{address}/"));
                let request = request.body(Empty::new()).unwrap();
                // Few requests more than the limit: neither this machine nor the server is the limit.
                client.ready().await.unwrap().call(request).await.unwrap();
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
        }
    });
    let _ = tokio::time::timeout(RUN, join_all::<_>(tasks)).await;
}

/// When requests arrived and whether they were admitted.
async fn run(obeys: bool) -> Vec<(Duration, bool)> {
    let server = Server::start();
    let (address, other) = serve().await;
    join_all((0..PROCESSES).map(|_| process(&server, address, obeys))).await;
    other.seen.lock().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_obey_a_limit_that_they_do_not_know() {
    let (obeying, careless) = tokio::join!(run(true), run(false));
    let windows = RUN.as_nanos() / WINDOW.as_nanos();
    let mut admitted = 0;
    for number in 0..windows {
        let of_window: Vec<_> = obeying
            .iter()
            .filter(|(at, _)| window(*at) == number)
            .collect();
        admitted += of_window.iter().filter(|(_, admitted)| *admitted).count();
        let Some(first) = of_window.iter().find(|(_, admitted)| !admitted) else {
            continue;
        };
        // The requests that had been checked before, and nothing after them.
        let late = of_window.iter().filter(|(at, _)| *at > first.0);
        assert!(
            late.clone().count() < PROCESSES * TASKS,
            "{number}: {of_window:?}"
        );
        let last = late.map(|(at, _)| *at).max().unwrap_or(first.0);
        assert!(
            last - first.0 < Duration::from_millis(500),
            "{number}: {of_window:?}"
        );
    }
    let refused = |seen: &[(Duration, bool)]| seen.iter().filter(|(_, admitted)| !admitted).count();
    let (obeyed, ignored) = (refused(&obeying), refused(&careless));
    println!(
        "admitted {admitted} of {}, refused {obeyed}; without the layer refused {ignored}",
        windows * LIMIT as u128
    );
    assert!(
        obeyed * 3 < ignored,
        "{obeyed} refused, {ignored} without the layer"
    );
}
