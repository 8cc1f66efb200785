//! Answers to clients and handlers: from nested layers, when a cost can never fit, when a service is down, and over gRPC.

use axum::response::IntoResponse;
use http::header::RETRY_AFTER;
use sluicegate::middleware::AxumRejection;
use tower::{layer::layer_fn, util::MapResponseLayer};

use crate::prelude::*;

const BOTH: fn() -> HeaderStyle = || HeaderStyle::DRAFT_11.and(HeaderStyle::X_RATE_LIMIT);

// Nested layers

/// A layer around another one. Each is a style and rules.
fn nested(
    outer: (HeaderStyle, &str),
    inner: (HeaderStyle, &str),
) -> (RateLimitLayer, RateLimitLayer) {
    let layer = |name, (style, rules)| limit(name, rules).headers(style);
    (layer("outer", outer), layer("inner", inner))
}

/// Drops the extensions of responses, like a connection, or a middleware that makes new responses.
fn without_extensions() -> MapResponseLayer<fn(Response<String>) -> Response<String>> {
    MapResponseLayer::new(|mut response: Response<String>| {
        response.extensions_mut().clear();
        response
    })
}

/// The fields of the legacy style, and the names and the remaining units of draft 11.
fn in_short<B>(response: &Response<B>) -> String {
    let field = |name| field(response.headers(), name);
    let items = lines(response.headers(), "ratelimit");
    let items = items.iter().map(|it| it.split(";t=").next().unwrap());
    let [limit, left] = ["x-ratelimit-limit", "x-ratelimit-remaining"].map(field);
    let items = items.collect::<Vec<_>>().join(" & ");
    format!("{} limit={limit} remaining={left} {items}", code(response))
}

const LEGACY: HeaderStyle = HeaderStyle::X_RATE_LIMIT;

answers! { told;
    of_two_layers_the_limit_of_the_inner_is_the_tightest: nested((LEGACY, "1000/1d"), (LEGACY, "2/1d")) =>
        "200 | x-ratelimit-limit: 2 | x-ratelimit-remaining: 1 | x-ratelimit-reset: 87840";
    of_two_layers_the_limit_of_the_outer_is_the_tightest: nested((LEGACY, "2/1d"), (LEGACY, "1000/1d")) =>
        "200 | x-ratelimit-limit: 2 | x-ratelimit-remaining: 1 | x-ratelimit-reset: 87840";
    of_two_layers_the_limit_of_the_inner_is_the_tightest_in_draft_6: nested((HeaderStyle::DRAFT_6, "1000/1d"), (HeaderStyle::DRAFT_6, "2/1d")) =>
        "200 | ratelimit-limit: 2 | ratelimit-remaining: 1 | ratelimit-reset: 87840";
    of_two_layers_the_limit_of_the_outer_is_the_tightest_in_draft_6: nested((HeaderStyle::DRAFT_6, "2/1d"), (HeaderStyle::DRAFT_6, "1000/1d")) =>
        "200 | ratelimit-limit: 2 | ratelimit-remaining: 1 | ratelimit-reset: 87840";
    an_inner_layer_without_headers_tells_nothing_by_those_of_the_outer: nested((LEGACY, "1000/1d"), (HeaderStyle::NONE, "2/1d")) =>
        "200 | x-ratelimit-limit: 1000 | x-ratelimit-remaining: 999 | x-ratelimit-reset: 87840";
    an_outer_layer_without_headers_tells_nothing_by_those_of_the_inner: nested((HeaderStyle::NONE, "2/1d"), (LEGACY, "1000/1d")) =>
        "200 | x-ratelimit-limit: 1000 | x-ratelimit-remaining: 999 | x-ratelimit-reset: 87840";
    a_layer_with_headers_on_denial_tells_nothing_by_those_of_the_inner: nested((LEGACY.only_on_denial(), "2/1d"), (LEGACY, "1000/1d")) =>
        "200 | x-ratelimit-limit: 1000 | x-ratelimit-remaining: 999 | x-ratelimit-reset: 87840";
    of_a_bucket_the_quota_is_its_burst_in_the_time_of_a_full_refill:
        limit("api", "3+1/10s@bucket,1000/1d").cost(|_, _| 3) =>
        r#"200 | ratelimit: "api/10s@bucket";r=0;t=30, "api/1d";r=997;t=87840 | ratelimit-policy: "api/10s@bucket";q=3;w=30, "api/1d";q=1000;w=86400"#, r#"429 Denied | ratelimit: "api/10s@bucket";r=0;t=30 | ratelimit-policy: "api/10s@bucket";q=3;w=30, "api/1d";q=1000;w=86400 | retry-after: 30"#;
}

