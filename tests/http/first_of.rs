//! The first of several limits that has room, in a layer.

use std::{convert::Infallible, time::Duration};

use axum::body::Body;
use http::{HeaderMap, Request, Response, StatusCode, request::Parts};
use http_body_util::BodyExt;
use sluicegate::{
    Charge, FailurePolicy, Header, Key, KeyExtractor, Limiter, MemoryStore, Policy, RateLimitLayer,
    error::ExtractError,
    extract::Keys,
    manual_clock::ManualClock,
    middleware::{CostMeter, Decisions, HeaderStyle, IntoPolicySelector, Rejection, Route, Routes},
};
use support::{
    first_of::{names, used, user},
    trace::traced,
};
use tower::{Layer, ServiceExt, service_fn};

/// The middle of a month, and of a step of any rule here.
const NOW_MS: u64 = 1_804_500_000_000;

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

fn limiter() -> Limiter {
    Limiter::new(MemoryStore::new().clock(ManualClock::new(NOW_MS)))
}

/// Both are of the user in `x-user`.
fn plan_and_credits(plan: &str, credits: &str) -> [(Policy, Header); 2] {
    let user = || Header::new("x-user");
    [
        (policy("plan", plan), user()),
        (policy("credits", credits), user()),
    ]
}

fn request() -> Request<()> {
    Request::get("/")
        .header("x-user", "alice")
        .body(())
        .unwrap()
}

async fn get(layer: &RateLimitLayer) -> Response<String> {
    send(layer, request()).await
}

async fn send(layer: &RateLimitLayer, request: Request<()>) -> Response<String> {
    let service =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let layer = layer.clone().decisions_in_response();
    layer.layer(service).oneshot(request).await.unwrap()
}

/// The names of the policies that were charged, or that deny.
fn charged(response: &Response<String>) -> Vec<String> {
    let decisions: &Decisions = response.extensions().get().unwrap();
    let names = names(decisions.iter().next().unwrap()).into_iter();
    names.map(str::to_owned).collect()
}

