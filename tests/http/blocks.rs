//! Answers to clients and handlers about blocks and bans, and the events for observers.

use std::{convert::Infallible, time::Duration};

use crate::observe::recorded;
use axum::body::Body;
use http::{HeaderMap, Request, Response, StatusCode, request::Parts};
use http_body_util::BodyExt;
use sluicegate::{
    Charge, Decision, FailurePolicy, Header, Key, KeyExtractor, Limiter, MemoryStore, Policy,
    RateLimitLayer, StoreError,
    block::Until,
    error::{ExtractError, StoreErrorKind},
    manual_clock::ManualClock,
    middleware::{Decisions, Grpc, HeaderStyle, MakeRejection, ProblemJson, Rejection},
    observe::{Observer, TracingObserver},
    policies::{Policies, ReloadablePolicies},
};
use support::{
    flaky::{Flaky, State},
    history::START_MS,
    log::Log,
    scripted::Scripted,
    trace::traced,
};
use tower::{Layer, ServiceExt, service_fn};

const OK: StatusCode = StatusCode::OK;
const DENIED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const BLOCKED: StatusCode = StatusCode::FORBIDDEN;
const HOUR: Duration = Duration::from_secs(3_600);
const SECRET: &str = "sk_live_do_not_show";

/// All headers with a quota.
const QUOTA: [&str; 6] = [
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-remaining",
    "x-ratelimit-remaining",
    "x-ratelimit-limit",
    "x-ratelimit-reset",
];

fn alice() -> Key {
    Key::new("user", "alice")
}

/// The limit is used up from the start. Three denials in ten minutes lead to a ban of a minute and a bit.
fn login() -> Policy {
    let policy = Policy::parse("login", "1/1h").unwrap();
    policy.ban("3/10m=61500ms".parse().unwrap())
}

fn free() -> Policy {
    Policy::parse("free", "100/1h").unwrap()
}

fn memory() -> (Limiter, ManualClock) {
    let clock = ManualClock::new(START_MS);
    let limiter = Limiter::new(MemoryStore::new().clock(clock.clone()));
    for key in [alice(), Header::new("x-user").key(SECRET)] {
        let charge = Charge::new(&login(), key, 1);
        let used_up = futures::executor::block_on(limiter.check([charge])).unwrap();
        assert!(used_up.is_allowed());
    }
    (limiter, clock)
}

async fn send<R: MakeRejection<Body> + Send + Sync + 'static>(
    layer: &RateLimitLayer<R>,
    content_type: &str,
) -> Response<Body> {
    let inner =
        service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::from("hi"))));
    let request = Request::post("/")
        .header("content-type", content_type)
        .header("x-user", SECRET);
    let request = request.body(Body::empty()).unwrap();
    layer.layer(inner).oneshot(request).await.unwrap()
}

/// Sends a request, and waits until strikes are counted.
async fn ask<R: MakeRejection<Body> + Send + Sync + 'static>(
    limiter: &Limiter,
    layer: &RateLimitLayer<R>,
) -> (StatusCode, HeaderMap, String) {
    let (head, body) = send(layer, "text/plain").await.into_parts();
    limiter.strikes_counted().await;
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    (head.status, head.headers, String::from_utf8(body).unwrap())
}

fn has_quota(headers: &HeaderMap) -> bool {
    QUOTA.iter().any(|name| headers.contains_key(*name))
}

#[tokio::test]
async fn an_operators_block_is_a_403_without_a_quota_or_a_time_to_retry() {
    let (limiter, _) = memory();
    limiter.block(&alice(), HOUR).await.unwrap();
    for style in [
        HeaderStyle::DRAFT_11,
        HeaderStyle::DRAFT_6,
        HeaderStyle::X_RATE_LIMIT_EPOCH,
        HeaderStyle::RETRY_AFTER_MS,
        HeaderStyle::NONE,
    ] {
        let layer = RateLimitLayer::new(limiter.clone()).headers(style);
        let layer = layer.jitter(HOUR).limit(free(), alice());
        let (status, headers, body) = ask(&limiter, &layer).await;
        assert_eq!(status, BLOCKED);
        assert!(!has_quota(&headers), "{headers:?}");
        assert!(!headers.contains_key("retry-after") && !headers.contains_key("retry-after-ms"));
        assert_eq!(headers["cache-control"], "no-store");
        assert!(!body.contains("alice"), "{body}");
    }
    let layer = RateLimitLayer::new(limiter.clone()).limit(free(), alice());
    let layer = layer.rejection(ProblemJson::default());
    let (_, headers, body) = ask(&limiter, &layer).await;
    assert_eq!(headers["content-type"], "application/problem+json");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["status"], 403);
    assert_eq!(body["title"], "Forbidden");
    assert_eq!(body.get("violated-policies"), None);
    assert_eq!(body.get("detail"), None);

    limiter.unblock(&alice()).await.unwrap();
    let (status, headers, _) = ask(&limiter, &layer).await;
    assert_eq!(status, OK);
    assert_eq!(headers["ratelimit"], r#""free";r=99;t=3660"#);
}

