//! The middleware's answers in headers, body and extensions, for all results of the store and the extractors.

use http::header;
use sluicegate::{
    decision::Count,
    extract::FromExtension,
    middleware::{ReadBodyLayer, ResponseFuture},
};
use std::{
    collections::HashSet,
    time::{SystemTime, UNIX_EPOCH},
};
use support::scripted::{NOW_MS, count, decide};

use crate::prelude::*;

fn layer(limiter: impl Into<Limiter>) -> RateLimitLayer {
    support::layer(limiter).limit(policy("all", "10/1m"), everybody())
}

fn denying(ms: u64) -> RateLimitLayer {
    layer(Scripted::denying_for(ms))
}

/// A layer with this limit over a store that allows everything.
fn allowing(name: &str, rules: &str) -> RateLimitLayer {
    support::layer(Scripted::allowing()).limit(policy(name, rules), everybody())
}

// Decisions and requests

answers! { whole;
    an_allowed_request_is_served_with_its_quota: layer(Scripted::allowing()) =>
        r#"200 | ratelimit: "all";r=9;t=60 | ratelimit-policy: "all";q=10;w=60 | hello"#;
    a_rejected_request_is_told_when_to_come_back: denying(1_001) =>
        r#"429 Denied | cache-control: no-store | content-type: application/problem+json | ratelimit: "all";r=0;t=2 | ratelimit-policy: "all";q=10;w=60 | retry-after: 2 | {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["all"]}"#;
    a_rejection_names_only_the_rules_that_deny:
        support::layer(denying_some()).limit(policy("ip", "2/1s,1/1m,100/1d"), everybody()).limit(policy("user", "100/1h"), everybody()) =>
        r#"429 Denied | cache-control: no-store | content-type: application/problem+json | ratelimit: "ip/1s";r=0;t=3, "ip/1m";r=0;t=7 | ratelimit-policy: "ip/1s";q=2;w=1, "ip/1m";q=1;w=60, "ip/1d";q=100;w=86400, "user";q=100;w=3600 | retry-after: 7 | {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["ip/1s", "ip/1m"]}"#;
    a_rejection_of_a_head_request_has_no_body [Request::head("/").body(String::new()).unwrap()]: denying(1) =>
        r#"429 Denied | cache-control: no-store | content-length: 139 | content-type: application/problem+json | ratelimit: "all";r=0;t=1 | ratelimit-policy: "all";q=10;w=60 | retry-after: 1"#;
    a_request_without_identity_is_rejected:
        layer(Scripted::allowing()).limit(policy("client", "1/1s"), Header::new("x-api-key")) => r#"400 MissingKey | cache-control: no-store | content-type: application/problem+json | {"type":"about:blank","title":"Bad Request","status":400,"detail":"the header that identifies the client is absent or empty: `x-api-key`"}"#;
    a_store_that_fails_is_passed_by_without_headers: layer(Scripted::failing()) => "200 | hello";
    a_store_that_fails_rejects_when_the_policy_is_closed: layer(closed(Scripted::failing())) =>
        r#"503 Undecided | cache-control: no-store | content-type: application/problem+json | retry-after: 1 | {"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporary Reduced Capacity","status":503}"#;
}

