//! Concurrency limits over HTTP: a request holds its slot to the end of the response.

use std::{convert::Infallible, time::Duration};

use axum::body::Body;
use futures::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use sluicegate::{
    Charge, Key, Limiter, MemoryStore, Policy, RateLimitLayer, Rule,
    limiter::SlotWatch,
    manual_clock::ManualClock,
    middleware::{CostMeter, FollowedBody, Grpc, ProblemJson, Rejection, Route, Routes, ToBodyEnd},
    policies::{Policies, ReloadablePolicies},
    store::{Check, Slots, Store, StoreExt},
};
use tower::{Layer, ServiceExt, service_fn};

fn exports(limit: u64) -> Policy {
    Policy::new("exports", [Rule::concurrent(limit)]).unwrap()
}

fn layer(limiter: &Limiter, limit: u64) -> RateLimitLayer<ProblemJson, ToBodyEnd> {
    let alice = Key::new("user", "alice");
    RateLimitLayer::new(limiter.clone()).limit_concurrent(exports(limit), alice)
}

type Answer = Response<FollowedBody<String>>;

async fn get(layer: &RateLimitLayer<ProblemJson, ToBodyEnd>) -> Answer {
    settled().await;
    let service = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new("an export".to_owned()))
    });
    let response = layer
        .layer(service)
        .oneshot(Request::new(()))
        .await
        .unwrap();
    settled().await;
    response
}