answers! { in_short;
    a_denial_of_a_layer_further_in_lists_what_is_left_further_out_and_keeps_its_own_rule_in_other_fields:
        (limit("outer", "90/1d").headers(BOTH()), nested((BOTH(), "50/1d"), (BOTH(), "1/1d"))) =>
        r#"200 limit=1 remaining=0 "inner";r=0 & "outer";r=49 & "outer";r=89"#, r#"429 limit=1 remaining=0 "inner";r=0 & "outer";r=48 & "outer";r=88"#;
    a_denial_of_a_layer_further_in_keeps_its_own_rule_though_a_rule_further_out_is_tighter:
        (limit("outer", "2/1d").headers(BOTH()), limit("inner", "9/1d").headers(BOTH()).cost(|_, _| 5)) =>
        r#"200 limit=9 remaining=4 "inner";r=4 & "outer";r=1"#, r#"429 limit=9 remaining=4 "inner";r=4 & "outer";r=0"#;
    a_layer_with_headers_on_denial_adds_none_to_that_of_a_layer_further_in:
        (limit("outer", "90/1d").headers(BOTH().only_on_denial()), limit("inner", "1/1d").headers(BOTH())) =>
        r#"200 limit=1 remaining=0 "inner";r=0"#, r#"429 limit=1 remaining=0 "inner";r=0"#;
    a_denial_whose_extensions_are_lost_is_not_mixed_with_what_is_left_further_out:
        (limit("outer", "90/1d").headers(BOTH()), without_extensions(), limit("inner", "1/1d").headers(BOTH())) =>
        r#"200 limit=90 remaining=89 "inner";r=0 & "outer";r=89"#, r#"429 limit=1 remaining=0 "inner";r=0"#;
    a_handlers_own_429_has_no_quota:
        (limit("outer", "90/1d"), layer_fn(|_| answering(|_| answer(429)))) =>
        r#"429 limit=- remaining=- "outer";r=89"#;
    a_429_with_fields_of_a_rejection_and_no_quota_is_not_taken_for_a_denial_with_one:
        (limit("outer", "90/1d"), layer_fn(|_| answering(|_| challenging()))) =>
        r#"429 limit=- remaining=- "outer";r=89"#;
    a_response_that_is_not_modified_tells_the_quota: answered_by(304) => r#"304 limit=- remaining=- "all";r=8"#;
    a_response_that_is_found_elsewhere_does_not: answered_by(302) => "302 limit=- remaining=- ";
    a_response_that_redirects_for_ever_does_not: answered_by(308) => "308 limit=- remaining=- ";
}

/// A 429 of another service, with the fields that browsers may show and that are no quota.
fn challenging() -> Response<String> {
    let mut response = answer(429);
    for name in [
        "retry-after",
        "retry-after-ms",
        "www-authenticate",
        "accept-encoding",
        "grpc-status",
        "grpc-message",
        "grpc-status-details-bin",
        "grpc-retry-pushback-ms",
    ] {
        response.headers_mut().insert(name, 9.into());
    }
    response
}

/// A layer around a service that answers with this status.
fn answered_by(status: u16) -> impl Layer<Inner, Service = Inner> {
    let answer = move |_| answer(status);
    layer_fn(move |_| Inner::new(limit("all", "9/1d").layer(answering(answer))))
}

