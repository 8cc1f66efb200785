//! A client obeys a real server over HTTP, also one that lies, and the answers and events while its account is paused.

use crate::observe::recorded;
use hyper_util::client::legacy::connect::HttpConnector;
use sluicegate::{
    block::{BlockRequest, BlockedBy},
    middleware::{ObeyLayer, obey::Obey},
};
use support::flaky::{self, Flaky};

use crate::prelude::*;

const MAX: Duration = Duration::from_secs(300);

const WAIT_9: &[(&str, &[u8])] = &[("retry-after", b"9")];

fn account() -> Key {
    Key::new("account", "ours")
}

async fn decide(limiter: &Limiter) -> Decision {
    let charge = Charge::new(&policy("their-api", "1000/1s"), account(), 1);
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

/// A server that refuses each request, with the fields of that request.
async fn serve() -> Site {
    let refuse = async |mut fields: HeaderMap| {
        fields.remove("host");
        (StatusCode::TOO_MANY_REQUESTS, fields)
    };
    Site::start(Router::new().fallback(refuse)).await
}

/// Asks for a refusal with these fields.
async fn refused<S>(site: &Site, client: &mut S, fields: &[(&str, &[u8])])
where
    S: Service<Request<Empty<Bytes>>, Response = Response<Incoming>, Error: std::fmt::Debug>,
{
    let mut request = Request::get(format!("http://{}/", site.address()));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let request = request.body(Empty::new()).unwrap();
    let response = client.ready().await.unwrap().call(request).await;
    assert_eq!(response.unwrap().status(), 429);
}

fn obeying(limiter: &Limiter) -> Obey<Client<HttpConnector, Empty<Bytes>>> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    ObeyLayer::new(limiter.clone(), account()).layer(client)
}

#[tokio::test]
async fn a_hostile_server_pauses_no_longer_than_the_longest_pause() {
    let other = serve().await;
    let limiter = support::limiter(MemoryStore::new());
    let (name, long) = ("retry-after", &[b'9'; 4_000][..]);
    let nested = br#""a";r=0;t=999999999999999, "b;r=0;t=1"#;
    let (longest, own, of_9_s) = (MAX, Duration::from_secs(1), Duration::from_secs(9));
    let (past, details) = (b"Thu, 01 Jan 1970 00:00:00 GMT", "grpc-status-details-bin");
    let reset = "x-ratelimit-reset";
    for (fields, expected) in [
        (&[(name, &b"1000000000000"[..])][..], longest),
        (&[(name, long)], longest),
        (&[(name, b"Tue, 31 Dec 2999 23:59:59 GMT")], longest),
        (&[(name, b"5"), (name, b"500000")], longest),
        (&[("ratelimit", nested)], longest),
        (&[(reset, b"9998-12-31T23:59:59Z")], longest),
        (&[(reset, b"18446744073709551615")], longest),
        (&[(reset, b"99999999999d99999999h")], longest),
        (&[(name, b"9"), ("date", past)], of_9_s),
        // None of these is a time: the layer chooses one.
        (&[(name, b"-1")], own),
        (&[(name, b"NaN")], own),
        (&[(name, b"\xff\xfe\x80")], own),
        (&[(name, past)], own),
        (&[("grpc-status", b"8"), (details, b"%%%")], own),
    ] {
        let mut client = obeying(&limiter); // another layer, whose pauses have not doubled
        refused(&other, &mut client, fields).await;
        let rest = rest(&limiter).await.unwrap_or_default();
        let is_expected = rest <= expected && rest + Duration::from_millis(900) > expected;
        assert!(is_expected, "{rest:?} for {fields:?}");
        limiter.unblock(&account()).await.unwrap();
    }
}

#[tokio::test]
async fn a_request_without_an_account_passes_and_pauses_nothing() {
    let other = serve().await;
    let limiter = support::limiter(MemoryStore::new());
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let nowhere = Header::new("x-account");
    let mut client = ObeyLayer::new(limiter.clone(), nowhere).layer(client);
    refused(&other, &mut client, WAIT_9).await;
    assert_eq!(rest(&limiter).await, None);
}

#[tokio::test]
async fn a_pause_that_the_store_did_not_get_holds_here_while_the_store_is_down() {
    let other = serve().await;
    let (store, _clock) = Flaky::new();
    let limiter = support::limiter(store.clone()).on_failure(FailurePolicy::Closed);
    let mut client = obeying(&limiter);
    store.is_now(flaky::State::Down);
    refused(&other, &mut client, WAIT_9).await;
    assert!(rest(&limiter).await.is_some());
    store.is_now(flaky::State::Up);
    assert!(decide(&limiter).await.is_allowed());
}

#[tokio::test]
async fn a_paused_account_is_a_429_with_a_time_in_http_and_in_grpc() {
    let limiter = still();
    let pause = BlockRequest::pause(Duration::from_millis(8_500));
    limiter.block(&account(), pause).await.unwrap();
    let layer = || support::layer(limiter.clone()).deny_blocked(account());
    let response = ask(&layer().rejection(ProblemJson::default())).await;
    assert_eq!(told(&response), "429 Blocked | retry-after: 9");
    let said = "Another service has asked us to wait.";
    assert!(response.body().contains(said), "{}", response.body());

    let mut call = with(&[("content-type", "application/grpc")]);
    *call.method_mut() = Method::POST;
    let response: Response<String> = send(&layer().rejection(Grpc::new()), call).await;
    assert_eq!(response.headers()["grpc-status"], "8");
    assert!(response.headers().contains_key("grpc-retry-pushback-ms"));
}

/// Two pauses: the first is lengthened once.
async fn pause_twice(limiter: Limiter) {
    let waits = Mutex::new(["5", "9", "2"].into_iter());
    let other = service_fn(move |_: Request<()>| {
        let wait = waits.lock().unwrap().next().unwrap();
        let response = Response::builder().status(429).header("retry-after", wait);
        ready(response.body(()))
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
    let seen =
        recorded(|metrics| pause_twice(support::limiter(MemoryStore::new()).observer(metrics)));
    for expected in [
        "sluicegate_pauses_total kind=account = 2",
        "sluicegate_blocked_total policy= by=pause = 3",
    ] {
        assert!(seen.iter().any(|it| it == expected), "{seen:?}");
    }
    let [plain, observed] = [(); 2].map(|()| support::limiter(MemoryStore::new()));
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