async fn text(response: Answer) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// Waits until background tasks have returned the slots of dropped requests.
async fn settled() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_response_holds_its_slot_until_its_body_ends() {
    let limiter = Limiter::new(MemoryStore::new());
    let layer = layer(&limiter, 2);
    let (first, second) = (get(&layer).await, get(&layer).await);
    assert_eq!(first.headers()["ratelimit"], r#""exports";r=1"#);
    assert_eq!(
        first.headers()["ratelimit-policy"],
        r#""exports";q=2;qu="concurrent-requests""#
    );
    assert_eq!(second.status(), StatusCode::OK);
    let denied = get(&layer).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.headers()["retry-after"], "1");
    assert_eq!(denied.headers()["ratelimit"], r#""exports";r=0"#);

    drop(first);
    settled().await;
    assert_eq!(get(&layer).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_slot_is_returned_to_the_policy_that_gave_it_when_a_reload_changes_the_expiry() {
    let limiter = Limiter::new(MemoryStore::new());
    let alice = Key::new("user", "alice");
    let releases = ["3/30s@concurrent", "3/10s@concurrent"]
        .map(|rule| Policy::parse("exports", rule).unwrap());
    let [old, new] = releases.clone().map(|it| Policies::new([it]).unwrap());
    let live = ReloadablePolicies::new(old);
    let layer = RateLimitLayer::new(limiter.clone())
        .limit_concurrent(live.policy("exports").unwrap(), alice.clone());
    let left = async || {
        settled().await;
        let charges = releases.each_ref();
        let looks = charges.map(|it| limiter.peek([Charge::new(it, alice.clone(), 0)]));
        let looks = futures::future::join_all(looks).await.into_iter();
        let left = looks.map(|it| it.unwrap().rules().next().unwrap().remaining());
        left.collect::<Vec<_>>()
    };
    let first = get(&layer).await;
    live.replace(new).unwrap();
    let second = get(&layer).await;
    assert_eq!(left().await, [2, 2]);
    text(first).await;
    assert_eq!(left().await, [3, 2]);
    text(second).await;
    assert_eq!(left().await, [3, 3]);
}

#[tokio::test]
async fn a_request_that_a_rate_denies_takes_no_slot_and_the_reverse() {
    let limiter = Limiter::new(MemoryStore::new());
    let alice = Key::new("user", "alice");
    let rate = Policy::parse("rate", "3/1h").unwrap();
    let both = layer(&limiter, 1).limit(rate.clone(), alice.clone());

    let first = get(&both).await;
    assert_eq!(first.status(), StatusCode::OK);
    for _ in 0..5 {
        assert_eq!(get(&both).await.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    drop(first);
    settled().await;
    for status in [
        StatusCode::OK,
        StatusCode::OK,
        StatusCode::TOO_MANY_REQUESTS,
    ] {
        assert_eq!(get(&both).await.status(), status); // each returns its slot at once
    }
    // Denied by the rate: the wait is the rate's, and the slot is free.
    let denied = get(&both).await;
    let wait: u64 = denied.headers()["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(wait > 3_000, "{wait}");
    assert_eq!(get(&layer(&limiter, 1)).await.status(), StatusCode::OK);
}

/// How many requests run at a time, of at most five.
async fn run_at_a_time(layer: &RateLimitLayer<ProblemJson, ToBodyEnd>) -> usize {
    let mut running = Vec::new();
    for _ in 0..5 {
        running.push(get(layer).await);
    }
    let admitted = running.iter().filter(|it| it.status() == StatusCode::OK);
    admitted.count()
}

#[tokio::test]
async fn a_request_holds_one_slot_whatever_its_cost_and_weight() {
    let (alice, rate) = (Key::new("user", "alice"), Policy::parse("rate", "2000/1h"));
    let rate = rate.unwrap();
    for cost in [0, 1, 2, 500] {
        let limiter = Limiter::new(MemoryStore::new());
        let both = layer(&limiter, 2)
            .limit(rate.clone(), alice.clone())
            .cost(move |_, _| cost);
        assert_eq!(run_at_a_time(&both).await, 2, "cost {cost}");
        let look = limiter.peek([Charge::new(&rate, alice.clone(), 0)]).await;
        let left = look.unwrap().policies().next().unwrap().rules()[0].remaining();
        assert_eq!(left, 2_000 - 2 * cost);
    }
    for weight in [0, 1, 5] {
        let table = Routes::new(Route::new(exports(2)).weight(weight));
        let limiter = Limiter::new(MemoryStore::new());
        let layer = RateLimitLayer::new(limiter).limit_concurrent(table, alice.clone());
        assert_eq!(run_at_a_time(&layer).await, 2, "weight {weight}");
    }
}

#[tokio::test]
async fn a_charge_that_says_so_takes_several_slots() {
    let limiter = Limiter::new(MemoryStore::new());
    let layer = RateLimitLayer::new(limiter)
        .meter_costs()
        .charge_async(|_| async { Charge::new(&exports(4), Key::new("user", "alice"), 2) });
    assert_eq!(run_at_a_time(&layer).await, 2);
}

#[tokio::test]
async fn the_wait_for_a_slot_is_configurable() {
    let limiter = Limiter::new(MemoryStore::new());
    let layer = layer(&limiter, 1).slot_retry_after(Duration::from_secs(7));
    let _held = get(&layer).await;
    let denied = get(&layer).await;
    assert_eq!(denied.headers()["retry-after"], "7");
}

#[tokio::test]
async fn a_web_socket_holds_its_slot_as_long_as_its_guard() {
    let limiter = Limiter::new(MemoryStore::new());
    let layer = layer(&limiter, 1);
    let guard = std::sync::Mutex::new(None);
    let service = service_fn(|request: Request<()>| {
        let meter = request.extensions().get::<CostMeter>().unwrap();
        *guard.lock().unwrap() = Some(meter.delay_end());
        let mut response = Response::new(String::new());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        async { Ok::<_, Infallible>(response) }
    });
    drop(
        layer
            .layer(service)
            .oneshot(Request::new(()))
            .await
            .unwrap(),
    );
    settled().await;
    assert_eq!(get(&layer).await.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(guard.lock().unwrap().take());
    settled().await;
    assert_eq!(get(&layer).await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_handler_within_two_layers_watches_the_slots_of_both() {
    for lost in ["exports", "all"] {
        let clock = ManualClock::new(1_700_000_000_000);
        let limiter = Limiter::new(MemoryStore::new().clock(clock.clone()));
        let (alice, all) = (
            Key::new("user", "alice"),
            Policy::parse("all", "1/30s@concurrent").unwrap(),
        );
        let outer = RateLimitLayer::new(limiter.clone()).limit_concurrent(all, alice.clone());
        let own = limiter.clone();
        let service = service_fn(move |request: Request<()>| {
            let watch = request.extensions().get::<SlotWatch>().unwrap().clone();
            let (limiter, alice) = (own.clone(), alice.clone());
            let policy = Policy::new(lost, [Rule::concurrent(1)]).unwrap();
            async move {
                assert!(watch.is_held());
                limiter.reset(&policy, &alice).await.unwrap();
                let soon = tokio::time::timeout(Duration::from_secs(3_600), watch.lost());
                soon.await.unwrap(); // at the next renewal
                assert!(!watch.is_held());
                Ok::<_, Infallible>(Response::new("stopped".to_owned()))
            }
        });
        let service = outer.layer(layer(&limiter, 1).layer(service));
        let response = service.oneshot(Request::new(())).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "stopped");
    }
}

#[tokio::test]
async fn a_service_can_be_unavailable_without_a_slot() {
    let limiter = Limiter::new(MemoryStore::new());
    let (alice, rate) = (
        Key::new("user", "alice"),
        Policy::parse("rate", "2/1h").unwrap(),
    );
    let layer = layer(&limiter, 1)
        .limit(rate, alice)
        .unavailable_without_slot();
    let held = get(&layer).await;
    let denied = get(&layer).await;
    assert_eq!(denied.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(denied.headers()["retry-after"], "1");
    assert_eq!(denied.headers()["ratelimit"], r#""exports";r=0"#);
    assert!(matches!(
        denied.extensions().get(),
        Some(Rejection::NoSlot(_))
    ));
    let body = text(denied).await;
    assert!(body.contains("#temporary-reduced-capacity"), "{body}");
    assert!(
        body.contains(r#""violated-policies":["exports"]"#),
        "{body}"
    );

    // A client that is too fast as well is at fault.
    drop(held);
    let _held = get(&layer).await;
    assert_eq!(get(&layer).await.status(), StatusCode::TOO_MANY_REQUESTS);
    let switch = self::layer(&limiter, 0).unavailable_without_slot();
    assert_eq!(get(&switch).await.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_grpc_call_can_be_unavailable_without_a_slot() {
    let limiter = Limiter::new(MemoryStore::new());
    let layer = layer(&limiter, 1).rejection(Grpc::new());
    let _held = get(&self::layer(&limiter, 1)).await;
    let service = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(tonic::body::Body::empty()))
    });
    let call = Request::post("/").header("content-type", "application/grpc");
    let service = layer.unavailable_without_slot().layer(service);
    let response = service.oneshot(call.body(()).unwrap()).await.unwrap();
    let status = tonic::Status::from_header_map(response.headers()).unwrap();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    assert_eq!(response.headers()["grpc-retry-pushback-ms"], "1000");
}

/// Reads a body of one frame that never ends, while an operator resets its slot. Returns the message of the error that
/// ends the body, if any does within an hour.
async fn read_without_slot(cuts_off: bool) -> Option<String> {
    let clock = ManualClock::new(1_700_000_000_000);
    let limiter = Limiter::new(MemoryStore::new().clock(clock.clone()));
    let mut layer = layer(&limiter, 1);
    if cuts_off {
        layer = layer.cut_off_without_slot();
    }
    let service = service_fn(async |_: Request<()>| {
        let first = stream::iter([Ok::<_, Infallible>("first")]);
        let body = Body::from_stream(first.chain(stream::pending()));
        Ok::<_, Infallible>(Response::new(body))
    });
    let response = layer.layer(service).oneshot(Request::new(())).await;
    let mut body = response.unwrap().into_body();
    assert_eq!(
        body.frame().await.unwrap().unwrap().into_data().unwrap(),
        "first"
    );
    let alice = Key::new("user", "alice");
    limiter.reset(&exports(1), &alice).await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(3_600), body.frame());
    let error = next.await.ok()?.unwrap().unwrap_err();
    assert!(body.frame().await.is_none());
    Some(error.to_string())
}

#[tokio::test(start_paused = true)]
async fn a_response_that_lost_its_slot_goes_on_or_is_cut_off() {
    assert_eq!(read_without_slot(false).await, None);
    let error = read_without_slot(true).await.unwrap();
    assert!(
        error.starts_with("the slot of this response was lost"),
        "{error}"
    );
}

#[tokio::test]
async fn a_response_that_is_cut_off_only_without_its_slot_ends_as_any_other() {
    let limiter = Limiter::new(MemoryStore::new());
    let layer = layer(&limiter, 1).cut_off_without_slot();
    for _ in 0..3 {
        assert_eq!(text(get(&layer).await).await, "an export");
    }
}

#[tokio::test]
async fn slots_that_no_limiter_asked_for_are_not_held_and_stay_with_their_owner() {
    let store = MemoryStore::new();
    let limiter = Limiter::new(store.clone());
    let charge = || [Charge::new(&exports(1), Key::new("user", "alice"), 1)];
    let decision = store.check(&Check::new(charge()).unwrap()).await.unwrap();
    assert!(limiter.hold(&decision).is_none());
    for slots in Slots::of(decision.usage()) {
        assert!(store.give_back(&slots).await.unwrap().are_held());
    }

    let decision = limiter.check(charge()).await.unwrap();
    assert!(limiter.hold(&decision).unwrap().is_held());
}

#[tokio::test]
async fn a_layer_that_cannot_hold_slots_to_the_end_is_not_built() {
    let limiter = Limiter::new(MemoryStore::new());
    let alice = Key::new("user", "alice");
    let layer = RateLimitLayer::new(limiter.clone()).try_limit(exports(1), alice.clone());
    let error = layer.unwrap_err();
    assert!(error.to_string().contains("add it by `limit_concurrent`"));

    let banning = exports(1).ban("5/10m=1h".parse().unwrap());
    let layer = RateLimitLayer::new(limiter.clone()).try_limit_concurrent(banning, alice.clone());
    let error = layer.unwrap_err();
    assert!(
        error.to_string().contains("a missing slot is no strike"),
        "{error}"
    );

    let short = Rule::concurrent(1).expires_after(Duration::from_millis(599));
    let short = Policy::new("short", [short]).unwrap();
    let layer = RateLimitLayer::new(limiter).try_limit_concurrent(short, alice);
    let error = layer.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("at least six timeouts of the limiter, 600ms"),
        "{error}"
    );
}

#[tokio::test]
async fn a_policy_chosen_too_late_holds_its_slot_to_the_head() {
    let limiter = Limiter::new(MemoryStore::new());
    let layer = RateLimitLayer::new(limiter.clone()).limit(
        |_: &http::request::Parts| Some(exports(1)),
        Key::new("user", "alice"),
    );
    let within = self::layer(&limiter, 1);
    let service = service_fn(async |_: Request<()>| {
        assert_eq!(get(&within).await.status(), StatusCode::TOO_MANY_REQUESTS);
        Ok::<_, Infallible>(Response::new("done".to_owned()))
    });
    let response = layer
        .layer(service)
        .oneshot(Request::new(()))
        .await
        .unwrap();
    settled().await;
    assert_eq!(get(&within).await.status(), StatusCode::OK);
    drop(response);
}

#[tokio::test]
async fn a_grpc_call_without_a_slot_is_denied_with_a_pushback_of_a_second() {
    let limiter = Limiter::new(MemoryStore::new());
    let layer = layer(&limiter, 1).rejection(Grpc::new());
    let _held = get(&self::layer(&limiter, 1)).await;
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(tonic::body::Body::empty()))
    }));
    let request = Request::post("/")
        .header("content-type", "application/grpc")
        .body(());
    let response = service.oneshot(request.unwrap()).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "8");
    assert_eq!(response.headers()["grpc-retry-pushback-ms"], "1000");
}