fn field<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers
        .get(name)
        .map_or("-", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn the_fields_show_the_alternative_that_was_charged_and_promise_no_reset_of_a_stock() {
    let all = HeaderStyle::DRAFT_11
        .and(HeaderStyle::DRAFT_6)
        .and(HeaderStyle::X_RATE_LIMIT_EPOCH)
        .and(HeaderStyle::X_RATE_LIMIT_BY_UNIT)
        .and(HeaderStyle::RETRY_AFTER_MS);
    let layer = RateLimitLayer::new(limiter())
        .limit_first_of(plan_and_credits("1/1h@fixed", "1/36500d@fixed"))
        .headers(all);
    let plan = get(&layer).await;
    assert_eq!(charged(&plan), ["plan"]);
    let headers = plan.headers();
    assert_eq!(field(headers, "ratelimit-policy"), r#""plan";q=1;w=3600"#);
    assert!(field(headers, "ratelimit").starts_with(r#""plan";r=0;t="#));

    let credits = get(&layer).await;
    assert_eq!(charged(&credits), ["credits"]);
    let headers = credits.headers();
    assert_eq!(field(headers, "ratelimit-policy"), r#""credits";q=1"#);
    assert_eq!(field(headers, "ratelimit"), r#""credits";r=0"#);
    assert_eq!(field(headers, "ratelimit-remaining"), "0");
    for reset in [
        "ratelimit-reset",
        "x-ratelimit-reset",
        "x-ratelimit-reset-requests",
    ] {
        assert_eq!(field(headers, reset), "-", "{reset}");
    }

    // The plan is free first.
    let denied = get(&layer).await;
    assert_eq!(
        (denied.status().as_u16(), charged(&denied)),
        (429, vec!["plan".to_owned()])
    );
    let headers = denied.headers();
    assert!(field(headers, "ratelimit").starts_with(r#""plan";r=0;t="#));
    let wait: u64 = field(headers, "retry-after").parse().unwrap();
    assert!((1..=3_600).contains(&wait));
    assert_eq!(field(headers, "x-ratelimit-reset-requests").len(), 6);

    // Without a plan, nothing is promised.
    let layer = RateLimitLayer::new(limiter())
        .limit(policy("credits", "0/36500d@fixed,1/36500d"), user("alice"))
        .headers(all);
    let denied = get(&layer).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    let full = RateLimitLayer::new(limiter())
        .limit(policy("credits", "1/36500d@fixed"), user("alice"))
        .headers(all);
    get(&full).await;
    let denied = get(&full).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    for name in [
        "retry-after",
        "retry-after-ms",
        "ratelimit-reset",
        "x-ratelimit-reset",
    ] {
        assert_eq!(field(denied.headers(), name), "-", "{name}");
    }
    assert_eq!(field(denied.headers(), "ratelimit"), r#""credits";r=0"#);
}

#[tokio::test]
async fn other_limits_of_the_layer_are_part_of_each_try() {
    let limiter = limiter();
    let api = policy("api", "3/1h");
    let layer = RateLimitLayer::new(limiter.clone())
        .limit(api.clone(), user("alice"))
        .limit_first_of(plan_and_credits("1/1h", "9/1h"));
    let mut seen = Vec::new();
    for _ in 0..4 {
        let response = get(&layer).await;
        seen.push((response.status().as_u16(), charged(&response).join("+")));
    }
    let expected = [
        (200, "api+plan"),
        (200, "api+credits"),
        (200, "api+credits"),
        // The other limit denies, with either.
        (429, "api+plan"),
    ];
    assert_eq!(
        seen,
        expected.map(|(status, names)| (status, names.to_owned()))
    );
    assert_eq!(used(&limiter, &api, &user("alice")).await, 3);
    let key = Header::new("x-user").key("alice");
    assert_eq!(used(&limiter, &policy("credits", "9/1h"), &key).await, 2);
}

#[tokio::test]
async fn a_client_that_pays_by_credits_waits_for_a_rate_and_not_for_its_plan() {
    let layer = RateLimitLayer::new(limiter())
        .limit(policy("rate", "2/1s@exact"), user("alice"))
        .limit_first_of(plan_and_credits("1/30d@exact", "9/36500d@fixed"));
    assert_eq!(charged(&get(&layer).await), ["rate", "plan"]);
    assert_eq!(charged(&get(&layer).await), ["rate", "credits"]);
    let denied = get(&layer).await;
    assert_eq!(charged(&denied), ["rate", "credits"]);
    assert_eq!(field(denied.headers(), "retry-after"), "2");
    assert_eq!(field(denied.headers(), "ratelimit"), r#""rate";r=0;t=2"#);
}

#[tokio::test]
async fn a_route_that_all_alternatives_skip_needs_no_key() {
    let skipping = |name| Routes::new(policy(name, "0/1h")).route("/health", Route::skip());
    let key = || Header::new("x-missing");
    let layer = RateLimitLayer::new(limiter())
        .limit_first_of([(skipping("plan"), key()), (skipping("credits"), key())]);
    let health = Request::get("/health").body(()).unwrap();
    let service =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let response = layer.layer(service).oneshot(health).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(get(&layer).await.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn several_choices_are_made_one_by_one() {
    let near_and_far = [
        (policy("near", "1/1h"), user("alice")),
        (policy("far", "9/1h"), user("alice")),
    ];
    let layer = RateLimitLayer::new(limiter())
        .limit_first_of(plan_and_credits("2/1h", "9/1h"))
        .limit_first_of(near_and_far);
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(charged(&get(&layer).await).join("+"));
    }
    assert_eq!(seen, ["plan+near", "plan+far", "credits+far"]);
}

#[tokio::test]
async fn an_alternative_without_a_key_or_a_policy_is_passed_over() {
    let subscriber = |head: &Parts| {
        let plan = head.headers.contains_key("x-subscriber");
        plan.then(|| policy("plan", "9/1h"))
    };
    let layer = RateLimitLayer::new(limiter()).limit_first_of([
        (subscriber.into_selector(), Header::new("x-user")),
        (
            policy("credits", "9/1h").into_selector(),
            Header::new("x-wallet"),
        ),
    ]);
    let ask = async |headers: &[&str]| {
        let mut request = Request::get("/");
        for name in headers {
            request = request.header(*name, "alice");
        }
        send(&layer, request.body(()).unwrap()).await
    };
    let subscribed = ask(&["x-user", "x-subscriber", "x-wallet"]).await;
    assert_eq!(charged(&subscribed), ["plan"]);
    assert_eq!(
        charged(&ask(&["x-user", "x-wallet"]).await),
        ["credits"],
        "no policy"
    );
    assert_eq!(
        charged(&ask(&["x-subscriber", "x-wallet"]).await),
        ["credits"],
        "no key"
    );
    let neither = ask(&["x-subscriber"]).await;
    assert_eq!(neither.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn an_unreadable_key_is_rejected_and_a_limit_that_every_alternative_skips_does_not_apply() {
    let malformed = |_: &Parts| Err::<Key, _>(ExtractError::malformed("unreadable"));
    let boxed = |extractor: Box<dyn KeyExtractor>| extractor;
    let alternatives = [
        (policy("plan", "9/1h"), boxed(Box::new(malformed))),
        (policy("credits", "9/1h"), boxed(Box::new(user("alice")))),
    ];
    let layer = RateLimitLayer::new(limiter()).limit_first_of(alternatives);
    assert_eq!(get(&layer).await.status(), StatusCode::BAD_REQUEST);

    let skip = |_: &Parts| Keys::skip();
    let alternatives = [
        (policy("plan", "0/1h"), skip),
        (policy("credits", "0/1h"), skip),
    ];
    let layer = RateLimitLayer::new(limiter()).limit_first_of(alternatives);
    assert_eq!(get(&layer).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_request_is_charged_the_weight_of_its_route_under_the_alternative() {
    let limiter = limiter();
    let by_route = |policy: Policy| {
        let look = Route::new(policy.clone()).weight(0);
        Routes::new(policy).route("GET /me/limits", look)
    };
    let credits = policy("credits", "9/1h");
    let layer = RateLimitLayer::new(limiter.clone()).limit_first_of([
        (by_route(policy("plan", "0/1h")), user("alice")),
        (by_route(credits.clone()), user("alice")),
    ]);
    let look = Request::get("/me/limits").body(()).unwrap();
    assert_eq!(charged(&send(&layer, look).await), ["plan"]);
    assert_eq!(charged(&get(&layer).await), ["credits"]);
    assert_eq!(used(&limiter, &credits, &user("alice")).await, 1);
}

/// Of the metered costs, only those of the alternative that was charged are settled, and the other names are no mistake.
#[test]
fn meters_go_to_the_alternative_that_was_charged_and_no_warning_names_the_other() {
    let lines = traced(false, async {
        let limiter = limiter();
        let layer = RateLimitLayer::new(limiter.clone())
            .limit_first_of([
                (policy("plan", "0/1h"), user("alice")),
                (policy("credits", "100/1h"), user("alice")),
            ])
            .meter_costs();
        let service = service_fn(async |request: Request<()>| {
            let meter: &CostMeter = request.extensions().get().unwrap();
            meter.under("plan").add(7);
            meter.under("credits").add(30);
            Ok::<_, Infallible>(Response::new(Body::empty()))
        });
        let response = layer.layer(service).oneshot(request()).await.unwrap();
        drop(response.into_body().collect().await);
        limiter.return_slots().await;
        let credits = policy("credits", "100/1h");
        assert_eq!(used(&limiter, &credits, &user("alice")).await, 30);
        assert_eq!(
            used(&limiter, &policy("plan", "100/1h"), &user("alice")).await,
            0
        );

        // The same for a check of a handler.
        let lists = [policy("plan", "0/1h"), credits.clone()];
        let lists = lists.map(|policy| [Charge::new(&policy, user("alice"), 1)]);
        let meter = limiter.meter(&limiter.check_first(lists).await.unwrap());
        meter.under("plan").add(7);
        meter.under("credits").add(20);
        drop(meter);
        limiter.return_slots().await;
        assert_eq!(used(&limiter, &credits, &user("alice")).await, 50);
    });
    assert_eq!(lines, Vec::<String>::new());
}

#[tokio::test]
async fn a_slot_is_held_beside_the_alternative_that_was_charged() {
    let limiter = limiter();
    let exports = policy("exports", "2/30s@concurrent");
    let layer = RateLimitLayer::new(limiter.clone())
        .limit_concurrent(exports.clone(), user("alice"))
        .limit_first_of([
            (policy("plan", "1/1h"), user("alice")),
            (policy("credits", "1/1h"), user("alice")),
        ]);
    let service =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let ask = async || layer.layer(service).oneshot(request()).await.unwrap();
    let mut bodies = Vec::new();
    for held in 1..=2 {
        let response = ask().await;
        assert_eq!(response.status(), StatusCode::OK);
        // An empty body ends at once.
        bodies.push(response);
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        assert_eq!(used(&limiter, &exports, &user("alice")).await, 0, "{held}");
    }
    assert_eq!(ask().await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        used(&limiter, &exports, &user("alice")).await,
        0,
        "a denied try holds none"
    );
}

#[tokio::test]
async fn a_shadow_layer_reports_the_alternative_that_it_would_charge() {
    let layer = RateLimitLayer::new(limiter())
        .limit_first_of(plan_and_credits("1/1h", "1/1h"))
        .shadow();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let response = get(&layer).await;
        assert_eq!(response.status(), StatusCode::OK);
        let decisions: &Decisions = response.extensions().get().unwrap();
        let shadow = decisions.iter().next().unwrap().usage().shadow().unwrap();
        seen.push((names(shadow)[0].to_owned(), shadow.is_allowed()));
    }
    let expected = [("plan", true), ("credits", true), ("plan", false)];
    assert_eq!(
        seen,
        expected.map(|(name, allowed)| (name.to_owned(), allowed))
    );
}

/// A store whose clock is that of the paused runtime.
fn timed() -> (Limiter, impl Future<Output = ()>) {
    let clock = ManualClock::new(0);
    let limiter = Limiter::new(MemoryStore::new().clock(clock.clone()));
    let run = async move {
        let start = tokio::time::Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            clock.set(u64::try_from(start.elapsed().as_millis()).unwrap());
        }
    };
    (limiter, run)
}

#[tokio::test(start_paused = true)]
async fn a_request_that_may_wait_waits_for_the_alternative_that_is_free_first() {
    let (limiter, clock) = timed();
    let layer = RateLimitLayer::new(limiter)
        .limit_first_of([
            (policy("plan", "1/10s@exact"), user("alice")),
            (policy("credits", "1/2s@exact"), user("alice")),
        ])
        .max_wait(Duration::from_secs(5));
    let asks = async {
        let start = tokio::time::Instant::now();
        let mut seen = Vec::new();
        for _ in 0..4 {
            let response = get(&layer).await;
            let seconds = start.elapsed().as_secs();
            seen.push((
                seconds,
                charged(&response).join("+"),
                response.status().is_success(),
            ));
        }
        seen
    };
    let seen = tokio::select! {
        seen = asks => seen,
        () = clock => unreachable!(),
    };
    let expected = [
        (0, "plan", true),
        (0, "credits", true),
        (2, "credits", true),
        (4, "credits", true),
    ];
    assert_eq!(
        seen,
        expected.map(|(at, name, allowed)| (at, name.to_owned(), allowed))
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_is_denied_at_once_if_no_alternative_is_free_in_time() {
    let layer = RateLimitLayer::new(limiter())
        .limit_first_of(plan_and_credits("0/1h", "1/1h"))
        .max_wait(Duration::from_secs(5));
    assert_eq!(charged(&get(&layer).await), ["credits"]);
    let start = tokio::time::Instant::now();
    let denied = get(&layer).await;
    assert_eq!(charged(&denied), ["credits"], "the plan never has room");
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_failure_follows_the_policy_of_the_try_and_goes_no_further() {
    let store = support::scripted::Scripted::failing();
    for (failure, status) in [(FailurePolicy::Open, 200), (FailurePolicy::Closed, 503)] {
        let limiter = Limiter::new(store.clone()).on_failure(failure);
        let before = store.checks().len();
        let layer = RateLimitLayer::new(limiter).limit_first_of(plan_and_credits("9/1h", "9/1h"));
        assert_eq!(get(&layer).await.status(), status);
        assert_eq!(store.checks().len(), before + 1);
    }
}

#[test]
fn alternatives_that_cannot_work_are_errors_when_the_layer_is_built() {
    let layer = || RateLimitLayer::new(MemoryStore::new());
    let error = |alternatives: Vec<(Policy, Key)>| {
        let result = layer().try_limit_first_of(alternatives);
        result.unwrap_err().to_string()
    };
    let none = error(Vec::new());
    assert!(none.contains("at least one alternative"), "{none}");
    let plan = policy("plan", "9/1h");
    let mixed = error(vec![
        (plan.clone(), user("a")),
        (policy("credits", "9/1h").shadow(), user("a")),
    ]);
    assert!(
        mixed.contains("`credits` is one, and `plan` is not"),
        "{mixed}"
    );
    let twins = error(vec![
        (plan.clone(), user("a")),
        (policy("plan", "1/1h"), user("a")),
    ]);
    assert!(twins.contains("same name and differ"), "{twins}");
    let slots = error(vec![(policy("slots", "9/30s@concurrent"), user("a"))]);
    assert!(slots.contains("limit_concurrent"), "{slots}");
    let twice = layer().limit(policy("plan", "1/1h"), user("a"));
    assert!(twice.try_limit_first_of([(plan, user("a"))]).is_err());
}

#[tokio::test]
async fn a_rejection_is_made_from_the_denial_that_ends_first() {
    let layer = RateLimitLayer::new(limiter())
        .limit_first_of(plan_and_credits("0/1h", "1/1h"))
        .reject_with(|rejection: &Rejection, _: &Parts| rejection.to_string());
    let service =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let ask = async || layer.layer(service).oneshot(request()).await.unwrap();
    ask().await;
    let body = ask().await.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    assert!(
        text.starts_with("denied by `1/1h` of policy `credits`"),
        "{text}"
    );
}