#[tokio::test]
async fn a_denial_further_in_gets_the_units_that_it_does_not_name() {
    let style = HeaderStyle::X_RATE_LIMIT_BY_UNIT;
    let outer = limit("requests", "2/1d")
        .limit(policy("tokens", "100/1d").unit(Unit::TOKENS), everybody())
        .cost(|_, policy| if policy.name() == "tokens" { 30 } else { 1 });
    let inner = limit("inner", "9/1d").cost(|_, _| 5);
    let both = (outer.headers(style), inner.headers(style));
    assert_eq!(ask(&both).await.status(), 200);
    let denied = ask(&both).await;
    assert_eq!(denied.status(), 429);
    let fields = [
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
    ];
    let fields = fields.map(|name| field(denied.headers(), name));
    assert_eq!(fields, ["9", "4", "100", "40"]);
}

#[tokio::test]
async fn a_denial_further_in_joins_the_decisions_of_the_layers_around_it() {
    let nested = nested((BOTH(), "5/1d"), (BOTH(), "0/1d"));
    let all = (limit("outer", "9/1d"), nested);
    let response = ask(&all).await;
    let allowed = decisions(&response).iter().map(Decision::is_allowed);
    assert_eq!(allowed.collect::<Vec<_>>(), [false, true, true]);
}

#[tokio::test]
async fn the_decisions_of_all_layers_are_found_by_their_policies() {
    let found = |decisions: &Decisions, names: &[&str]| -> Vec<Option<u64>> {
        let found = names.iter().map(|name| decisions.by_policy(name));
        found.map(|it| it.map(left)).collect()
    };
    let seen = answering(move |request| {
        let decisions: &Decisions = request.extensions().get().unwrap();
        let names = ["inner", "outer", "other"];
        assert_eq!(found(decisions, &names), [Some(1), Some(8), None]);
        assert_eq!(decisions.iter().map(left).collect::<Vec<_>>(), [1, 8, 6]);
        Response::new(String::new())
    });
    let trial = policy("trial", "5/1d").shadow();
    let first = limit("first", "7/1d").limit(trial, everybody());
    let all = ServiceBuilder::new()
        .layer(first.decisions_in_response())
        .layer(limit("outer", "9/1d"))
        .layer(limit("inner", "2/1d"));
    let response = all.service(seen).oneshot(to("/")).await.unwrap();
    let names = ["inner", "outer", "first", "trial"];
    let expected = [Some(1), Some(8), Some(6), Some(6)];
    assert_eq!(found(decisions(&response), &names), expected);
    let trial = decisions(&response).by_policy("trial").unwrap();
    assert_eq!(trial.usage().shadow().map(left), Some(4));
}

#[tokio::test]
async fn one_layer_of_several_is_enough_to_put_all_decisions_into_the_response() {
    for chosen in [None, Some(0), Some(1), Some(2)] {
        let layer = |place| {
            let layer = limit(["inner", "middle", "outer"][place], "9/1d").settle(|_, _| 3);
            match chosen == Some(place) {
                true => layer.decisions_in_response(),
                false => layer,
            }
        };
        let response = ask(&(layer(2), layer(1), layer(0))).await;
        let decisions: Option<&Decisions> = response.extensions().get();
        let left = decisions.map(|it| it.iter().map(left).collect::<Vec<_>>());
        assert_eq!(left, chosen.map(|_| vec![6, 6, 6]), "{chosen:?}");
    }
}

#[tokio::test]
async fn after_a_skip_a_handler_settles_no_decision_of_another_layer() {
    let limiter = support::limiter(MemoryStore::new());
    let (users, addresses) = (policy("users", "9/1d"), policy("addresses", "9/1d"));
    let by_user = support::layer(limiter.clone())
        .limit(users.clone(), everybody())
        .skip(|head| head.uri.path() == "/free");
    let by_address = support::layer(limiter.clone()).limit(addresses.clone(), everybody());
    let settling = limiter.clone();
    let handler = async move |decisions: Option<Decisions>| {
        if let Some(decision) = decisions.as_ref().and_then(|it| it.by_policy("users")) {
            settling.settle(decision.usage(), |_| 5).await.unwrap();
        }
    };
    let app: Router = Router::new()
        .fallback(get(handler))
        .layer(by_user)
        .layer(by_address);
    for (path, expected) in [("/free", [9, 8]), ("/", [4, 7])] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        app.clone().oneshot(request).await.unwrap();
        for (policy, expected) in [&users, &addresses].into_iter().zip(expected) {
            let left = left_of(&limiter, policy, &everybody()).await;
            assert_eq!(left, expected, "{path}");
        }
    }
}

