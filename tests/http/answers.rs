//! Answers to clients and handlers: from nested layers, in older header styles, when a cost can never fit, when a
//! service is down, and over gRPC.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    http::{HeaderMap, Method, StatusCode, response::Parts as ResponseHead},
    response::IntoResponse,
    routing::{get, post},
};
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, header::RETRY_AFTER, request::Parts};
use http_body_util::BodyExt;
use sluicegate::{
    Charge, Decision, FailurePolicy, Header, Key, KeyExtractor, Limiter, MemoryStore, Policy,
    RateLimitLayer,
    error::ExtractError,
    extract::{BearerToken, Cookie},
    middleware::{
        ActualCost, AxumRejection, Decisions, Grpc, HeaderStyle, MakeRejection, ProblemJson,
        Rejection, StatusOnly,
    },
};
use tower::{ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};

use support::scripted::Scripted;

type Service = BoxCloneSyncService<Request<String>, Response<String>, Infallible>;

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

fn everybody() -> Key {
    Key::new("service", "all")
}

fn layer(name: &str, rules: &str) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new()).limit(policy(name, rules), everybody())
}

fn hello() -> Service {
    answering(|_| Response::new("hello".to_owned()))
}

fn answering(
    answer: impl Fn(Request<String>) -> Response<String> + Clone + Send + Sync + 'static,
) -> Service {
    let service = service_fn(move |request| {
        let response = answer(request);
        async { Ok(response) }
    });
    BoxCloneSyncService::new(service)
}

fn around<R>(layer: RateLimitLayer<R>, inner: Service) -> Service
where
    R: MakeRejection<String> + Send + Sync + 'static,
{
    BoxCloneSyncService::new(ServiceBuilder::new().layer(layer).service(inner))
}

async fn ask(service: &Service) -> Response<String> {
    let request = Request::new(String::new());
    service.clone().oneshot(request).await.unwrap()
}

fn lines<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let lines = headers.get_all(name).iter();
    lines.map(|line| line.to_str().unwrap()).collect()
}

/// The value of a header without the seconds, which depend on when the test runs.
fn told<'a>(response: &'a Response<String>, name: &str) -> &'a str {
    let line = response.headers()[name].to_str().unwrap();
    line.split(", reset=").next().unwrap()
}

fn left(decision: &Decision) -> u64 {
    decision.usage().rules().next().unwrap().remaining()
}

// Nested layers

const SINGLE: [HeaderStyle; 2] = [HeaderStyle::X_RATE_LIMIT, HeaderStyle::DRAFT_6];

/// The limit and the remaining units, in the format of the style.
fn single(style: HeaderStyle, response: &Response<String>) -> String {
    let values = |limit, remaining| {
        let values = [limit, remaining].map(|name| told(response, name));
        format!("limit={}, remaining={}", values[0], values[1])
    };
    match style {
        HeaderStyle::X_RATE_LIMIT => values("x-ratelimit-limit", "x-ratelimit-remaining"),
        _ => values("ratelimit-limit", "ratelimit-remaining"),
    }
}

#[tokio::test]
async fn of_layers_around_each_other_the_tightest_limit_is_told_in_every_style() {
    for style in SINGLE {
        for [outer, inner, expected] in [
            ["1000/1d", "2/1d", "limit=2, remaining=1"],
            ["2/1d", "1000/1d", "limit=2, remaining=1"],
        ] {
            let inner = around(layer("inner", inner).headers(style), hello());
            let both = around(layer("outer", outer).headers(style), inner);
            let response = ask(&both).await;
            assert_eq!(single(style, &response), expected, "{style:?}");
        }
    }
}

#[tokio::test]
async fn a_layer_without_headers_tells_nothing_by_those_of_another() {
    let style = HeaderStyle::X_RATE_LIMIT;
    for [outer, inner] in [
        [style, HeaderStyle::NONE],
        [HeaderStyle::NONE, style],
        [style.only_on_denial(), style],
    ] {
        let (hidden, shown) = ("2/1d", "1000/1d");
        let rules = if inner == style {
            [hidden, shown]
        } else {
            [shown, hidden]
        };
        let inner = around(layer("inner", rules[1]).headers(inner), hello());
        let both = around(layer("outer", rules[0]).headers(outer), inner);
        let response = ask(&both).await;
        assert_eq!(single(style, &response), "limit=1000, remaining=999");
    }
}

