//! The middleware's answers in headers, body and extensions, for all results of the store and the extractors.

use std::{
    collections::HashSet,
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header, request::Parts};
use sluicegate::{
    Charge, Decision, FailurePolicy, Header, Key, KeyExtractor, Limiter, Policy, RateLimitLayer,
    decision::Count,
    error::ExtractError,
    extract::Keys,
    middleware::{
        Decisions, EXPOSED_HEADERS, HeaderStyle, MakeRejection, RateLimit, Rejection,
        ResponseFuture, Route, Routes, StatusOnly,
    },
    policies::Unit,
    store::StoreFuture,
};
use support::scripted::{NOW_MS, Scripted, count, decide};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

fn everybody() -> Key {
    Key::new("service", "all")
}

fn closed(store: Arc<Scripted>) -> Limiter {
    Limiter::new(store).on_failure(FailurePolicy::Closed)
}

fn layer(limiter: impl Into<Limiter>) -> RateLimitLayer {
    RateLimitLayer::new(limiter).limit(policy("all", "10/1m"), everybody())
}

/// The answer to a request to a service that says hello.
async fn ask<R: MakeRejection<String>>(layer: RateLimitLayer<R>) -> Response<String> {
    ask_with(layer, Request::new(String::new())).await
}

async fn ask_with<R: MakeRejection<String>>(
    layer: RateLimitLayer<R>,
    request: Request<String>,
) -> Response<String> {
    let inner = service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new("hello".to_owned()))
    });
    layer.layer(inner).oneshot(request).await.unwrap()
}

/// The decision under the policy of this name.
fn decision<'a, B>(response: &'a Response<B>, policy: &str) -> &'a Decision {
    let decisions: &Decisions = response.extensions().get().unwrap();
    decisions.by_policy(policy).unwrap()
}

fn lines<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let lines = headers.get_all(name).iter();
    lines.map(|line| line.to_str().unwrap()).collect()
}

// Decisions and requests