#[tokio::test]
async fn a_ban_is_a_429_with_the_time_that_it_lasts() {
    let (limiter, clock) = memory();
    let layer = RateLimitLayer::new(limiter.clone()).limit(login(), alice());
    let layer = layer.rejection(ProblemJson::default());
    for _ in 0..3 {
        let (status, headers, _) = ask(&limiter, &layer).await;
        assert_eq!(status, DENIED);
        assert!(has_quota(&headers));
    }
    for (gone, wait) in [
        (0, "62"),
        (500, "61"),
        (501, "61"),
        (1_500, "60"),
        (61_499, "1"),
    ] {
        clock.set(START_MS + gone);
        let (status, headers, body) = ask(&limiter, &layer).await;
        assert_eq!(status, DENIED);
        assert_eq!(headers["retry-after"], wait, "{gone}");
        assert!(!has_quota(&headers), "{headers:?}");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["status"], 429);
        let problem = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
        assert_eq!(body["type"], problem);
        assert_eq!(body["title"], "Abnormal Usage Detected");
        assert_eq!(body.get("violated-policies"), None);
        let detail = "Blocked for a time, after too many requests were denied.";
        assert_eq!(body["detail"], detail);
    }
    clock.set(START_MS + 61_500);
    let (status, headers, _) = ask(&limiter, &layer).await;
    assert_eq!(status, DENIED, "the limit still holds");
    assert!(has_quota(&headers));
}

#[tokio::test]
async fn jitter_only_adds_to_a_bans_retry_after() {
    let (limiter, _) = memory();
    let layer = RateLimitLayer::new(limiter.clone()).limit(login(), alice());
    let layer = layer
        .jitter(HOUR)
        .rejection(|rejection: &Rejection, _: &Parts| match rejection {
            Rejection::Blocked(blocked) => {
                let wait = blocked.retry_after().unwrap().as_millis();
                Response::new(Body::from(wait.to_string()))
            }
            _ => Response::new(Body::empty()),
        });
    for _ in 0..3 {
        ask(&limiter, &layer).await;
    }
    let mut told = Vec::new();
    for _ in 0..9 {
        let (_, headers, body) = ask(&limiter, &layer).await;
        let wait: u64 = body.parse().unwrap();
        assert!((61_500..=61_500 + 3_600_000).contains(&wait), "{wait}");
        assert_eq!(headers["retry-after"], *wait.div_ceil(1_000).to_string());
        told.push(wait);
    }
    told.dedup();
    assert!(told.len() > 1, "jitter differs");
}

/// The answers of a layer with a response to 429s of its own.
async fn own_429s(limiter: &Limiter, layer: RateLimitLayer, kind: &str) -> (u16, String) {
    let problems = ProblemJson::default().status_if_never(StatusCode::UNPROCESSABLE_ENTITY);
    let layer = layer.rejection(problems);
    let layer = layer.reject_denied_with(|rejection, _head| rejection.to_string());
    let (head, body) = send(&layer, kind).await.into_parts();
    limiter.strikes_counted().await;
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    (head.status.as_u16(), String::from_utf8(body).unwrap())
}

