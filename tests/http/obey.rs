//! A client obeys a real server over HTTP, also one that lies, and the answers and events while its account is paused.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::State};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use sluicegate::{
    Charge, Decision, FailurePolicy, Key, Limiter, MemoryStore, Policy, RateLimitLayer,
    block::{BlockRequest, BlockedBy},
    middleware::{Grpc, ObeyLayer, ProblemJson, obey::Obey},
    observe::TracingObserver,
};
use tokio::net::TcpListener;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::observe::recorded;
use support::{
    flaky::{self, Flaky},
    trace::traced,
};

const MAX: Duration = Duration::from_secs(300);

fn account() -> Key {
    Key::new("account", "ours")
}

async fn decide(limiter: &Limiter) -> Decision {
    let policy = Policy::parse("their-api", "1000/1s").unwrap();
    let charge = Charge::new(&policy, account(), 1);
    limiter.check([charge]).await.unwrap()
}

/// The rest of the pause; `None` if there is none.
async fn rest(limiter: &Limiter) -> Option<Duration> {
    match decide(limiter).await {
        Decision::Blocked(blocked) => {
            assert_eq!(blocked.block().source(), BlockedBy::Pause);
            Some(blocked.retry_after().unwrap())
        }
        _ => None,
    }
}

type Answer = (StatusCode, HeaderMap);

/// A server that gives the answer that the test set last.
#[derive(Clone)]
struct Other {
    answer: Arc<Mutex<Answer>>,
    address: SocketAddr,
}

impl Other {
    async fn serve() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let answer: Arc<Mutex<Answer>> = Arc::default();
        let address = listener.local_addr().unwrap();
        let app = Router::new()
            .fallback(async |State(answer): State<Arc<Mutex<Answer>>>| {
                answer.lock().unwrap().clone()
            })
            .with_state(answer.clone());
        tokio::spawn(axum::serve(listener, app).into_future());
        Self { answer, address }
    }

    /// Asks for an answer of this status with these fields.
    async fn answers<S>(&self, client: &mut S, status: u16, fields: &[(&str, &[u8])])
    where
        S: Service<Request<Empty<Bytes>>, Response = Response<Incoming>, Error: std::fmt::Debug>,
    {
        let status = StatusCode::from_u16(status).unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let name = HeaderName::try_from(*name).unwrap();
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        *self.answer.lock().unwrap() = (status, headers);
        let request = Request::get(format!("http://{}/", self.address));
        let request = request.body(Empty::new()).unwrap();
        let response = client.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), status);
    }
}

fn obeying(limiter: &Limiter) -> Obey<Client<HttpConnector, Empty<Bytes>>> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    ObeyLayer::new(limiter.clone(), account()).layer(client)
}

#[tokio::test]
async fn a_hostile_server_pauses_no_longer_than_the_longest_pause() {
    let other = Other::serve().await;
    let limiter = Limiter::new(MemoryStore::new());
    let mut client = obeying(&limiter);
    let (name, long) = ("retry-after", &[b'9'; 4_000][..]);
    let nested = br#""a";r=0;t=999999999999999, "b;r=0;t=1"#;
    for (fields, expected) in [
        (&[(name, &b"1000000000000"[..])][..], MAX),
        (&[(name, long)], MAX),
        (&[(name, b"Tue, 31 Dec 2999 23:59:59 GMT")], MAX),
        (&[(name, b"5"), (name, b"500000")], MAX),
        (&[("ratelimit", nested)], MAX),
        (&[("x-ratelimit-reset", b"9998-12-31T23:59:59Z")], MAX),
        (&[("x-ratelimit-reset", b"18446744073709551615")], MAX),
        (&[("x-ratelimit-reset", b"99999999999d99999999h")], MAX),
        (
            &[(name, b"9"), ("date", b"Thu, 01 Jan 1970 00:00:00 GMT")],
            Duration::from_secs(9),
        ),
        // None of these is a time: the layer chooses one.
        (&[(name, b"-1")], Duration::from_secs(1)),
        (&[(name, b"NaN")], Duration::from_secs(1)),
        (&[(name, b"\xff\xfe\x80")], Duration::from_secs(1)),
        (
            &[(name, b"Thu, 01 Jan 1970 00:00:00 GMT")],
            Duration::from_secs(1),
        ),
        (
            &[("grpc-status", b"8"), ("grpc-status-details-bin", b"%%%")],
            Duration::from_secs(1),
        ),
    ] {
        other.answers(&mut client, 429, fields).await;
        let rest = rest(&limiter).await.unwrap_or_default();
        let is_expected = rest <= expected && rest + Duration::from_millis(900) > expected;
        assert!(is_expected, "{rest:?} for {fields:?}");
        limiter.unblock(&account()).await.unwrap();
    }
}

