//! Concurrency limits over HTTP: a request holds its slot to the end of the response.

use sluicegate::{
    limiter::SlotWatch,
    middleware::FollowedBody,
    store::{Slots, Store},
};

use support::store_ext::StoreExt;

use crate::prelude::*;

type Exports = RateLimitLayer<ProblemJson, ToBodyEnd>;

fn exports(limit: u64) -> Policy {
    Policy::new("exports", [Rule::concurrent(limit)]).unwrap()
}

fn layer(limiter: &Limiter, limit: u64) -> Exports {
    support::layer(limiter.clone()).limit_concurrent(exports(limit), alice())
}

fn limiter() -> Limiter {
    support::limiter(MemoryStore::new())
}

type Answer = Response<FollowedBody<String>>;

async fn get(layer: &Exports) -> Answer {
    settled().await;
    let response = ask(layer).await;
    settled().await;
    response
}

async fn status(layer: &Exports) -> u16 {
    get(layer).await.status().as_u16()
}

async fn text(response: Answer) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn a_response_holds_its_slot_until_its_body_ends() {
    let layer = layer(&limiter(), 2);
    let first = get(&layer).await;
    let quota = r#"ratelimit-policy: "exports";q=2;qu="concurrent-requests""#;
    let expected = format!(r#"200 | ratelimit: "exports";r=1 | {quota}"#);
    assert_eq!(told(&first), expected);
    let second = get(&layer).await;
    assert_eq!(second.status(), 200);
    let denied = format!(r#"429 Denied | ratelimit: "exports";r=0 | {quota} | retry-after: 1"#);
    assert_eq!(told(&get(&layer).await), denied);
    let slow = layer.clone().slot_retry_after(Duration::from_secs(7));
    assert_eq!(field(get(&slow).await.headers(), "retry-after"), "7");

    drop(first);
    settled().await;
    assert_eq!(status(&layer).await, 200);
}

#[tokio::test]
async fn a_slot_is_returned_to_the_policy_that_gave_it_when_a_reload_changes_the_expiry() {
    let limiter = limiter();
    let releases = ["3/30s@concurrent", "3/10s@concurrent"].map(|rule| policy("exports", rule));
    let [old, new] = releases.clone().map(|it| Policies::new([it]).unwrap());
    let live = ReloadablePolicies::new(old);
    let layer =
        support::layer(limiter.clone()).limit_concurrent(live.policy("exports").unwrap(), alice());
    let left = async || {
        settled().await;
        let [old, new] = releases.each_ref();
        let old = left_of(&limiter, old, &alice()).await;
        [old, left_of(&limiter, new, &alice()).await]
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
    let limiter = limiter();
    let both = layer(&limiter, 1).limit(policy("rate", "3/1h"), alice());
    let first = get(&both).await;
    assert_eq!(first.status(), 200);
    for _ in 0..5 {
        assert_eq!(status(&both).await, 429);
    }
    drop(first);
    for expected in [200, 200, 429] {
        assert_eq!(status(&both).await, expected); // each returns its slot at once
    }
    // Denied by the rate: the wait is the rate's, and the slot is free.
    let denied = get(&both).await;
    let wait: u64 = field(denied.headers(), "retry-after").parse().unwrap();
    assert!(wait > 3_000, "{wait}");
    assert_eq!(status(&layer(&limiter, 1)).await, 200);
}

/// A layer that meters tokens around another one: each request is charged 500 on arrival, and one plain unit.
fn metering(limiter: &Limiter) -> Exports {
    RateLimitLayer::new(limiter.clone())
        .limit(policy("tokens", "10000/1h"), alice())
        .limit(policy("requests", "100/1h"), alice())
        .cost(|_, policy| if policy.name() == "tokens" { 500 } else { 1 })
        .meter_costs_under("tokens")
}

/// The rest of the tokens and of the requests.
async fn rests(limiter: &Limiter) -> [u64; 2] {
    settled().await;
    let tokens = left_of(limiter, &policy("tokens", "10000/1h"), &alice()).await;
    let requests = left_of(limiter, &policy("requests", "100/1h"), &alice()).await;
    [tokens, requests]
}

#[tokio::test]
async fn a_slot_denied_inside_a_metered_limit_costs_what_is_plain_and_nothing_that_is_metered() {
    let limiter = limiter();
    let _held = get(&layer(&limiter, 1)).await;
    let both = (metering(&limiter), layer(&limiter, 1));
    for denied in 1..=3 {
        let response = ask(&both).await;
        assert_eq!(response.status(), 429);
        drop(response);
        assert_eq!(rests(&limiter).await, [10_000, 100 - denied]);
    }
    // In one layer, a request without a slot is charged nowhere.
    let one = metering(&limiter).limit_concurrent(exports(1), alice());
    assert_eq!(ask(&one).await.status(), 429);
    assert_eq!(rests(&limiter).await, [10_000, 97]);
}

#[tokio::test]
async fn any_rejection_further_in_refunds_what_was_metered_through_a_layer_between_them() {
    let nobody = |_: &Parts| Err::<Key, _>(ExtractError::missing("a user"));
    for inner in [
        limit("inner", "0/1h"),
        empty().deny(|_| true),
        empty().limit(policy("user", "9/1h"), nobody),
    ] {
        let limiter = limiter();
        let all = (metering(&limiter), limit("between", "9/1h"), inner);
        drop(ask(&all).await);
        assert_eq!(rests(&limiter).await, [10_000, 99]);
    }
}

#[tokio::test]
async fn a_rejection_further_in_costs_what_was_metered_on_the_way() {
    let limiter = limiter();
    let meter = tower::util::MapRequestLayer::new(|request: Request<String>| {
        let meter: &CostMeter = request.extensions().get().unwrap();
        meter.under("tokens").add(7);
        request
    });
    let all = (metering(&limiter), meter, limit("inner", "0/1h"));
    drop(ask(&all).await);
    assert_eq!(rests(&limiter).await, [9_993, 99]);
}

#[tokio::test]
async fn a_429_of_another_service_and_the_rejections_of_a_handler_and_a_client_refund_nothing() {
    let limiter = limiter();
    let of_service = tower::layer::layer_fn(|_| answering(|_| answer(429)));
    drop(ask(&(metering(&limiter), of_service)).await);
    assert_eq!(rests(&limiter).await, [9_500, 99]);

    let client = Inner::new(limit("theirs", "0/1h").layer(hello()));
    let forwarding = tower::layer::layer_fn(move |_| {
        let client = client.clone();
        Inner::new(service_fn(move |_| client.clone().oneshot(to("/"))))
    });
    let response = ask(&(metering(&limiter), forwarding)).await;
    assert!(response.extensions().get::<Rejection>().is_some());
    drop(response);
    assert_eq!(rests(&limiter).await, [9_000, 98]);

    let by_handler = tower::layer::layer_fn(|_| {
        answering(|request| {
            let head = request.into_parts().0;
            Rejection::OnDenyList.response(&head, HeaderStyle::default())
        })
    });
    drop(ask(&(metering(&limiter), by_handler)).await);
    assert_eq!(rests(&limiter).await, [8_500, 97]);
}

/// How many requests run at a time, of at most five.
async fn run_at_a_time(layer: &Exports) -> usize {
    let mut running = Vec::new();
    for _ in 0..5 {
        running.push(get(layer).await);
    }
    running.iter().filter(|it| it.status() == 200).count()
}

#[tokio::test]
async fn a_request_holds_one_slot_whatever_its_cost_and_weight_unless_a_charge_says_so() {
    let rate = policy("rate", "2000/1h");
    for cost in [0, 1, 2, 500] {
        let limiter = limiter();
        let both = layer(&limiter, 2).limit(rate.clone(), alice());
        let at_a_time = run_at_a_time(&both.cost(move |_, _| cost)).await;
        assert_eq!(at_a_time, 2, "{cost}");
        assert_eq!(left_of(&limiter, &rate, &alice()).await, 2_000 - 2 * cost);
    }
    for weight in [0, 1, 5] {
        let table = Routes::new(Route::new(exports(2)).weight(weight));
        let layer = support::layer(limiter()).limit_concurrent(table, alice());
        assert_eq!(run_at_a_time(&layer).await, 2, "weight {weight}");
    }
    let of_two = |_: &_| async { Charge::new(&exports(4), alice(), 2) };
    let layer = support::layer(limiter()).meter_costs();
    assert_eq!(run_at_a_time(&layer.charge_async(of_two)).await, 2);
}

#[tokio::test]
async fn a_web_socket_holds_its_slot_as_long_as_its_guard() {
    let layer = layer(&limiter(), 1);
    let guard = Arc::new(Mutex::new(None));
    let held = guard.clone();
    let service = layer.layer(answering(move |request| {
        let meter = request.extensions().get::<CostMeter>().unwrap();
        *held.lock().unwrap() = Some(meter.delay_end());
        answer(101)
    }));
    drop(service.oneshot(to("/")).await.unwrap());
    assert_eq!(status(&layer).await, 429);
    drop(guard.lock().unwrap().take());
    assert_eq!(status(&layer).await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_handler_within_two_layers_watches_the_slots_of_both() {
    for lost in ["exports", "all"] {
        let limiter = still();
        let all = policy("all", "1/30s@concurrent");
        let outer = support::layer(limiter.clone()).limit_concurrent(all, alice());
        let own = limiter.clone();
        let service = service_fn(move |request: Request<()>| {
            let watch = request.extensions().get::<SlotWatch>().unwrap().clone();
            let limiter = own.clone();
            let policy = Policy::new(lost, [Rule::concurrent(1)]).unwrap();
            async move {
                assert!(watch.is_held());
                limiter.reset(&policy, &alice()).await.unwrap();
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
    let limiter = limiter();
    let layer = layer(&limiter, 1).limit(policy("rate", "2/1h"), alice());
    let layer = layer.unavailable_without_slot();
    let held = get(&layer).await;
    let denied = get(&layer).await;
    let told = told(&denied);
    let said = told.starts_with(r#"503 NoSlot | ratelimit: "exports";r=0 | "#);
    assert!(said && told.ends_with(" | retry-after: 1"), "{told}");
    let body = text(denied).await;
    let violated = r#""violated-policies":["exports"]"#;
    for said in ["#temporary-reduced-capacity", violated] {
        assert!(body.contains(said), "{body}");
    }

    // A client that is too fast as well is at fault.
    drop(held);
    let _held = get(&layer).await;
    assert_eq!(status(&layer).await, 429);
    let switch = self::layer(&limiter, 0).unavailable_without_slot();
    assert_eq!(status(&switch).await, 429);
}

#[tokio::test]
async fn a_grpc_call_without_a_slot_is_denied_or_unavailable_with_a_pushback_of_a_second() {
    let limiter = limiter();
    let layer = layer(&limiter, 1).rejection(Grpc::new());
    let _held = get(&self::layer(&limiter, 1)).await;
    let unavailable = layer.clone().unavailable_without_slot();
    for (layer, status) in [(layer, "8"), (unavailable, "14")] {
        let service = layer.layer(service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(tonic::body::Body::empty()))
        }));
        let call = Request::post("/").header("content-type", "application/grpc");
        let response = service.oneshot(call.body(()).unwrap()).await.unwrap();
        assert_eq!(field(response.headers(), "grpc-status"), status);
        let pushback = field(response.headers(), "grpc-retry-pushback-ms");
        assert_eq!(pushback, "1000");
    }
}

/// Reads a body of one frame that never ends, while an operator resets its slot. Returns the message of the error that
/// ends the body, if any does within an hour.
async fn read_without_slot(cuts_off: bool) -> Option<String> {
    let limiter = still();
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
    let first = body.frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "first");
    limiter.reset(&exports(1), &alice()).await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(3_600), body.frame());
    let error = next.await.ok()?.unwrap().unwrap_err();
    assert!(body.frame().await.is_none());
    Some(error.to_string())
}

#[tokio::test(start_paused = true)]
async fn a_response_that_lost_its_slot_goes_on_or_is_cut_off() {
    assert_eq!(read_without_slot(false).await, None);
    let error = read_without_slot(true).await.unwrap();
    let is_expected = error.starts_with("the slot of this response was lost");
    assert!(is_expected, "{error}");
    // One with a slot ends as any other.
    let layer = layer(&still(), 1).cut_off_without_slot();
    for _ in 0..3 {
        assert_eq!(text(get(&layer).await).await, "hello");
    }
}

#[tokio::test]
async fn slots_that_no_limiter_asked_for_are_not_held_and_stay_with_their_owner() {
    let store = MemoryStore::new();
    let limiter = support::limiter(store.clone());
    let charge = || [Charge::new(&exports(1), alice(), 1)];
    let decision = store.check(&Check::new(charge()).unwrap()).await.unwrap();
    assert!(limiter.hold(&decision).is_none());
    for slots in Slots::of(decision.usage()) {
        assert!(store.give_back(&slots).await.unwrap().are_held());
    }
    let decision = limiter.check(charge()).await.unwrap();
    assert!(limiter.hold(&decision).unwrap().is_held());
}

fn built(policy: Policy) -> Result<Exports, impl std::error::Error> {
    support::layer(limiter()).try_limit_concurrent(policy, alice())
}

fn of_599_ms() -> Policy {
    let short = Rule::concurrent(1).expires_after(Duration::from_millis(599));
    Policy::new("short", [short]).unwrap()
}

refusals! { says;
    a_layer_that_cannot_hold_slots_to_the_end_is_not_built: empty().try_limit(exports(1), alice()) => "add it by `limit_concurrent`";
    a_missing_slot_is_no_strike: built(exports(1).ban("5/10m=1h".parse().unwrap())) => "a missing slot is no strike";
    a_slot_lasts_long_enough_to_be_renewed: built(of_599_ms()) => "at least six timeouts of the limiter, 600ms";
}

#[tokio::test]
async fn a_policy_chosen_too_late_holds_its_slot_to_the_head() {
    let limiter = limiter();
    let chosen = |_: &Parts| Some(exports(1));
    let layer = support::layer(limiter.clone()).limit(chosen, Key::new("user", "alice"));
    let within = self::layer(&limiter, 1);
    let service = service_fn(async |_: Request<()>| {
        assert_eq!(status(&within).await, 429);
        Ok::<_, Infallible>(Response::new("done".to_owned()))
    });
    let response = layer.layer(service).oneshot(Request::new(())).await;
    assert_eq!(status(&within).await, 200);
    drop(response);
}