#[tokio::test]
async fn an_allowed_request_is_served_with_its_quota() {
    let response = ask(layer(Scripted::allowing())).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.body(), "hello");
    assert_eq!(
        lines(response.headers(), "ratelimit"),
        [r#""all";r=9;t=60"#]
    );
    assert_eq!(
        lines(response.headers(), "ratelimit-policy"),
        [r#""all";q=10;w=60"#]
    );
    assert!(!response.headers().contains_key("retry-after"));
    assert!(!response.headers().contains_key("cache-control"));
}

#[tokio::test]
async fn a_rejected_request_is_told_when_to_come_back() {
    let response = ask(layer(Scripted::denying_for(1_001))).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(lines(response.headers(), "retry-after"), ["2"]);
    assert_eq!(lines(response.headers(), "ratelimit"), [r#""all";r=0;t=2"#]);
    assert_eq!(lines(response.headers(), "cache-control"), ["no-store"]);
    assert_eq!(
        lines(response.headers(), "content-type"),
        ["application/problem+json"]
    );
    assert_eq!(
        response.body(),
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["all"]}"#
    );
}

#[tokio::test]
async fn a_rejection_of_a_head_request_has_no_body() {
    let request = Request::head("/").body(String::new()).unwrap();
    let response = ask_with(layer(Scripted::denying_for(1)), request).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.body(), "");
}

#[tokio::test]
async fn the_decision_is_in_the_extensions_of_the_request_and_where_asked_for_of_the_response() {
    for in_response in [false, true] {
        let seen = Arc::new(Mutex::new(None));
        let log = seen.clone();
        let inner = service_fn(move |request: Request<String>| {
            *log.lock().unwrap() = request.extensions().get::<Decisions>().cloned();
            async { Ok::<_, Infallible>(Response::new(String::new())) }
        });
        let mut layer = layer(Scripted::allowing());
        if in_response {
            layer = layer.decisions_in_response();
        }
        let request = Request::new(String::new());
        let response = layer.layer(inner).oneshot(request).await.unwrap();
        let told: Option<Decisions> = response.extensions().get().cloned();
        assert_eq!(told.is_some(), in_response);
        for decisions in seen.lock().unwrap().take().into_iter().chain(told) {
            let Some(Decision::Allowed(usage)) = decisions.by_policy("all") else {
                panic!("no admission: {decisions:?}");
            };
            assert_eq!(usage.rules().next().unwrap().remaining(), 9);
        }
        assert_eq!(response.extensions().is_empty(), !in_response);
    }
}

#[tokio::test]
async fn the_reason_of_a_rejection_is_in_the_extensions_of_the_response() {
    let response = ask(layer(Scripted::denying_for(1))).await;
    assert!(!decision(&response, "all").is_allowed());
    assert!(matches!(
        response.extensions().get(),
        Some(Rejection::Denied(_))
    ));
}

// Charges

#[tokio::test]
async fn all_limits_are_charged_in_one_check() {
    let store = Scripted::allowing();
    let layer = layer(store.clone())
        .limit(policy("client", "2/1s"), Header::new("x-api-key"))
        .limit(policy("team", "5/1s"), Key::new("team", "a"))
        .cost(|head, _| head.uri.path().len() as u64);
    let request = Request::get("/ab").header("x-api-key", "a");
    ask_with(layer, request.body(String::new()).unwrap()).await;
    assert_eq!(
        store.only_check(),
        ["all service 3", "client header 3", "team team 3"]
    );
}

#[tokio::test]
async fn a_request_that_no_limit_applies_to_asks_no_store_and_gets_no_headers() {
    let store = Scripted::failing();
    let skipping = RateLimitLayer::new(closed(store.clone()))
        .limit(policy("client", "1/1s"), Header::new("x-api-key").or_skip())
        .charge_async(|_| async { Vec::new() });
    for layer in [RateLimitLayer::new(store.clone()), skipping] {
        let response = ask(layer).await;
        assert_eq!(response.body(), "hello");
        assert!(response.headers().is_empty());
        assert!(response.extensions().is_empty());
    }
    assert!(store.checks().is_empty());
}

#[tokio::test]
async fn a_cost_of_zero_looks_without_charging() {
    let store = Scripted::allowing();
    let response = ask(layer(store.clone()).cost(|_, _| 0)).await;
    assert_eq!(store.only_check(), ["all service 0"]);
    assert_eq!(lines(response.headers(), "ratelimit"), [r#""all";r=10"#]);
}

#[tokio::test]
async fn a_request_without_identity_is_rejected_before_the_store_is_asked() {
    let store = Scripted::allowing();
    let layer = layer(store.clone()).limit(policy("client", "1/1s"), Header::new("x-api-key"));
    let response = ask(layer).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert_eq!(lines(response.headers(), "cache-control"), ["no-store"]);
    assert!(!response.headers().contains_key("ratelimit"));
    assert_eq!(
        response.body(),
        r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"the header that identifies the client is absent or empty: `x-api-key`"}"#
    );
    assert!(matches!(
        response.extensions().get(),
        Some(Rejection::MissingKey(_))
    ));
    assert!(store.checks().is_empty());
}

#[tokio::test]
async fn too_many_keys_are_rejected_though_the_failure_policy_is_open() {
    let store = Scripted::allowing();
    let keys = |_: &Parts| {
        (0..100)
            .map(|n| Key::new("n", n.to_string()))
            .collect::<Keys>()
    };
    let layer = RateLimitLayer::new(store.clone()).limit(policy("p", "1/1s"), keys);
    assert_eq!(ask(layer).await.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(store.checks().is_empty());
}

/// axum makes new services for each connection, and, for a router without a state, for each request.
#[test]
fn a_layer_makes_services_without_allocating() {
    let layer = layer(Scripted::allowing());
    let made = allocation_counter::measure(|| drop(layer.clone().layer(())));
    assert_eq!(made.count_total, 0);
}

#[test]
#[should_panic(expected = "same name and differ: Policy(all: 10/1m), Policy(all: 11/1m)")]
fn two_policies_of_one_name_are_an_error_when_built() {
    let _ = layer(Scripted::allowing()).limit(policy("all", "11/1m"), everybody());
}

#[test]
#[should_panic(expected = "a timeout of zero leaves no time to decide")]
fn a_timeout_of_zero_is_an_error_when_built() {
    let _ = Limiter::new(Scripted::allowing()).timeout(Duration::ZERO);
}

#[test]
#[should_panic(expected = "`replicas` must be at least 1")]
fn no_replica_at_all_is_an_error_when_built() {
    let _ = Limiter::new(Scripted::allowing()).replicas(0);
}

// Failures

#[tokio::test]
async fn a_store_that_fails_is_passed_by_without_headers() {
    let response = ask(layer(Scripted::failing())).await;
    assert_eq!(response.body(), "hello");
    assert!(response.headers().is_empty());
    assert!(response.extensions().is_empty());
}

#[tokio::test]
async fn a_store_that_fails_rejects_when_the_policy_is_closed() {
    let response = ask(layer(closed(Scripted::failing()))).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(lines(response.headers(), "cache-control"), ["no-store"]);
    assert!(response.body().contains("#temporary-reduced-capacity"));
    assert!(matches!(
        response.extensions().get(),
        Some(Rejection::Undecided(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_waited_for_until_the_deadline() {
    for (set, expected_ms) in [(None, 100), (Some(Duration::from_millis(250)), 250)] {
        let mut limiter = Limiter::new(Scripted::silent());
        if let Some(timeout) = set {
            limiter = limiter.timeout(timeout);
        }
        let start = Instant::now();
        assert_eq!(ask(layer(limiter)).await.body(), "hello");
        assert_eq!(start.elapsed(), Duration::from_millis(expected_ms));
    }
}

#[tokio::test(start_paused = true)]
async fn look_ups_have_a_deadline_and_then_the_store_has_its_own() {
    let look_up_for = |ms| {
        move |_: &Parts| async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            Charge::new(&policy("team", "1/1s"), Key::new("team", "a"), 1)
        }
    };
    for (look_up_ms, waits_ms) in [(60, 160), (100_000, 1_000)] {
        let layer = layer(closed(Scripted::silent())).charge_async(look_up_for(look_up_ms));
        let start = Instant::now();
        assert_eq!(ask(layer).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(start.elapsed(), Duration::from_millis(waits_ms));
    }
}

/// How often a policy is chosen for one request when the extractor finds this.
async fn choices(found: Result<Keys, ExtractError>) -> u32 {
    let count = Arc::new(AtomicU32::new(0));
    let key_is_known = Arc::new(AtomicBool::new(false));
    let (counter, known) = (count.clone(), key_is_known.clone());
    let selector = move |_: &Parts| {
        assert!(known.load(SeqCst), "chosen before a key is known");
        counter.fetch_add(1, SeqCst);
        policy("chosen", "5/1s")
    };
    let extractor = move |_: &Parts| {
        key_is_known.store(true, SeqCst);
        found.clone()
    };
    let _ = ask(RateLimitLayer::new(Scripted::allowing()).limit(selector, extractor)).await;
    count.load(SeqCst)
}

#[tokio::test]
async fn a_policy_is_chosen_once_when_a_key_is_known_and_at_most_once_when_there_is_none() {
    assert_eq!(choices(Ok(everybody().into())).await, 1);
    let several = (0..3).map(|n| Key::new("n", n.to_string()));
    assert_eq!(choices(Ok(several.collect())).await, 1);
    assert_eq!(choices(Ok(Keys::skip())).await, 0);
    for error in [ExtractError::missing(""), ExtractError::unavailable("")] {
        assert_eq!(choices(Err(error)).await, 1);
    }
}

#[tokio::test]
async fn a_policy_that_cannot_be_chosen_is_not_chosen_again() {
    let count = Arc::new(AtomicU32::new(0));
    let counter = count.clone();
    let choose = move |_: &Parts| {
        counter.fetch_add(1, SeqCst);
        None::<Policy>
    };
    let layer = RateLimitLayer::new(Scripted::allowing()).limit(choose, everybody());
    assert_eq!(ask(layer).await.status(), StatusCode::BAD_REQUEST);
    assert_eq!(count.load(SeqCst), 1);
}

#[tokio::test]
async fn a_route_that_is_skipped_needs_no_key() {
    let routes = Routes::new(policy("api", "5/1s")).route("/health", Route::skip());
    let layer = RateLimitLayer::new(Scripted::allowing()).limit(routes, Header::new("x-api-key"));
    for (path, status) in [("/health", StatusCode::OK), ("/", StatusCode::BAD_REQUEST)] {
        let request = Request::get(path).body(String::new()).unwrap();
        let response = ask_with(layer.clone(), request).await;
        assert_eq!(response.status(), status, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_look_up_leaves_the_other_limits_as_they_are() {
    let limiter = Limiter::new(Scripted::far(Duration::from_millis(1)));
    let ip = RateLimitLayer::new(limiter).limit(policy("ip", "1/1d"), everybody());
    assert_eq!(ask(ip.clone()).await.status(), StatusCode::OK);
    let both = ip.clone().charge_async(|_| async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        Charge::new(&policy("team", "9/1d"), Key::new("team", "a"), 1)
    });
    for _ in 0..6 {
        assert_eq!(
            ask(both.clone()).await.status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        assert_eq!(
            ask(ip.clone()).await.status(),
            StatusCode::TOO_MANY_REQUESTS
        );
    }
}

// Headers

#[tokio::test]
async fn each_rule_has_an_item_of_the_same_name_in_both_fields() {
    let layer = RateLimitLayer::new(Scripted::allowing())
        .limit(
            policy("ip", "10/100ms,20/1500ms,100/1d,100/1d@fixed"),
            everybody(),
        )
        .limit(policy("user", "9007199254740991/1m"), everybody());
    let response = ask(layer).await;
    assert_eq!(
        lines(response.headers(), "ratelimit-policy"),
        [
            r#""ip/100ms";q=10, "ip/1500ms";q=20;w=2, "ip/1d";q=100;w=86400, "ip/1d@fixed";q=100;w=86400, "user";q=999999999999999;w=60"#
        ]
    );
    assert_eq!(
        lines(response.headers(), "ratelimit"),
        [
            r#""ip/100ms";r=9;t=1, "ip/1500ms";r=19;t=2, "ip/1d";r=99;t=86400, "ip/1d@fixed";r=99, "user";r=999999999999999;t=60"#
        ]
    );
}

/// Denies rules with a limit of 1 for 7 s, those with a limit of 2 for 3 s, and no others.
fn denying_some() -> Arc<Scripted> {
    Scripted::new(|check| {
        let decision = decide(check, false, |_, limit| {
            let used = if limit < 3 { limit } else { 1 };
            count(used, NOW_MS + if limit == 1 { 7_000 } else { 3_000 })
        });
        StoreFuture::ready(decision)
    })
}

#[tokio::test]
async fn a_rejection_names_only_the_rules_that_deny() {
    let layer = RateLimitLayer::new(denying_some())
        .limit(policy("ip", "2/1s,1/1m,100/1d"), everybody())
        .limit(policy("user", "100/1h"), everybody());
    let response = ask(layer).await;
    assert_eq!(
        lines(response.headers(), "ratelimit"),
        [r#""ip/1s";r=0;t=3, "ip/1m";r=0;t=7"#]
    );
    assert_eq!(lines(response.headers(), "retry-after"), ["7"]);
    let problem: serde_json::Value = serde_json::from_str(response.body()).unwrap();
    assert_eq!(
        problem["violated-policies"],
        serde_json::json!(["ip/1s", "ip/1m"])
    );
}

#[tokio::test]
async fn of_several_keys_under_one_policy_the_tightest_is_told() {
    let store = Scripted::new(|check| {
        let mut used = 0;
        let counts: Vec<Count> = check
            .charges()
            .iter()
            .map(|_| {
                used += 2;
                count(used, 0)
            })
            .collect();
        StoreFuture::ready(Decision::new(check, true, NOW_MS, &counts))
    });
    let p = policy("net", "10/1m");
    let layer = RateLimitLayer::new(store)
        .limit(p.clone(), Key::new("ip", "a"))
        .limit(p, Key::new("ip", "b"));
    let response = ask(layer).await;
    assert_eq!(
        lines(response.headers(), "ratelimit"),
        [r#""net";r=6;t=60"#]
    );
    assert_eq!(
        lines(response.headers(), "ratelimit-policy"),
        [r#""net";q=10;w=60"#]
    );
}

#[tokio::test]
async fn legacy_headers_tell_of_the_rule_with_the_smallest_share_left() {
    let limited = |store| {
        RateLimitLayer::new(store)
            .limit(policy("ip", "100/1m,2/1h"), everybody())
            .headers(HeaderStyle::X_RATE_LIMIT)
    };
    let response = ask(limited(Scripted::allowing())).await;
    for (name, value) in [("limit", "2"), ("remaining", "1"), ("reset", "3600")] {
        assert_eq!(
            lines(response.headers(), &format!("x-ratelimit-{name}")),
            [value]
        );
    }
    assert!(!response.headers().contains_key("ratelimit"));

    let response = ask(limited(denying_some())).await;
    for (name, value) in [("limit", "2"), ("remaining", "0"), ("reset", "3")] {
        assert_eq!(
            lines(response.headers(), &format!("x-ratelimit-{name}")),
            [value]
        );
    }
    assert_eq!(lines(response.headers(), "retry-after"), ["3"]);
}

#[tokio::test]
async fn an_epoch_reset_is_a_time_of_the_services_clock() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let style = HeaderStyle::X_RATE_LIMIT_EPOCH;
    for (store, after) in [
        (Scripted::allowing(), 60),
        (Scripted::denying_for(3_000), 3),
    ] {
        let before = now().as_secs();
        let response = ask(layer(store).headers(style)).await;
        let reset = lines(response.headers(), "x-ratelimit-reset")[0];
        let reset: u64 = reset.parse().unwrap();
        assert!((before + after..=now().as_secs() + after + 1).contains(&reset));
    }
}

#[tokio::test]
async fn headers_may_be_kept_for_rejections() {
    let style = HeaderStyle::DRAFT_11.only_on_denial();
    let response = ask(layer(Scripted::allowing()).headers(style)).await;
    assert!(response.headers().is_empty());
    let response = ask(layer(Scripted::denying_for(1)).headers(style)).await;
    assert!(response.headers().contains_key("ratelimit"));
}

#[tokio::test]
async fn headers_may_be_kept_for_when_little_is_left() {
    for (cost, told) in [(7, false), (8, false), (9, true), (10, true)] {
        let style = HeaderStyle::DRAFT_11.only_below(20);
        let limited = layer(Scripted::allowing()).cost(move |_, _| cost);
        let response = ask(limited.headers(style)).await;
        assert_eq!(response.headers().contains_key("ratelimit"), told, "{cost}");
    }
}

#[tokio::test]
async fn every_header_that_can_be_sent_is_among_those_to_expose() {
    let all = HeaderStyle::DRAFT_11.and(HeaderStyle::X_RATE_LIMIT);
    let all = all.and(HeaderStyle::DRAFT_6);
    let all = all.and(HeaderStyle::X_RATE_LIMIT_BY_UNIT);
    let all = all.and(HeaderStyle::RETRY_AFTER_MS);
    let limited = layer(Scripted::denying_for(1))
        .limit(policy("tokens", "9/1m").unit(Unit::TOKENS), everybody())
        .rejection(StatusOnly);
    let response = ask(limited.headers(all)).await;
    let sent = response
        .headers()
        .keys()
        .filter(|it| *it != "cache-control");
    let sent: HashSet<_> = sent.collect();
    assert_eq!(sent, EXPOSED_HEADERS.iter().collect());
}

#[tokio::test]
async fn jitter_only_ever_adds_and_is_bounded() {
    let most = Duration::from_secs(3);
    let mut told = HashSet::new();
    for _ in 0..200 {
        let response = ask(layer(Scripted::denying_for(1_000)).jitter(most)).await;
        let retry_after: u64 = lines(response.headers(), "retry-after")[0].parse().unwrap();
        let item = format!(r#""all";r=0;t={retry_after}"#);
        assert_eq!(lines(response.headers(), "ratelimit"), [item]);
        let Decision::Denied(denial) = decision(&response, "all") else {
            panic!("not denied");
        };
        assert_eq!(denial.retry_after(), Some(Duration::from_secs(1)));
        told.insert(retry_after);
    }
    // One second means no jitter, in one case of three thousand.
    told.insert(1);
    assert_eq!(told, HashSet::from([1, 2, 3, 4]));

    let response = ask(layer(Scripted::allowing()).jitter(Duration::MAX)).await;
    assert!(!response.headers().contains_key("retry-after"));
    let never = layer(Scripted::allowing()).cost(|_, _| 0).jitter(most);
    let response = ask(never).await;
    assert_eq!(lines(response.headers(), "ratelimit"), [r#""all";r=10"#]);
}

#[tokio::test]
async fn without_quota_headers_a_rejection_still_says_when_to_come_back() {
    let response = ask(layer(Scripted::allowing()).headers(HeaderStyle::NONE)).await;
    assert!(response.headers().is_empty());
    let response = ask(layer(Scripted::denying_for(1)).headers(HeaderStyle::NONE)).await;
    assert!(!response.headers().contains_key("ratelimit"));
    assert_eq!(lines(response.headers(), "retry-after"), ["1"]);
}

// Rejections

#[tokio::test]
async fn a_users_rejection_cannot_lose_the_headers() {
    let make = |rejection: &Rejection, head: &Parts| {
        let mut response = Response::new(format!("{} is too busy", head.uri.path()));
        *response.status_mut() = rejection.status();
        for name in [header::RETRY_AFTER, header::CACHE_CONTROL] {
            response
                .headers_mut()
                .insert(name, HeaderValue::from_static("never"));
        }
        response
    };
    let response = ask(layer(Scripted::denying_for(1_000)).rejection(make)).await;
    assert_eq!(response.body(), "/ is too busy");
    assert_eq!(lines(response.headers(), "retry-after"), ["1"]);
    assert_eq!(lines(response.headers(), "cache-control"), ["no-store"]);
    assert_eq!(lines(response.headers(), "ratelimit"), [r#""all";r=0;t=1"#]);
    assert!(response.extensions().get::<Rejection>().is_some());

    let never = layer(Scripted::denying_for(1_000)).cost(|_, _| 11);
    let response = ask(never.rejection(make)).await;
    assert!(!response.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn a_rejection_has_the_body_type_of_the_inner_service() {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(7_u64)));
    let empty = layer(Scripted::denying_for(1))
        .rejection(StatusOnly)
        .layer(inner);
    let response = empty.oneshot(Request::new(())).await.unwrap();
    assert_eq!((response.status().as_u16(), *response.body()), (429, 0));

    let make = |_: &Rejection, _: &Parts| Response::new(42);
    let made = layer(Scripted::denying_for(1)).rejection(make).layer(inner);
    assert_eq!(*made.oneshot(Request::new(())).await.unwrap().body(), 42);
}

// Several layers

// Types

#[test]
fn public_types_are_send_and_sync() {
    fn send<T: Send>() {}
    fn send_and_sync<T: Clone + Send + Sync>() {}
    type Inner = tower::util::BoxCloneSyncService<Request<String>, Response<String>, Infallible>;

    send_and_sync::<RateLimitLayer>();
    send_and_sync::<RateLimitLayer<StatusOnly>>();
    send_and_sync::<RateLimit<Inner>>();
    send_and_sync::<Rejection>();
    send_and_sync::<HeaderStyle>();
    send::<ResponseFuture<Inner, String, StatusOnly>>();
}

#[tokio::test]
async fn debug_output_names_policies_and_no_identity() {
    let layer = layer(Scripted::allowing()).limit(policy("b", "1/1s"), Key::new("user", "alice"));
    assert!(format!("{layer:?}").contains("Policy(b: 1/1s)"));
    let mut service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let future = service.ready().await.unwrap().call(Request::new(()));
    assert!(format!("{future:?}").contains("serving"));
    assert!(!format!("{layer:?}{future:?}").contains("alice"));
}

#[tokio::test]
async fn a_request_is_passed_on_in_the_call_where_the_store_answers_at_once() {
    for is_admitted in [true, false] {
        let called = Arc::new(AtomicBool::new(false));
        let store = if is_admitted {
            Scripted::allowing()
        } else {
            Scripted::denying_for(1_000)
        };
        let mut service = layer(store).layer(service_fn({
            let called = called.clone();
            move |_: Request<String>| {
                called.store(true, SeqCst);
                async { Ok::<_, Infallible>(Response::new(String::new())) }
            }
        }));
        let response = service
            .ready()
            .await
            .unwrap()
            .call(Request::new(String::new()));
        assert_eq!(called.load(SeqCst), is_admitted, "before the first poll");
        assert_eq!(
            response.await.unwrap().status() == StatusCode::OK,
            is_admitted
        );
    }
}