#[tokio::test]
async fn a_request_without_an_account_passes_and_pauses_nothing() {
    let other = Other::serve().await;
    let limiter = Limiter::new(MemoryStore::new());
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let nowhere = sluicegate::Header::new("x-account");
    let mut client = ObeyLayer::new(limiter.clone(), nowhere).layer(client);
    other
        .answers(&mut client, 429, &[("retry-after", b"9")])
        .await;
    assert_eq!(rest(&limiter).await, None);
}

#[tokio::test]
async fn a_pause_that_the_store_did_not_get_holds_here_while_the_store_is_down() {
    let other = Other::serve().await;
    let (store, _clock) = Flaky::new();
    let limiter = Limiter::new(store.clone()).on_failure(FailurePolicy::Closed);
    let mut client = obeying(&limiter);
    store.is_now(flaky::State::Down);
    other
        .answers(&mut client, 429, &[("retry-after", b"9")])
        .await;
    assert!(rest(&limiter).await.is_some());
    store.is_now(flaky::State::Up);
    assert!(decide(&limiter).await.is_allowed());
}

#[tokio::test]
async fn a_paused_account_is_a_429_with_a_time_in_http_and_in_grpc() {
    let limiter = Limiter::new(MemoryStore::new());
    limiter
        .block(
            &account(),
            BlockRequest::pause(Duration::from_millis(8_500)),
        )
        .await
        .unwrap();
    let inner = service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let layer = || RateLimitLayer::new(limiter.clone()).deny_blocked(account());
    let problem = layer().rejection(ProblemJson::default()).layer(inner);
    let response = problem.oneshot(Request::new(())).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["retry-after"], "9");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8_lossy(&body);
    assert!(
        body.contains("Another service has asked us to wait."),
        "{body}"
    );

    let call = Request::post("/").header("content-type", "application/grpc");
    let call = call.body(()).unwrap();
    let grpc = layer().rejection(Grpc::new()).layer(inner);
    let response = grpc.oneshot(call).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "8");
    assert!(response.headers().contains_key("grpc-retry-pushback-ms"));
}

/// Two pauses: the first is lengthened once.
async fn pause_twice(limiter: Limiter) {
    let waits = Mutex::new(["5", "9", "2"].into_iter());
    let other = service_fn(move |_: Request<()>| {
        let wait = waits.lock().unwrap().next().unwrap();
        let response = Response::builder().status(429).header("retry-after", wait);
        std::future::ready(response.body(()))
    });
    let layer = ObeyLayer::new(limiter.clone(), account());
    let mut client = layer.label("their-api").layer(other);
    for is_last_of_a_pause in [false, true, true] {
        let response = client.ready().await.unwrap().call(Request::new(())).await;
        assert_eq!(response.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(rest(&limiter).await.is_some());
        if is_last_of_a_pause {
            limiter.unblock(&account()).await.unwrap();
        }
    }
}

#[test]
fn there_is_one_warning_and_one_count_for_each_pause() {
    let seen = recorded(|metrics| pause_twice(Limiter::new(MemoryStore::new()).observer(metrics)));
    for expected in [
        "sluicegate_pauses_total kind=account = 2",
        "sluicegate_blocked_total policy= by=pause = 3",
    ] {
        assert!(seen.iter().any(|it| it == expected), "{seen:?}");
    }
    let [plain, observed] = [(); 2].map(|()| Limiter::new(MemoryStore::new()));
    for limiter in [plain, observed.observer(TracingObserver::new())] {
        let mut warnings = traced(false, pause_twice(limiter));
        warnings.retain(|it| it.contains("paused"));
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("429, retry-after"), "{warnings:?}");
        let names_service = |it: &String| it.contains("label=\"their-api\"");
        assert!(warnings.iter().all(names_service), "{warnings:?}");
        let names_account = |it: &String| it.contains("ours");
        assert!(!warnings.iter().any(names_account), "{warnings:?}");
    }
}