#[tokio::test]
async fn a_response_to_429s_alone_is_for_denials_and_bans_and_names_no_key() {
    let (limiter, _) = memory();
    for expected in [
        "denied by `1/1h` of policy `login`, retry after 61m",
        "denied by `1/1h` of policy `login`, retry after 61m",
        "denied by `1/1h` of policy `login`, retry after 61m",
        "blocked (source: ban), retry after 61500ms",
    ] {
        let layer = RateLimitLayer::new(limiter.clone()).limit(login(), alice());
        let answer = own_429s(&limiter, layer, "text/plain").await;
        assert_eq!(answer, (429, expected.to_owned()));
    }
    let (limiter, _) = memory();
    let closed = Policy::parse("closed", "0/1h").unwrap();
    let layer = RateLimitLayer::new(limiter.clone()).limit(closed, alice());
    let expected = "denied by `0/1h` of policy `closed`, do not retry";
    let answer = own_429s(&limiter, layer, "text/plain").await;
    assert_eq!(answer, (429, expected.to_owned()));
}

#[tokio::test]
async fn a_response_to_429s_alone_leaves_all_other_rejections_as_they_were() {
    let (limiter, _) = memory();
    let layer = || RateLimitLayer::new(limiter.clone()).limit(free(), alice());
    let failing = Limiter::new(Scripted::failing()).on_failure(FailurePolicy::Closed);
    let blocked = Key::new("user", "bob");
    limiter.block(&blocked, HOUR).await.unwrap();
    for (layer, status, title) in [
        (layer().cost(|_, _| 101), 422, "Quota Exceeded"),
        (
            layer().limit(login(), Header::new("absent")),
            400,
            "Bad Request",
        ),
        (layer().deny(|_| true), 403, "Forbidden"),
        (layer().limit(login(), blocked), 403, "Forbidden"),
        (
            RateLimitLayer::new(failing).limit(free(), alice()),
            503,
            "Temporary Reduced Capacity",
        ),
    ] {
        let (answered, body) = own_429s(&limiter, layer, "text/plain").await;
        assert_eq!(answered, status, "{body}");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["title"], title);
    }
    // A gRPC call gets no 429.
    let denied = layer().limit(login(), alice());
    let answer = own_429s(&limiter, denied, "application/grpc").await;
    assert_eq!(answer, (200, String::new()));
}

#[test]
fn a_rejection_has_a_text_for_logs() {
    let down = StoreError::new(StoreErrorKind::Unavailable, "the server is down");
    let absent = ExtractError::missing("the token is missing");
    for (rejection, expected) in [
        (Rejection::OnDenyList, "on a deny list"),
        (Rejection::MissingKey(absent), "the token is missing"),
        (Rejection::Undecided(down), "undecided: the server is down"),
    ] {
        assert_eq!(rejection.to_string(), expected);
    }
}

#[tokio::test]
async fn grpc_clients_are_told_whether_to_try_again() {
    let (limiter, _) = memory();
    let layer = RateLimitLayer::new(limiter.clone()).limit(login(), alice());
    let layer = layer.rejection(Grpc::new());
    for _ in 0..3 {
        ask(&limiter, &layer).await;
    }
    let response = send(&layer, "application/grpc").await;
    assert_eq!(response.status(), OK);
    let headers = response.headers();
    assert_eq!(headers["grpc-status"], "8", "RESOURCE_EXHAUSTED");
    assert_eq!(headers["grpc-retry-pushback-ms"], "61500");
    assert_eq!(headers["retry-after"], "62");
    assert!(!has_quota(headers));

    limiter.unblock(&alice()).await.unwrap();
    limiter.block(&alice(), HOUR).await.unwrap();
    let response = send(&layer, "application/grpc").await;
    let headers = response.headers();
    assert_eq!(headers["grpc-status"], "7", "PERMISSION_DENIED");
    assert_eq!(headers["grpc-retry-pushback-ms"], "-1");
    assert!(!headers.contains_key("retry-after"));
    assert!(!has_quota(headers));
}