#[tokio::test]
async fn a_handler_is_reached_without_decisions_when_the_store_is_down() {
    let down = support::layer(Scripted::failing()).limit(policy("all", "1/1d"), everybody());
    let handler = async |decisions: Option<Decisions>| decisions.is_some().to_string();
    let app: Router = Router::new().route("/", get(handler)).layer(down);
    let request = Request::get("/").body(Body::empty()).unwrap();
    let body = app.oneshot(request).await.unwrap().into_body();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "false");
}

#[tokio::test]
async fn a_settlement_replaces_the_decision_of_its_layer_alone() {
    let settling = limit("tokens", "100/1d").settle(|_, _| 30);
    let settling = settling.decisions_in_response();
    let response = ask(&(settling.clone(), limit("inner", "9/1d"))).await;
    let left_of = |it: &Response<_>| decisions(it).iter().map(left).collect::<Vec<_>>();
    assert_eq!(left_of(&response), [8, 70]);
    let items = lines(response.headers(), "ratelimit");
    let settled = items.iter().find(|it| it.starts_with(r#""tokens";r=70;"#));
    assert!(settled.is_some(), "{items:?}");
    let response = ask(&(limit("outer", "9/1d"), settling)).await;
    assert_eq!(left_of(&response), [40, 8]);
}

#[tokio::test]
async fn a_rejection_that_was_passed_on_does_not_hide_the_servers_own_headers() {
    let theirs = limit("theirs", "1/1d").headers(HeaderStyle::X_RATE_LIMIT);
    let client = Inner::new(theirs.layer(hello()));
    // A service that passes on the response of a client with a limit.
    let proxy = layer_fn(move |_| {
        let client = client.clone();
        Inner::new(service_fn(move |_| client.clone().oneshot(to("/"))))
    });
    let ours = limit("ours", "90/1d").headers(BOTH());
    let outer = limit("outer", "9999/1d").headers(BOTH());
    let all = (outer.decisions_in_response(), ours, proxy);
    for expected in [
        r#"200 limit=90 remaining=89 "ours";r=89 & "outer";r=9998"#,
        r#"429 limit=90 remaining=88 "ours";r=88 & "outer";r=9997"#,
    ] {
        let response = ask(&all).await;
        assert_eq!(in_short(&response), expected);
        assert_eq!(lines(response.headers(), "x-ratelimit-remaining").len(), 1);
        assert!(decisions(&response).by_policy("theirs").is_none());
        assert_eq!(decisions(&response).iter().count(), 2);
    }
}

// Listed policies

/// A limit for all requests, and one for requests with a key.
fn listing(user: impl Into<PolicySelector>) -> RateLimitLayer {
    limit("all", "9/1d").limit(user.into(), Header::new("x-api-key").or_skip())
}

fn live() -> ReloadablePolicies {
    ReloadablePolicies::new(Policies::new([policy("user", "5/1d")]).unwrap())
}

#[tokio::test]
async fn a_skipped_limit_is_listed_whether_or_not_its_policy_can_be_replaced() {
    let live = live();
    let replaceable = listing(live.policy("user").unwrap());
    let listed = async |layer: &RateLimitLayer, fields: &[(&'static str, &str)]| {
        let response = send(layer, with(fields)).await;
        lines(response.headers(), "ratelimit-policy").join(", ")
    };
    let expected = r#""all";q=9;w=86400, "user";q=5;w=86400"#;
    for layer in [&listing(policy("user", "5/1d")), &replaceable] {
        for fields in [&[][..], &[("x-api-key", "alice")]] {
            assert_eq!(listed(layer, fields).await, expected, "{fields:?}");
        }
    }
    let replaced = Policies::new([policy("user", "7/1d")]).unwrap();
    live.replace(replaced).unwrap();
    let expected = expected.replace("q=5", "q=7");
    assert_eq!(listed(&replaceable, &[]).await, expected);
}

answers! { told;
    a_skipped_limit_of_a_shadow_layer_is_not_listed: listing(policy("user", "5/1d")).shadow() => "200";
    a_skipped_limit_of_a_shadow_layer_that_can_be_replaced_is_not_listed: listing(live().policy("user").unwrap()).shadow() => "200";
}

#[tokio::test]
async fn the_response_of_the_service_says_by_itself_whether_caches_may_keep_it() {
    let public = answering(|_| {
        let response = Response::builder().header("cache-control", "public, max-age=60");
        response.body(String::new()).unwrap()
    });
    for (style, told) in [
        (HeaderStyle::default(), true),
        (HeaderStyle::default().only_on_denial(), false),
    ] {
        let service = limit("all", "1/1d").headers(style).layer(public.clone());
        let ask = async || service.clone().oneshot(to("/")).await.unwrap();
        let (served, denied) = (ask().await, ask().await);
        let caches = |it: &Response<_>| lines(it.headers(), "cache-control").join("&");
        assert_eq!(caches(&served), "public, max-age=60");
        assert_eq!(served.headers().contains_key("ratelimit"), told);
        assert_eq!(caches(&denied), "no-store");
    }
}

// Room for headers

/// The names in a field, which is one, and has at most 1 KiB.
fn items<B>(response: &Response<B>, name: &str) -> Vec<String> {
    let [field] = lines(response.headers(), name)[..] else {
        panic!("one field");
    };
    assert!(field.len() <= 1_024, "{}", field.len());
    let items = field.split(", ").map(|item| item.split(';').next());
    items.map(|it| it.unwrap().to_owned()).collect()
}

#[tokio::test]
async fn many_rules_make_no_headers_that_a_proxy_has_no_room_for() {
    let many = |count: u64| {
        (1..=count).rev().fold(empty(), |layer, number| {
            let name = format!("a-policy-with-a-name-{number}");
            let rules = ["1s", "1m", "1h", "1d"].map(|window| format!("{number}/{window}"));
            layer.limit(policy(&name, &rules.join(",")), everybody())
        })
    };
    // As configured, as long as there is room.
    let few = items(&ask(&many(4)).await, "ratelimit");
    assert_eq!(few.len(), 16);
    assert_eq!(few[0], r#""a-policy-with-a-name-4/1s""#);

    let layer = many(12);
    let response = ask(&layer).await;
    let listed = items(&response, "ratelimit");
    assert_eq!(listed, items(&response, "ratelimit-policy"));
    assert!((16..48).contains(&listed.len()), "{listed:?}");
    for (item, window) in listed.iter().zip(["1s", "1m", "1h", "1d"]) {
        assert_eq!(*item, format!(r#""a-policy-with-a-name-1/{window}""#));
    }
    let denied = ask(&layer).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(items(&denied, "ratelimit"), listed[..4]);
}

#[tokio::test]
async fn policies_that_are_chosen_take_no_room_beside_the_others() {
    let policies = |kind: &'static str, rules: &'static str| {
        (0..4).map(move |number| policy(&format!("a-policy-that-is-{kind}-{number}"), rules))
    };
    let fixed = policies("fixed", "9/1s,9/1m,9/1h,9/1d");
    let limits = fixed.fold(empty(), |layer, fixed| layer.limit(fixed, everybody()));
    let chosen = policies("chosen", "3/1s,3/1m,3/1h,3/1d");
    let limits = chosen.fold(limits, |layer, chosen| {
        layer.limit(move |_: &Parts| chosen.clone(), everybody())
    });
    let response = ask(&limits).await;
    for name in ["ratelimit", "ratelimit-policy"] {
        let lines = lines(response.headers(), name);
        let bytes: usize = lines.iter().map(|line| line.len()).sum();
        assert!((512..=1_024).contains(&bytes), "{bytes}");
        let first = "\"a-policy-that-is-chosen-";
        assert!(lines[0].starts_with(first), "{lines:?}");
    }
}

#[tokio::test]
async fn the_list_of_what_is_left_is_bounded_too() {
    // The list of quotas has 990 bytes, and the list of remaining units has four more for each policy.
    let limits = (0..16).fold(empty(), |layer, number| {
        let name = format!("a-policy-{number:0>37}");
        layer.limit(policy(&name, "999999999/1ms"), everybody())
    });
    let response = ask(&limits).await;
    for name in ["ratelimit", "ratelimit-policy"] {
        assert_eq!(items(&response, name).len(), 15);
    }
}

// Costs that never fit

/// The status, the field, the time to retry, and three fields of the body.
fn problem(response: &Response<String>) -> String {
    let field = |name| field(response.headers(), name);
    let body = serde_json::from_str(response.body()).unwrap_or(serde_json::Value::Null);
    let of_body = ["status", "detail", "violated-policies"].map(|name| body[name].to_string());
    let [quota, wait] = ["ratelimit", "retry-after"].map(field);
    format!("{} {quota} {wait} {}", code(response), of_body.join(" "))
}

fn never(status: StatusCode) -> ProblemJson {
    ProblemJson::default().status_if_never(status)
}

fn denying() -> RateLimitLayer {
    support::layer(Scripted::denying_for(1)).limit(policy("all", "1/1s"), everybody())
}

answers! { problem;
    a_cost_that_can_never_fit_has_a_status_of_its_own_and_nothing_to_wait_for: limit("all", "10/1d").cost(|_, _| 11) =>
        r#"413 "all";r=10 - 413 "This request costs more than a limit allows. It will never pass." ["all"]"#;
    a_cost_that_can_never_fit_has_that_status_without_a_body: limit("all", "10/1d").cost(|_, _| 11).rejection(StatusOnly) =>
        r#"413 "all";r=10 - null null null"#;
    the_status_of_a_cost_that_can_never_fit_may_be_chosen: limit("all", "10/1d").cost(|_, _| 11).rejection(never(StatusCode::UNPROCESSABLE_ENTITY)) =>
        r#"422 "all";r=10 - 422 "This request costs more than a limit allows. It will never pass." ["all"]"#;
    a_denial_that_passes_later_is_a_429_whatever_was_chosen: denying().rejection(never(StatusCode::UNPROCESSABLE_ENTITY)) =>
        r#"429 "all";r=0;t=1 1 429 null ["all"]"#;
    a_limit_of_0_is_a_switch: limit("all", "0/1d") =>
        r#"429 "all";r=0 - 429 "A limit of 0 denies all requests at present." ["all"]"#;
    no_request_is_too_large_for_a_limit_of_0: limit("all", "0/1d").cost(|_, _| 11) =>
        r#"429 "all";r=0 - 429 "A limit of 0 denies all requests at present." ["all"]"#;
    a_limit_of_0_has_a_status_without_a_body: limit("all", "0/1d").rejection(StatusOnly) => r#"429 "all";r=0 - null null null"#;
    the_status_of_a_limit_of_0_may_be_chosen: limit("all", "0/1d").rejection(never(StatusCode::FORBIDDEN)) =>
        r#"403 "all";r=0 - 403 "A limit of 0 denies all requests at present." ["all"]"#;
    a_limit_of_0_denies_no_look: limit("all", "0/1d").cost(|_, _| 0) => r#"200 "all";r=0 - null null null"#;
}

// Requests without a key

fn by(extractor: impl KeyExtractor) -> RateLimitLayer {
    empty().limit(policy("api", "9/1d"), extractor)
}

/// An extractor that fails in this way. A message may contain any characters.
fn failing(error: fn(&'static str) -> ExtractError) -> RateLimitLayer {
    by(move |_: &Parts| Err::<Key, _>(error("a \"key\" \\ is\nmissing")))
}

fn detail(response: &Response<String>) -> String {
    assert!(!response.body().contains("s3cret"), "{}", response.body());
    let problem: serde_json::Value = serde_json::from_str(response.body()).unwrap();
    let detail = problem["detail"].as_str().unwrap_or("-");
    format!("{} {detail}", response.status().as_u16())
}

answers! { detail;
    an_absent_header_is_named: by(Header::new("X-Api-Key")) => "400 the header that identifies the client is absent or empty: `x-api-key`";
    a_header_that_was_sent_twice_is_named_without_its_values [with(&[("x-api-key", "s3cret"), ("x-api-key", "s3cret2")])]: by(Header::new("X-Api-Key")) =>
        "400 the header that identifies the client was sent twice: `x-api-key`";
    an_absent_cookie_is_named_and_no_other [with(&[("cookie", "other=s3cret")])]: by(Cookie::new("SID")) =>
        "400 the cookie that identifies the client is absent or empty: `SID`";
    a_cookie_that_was_sent_twice_is_named_without_its_values [with(&[("cookie", "SID=s3cret; SID=s3cret2")])]: by(Cookie::new("SID")) =>
        "400 the cookie that identifies the client was sent twice: `SID`";
    an_absent_token_is_to_be_brought: by(BearerToken.or_unauthorized(HeaderValue::from_static("Bearer"))) => "401 the client has to authenticate";
    the_message_of_an_own_extractor_is_told_in_one_line: failing(ExtractError::missing) => r#"400 a "key" \ is missing"#;
    a_mistake_of_the_service_stays_in_it: failing(ExtractError::misconfigured) => "500 -";
}

// Actual costs

#[tokio::test]
async fn an_actual_cost_may_be_for_some_policies_only() {
    let several = ActualCost::of("tokens", 1).and("bytes".to_owned(), 400);
    let several = several.and("tokens", 0);
    for (cost, expected) in [
        (ActualCost::new(30), [70, 970, 970]),
        (ActualCost::of("tokens", 30), [99, 970, 999]),
        (several, [99, 1000, 600]),
        (ActualCost::of("unknown", 30), [99, 999, 999]),
    ] {
        let limits = limit("requests", "100/1d")
            .limit(policy("tokens", "1000/1d"), everybody())
            .limit(policy("bytes", "1000/1d"), everybody())
            .settle(ActualCost::or_charged)
            .decisions_in_response();
        let said = cost.clone();
        let service = limits.layer(answering(move |_| {
            let mut response = Response::new(String::new());
            response.extensions_mut().insert(said.clone());
            response
        }));
        let response = service.oneshot(to("/")).await.unwrap();
        let usage = decisions(&response).by_policy("tokens").unwrap().usage();
        let left: Vec<u64> = usage.rules().map(|it| it.remaining()).collect();
        assert_eq!(left, expected, "{cost:?}");
    }
}

// Statuses

fn of_all(limiter: Limiter) -> RateLimitLayer {
    support::layer(limiter).limit(policy("all", "1/1s"), everybody())
}

fn unknown() -> RateLimitLayer {
    let unavailable = |_: &Parts| Err::<Key, _>(ExtractError::unavailable("no directory"));
    support::layer(closed(Scripted::allowing())).limit(policy("all", "1/1s"), unavailable)
}

fn in_77_s(rejection: &Rejection, _: &Parts) -> Response<String> {
    let response = Response::builder().status(rejection.status());
    let response = response.header(RETRY_AFTER, "77");
    response.body(String::new()).unwrap()
}

answers! { told;
    a_service_whose_store_is_down_says_when_to_come_back: of_all(closed(Scripted::failing())) => "503 Undecided | retry-after: 1";
    a_service_without_its_directory_says_when_to_come_back: unknown() => "503 MissingKey | retry-after: 1";
    a_service_that_probes_seldom_says_so:
        of_all(closed(Scripted::failing()).probe_interval(Duration::from_millis(2_500))) => "503 Undecided | retry-after: 3";
    a_service_that_is_down_may_choose_its_time: of_all(closed(Scripted::failing())).rejection(in_77_s) => "503 Undecided | retry-after: 77";
    a_service_without_its_directory_may_choose_its_time: unknown().rejection(in_77_s) => "503 MissingKey | retry-after: 77";
}

// gRPC

fn call(content_type: &str) -> Request<String> {
    let call = Request::post("/greeter/hello").header("content-type", content_type);
    call.body(String::new()).unwrap()
}

/// The status, the body, and the fields of the answer to a call.
fn grpc(response: &Response<String>) -> String {
    let field = |name| field(response.headers(), name);
    let [kind, status] = ["content-type", "grpc-status"].map(field);
    let (code, wait) = (response.status().as_u16(), field("retry-after"));
    format!("{code}{} {kind} {status} in {wait}", response.body())
}

fn calls() -> RateLimitLayer {
    support::layer(Scripted::denying_for(1_234)).limit(policy("calls", "1/1s"), everybody())
}

answers! { grpc;
    a_call_gets_a_grpc_answer_from_the_default_rejections [call("application/grpc")]: calls() => "200 application/grpc 8 in 2";
    a_call_of_prost_gets_the_same [call("application/grpc+proto")]: calls() => "200 application/grpc 8 in 2";
    a_call_gets_it_from_a_status_alone [call("application/grpc")]: calls().rejection(StatusOnly) => "200 application/grpc 8 in 2";
    a_call_from_a_page_gets_its_own_type [call("application/grpc-web+proto")]: calls() => "200 application/grpc-web+proto 8 in 2";
    a_call_that_costs_too_much_is_out_of_resources [call("application/grpc")]: calls().cost(|_, _| 2) => "200 application/grpc 8 in -";
    a_call_on_a_deny_list_is_not_permitted [call("application/grpc")]: calls().deny(|_| true) => "200 application/grpc 7 in -";
    a_call_that_cannot_be_decided_is_unavailable [call("application/grpc")]: of_all(closed(Scripted::failing())) => "200 application/grpc 14 in 1";
}

// Rejections of axum's types

async fn rejected<R>(layer: RateLimitLayer<R>, kind: &str) -> (u16, HeaderMap, String)
where
    R: MakeRejection<Body> + Send + Sync + 'static,
{
    let app: Router = Router::new().route("/", get(async || "hello")).layer(layer);
    let request = Request::post("/").header("content-type", kind);
    let response = app.oneshot(request.body(Body::empty()).unwrap()).await;
    let (head, body) = response.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    let text = String::from_utf8(body).unwrap();
    (head.status.as_u16(), head.headers, text)
}

async fn rejected_with<T: IntoResponse + 'static>(
    make: impl Fn(&Rejection, &Parts) -> T + Clone + Send + Sync + 'static,
) -> (u16, HeaderMap, String) {
    rejected(denying().reject_with(make), "text/plain").await
}

#[tokio::test]
async fn a_rejection_may_be_anything_that_is_into_response_and_does_not_look_like_success() {
    assert_eq!(rejected_with(|_, _| Json("slow down")).await.0, 429);
    assert_eq!(rejected_with(|_, _| StatusCode::IM_A_TEAPOT).await.0, 418);
    // gRPC has its own header for the delay.
    let call = denying().reject_with(|_, _| [("content-type", "application/grpc")]);
    assert_eq!(rejected(call, "application/grpc").await.0, 200);

    let (status, headers, body) = rejected_with(|rejection, head| {
        let error = serde_json::json!({ "error": "slow down", "path": head.uri.path() });
        (rejection.status(), Json(error))
    })
    .await;
    assert_eq!(status, 429);
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["retry-after"], "1");
    assert_eq!(body, r#"{"error":"slow down","path":"/"}"#);

    let both = Grpc::new().or(AxumRejection::new(|_, _| "slow down"));
    let kinds = ["application/grpc", "text/plain"];
    for (kind, expected) in kinds.into_iter().zip([None, Some("slow down")]) {
        let (_, headers, body) = rejected(denying().rejection(both), kind).await;
        assert_eq!(headers.contains_key("grpc-status"), expected.is_none());
        assert_eq!(body, expected.unwrap_or_default());
    }
}