#[tokio::test]
async fn a_denial_of_a_layer_further_in_is_not_mixed_with_what_is_left_further_out() {
    let style = HeaderStyle::DRAFT_11.and(HeaderStyle::X_RATE_LIMIT);
    let inner = around(layer("inner", "1/1d").headers(style), hello());
    let middle = around(layer("middle", "50/1d").headers(style), inner);
    let all = around(layer("outer", "90/1d").headers(style), middle);
    assert_eq!(lines(ask(&all).await.headers(), "ratelimit").len(), 3);
    let response = ask(&all).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(told(&response, "ratelimit").starts_with(r#""inner";r=0;t="#));
    assert_eq!(lines(response.headers(), "ratelimit").len(), 1);
    assert_eq!(
        single(HeaderStyle::X_RATE_LIMIT, &response),
        "limit=1, remaining=0"
    );
    let decisions: &Decisions = response.extensions().get().unwrap();
    let allowed: Vec<bool> = decisions.iter().map(Decision::is_allowed).collect();
    assert_eq!(allowed, [false, true, true]);
}

#[tokio::test]
async fn the_decisions_of_all_layers_are_found_by_their_policies() {
    let seen = answering(|request| {
        let decisions: &Decisions = request.extensions().get().unwrap();
        let policies = ["inner", "outer", "other"];
        let found = policies.map(|name| decisions.by_policy(name).map(left));
        assert_eq!(found, [Some(1), Some(8), None]);
        assert_eq!(decisions.iter().map(left).collect::<Vec<_>>(), [1, 8, 6]);
        Response::new(String::new())
    });
    let trial = policy("trial", "5/1d").shadow();
    let both = around(layer("outer", "9/1d"), around(layer("inner", "2/1d"), seen));
    let first = layer("first", "7/1d").limit(trial, everybody());
    let all = around(first.decisions_in_response(), both);
    let response = ask(&all).await;
    let decisions: &Decisions = response.extensions().get().unwrap();
    let policies = ["inner", "outer", "first", "trial"];
    let found = policies.map(|name| decisions.by_policy(name).map(left));
    assert_eq!(found, [Some(1), Some(8), Some(6), Some(6)]);
    let shadow = decisions.by_policy("trial").unwrap().usage().shadow();
    assert_eq!(shadow.map(left), Some(4));
}

#[tokio::test]
async fn one_layer_of_several_is_enough_to_put_all_decisions_into_the_response() {
    for chosen in [None, Some(0), Some(1), Some(2)] {
        let mut all = hello();
        for (place, name) in ["inner", "middle", "outer"].into_iter().enumerate() {
            let mut limit = layer(name, "9/1d").settle(|_, _| 3);
            if chosen == Some(place) {
                limit = limit.decisions_in_response();
            }
            all = around(limit, all);
        }
        let response = ask(&all).await;
        let decisions: Option<&Decisions> = response.extensions().get();
        let left = decisions.map(|it| it.iter().map(left).collect::<Vec<_>>());
        assert_eq!(left, chosen.map(|_| vec![6, 6, 6]), "{chosen:?}");
    }
}

#[tokio::test]
async fn after_a_skip_a_handler_settles_no_decision_of_another_layer() {
    let limiter = Limiter::new(MemoryStore::new());
    let (users, addresses) = (policy("users", "9/1d"), policy("addresses", "9/1d"));
    let by_user = RateLimitLayer::new(limiter.clone())
        .limit(users.clone(), everybody())
        .skip(|head| head.uri.path() == "/free");
    let by_address = RateLimitLayer::new(limiter.clone()).limit(addresses.clone(), everybody());
    let settling = limiter.clone();
    let handler = async move |decisions: Option<Decisions>| {
        let Some(decisions) = decisions else {
            return "nobody could decide";
        };
        if let Some(decision) = decisions.by_policy("users") {
            settling.settle(decision.usage(), |_| 5).await.unwrap();
        }
        "served"
    };
    let app: Router = Router::new()
        .fallback(get(handler))
        .layer(by_user)
        .layer(by_address);
    for (path, expected) in [("/free", [9, 8]), ("/", [4, 7])] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap();
        for (policy, expected) in [&users, &addresses].into_iter().zip(expected) {
            let charge = Charge::new(policy, everybody(), 0);
            let usage = limiter.peek([charge]).await.unwrap();
            assert_eq!(
                usage.rules().next().unwrap().remaining(),
                expected,
                "{path}"
            );
        }
    }
}

#[tokio::test]
async fn a_handler_is_reached_without_decisions_when_the_store_is_down() {
    let down = RateLimitLayer::new(Scripted::failing()).limit(policy("all", "1/1d"), everybody());
    let handler = async |decisions: Option<Decisions>| match decisions {
        Some(_) => "limited",
        None => "not limited",
    };
    let app: Router = Router::new().route("/", get(handler)).layer(down);
    let request = Request::get("/").body(Body::empty()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "not limited");
}

#[tokio::test]
async fn a_settlement_replaces_the_decision_of_its_layer_alone() {
    let settling = layer("tokens", "100/1d").settle(|_, _| 30);
    let settling = settling.decisions_in_response();
    let both = around(settling.clone(), around(layer("inner", "9/1d"), hello()));
    let response = ask(&both).await;
    let decisions: &Decisions = response.extensions().get().unwrap();
    assert_eq!(decisions.iter().map(left).collect::<Vec<_>>(), [8, 70]);
    assert!(
        response
            .headers()
            .get_all("ratelimit")
            .iter()
            .any(|it| { it.to_str().unwrap().starts_with(r#""tokens";r=70;"#) })
    );
    let both = around(layer("outer", "9/1d"), around(settling, hello()));
    let response = ask(&both).await;
    let decisions: &Decisions = response.extensions().get().unwrap();
    assert_eq!(decisions.iter().map(left).collect::<Vec<_>>(), [40, 8]);
}

/// A service that passes on the response of a client with a limit.
fn proxying(
    client: Service,
) -> impl Fn(Request<String>) -> BoxFuture<'static, Result<Response<String>, Infallible>> + Clone {
    move |_| Box::pin(client.clone().oneshot(Request::new(String::new())))
}

#[tokio::test]
async fn a_rejection_that_was_passed_on_does_not_hide_the_servers_own_headers() {
    let style = HeaderStyle::DRAFT_11.and(HeaderStyle::X_RATE_LIMIT);
    let theirs = layer("theirs", "1/1d").headers(HeaderStyle::X_RATE_LIMIT);
    let client = around(theirs, hello());
    let proxy = BoxCloneSyncService::new(service_fn(proxying(client)));
    let server = around(layer("ours", "90/1d").headers(style), proxy);
    let outer = layer("outer", "9999/1d").headers(style);
    let outer = around(outer.decisions_in_response(), server);
    for (status, left) in [(StatusCode::OK, 89), (StatusCode::TOO_MANY_REQUESTS, 88)] {
        let response = ask(&outer).await;
        assert_eq!(response.status(), status);
        let remaining = lines(response.headers(), "x-ratelimit-remaining");
        assert_eq!(remaining, [left.to_string()]);
        let items = lines(response.headers(), "ratelimit");
        assert!(
            items[0].starts_with(&format!(r#""ours";r={left};"#)),
            "{items:?}"
        );
        assert_eq!(items.len(), 2);
        let decisions: &Decisions = response.extensions().get().unwrap();
        assert!(decisions.by_policy("theirs").is_none());
        assert_eq!(decisions.iter().count(), 2);
    }
}

/// A service with responses without extensions, as after a connection, or a middleware that makes new responses.
fn without_extensions(inner: Service) -> Service {
    let service = inner.map_response(|mut response| {
        response.extensions_mut().clear();
        response
    });
    BoxCloneSyncService::new(service)
}

#[tokio::test]
async fn a_denial_whose_extensions_are_lost_is_not_mixed_with_what_is_left_further_out() {
    let style = HeaderStyle::DRAFT_11.and(HeaderStyle::X_RATE_LIMIT);
    let inner = around(layer("inner", "1/1d").headers(style), hello());
    let both = around(
        layer("outer", "90/1d").headers(style),
        without_extensions(inner),
    );
    assert_eq!(lines(ask(&both).await.headers(), "ratelimit").len(), 2);
    let response = ask(&both).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let items = lines(response.headers(), "ratelimit");
    assert!(
        matches!(items[..], [item] if item.starts_with(r#""inner";r=0;t="#)),
        "{items:?}"
    );
    assert_eq!(
        single(HeaderStyle::X_RATE_LIMIT, &response),
        "limit=1, remaining=0"
    );

    // A handler's own 429 has no quota.
    let own = answering(|_| Response::builder().status(429).body(String::new()).unwrap());
    let response = ask(&around(layer("outer", "90/1d"), own)).await;
    assert!(told(&response, "ratelimit").starts_with(r#""outer";r=89;"#));
}

#[tokio::test]
async fn the_response_of_the_service_says_by_itself_whether_caches_may_keep_it() {
    let public = || {
        answering(|_| {
            let response = Response::builder().header("cache-control", "public, max-age=60");
            response.body(String::new()).unwrap()
        })
    };
    for (style, told) in [
        (HeaderStyle::default(), true),
        (HeaderStyle::default().only_on_denial(), false),
    ] {
        let service = around(layer("all", "1/1d").headers(style), public());
        let response = ask(&service).await;
        assert_eq!(
            lines(response.headers(), "cache-control"),
            ["public, max-age=60"]
        );
        assert_eq!(response.headers().contains_key("ratelimit"), told);
        let denied = ask(&service).await;
        assert_eq!(lines(denied.headers(), "cache-control"), ["no-store"]);
    }
}

#[tokio::test]
async fn many_rules_make_no_headers_that_a_proxy_has_no_room_for() {
    let rules = |limit: u64| format!("{limit}/1s,{limit}/1m,{limit}/1h,{limit}/1d");
    let many = |count: u64| {
        let limits = RateLimitLayer::new(MemoryStore::new());
        (1..=count).rev().fold(limits, |layer, number| {
            let name = format!("a-policy-with-a-name-{number}");
            layer.limit(policy(&name, &rules(number)), everybody())
        })
    };
    let items = |response: &Response<String>, name| -> Vec<String> {
        let [field] = lines(response.headers(), name)[..] else {
            panic!("one field");
        };
        assert!(field.len() <= 1_024, "{}", field.len());
        let items = field
            .split(", ")
            .map(|item| item.split(';').next().unwrap().to_owned());
        items.collect()
    };
    // As configured, as long as there is room.
    let few = ask(&around(many(4), hello())).await;
    assert_eq!(items(&few, "ratelimit").len(), 16);
    assert_eq!(
        items(&few, "ratelimit")[0],
        r#""a-policy-with-a-name-4/1s""#
    );

    let service = around(many(12), hello());
    let response = ask(&service).await;
    let listed = items(&response, "ratelimit");
    assert_eq!(listed, items(&response, "ratelimit-policy"));
    assert!((16..48).contains(&listed.len()), "{listed:?}");
    for (item, window) in listed.iter().zip(["1s", "1m", "1h", "1d"]) {
        assert_eq!(*item, format!(r#""a-policy-with-a-name-1/{window}""#));
    }
    let denied = ask(&service).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(items(&denied, "ratelimit"), listed[..4]);
}

#[tokio::test]
async fn policies_that_are_chosen_take_no_room_beside_the_others() {
    let rules = "9/1s,9/1m,9/1h,9/1d";
    let policies = |kind: &'static str, rules: &'static str| {
        (0..4).map(move |number| policy(&format!("a-policy-that-is-{kind}-{number}"), rules))
    };
    let limits = RateLimitLayer::new(MemoryStore::new());
    let limits =
        policies("fixed", rules).fold(limits, |layer, fixed| layer.limit(fixed, everybody()));
    let tightest = "3/1s,3/1m,3/1h,3/1d";
    let limits = policies("chosen", tightest).fold(limits, |layer, chosen| {
        layer.limit(move |_: &Parts| chosen.clone(), everybody())
    });
    let response = ask(&around(limits, hello())).await;
    for name in ["ratelimit", "ratelimit-policy"] {
        let lines = lines(response.headers(), name);
        let bytes: usize = lines.iter().map(|line| line.len()).sum();
        assert!((512..=1_024).contains(&bytes), "{bytes}");
        assert!(
            lines[0].starts_with("\"a-policy-that-is-chosen-"),
            "{lines:?}"
        );
    }
}

#[tokio::test]
async fn the_list_of_what_is_left_is_bounded_too() {
    let limits = RateLimitLayer::new(MemoryStore::new());
    // The list of quotas has 990 bytes, and the list of remaining units has four more for each policy.
    let limits = (0..16).fold(limits, |layer, number| {
        let name = format!("a-policy-{number:0>37}");
        layer.limit(policy(&name, "999999999/1ms"), everybody())
    });
    let response = ask(&around(limits, hello())).await;
    for name in ["ratelimit", "ratelimit-policy"] {
        let [field] = lines(response.headers(), name)[..] else {
            panic!("one field");
        };
        assert_eq!(field.split(", ").count(), 15, "{}", field.len());
        assert!(field.len() <= 1_024);
    }
}

// Older header styles

/// Nine of ten units are left for 60 s, and 99 of 100 for an hour.
fn two_rules(store: Arc<Scripted>, style: HeaderStyle) -> Service {
    let limit = RateLimitLayer::new(store)
        .limit(policy("ip", "10/1m,100/1h"), everybody())
        .headers(style);
    around(limit, hello())
}

#[tokio::test]
async fn draft_6_has_fields_of_its_own_and_leaves_those_of_draft_11() {
    let triple = [
        ("ratelimit-limit", vec!["10"]),
        ("ratelimit-remaining", vec!["9"]),
        ("ratelimit-reset", vec!["60"]),
    ];
    let draft_11 = [
        (
            "ratelimit",
            vec![r#""ip/1m";r=9;t=60, "ip/1h";r=99;t=3600"#],
        ),
        (
            "ratelimit-policy",
            vec![r#""ip/1m";q=10;w=60, "ip/1h";q=100;w=3600"#],
        ),
    ];
    for (style, expected) in [
        (HeaderStyle::DRAFT_6, triple.to_vec()),
        (
            HeaderStyle::DRAFT_6.and(HeaderStyle::DRAFT_11),
            [&triple[..], &draft_11[..]].concat(),
        ),
    ] {
        let response = ask(&two_rules(Scripted::allowing(), style)).await;
        assert_eq!(response.headers().keys().count(), {
            let mut names: Vec<_> = expected.iter().map(|(name, _)| name).collect();
            names.dedup();
            names.len()
        });
        for (name, expected) in expected {
            assert_eq!(lines(response.headers(), name), expected, "{style:?}");
        }
    }
}

#[tokio::test]
async fn a_denial_is_told_in_the_older_styles_too() {
    let style = HeaderStyle::DRAFT_6;
    let response = ask(&two_rules(Scripted::denying_for(6_500), style)).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    for (name, expected) in [
        ("ratelimit-limit", "10"),
        ("ratelimit-remaining", "0"),
        ("ratelimit-reset", "7"),
        ("retry-after", "7"),
    ] {
        assert_eq!(lines(response.headers(), name), [expected], "{name}");
    }
    let never = RateLimitLayer::new(MemoryStore::new())
        .limit(policy("ip", "10/100ms"), everybody())
        .cost(|_, _| 11)
        .headers(style);
    let response = ask(&around(never, hello())).await;
    assert_eq!(lines(response.headers(), "ratelimit-remaining"), ["10"]);
    assert!(!response.headers().contains_key("ratelimit-reset"));
}

#[tokio::test]
async fn of_a_bucket_the_quota_is_its_burst_in_the_time_of_a_full_refill() {
    let limit = || {
        RateLimitLayer::new(MemoryStore::new())
            .limit(policy("api", "3+1/10s@bucket,1000/1d"), everybody())
            .cost(|_, _| 3)
    };
    let service = around(limit(), hello());
    let response = ask(&service).await;
    assert_eq!(
        lines(response.headers(), "ratelimit-policy"),
        [r#""api/10s@bucket";q=3;w=30, "api/1d";q=1000;w=86400"#]
    );
    let left = lines(response.headers(), "ratelimit")[0];
    assert!(
        left.starts_with(r#""api/10s@bucket";r=0;t=30, "api/1d";r=997;t="#),
        "{left}"
    );
    let denied = ask(&service).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(lines(denied.headers(), "retry-after"), ["30"]);
}

// Costs that never fit

#[tokio::test]
async fn a_cost_that_can_never_fit_has_a_status_of_its_own_and_nothing_to_wait_for() {
    let limit = || layer("all", "10/1d").cost(|_, _| 11);
    let problems = ProblemJson::default().status_if_never(StatusCode::UNPROCESSABLE_ENTITY);
    for (service, expected) in [
        (around(limit(), hello()), 413),
        (around(limit().rejection(StatusOnly), hello()), 413),
        (around(limit().rejection(problems), hello()), 422),
    ] {
        let response = ask(&service).await;
        assert_eq!(response.status(), expected);
        assert!(!response.headers().contains_key(RETRY_AFTER));
        assert!(told(&response, "ratelimit").starts_with(r#""all";r=10"#));
        if let Ok(problem) = serde_json::from_str::<serde_json::Value>(response.body()) {
            assert_eq!(problem["status"], expected);
            assert!(problem["detail"].as_str().unwrap().contains("never pass"));
        }
    }
    // If a denial passes later, the status is 429, independent of that setting.
    let later =
        RateLimitLayer::new(Scripted::denying_for(1)).limit(policy("p", "1/1s"), everybody());
    let response = ask(&around(later.rejection(problems), hello())).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
}

// Actual costs

#[tokio::test]
async fn a_limit_of_0_is_a_switch_and_no_request_is_too_large_for_it() {
    let problems = ProblemJson::default().status_if_never(StatusCode::FORBIDDEN);
    for (service, expected) in [
        (around(layer("all", "0/1d"), hello()), 429),
        (around(layer("all", "0/1d").cost(|_, _| 11), hello()), 429),
        (
            around(layer("all", "0/1d").rejection(StatusOnly), hello()),
            429,
        ),
        (
            around(layer("all", "0/1d").rejection(problems), hello()),
            403,
        ),
    ] {
        let response = ask(&service).await;
        assert_eq!(response.status(), expected);
        assert!(!response.headers().contains_key(RETRY_AFTER));
        assert_eq!(lines(response.headers(), "ratelimit"), [r#""all";r=0"#]);
        if !response.body().is_empty() {
            let problem: serde_json::Value = serde_json::from_str(response.body()).unwrap();
            assert_eq!(
                problem["detail"],
                "A limit of 0 denies all requests at present."
            );
            assert_eq!(problem["violated-policies"], serde_json::json!(["all"]));
        }
    }
    let looks = around(layer("all", "0/1d").cost(|_, _| 0), hello());
    assert_eq!(ask(&looks).await.status(), 200);
}

#[tokio::test]
async fn a_request_without_a_key_is_told_what_is_missing_and_never_a_value() {
    let by = |extractor: Box<dyn KeyExtractor>| {
        let limits = RateLimitLayer::new(MemoryStore::new());
        around(limits.limit(policy("api", "9/1d"), extractor), hello())
    };
    let ask = async |service: &Service, headers: &[(&str, &str)]| {
        let request = headers
            .iter()
            .fold(Request::get("/"), |request, (name, value)| {
                request.header(*name, *value)
            });
        let request = request.body(String::new()).unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        assert!(!response.body().contains("s3cret"), "{}", response.body());
        let problem: serde_json::Value = serde_json::from_str(response.body()).unwrap();
        (
            response.status().as_u16(),
            problem["detail"].as_str().map(str::to_owned),
        )
    };
    let header = by(Box::new(Header::new("X-Api-Key")));
    let cookie = by(Box::new(Cookie::new("SID")));
    let token = BearerToken.or_unauthorized(HeaderValue::from_static("Bearer"));
    let token = by(Box::new(token));
    let twice = [("x-api-key", "s3cret"), ("x-api-key", "s3cret2")];
    let is_absent = "that identifies the client is absent or empty";
    let is_twice = "that identifies the client was sent twice";
    for (service, headers, status, detail) in [
        (
            &header,
            &[][..],
            400,
            format!("the header {is_absent}: `x-api-key`"),
        ),
        (
            &header,
            &twice,
            400,
            format!("the header {is_twice}: `x-api-key`"),
        ),
        (
            &cookie,
            &[("cookie", "other=s3cret")],
            400,
            format!("the cookie {is_absent}: `SID`"),
        ),
        (
            &cookie,
            &[("cookie", "SID=s3cret; SID=s3cret2")],
            400,
            format!("the cookie {is_twice}: `SID`"),
        ),
        (
            &token,
            &[],
            401,
            "the client has to authenticate".to_owned(),
        ),
    ] {
        assert_eq!(
            ask(service, headers).await,
            (status, Some(detail)),
            "{headers:?}"
        );
    }

    // A message may contain any characters. Internal errors stay in the service.
    let own = |error: fn(&'static str) -> ExtractError| {
        by(Box::new(move |_: &Parts| {
            Err::<Key, _>(error("a \"key\" \\ is\nmissing"))
        }))
    };
    let expected = "a \"key\" \\ is missing";
    assert_eq!(
        ask(&own(ExtractError::missing), &[]).await,
        (400, Some(expected.to_owned()))
    );
    assert_eq!(
        ask(&own(ExtractError::misconfigured), &[]).await,
        (500, None)
    );
}

#[tokio::test]
async fn an_actual_cost_may_be_for_some_policies_only() {
    for (cost, expected) in [
        (ActualCost::new(30), [70, 970, 970]),
        (ActualCost::of("tokens", 30), [99, 970, 999]),
        (
            ActualCost::of("tokens", 1)
                .and("bytes".to_owned(), 400)
                .and("tokens", 0),
            [99, 1000, 600],
        ),
        (ActualCost::of("unknown", 30), [99, 999, 999]),
    ] {
        let limits = layer("requests", "100/1d")
            .limit(policy("tokens", "1000/1d"), everybody())
            .limit(policy("bytes", "1000/1d"), everybody())
            .settle(ActualCost::or_charged)
            .decisions_in_response();
        let said = cost.clone();
        let service = around(
            limits,
            answering(move |_| {
                let mut response = Response::new(String::new());
                response.extensions_mut().insert(said.clone());
                response
            }),
        );
        let response = ask(&service).await;
        let decisions: &Decisions = response.extensions().get().unwrap();
        let usage = decisions.by_policy("tokens").unwrap().usage();
        let left: Vec<u64> = usage.rules().map(|it| it.remaining()).collect();
        assert_eq!(left, expected, "{cost:?}");
    }
}

// Counting failures

/// Counts like the example `login_failures`.
fn wrong_password(response: &ResponseHead, charge: &Charge) -> u64 {
    match response.status {
        StatusCode::UNAUTHORIZED => charge.cost(),
        _ => 0,
    }
}

#[tokio::test]
async fn only_a_wrong_password_is_a_failed_login() {
    let failures = layer("failures", "1/1d").settle(wrong_password);
    let login = async |password: String| match &*password {
        "sesame" => (StatusCode::SEE_OTHER, [("location", "/")]).into_response(),
        "cached" => StatusCode::NOT_MODIFIED.into_response(),
        "socket" => StatusCode::SWITCHING_PROTOCOLS.into_response(),
        "too often" => StatusCode::TOO_MANY_REQUESTS.into_response(),
        _ => StatusCode::UNAUTHORIZED.into_response(),
    };
    let app: Router = Router::new().route("/", post(login)).layer(failures);
    let status = async |password: &'static str| {
        let request = Request::post("/").body(Body::from(password)).unwrap();
        app.clone().oneshot(request).await.unwrap().status()
    };
    for (password, expected) in [
        ("sesame", 303),
        ("cached", 304),
        ("socket", 101),
        ("too often", 429),
        ("guess", 401),
    ] {
        assert_eq!(status(password).await, expected);
    }
    let request = Request::post("/").body(Body::from("sesame")).unwrap();
    let denied = app.oneshot(request).await.unwrap();
    assert!(denied.extensions().get::<Rejection>().is_some());
}

// Statuses

#[tokio::test]
async fn a_service_that_is_down_says_when_to_come_back() {
    let unavailable = |_: &Parts| Err::<Key, _>(ExtractError::unavailable("no directory"));
    let closed = |store: Arc<Scripted>| {
        RateLimitLayer::new(Limiter::new(store).on_failure(FailurePolicy::Closed))
    };
    let all = policy("all", "1/1s");
    let slow = Limiter::new(Scripted::failing()).probe_interval(Duration::from_millis(2_500));
    let slow = slow.on_failure(FailurePolicy::Closed);
    let slow = RateLimitLayer::new(slow).limit(all.clone(), everybody());
    let failing = closed(Scripted::failing()).limit(all.clone(), everybody());
    let unknown = closed(Scripted::allowing()).limit(all.clone(), unavailable);
    for (layer, expected) in [(failing, "1"), (unknown, "1"), (slow, "3")] {
        let response = ask(&around(layer.clone(), hello())).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(lines(response.headers(), "retry-after"), [expected]);

        let own = |rejection: &Rejection, _: &Parts| {
            let response = Response::builder().status(rejection.status());
            response
                .header(RETRY_AFTER, "77")
                .body(String::new())
                .unwrap()
        };
        let response = ask(&around(layer.rejection(own), hello())).await;
        assert_eq!(lines(response.headers(), "retry-after"), ["77"]);
    }
}

#[tokio::test]
async fn a_response_that_is_not_modified_tells_the_quota_and_a_redirection_does_not() {
    for (status, tells) in [
        (StatusCode::NOT_MODIFIED, true),
        (StatusCode::FOUND, false),
        (StatusCode::PERMANENT_REDIRECT, false),
    ] {
        let inner = answering(move |_| {
            Response::builder()
                .status(status)
                .body(String::new())
                .unwrap()
        });
        let response = ask(&around(layer("all", "9/1d"), inner)).await;
        assert_eq!(
            response.headers().contains_key("ratelimit"),
            tells,
            "{status}"
        );
    }
}

// gRPC

#[tokio::test]
async fn a_grpc_call_gets_a_grpc_answer_from_the_default_rejections() {
    let denying = || {
        RateLimitLayer::new(Scripted::denying_for(1_234))
            .limit(policy("calls", "1/1s"), everybody())
    };
    let down = Limiter::new(Scripted::failing()).on_failure(FailurePolicy::Closed);
    let down = RateLimitLayer::new(down).limit(policy("calls", "1/1s"), everybody());
    let grpc = "application/grpc";
    for (service, content_type, status) in [
        (around(denying(), hello()), grpc, "8"),
        (around(denying(), hello()), "application/grpc+proto", "8"),
        (around(denying().rejection(StatusOnly), hello()), grpc, "8"),
        (
            around(denying(), hello()),
            "application/grpc-web+proto",
            "8",
        ),
        (around(denying().cost(|_, _| 2), hello()), grpc, "8"),
        (around(denying().deny(|_| true), hello()), grpc, "7"),
        (around(down, hello()), grpc, "14"),
    ] {
        let call = Request::post("/greeter/hello").header("content-type", content_type);
        let response = service
            .oneshot(call.body(String::new()).unwrap())
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.body(), "");
        let headers = response.headers();
        assert_eq!(headers["grpc-status"], status);
        let web = content_type.contains("-web");
        assert_eq!(
            headers["content-type"],
            if web { content_type } else { grpc }
        );
        if status == "14" {
            assert_eq!(headers["retry-after"], "1");
        }
    }
}

// Rejections of axum's types

async fn rejected<R>(layer: RateLimitLayer<R>, kind: &str) -> (StatusCode, HeaderMap, String)
where
    R: MakeRejection<Body> + Send + Sync + 'static,
{
    let app: Router = Router::new().route("/", get(async || "hello")).layer(layer);
    let request = Request::builder().method(Method::POST).uri("/");
    let request = request.header("content-type", kind).body(Body::empty());
    let response = app.oneshot(request.unwrap()).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    (head.status, head.headers, String::from_utf8(body).unwrap())
}

#[tokio::test]
async fn a_rejection_without_a_status_does_not_look_like_success() {
    let denying =
        || RateLimitLayer::new(Scripted::denying_for(1)).limit(policy("all", "1/1s"), everybody());
    let json = denying().reject_with(|_, _| Json("slow down"));
    let (status, ..) = rejected(json, "text/plain").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);

    // gRPC has its own header for the delay.
    let call = denying().reject_with(|_, _| [("content-type", "application/grpc")]);
    let (status, ..) = rejected(call, "application/grpc").await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_rejection_may_be_anything_that_is_into_response() {
    let denying =
        || RateLimitLayer::new(Scripted::denying_for(1)).limit(policy("all", "1/1s"), everybody());
    let json = denying().reject_with(|rejection, head| {
        let error = serde_json::json!({ "error": "slow down", "path": head.uri.path() });
        (rejection.status(), Json(error))
    });
    let (status, headers, body) = rejected(json, "text/plain").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["retry-after"], "1");
    assert_eq!(body, r#"{"error":"slow down","path":"/"}"#);

    let (status, ..) = rejected(
        denying().reject_with(|_, _| StatusCode::IM_A_TEAPOT),
        "text/plain",
    )
    .await;
    assert_eq!(status, StatusCode::IM_A_TEAPOT);

    let both = Grpc::new().or(AxumRejection::new(|_, _| "slow down"));
    for (kind, expected) in [
        ("application/grpc", None),
        ("text/plain", Some("slow down")),
    ] {
        let (_, headers, body) = rejected(denying().rejection(both), kind).await;
        assert_eq!(headers.contains_key("grpc-status"), expected.is_none());
        assert_eq!(body, expected.unwrap_or_default());
    }
}