#[tokio::test]
async fn a_custom_rejection_shows_the_key_and_the_source_of_a_block() {
    let (limiter, _) = memory();
    let words = |rejection: &Rejection, _: &Parts| {
        Response::new(Body::from(match rejection {
            Rejection::Blocked(it) => format!("{:?} {:?}", it.key().kind(), it.block()),
            Rejection::OnDenyList => "list".to_owned(),
            other => format!("{other:?}"),
        }))
    };
    let layer = RateLimitLayer::new(limiter.clone()).limit(free(), alice());
    limiter.block(&alice(), Until::Forever).await.unwrap();
    let (status, headers, body) = ask(&limiter, &layer.clone().rejection(words)).await;
    assert_eq!(body, r#""user" Block(operator, for ever)"#);
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(
        status, OK,
        "a function answers with the status that it likes"
    );
    // The deny list comes first.
    let listed = layer.deny_keys(|_| true).rejection(words);
    assert_eq!(ask(&limiter, &listed).await.2, "list");
}

#[tokio::test]
async fn keys_on_an_allow_list_are_never_blocked_nor_banned() {
    let (limiter, _) = memory();
    limiter.block(&alice(), HOUR).await.unwrap();
    let layer = RateLimitLayer::new(limiter.clone());
    let layer = layer
        .limit(login(), alice())
        .limit(login(), Header::new("x-user"));
    let skipping = layer.clone().skip_keys(|key| *key == alice());
    // Without alice's key, only the other identity is checked; that one is denied and gets a strike.
    for is_limit in [true, true, true, false] {
        let (status, headers, _) = ask(&limiter, &skipping).await;
        assert_eq!((status, has_quota(&headers)), (DENIED, is_limit));
    }
    let all = layer.clone().skip_keys(|_| true);
    assert_eq!(ask(&limiter, &all).await.0, OK);
    assert_eq!(ask(&limiter, &layer.skip(|_| true)).await.0, OK);
    limiter.unblock(&alice()).await.unwrap();
    let charge = Charge::new(&login(), alice(), 1);
    let decision = limiter.check([charge]).await.unwrap();
    assert!(
        matches!(decision, Decision::Denied(_)),
        "alice has no strikes"
    );
}

#[tokio::test]
async fn layers_around_each_other_charge_until_one_is_blocked_and_tell_no_quota() {
    let (limiter, _) = memory();
    let bob = Key::new("user", "bob");
    let outer =
        RateLimitLayer::new(limiter.clone().enforce_blocks(false)).limit(free(), bob.clone());
    let inner = RateLimitLayer::new(limiter.clone()).limit(free(), alice());
    limiter.block(&alice(), HOUR).await.unwrap();
    // A layer that does not enforce blocks ignores the block.
    limiter.block(&bob, HOUR).await.unwrap();
    let handler =
        service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let service = outer.layer(inner.layer(handler));
    let response = service.oneshot(Request::new(Body::empty())).await.unwrap();
    assert_eq!(response.status(), BLOCKED);
    assert!(!has_quota(response.headers()), "{:?}", response.headers());
    let decisions = response.extensions().get::<Decisions>().unwrap();
    let all: Vec<&Decision> = decisions.iter().collect();
    assert!(matches!(
        all[..],
        [Decision::Blocked(_), Decision::Allowed(_)]
    ));
    assert!(decisions.by_policy("free").unwrap().is_allowed());
    let left = limiter.peek([Charge::new(&free(), bob, 0)]).await.unwrap();
    assert_eq!(left.rules().next().unwrap().remaining(), 99);
}

#[tokio::test]
async fn a_shadow_layer_blocks_and_bans_no_identity() {
    let (limiter, _) = memory();
    let layer = RateLimitLayer::new(limiter.clone())
        .limit(login(), alice())
        .shadow();
    limiter.block(&alice(), HOUR).await.unwrap();
    assert_eq!(ask(&limiter, &layer).await.0, OK);
    limiter.unblock(&alice()).await.unwrap();
    for _ in 0..5 {
        assert_eq!(ask(&limiter, &layer).await.0, OK);
    }
    let counting = RateLimitLayer::new(limiter.clone()).limit(free(), alice());
    assert_eq!(ask(&limiter, &counting).await.0, OK);
}

#[tokio::test]
async fn a_ban_is_reloaded_with_its_policy() {
    let (limiter, _) = memory();
    let limiter = limiter.enforce_blocks(false);
    let plain = || Policies::new([Policy::parse("login", "1/1h").unwrap()]).unwrap();
    let live = ReloadablePolicies::new(plain());
    let layer = RateLimitLayer::new(limiter.clone()).limit(live.policy("login").unwrap(), alice());
    // A ban has no quota to show.
    let denied = async |is_limit| {
        let (status, headers, _) = ask(&limiter, &layer).await;
        assert_eq!((status, has_quota(&headers)), (DENIED, is_limit));
    };
    for _ in 0..4 {
        denied(true).await;
    }
    let file = r#"{"login":{"rules":"1/1h","strikes":"2/10m","ban":"1h"}}"#;
    live.replace(serde_json::from_str(file).unwrap()).unwrap();
    for is_limit in [true, true, false] {
        denied(is_limit).await;
    }
    // Without the ban, the layer no longer enforces blocks, but they are still stored.
    live.replace(plain()).unwrap();
    denied(true).await;
    live.replace(serde_json::from_str(file).unwrap()).unwrap();
    denied(false).await;
}

/// A ban, a request denied by it, an operator's block, and a request on a deny list.
async fn everything(observer: impl Observer) {
    let (limiter, _) = memory();
    let limiter = limiter.observer(observer);
    let layer = RateLimitLayer::new(limiter.clone()).limit(login(), Header::new("x-user"));
    let layer = layer.limit(free().shadow(), Header::new("x-user"));
    for _ in 0..4 {
        ask(&limiter, &layer).await;
    }
    let free = RateLimitLayer::new(limiter.clone()).limit(free(), alice());
    limiter.block(&alice(), HOUR).await.unwrap();
    ask(&limiter, &free).await;
    limiter.unblock(&alice()).await.unwrap();
    ask(&limiter, &free.deny_keys(|_| true)).await;
}

#[test]
fn metrics_tell_what_blocked_and_time_what_the_store_answered() {
    let mut seen = recorded(everything);
    seen.retain(|it| !it.starts_with("sluicegate_breakers_open"));
    assert!(!seen.concat().contains(SECRET));
    assert_eq!(
        seen,
        [
            "sluicegate_bans_total policy=login = 1",
            "sluicegate_blocked_total policy= by=ban = 1",
            "sluicegate_blocked_total policy= by=operator = 1",
            "sluicegate_blocked_total policy=free by=list = 1",
            "sluicegate_decisions_total policy=login outcome=denied = 3",
            "sluicegate_denials_total policy=login rule=1/1h shadow=false = 3",
            "sluicegate_store_seconds call=block = 1",
            "sluicegate_store_seconds call=check = 5",
            "sluicegate_store_seconds call=unblock = 1",
        ]
    );
}

#[test]
fn events_name_the_source_of_a_block_and_the_policy_of_a_ban() {
    let lines = traced(true, everything(TracingObserver::new()));
    let told: Vec<&str> = lines
        .iter()
        .filter(|it| it.contains("ban") || it.contains("block"))
        .map(String::as_str)
        .collect();
    let ban = format!(
        r#"DEBUG banned policy="login" until_ms={}"#,
        START_MS + 61_500
    );
    assert_eq!(
        told,
        [
            &ban,
            r#"DEBUG blocked by="ban""#,
            r#"DEBUG call="block" policies= shadow=false"#,
            r#"DEBUG blocked by="operator""#,
            r#"DEBUG call="unblock" policies= shadow=false"#,
            r#"DEBUG blocked policy="free" by="list""#,
        ]
    );
    assert!(!lines.concat().contains(SECRET));
}

#[tokio::test]
async fn a_layer_may_leave_blocks_to_another_one() {
    let (limiter, _) = memory();
    limiter.block(&alice(), HOUR).await.unwrap();
    let layer = RateLimitLayer::new(limiter.clone()).limit(free(), alice());
    assert_eq!(ask(&limiter, &layer).await.0, BLOCKED);
    let layer = RateLimitLayer::new(limiter.clone().enforce_blocks(false)).limit(free(), alice());
    assert_eq!(ask(&limiter, &layer).await.0, OK);
    // Each layer looks up its identity, and one check enforces the blocks of all identities.
    let banning = layer.clone().limit(login(), bob());
    for layer in [
        layer.clone().deny_blocked(alice()),
        layer.deny_blocked(bob()),
        banning,
    ] {
        assert_eq!(ask(&limiter, &layer).await.0, BLOCKED);
    }
}

#[tokio::test]
async fn what_is_looked_up_is_in_one_check_with_the_limits_and_in_no_header() {
    let store = Scripted::allowing();
    let layer = RateLimitLayer::new(Limiter::new(store.clone()))
        .limit(free(), alice())
        .deny_blocked(Header::new("x-user"))
        .deny_blocked(alice())
        .decisions_in_response();
    let response = send(&layer, "text/plain").await;
    assert_eq!(
        response.headers()["ratelimit-policy"],
        r#""free";q=100;w=3600"#
    );
    assert_eq!(
        store.only_check(),
        ["free user 1", "!look-ups header 0"],
        "the block of alice is looked up with her charge"
    );
    assert!(store.checks()[0].enforces_blocks());
    let decisions = response.extensions().get::<Decisions>().unwrap();
    let usage = decisions.iter().next().unwrap().usage();
    assert_eq!(usage.policies().count(), 1);
    assert_eq!(usage.check().charges().len(), 1, "so much is to be settled");
}

#[tokio::test]
async fn a_look_up_follows_the_lists_and_rejects_who_has_no_key() {
    let (limiter, _) = memory();
    limiter.block(&alice(), HOUR).await.unwrap();
    let layer = RateLimitLayer::new(limiter.clone());
    let denying = layer.clone().deny_blocked(alice());
    let no_key = layer.clone().deny_blocked(Header::new("x-none"));
    let or_skip = layer.clone().deny_blocked(Header::new("x-none").or_skip());
    for (layer, expected) in [
        (denying.clone(), BLOCKED),
        (denying.clone().shadow(), BLOCKED),
        (denying.clone().skip(|_| true), OK),
        (denying.clone().skip_keys(|_| true), OK),
        (layer.deny_blocked(bob()).deny_keys(|_| true), BLOCKED),
        (no_key.clone(), StatusCode::BAD_REQUEST),
        (no_key.shadow(), OK),
        (or_skip, OK),
    ] {
        assert_eq!(ask(&limiter, &layer).await.0, expected, "{layer:?}");
    }
}

fn bob() -> Key {
    Key::new("user", "bob")
}

#[tokio::test]
async fn a_look_up_that_cannot_be_decided_follows_the_failure_policy() {
    const UNAVAILABLE: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
    let (store, _) = Flaky::new();
    store.is_now(State::Down);
    let limiter = Limiter::new(store);
    let under =
        |policy| RateLimitLayer::new(limiter.clone().on_failure(policy)).deny_blocked(alice());
    let (open, closed) = (under(FailurePolicy::Open), under(FailurePolicy::Closed));
    let shadow = free().shadow().on_failure(FailurePolicy::Closed);
    for (layer, expected) in [
        (open.clone(), OK),
        (under(FailurePolicy::Local), OK),
        (open.limit(shadow, alice()), OK),
        (closed.clone(), UNAVAILABLE),
        (closed.clone().limit(free().shadow(), alice()), UNAVAILABLE),
        (closed.shadow(), OK),
    ] {
        assert_eq!(ask(&limiter, &layer).await.0, expected, "{layer:?}");
    }
}

#[tokio::test]
async fn an_observer_hears_that_a_shadow_layer_passes_what_cannot_be_decided() {
    let (store, _) = Flaky::new();
    store.is_now(State::Down);
    let log = Log::default();
    let limiter = Limiter::new(store).on_failure(FailurePolicy::Closed);
    let looking = RateLimitLayer::new(limiter.clone().observer(log.clone()))
        .deny_blocked(alice())
        .shadow();
    let limiting = looking.clone().limit(free(), bob());
    for layer in [&looking, &limiting] {
        assert_eq!(ask(&limiter, layer).await.0, OK);
    }
    let lines = log.lines();
    let lines = lines.iter().map(|line| line.split(" in ").next().unwrap());
    assert_eq!(
        lines.collect::<Vec<_>>(),
        [
            "check  unavailable passed",
            "shadow check free unavailable passed",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn callers_wait_in_one_queue_whatever_is_looked_up_with_them() {
    let (limiter, _) = memory();
    let policy = Policy::parse("slow", "1/1h").unwrap();
    let layer = RateLimitLayer::new(limiter.clone())
        .limit(policy.clone(), alice())
        .deny_blocked(bob())
        .max_wait(Duration::from_secs(60));
    assert_eq!(ask(&limiter, &layer).await.0, OK);
    let waiting = tokio::spawn({
        let (limiter, layer) = (limiter.clone(), layer.max_wait(2 * HOUR));
        async move { ask(&limiter, &layer).await.0 }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    limiter.reset(&policy, &alice()).await.unwrap();
    assert_eq!(waiting.await.unwrap(), OK);
}