#[tokio::test]
async fn the_decision_is_in_the_extensions_of_the_request_and_where_asked_for_of_the_response() {
    for in_response in [false, true] {
        let seen = Arc::new(Mutex::new(None));
        let log = seen.clone();
        let inner = answering(move |request| {
            *log.lock().unwrap() = request.extensions().get::<Decisions>().cloned();
            Response::new(String::new())
        });
        let mut layer = layer(Scripted::allowing());
        if in_response {
            layer = layer.decisions_in_response();
        }
        let response = layer.layer(inner).oneshot(to("/")).await.unwrap();
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
    let denied = ask(&denying(1)).await;
    assert!(!decisions(&denied).by_policy("all").unwrap().is_allowed());
}

// Charges

#[tokio::test]
async fn all_limits_are_charged_in_one_check() {
    let store = Scripted::allowing();
    let layer = layer(store.clone())
        .limit(policy("client", "2/1s"), Header::new("x-api-key"))
        .limit(policy("team", "5/1s"), Key::new("team", "a"))
        .cost(|head, policy| head.uri.path().len() as u64 + policy.name().len() as u64);
    send(&layer, with(&[("x-api-key", "a")])).await;
    let expected = ["all service 4", "client header 7", "team team 5"];
    assert_eq!(store.only_check(), expected);
}

#[tokio::test]
async fn a_request_that_no_limit_applies_to_asks_no_store_and_gets_no_headers() {
    let store = Scripted::failing();
    let skipping = support::layer(closed(store.clone()))
        .limit(policy("client", "1/1s"), Header::new("x-api-key").or_skip())
        .charge_async(|_| async { Vec::new() });
    for layer in [support::layer(store.clone()), skipping] {
        let response = ask(&layer).await;
        assert_eq!(whole(&response), "200 | hello");
        assert!(response.extensions().is_empty());
    }
    assert!(store.checks().is_empty());
    let passed = ask(&layer(store)).await;
    assert!(passed.extensions().is_empty(), "the store failed");
}

#[tokio::test]
async fn a_cost_of_zero_looks_without_charging() {
    let store = Scripted::allowing();
    let response = ask(&layer(store.clone()).cost(|_, _| 0)).await;
    assert_eq!(store.only_check(), ["all service 0"]);
    assert_eq!(field(response.headers(), "ratelimit"), r#""all";r=10"#);
}

#[tokio::test]
async fn requests_without_a_key_or_with_too_many_are_rejected_before_the_store_is_asked() {
    let store = Scripted::allowing();
    let keys = |_: &Parts| Keys::from_iter((0..100).map(|n| Key::new("n", n.to_string())));
    let many = support::layer(store.clone()).limit(policy("p", "1/1s"), keys);
    let absent = layer(store.clone()).limit(policy("client", "1/1s"), Header::new("x-api-key"));
    assert_eq!(ask(&absent).await.status(), 400);
    assert_eq!(ask(&many).await.status(), 500, "though open");
    assert!(store.checks().is_empty());
}

/// axum makes new services for each connection, and, for a router without a state, for each request.
#[test]
fn a_layer_makes_services_without_allocating() {
    let layer = layer(Scripted::allowing());
    let made = allocation_counter::measure(|| drop(layer.clone().layer(())));
    assert_eq!(made.count_total, 0);
}

panics! {
    two_policies_of_one_name_are_an_error_when_built: layer(Scripted::allowing()).limit(policy("all", "11/1m"), everybody()) => "same name and differ: Policy(all: 10/1m), Policy(all: 11/1m)";
    a_timeout_of_zero_is_an_error_when_built: support::limiter(Scripted::allowing()).timeout(Duration::ZERO) => "a timeout of zero leaves no time to decide";
    no_replica_at_all_is_an_error_when_built: support::limiter(Scripted::allowing()).replicas(0) => "`replicas` must be at least 1";
}

// Time

#[tokio::test(start_paused = true)]
async fn the_store_and_look_ups_have_a_deadline_each() {
    let looking_up = |ms| {
        layer(closed(Scripted::silent())).charge_async(move |_: &Parts| async move {
            sleep(Duration::from_millis(ms)).await;
            Charge::new(&policy("team", "1/1s"), Key::new("team", "a"), 1)
        })
    };
    let silent = || support::limiter(Scripted::silent());
    for (layer, status, waits_ms) in [
        (layer(silent()), 200, 100),
        (
            layer(silent().timeout(Duration::from_millis(250))),
            200,
            250,
        ),
        (looking_up(60), 503, 160),
        (looking_up(100_000), 503, 1_000),
    ] {
        let start = Instant::now();
        assert_eq!(ask(&layer).await.status(), status, "{waits_ms}");
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
    ask(&support::layer(Scripted::allowing()).limit(selector, extractor)).await;
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
    let layer = support::layer(Scripted::allowing()).limit(choose, everybody());
    assert_eq!(ask(&layer).await.status(), 400);
    assert_eq!(count.load(SeqCst), 1);
}

#[tokio::test]
async fn a_route_that_is_skipped_needs_no_key() {
    let routes = Routes::new(policy("api", "5/1s")).route("/health", Route::skip());
    let layer = support::layer(Scripted::allowing()).limit(routes, Header::new("x-api-key"));
    assert_eq!(send(&layer, to("/health")).await.status(), 200);
    assert_eq!(send(&layer, to("/")).await.status(), 400);
}

// Headers

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

/// Of each further key, two more units are used.
fn using_more_and_more() -> Arc<Scripted> {
    Scripted::new(|check| {
        let keys = 1..=check.charges().len() as u64;
        let counts: Vec<Count> = keys.map(|key| count(2 * key, 0)).collect();
        StoreFuture::ready(Decision::new(check, true, NOW_MS, &counts))
    })
}

fn legacy(store: Arc<Scripted>) -> RateLimitLayer {
    support::layer(store)
        .limit(policy("ip", "100/1m,2/1h"), everybody())
        .headers(HeaderStyle::X_RATE_LIMIT)
}

/// The headers of a request that costs this much of 10 units, if they are kept for when less than a fifth is left.
fn below(cost: u64) -> RateLimitLayer {
    let layer = layer(Scripted::allowing()).cost(move |_, _| cost);
    layer.headers(HeaderStyle::DRAFT_11.only_below(20))
}

/// Draft 6 with another style, over two rules.
fn draft_6(store: Arc<Scripted>, and: HeaderStyle) -> RateLimitLayer {
    support::layer(store)
        .limit(policy("ip", "10/1m,100/1h"), everybody())
        .headers(HeaderStyle::DRAFT_6.and(and))
}

answers! { told;
    each_rule_has_an_item_of_the_same_name_in_both_fields:
        allowing("ip", "10/100ms,20/1500ms,100/1d,100/1d@fixed").limit(policy("user", "9007199254740991/1m"), everybody()) =>
        r#"200 | ratelimit: "ip/100ms";r=9;t=1, "ip/1500ms";r=19;t=2, "ip/1d";r=99;t=86400, "ip/1d@fixed";r=99, "user";r=999999999999999;t=60 | ratelimit-policy: "ip/100ms";q=10, "ip/1500ms";q=20;w=2, "ip/1d";q=100;w=86400, "ip/1d@fixed";q=100;w=86400, "user";q=999999999999999;w=60"#;
    of_several_keys_under_one_policy_the_tightest_is_told:
        support::layer(using_more_and_more())
            .limit(policy("net", "10/1m"), Key::new("ip", "a")).limit(policy("net", "10/1m"), Key::new("ip", "b")) =>
        r#"200 | ratelimit: "net";r=6;t=60 | ratelimit-policy: "net";q=10;w=60"#;
    legacy_headers_tell_of_the_rule_with_the_smallest_share_left: legacy(Scripted::allowing()) =>
        "200 | x-ratelimit-limit: 2 | x-ratelimit-remaining: 1 | x-ratelimit-reset: 3600";
    legacy_headers_of_a_denial_tell_of_the_rule_that_denies: legacy(denying_some()) =>
        "429 Denied | retry-after: 3 | x-ratelimit-limit: 2 | x-ratelimit-remaining: 0 | x-ratelimit-reset: 3";
    draft_6_has_fields_of_its_own: draft_6(Scripted::allowing(), HeaderStyle::NONE) =>
        "200 | ratelimit-limit: 10 | ratelimit-remaining: 9 | ratelimit-reset: 60";
    draft_6_leaves_the_fields_of_draft_11: draft_6(Scripted::allowing(), HeaderStyle::DRAFT_11) =>
        r#"200 | ratelimit: "ip/1m";r=9;t=60, "ip/1h";r=99;t=3600 | ratelimit-limit: 10 | ratelimit-policy: "ip/1m";q=10;w=60, "ip/1h";q=100;w=3600 | ratelimit-remaining: 9 | ratelimit-reset: 60"#;
    a_denial_is_told_in_draft_6_too: draft_6(Scripted::denying_for(6_500), HeaderStyle::NONE) =>
        "429 Denied | ratelimit-limit: 10 | ratelimit-remaining: 0 | ratelimit-reset: 7 | retry-after: 7";
    a_cost_that_never_fits_has_no_reset_in_draft_6: limit("ip", "10/100ms").cost(|_, _| 11).headers(HeaderStyle::DRAFT_6) =>
        "413 Denied | ratelimit-limit: 10 | ratelimit-remaining: 10";
    headers_kept_for_rejections_are_on_no_other: layer(Scripted::allowing()).headers(HeaderStyle::DRAFT_11.only_on_denial()) => "200";
    headers_kept_for_rejections_are_on_those: denying(1).headers(HeaderStyle::DRAFT_11.only_on_denial()) =>
        r#"429 Denied | ratelimit: "all";r=0;t=1 | ratelimit-policy: "all";q=10;w=60 | retry-after: 1"#;
    headers_kept_for_when_little_is_left_are_not_sent_at_3_of_10: below(7) => "200";
    headers_kept_for_when_little_is_left_are_not_sent_at_2_of_10: below(8) => "200";
    headers_kept_for_when_little_is_left_are_sent_at_1_of_10: below(9) => r#"200 | ratelimit: "all";r=1;t=60 | ratelimit-policy: "all";q=10;w=60"#;
    headers_kept_for_when_little_is_left_are_sent_at_0_of_10: below(10) => r#"200 | ratelimit: "all";r=0;t=60 | ratelimit-policy: "all";q=10;w=60"#;
    without_quota_headers_a_response_has_none: layer(Scripted::allowing()).headers(HeaderStyle::NONE) => "200";
    without_quota_headers_a_rejection_still_says_when_to_come_back: denying(1).headers(HeaderStyle::NONE) => "429 Denied | retry-after: 1";
    no_jitter_is_added_to_a_look: layer(Scripted::allowing()).cost(|_, _| 0).jitter(Duration::from_secs(3)) => r#"200 | ratelimit: "all";r=10 | ratelimit-policy: "all";q=10;w=60"#;
}

#[tokio::test]
async fn an_epoch_reset_is_a_time_of_the_services_clock() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let style = HeaderStyle::X_RATE_LIMIT_EPOCH;
    for (layer, after) in [(layer(Scripted::allowing()), 60), (denying(3_000), 3)] {
        let before = now().as_secs();
        let response = ask(&layer.headers(style)).await;
        let reset = field(response.headers(), "x-ratelimit-reset");
        let reset: u64 = reset.parse().unwrap();
        assert!((before + after..=now().as_secs() + after + 1).contains(&reset));
    }
}

#[tokio::test]
async fn every_header_that_can_be_sent_is_among_those_to_expose() {
    let limited = denying(1)
        .limit(policy("tokens", "9/1m").unit(Unit::TOKENS), everybody())
        .rejection(StatusOnly);
    let call = || {
        let mut call = with(&[("content-type", "application/grpc")]);
        *call.method_mut() = Method::POST;
        call
    };
    let token = BearerToken.or_unauthorized(HeaderValue::from_static("Bearer"));
    let unknown = empty().limit(policy("api", "9/1d"), token);
    let limited = limited.headers(all_styles());
    let reader = Router::new()
        .route("/", any(async || "hello"))
        .layer(ReadBodyLayer::json::<serde_json::Value>(64));
    let coded = Request::post("/").header("content-encoding", "gzip");
    let refused = reader.oneshot(coded.body(Body::from("{}")).unwrap()).await;
    let refused = refused.unwrap();
    assert_eq!(refused.status(), 415);
    let mut sent: HashSet<_> = refused.headers().keys().cloned().collect();
    for response in [
        ask(&limited).await,
        send(&limited, call()).await,
        ask(&unknown.rejection(StatusOnly)).await,
    ] {
        sent.extend(response.headers().keys().cloned());
    }
    #[cfg(not(feature = "tonic"))]
    sent.insert(HeaderName::from_static("grpc-status-details-bin"));
    // Pages of other origins may read these anyway.
    let safe = ["cache-control", "content-length", "content-type"];
    sent.retain(|it| !safe.contains(&it.as_str()));
    assert_eq!(sent, EXPOSED_HEADERS.into_iter().collect());
}

#[tokio::test]
async fn jitter_only_ever_adds_and_is_bounded() {
    let mut told = HashSet::new();
    for _ in 0..200 {
        let response = ask(&denying(1_000).jitter(Duration::from_secs(3))).await;
        let retry_after: u64 = field(response.headers(), "retry-after").parse().unwrap();
        let item = format!(r#""all";r=0;t={retry_after}"#);
        assert_eq!(field(response.headers(), "ratelimit"), item);
        let Decision::Denied(denial) = decisions(&response).by_policy("all").unwrap() else {
            panic!("not denied");
        };
        assert_eq!(denial.retry_after(), Some(Duration::from_secs(1)));
        told.insert(retry_after);
    }
    // One second means no jitter, in one case of three thousand.
    told.insert(1);
    assert_eq!(told, HashSet::from([1, 2, 3, 4]));
    let allowed = ask(&layer(Scripted::allowing()).jitter(Duration::MAX)).await;
    assert!(!allowed.headers().contains_key("retry-after"));
}

// Rejections

fn too_busy(rejection: &Rejection, head: &Parts) -> Response<String> {
    let mut response = Response::new(format!("{} is too busy", head.uri.path()));
    *response.status_mut() = rejection.status();
    for name in [header::RETRY_AFTER, header::CACHE_CONTROL] {
        let never = HeaderValue::from_static("never");
        response.headers_mut().insert(name, never);
    }
    response
}

answers! { whole;
    a_users_rejection_cannot_lose_the_headers: denying(1_000).rejection(too_busy) =>
        r#"429 Denied | cache-control: no-store | ratelimit: "all";r=0;t=1 | ratelimit-policy: "all";q=10;w=60 | retry-after: 1 | / is too busy"#;
    a_users_rejection_of_what_never_fits_names_no_time: denying(1_000).cost(|_, _| 11).rejection(too_busy) =>
        r#"413 Denied | cache-control: no-store | ratelimit: "all";r=0 | ratelimit-policy: "all";q=10;w=60 | / is too busy"#;
}

#[tokio::test]
async fn a_rejection_has_the_body_type_of_the_inner_service() {
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(7_u64)));
    let empty = denying(1).rejection(StatusOnly).layer(inner);
    let response = empty.oneshot(Request::new(())).await.unwrap();
    assert_eq!((response.status().as_u16(), *response.body()), (429, 0));

    let make = |_: &Rejection, _: &Parts| Response::new(42);
    let made = denying(1).rejection(make).layer(inner);
    assert_eq!(*made.oneshot(Request::new(())).await.unwrap().body(), 42);
}

// Types

#[test]
fn public_types_are_send_and_sync() {
    fn send<T: Send>() {}
    fn shared<T: Send + Sync>() {}
    fn send_and_sync<T: Clone + Send + Sync>() {}
    send_and_sync::<RateLimitLayer>();
    send_and_sync::<RateLimitLayer<StatusOnly>>();
    send_and_sync::<RateLimit<Inner>>();
    send_and_sync::<Rejection>();
    send_and_sync::<HeaderStyle>();
    send_and_sync::<(PeerIp, Header, Cookie, ForwardedIp, TrustedProxies, Keys)>();
    shared::<FromExtension<String>>();
    send::<ResponseFuture<Inner, String, StatusOnly>>();
}

#[tokio::test]
async fn debug_output_names_policies_and_no_identity() {
    let layer = layer(Scripted::allowing()).limit(policy("b", "1/1s"), Key::new("user", "alice"));
    assert!(format!("{layer:?}").contains("Policy(b: 1/1s)"));
    let mut service = layer.layer(hello());
    let future = service.ready().await.unwrap().call(to("/"));
    assert!(format!("{future:?}").contains("serving"));
    assert!(!format!("{layer:?}{future:?}").contains("alice"));
}

#[tokio::test]
async fn a_request_is_passed_on_in_the_call_where_the_store_answers_at_once() {
    for (layer, is_admitted) in [(layer(Scripted::allowing()), true), (denying(1), false)] {
        let called = Arc::new(AtomicBool::new(false));
        let note = called.clone();
        let mut service = layer.layer(answering(move |_| {
            note.store(true, SeqCst);
            Response::new(String::new())
        }));
        let response = service.ready().await.unwrap().call(to("/"));
        assert_eq!(called.load(SeqCst), is_admitted, "before the first poll");
        assert_eq!(response.await.unwrap().status() == 200, is_admitted);
        assert_eq!(called.load(SeqCst), is_admitted, "nor after it");
    }
}
