//! Answers to clients and handlers about blocks and bans, and the events for observers.

use crate::observe::{grouped, recorded};
use sluicegate::block::Until;
use sluicegate::store::Settlement;
use support::{
    flaky::{Flaky, State},
    history::START_MS,
};

use crate::prelude::*;

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

fn bob() -> Key {
    Key::new("user", "bob")
}

/// The limit is used up from the start. Three denials in ten minutes lead to a ban of a minute and a bit.
fn login() -> Policy {
    policy("login", "1/1h").ban("3/10m=61500ms".parse().unwrap())
}

fn free() -> Policy {
    policy("free", "100/1h")
}

fn memory() -> (Limiter, ManualClock) {
    let (store, clock) = support::prelude::memory();
    let limiter = support::limiter(store);
    for key in [alice(), Header::new("x-user").key(SECRET)] {
        let charge = Charge::new(&login(), key, 1);
        let used_up = futures::executor::block_on(limiter.check([charge])).unwrap();
        assert!(used_up.is_allowed());
    }
    (limiter, clock)
}

fn over(limiter: &Limiter) -> RateLimitLayer {
    support::layer(limiter.clone())
}

type Answer = Response<String>;

/// Sends a request, and waits until strikes are counted.
async fn send(limiter: &Limiter, layer: &impl Limits<String>, kind: &str) -> Answer {
    let mut request = with(&[("content-type", kind), ("x-user", SECRET)]);
    *request.method_mut() = Method::POST;
    let response = crate::asking::send(layer, request).await;
    limiter.strikes_counted().await;
    response
}

async fn ask(limiter: &Limiter, layer: &impl Limits<String>) -> Answer {
    send(limiter, layer, "text/plain").await
}

async fn status(limiter: &Limiter, layer: &impl Limits<String>) -> u16 {
    ask(limiter, layer).await.status().as_u16()
}

fn has_quota(response: &Answer) -> bool {
    let headers = response.headers();
    QUOTA.iter().any(|name| headers.contains_key(*name))
}

/// The status, and whether there is a quota.
async fn seen(limiter: &Limiter, layer: &impl Limits<String>) -> (u16, bool) {
    let response = ask(limiter, layer).await;
    (response.status().as_u16(), has_quota(&response))
}

#[tokio::test]
async fn an_operators_block_is_a_403_without_a_quota_or_a_time_to_retry() {
    let (limiter, _) = memory();
    limiter.block(&alice(), HOUR).await.unwrap();
    let layer = over(&limiter).limit(free(), alice());
    let problem = r#"{"type":"about:blank","title":"Forbidden","status":403}"#;
    let no_more = format!(
        "403 Blocked | cache-control: no-store | content-type: application/problem+json | {problem}"
    );
    for style in [
        HeaderStyle::DRAFT_11,
        HeaderStyle::DRAFT_6,
        HeaderStyle::X_RATE_LIMIT_EPOCH,
        HeaderStyle::RETRY_AFTER_MS,
        HeaderStyle::NONE,
    ] {
        let response = ask(&limiter, &layer.clone().headers(style).jitter(HOUR)).await;
        assert!(!has_quota(&response));
        assert_eq!(whole(&response), no_more);
    }
    limiter.unblock(&alice()).await.unwrap();
    let response = ask(&limiter, &layer).await;
    assert_eq!(response.status(), 200);
    let expected = r#""free";r=99;t=3660"#;
    assert_eq!(field(response.headers(), "ratelimit"), expected);
}

#[tokio::test]
async fn a_ban_is_a_429_with_the_time_that_it_lasts() {
    let (limiter, clock) = memory();
    let layer = over(&limiter).limit(login(), alice());
    for _ in 0..3 {
        assert_eq!(seen(&limiter, &layer).await, (429, true));
    }
    let waits = ["62", "61", "61", "60", "1"];
    for (gone, wait) in [0, 500, 501, 1_500, 61_499].into_iter().zip(waits) {
        clock.set(START_MS + gone);
        let response = ask(&limiter, &layer).await;
        let expected = format!("429 Blocked | retry-after: {wait}");
        assert_eq!(told(&response), expected);
        let problem = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
        let detail = "Blocked for a time, after too many requests were denied.";
        let expected = format!(
            r#"{{"type":"{problem}","title":"Abnormal Usage Detected","status":429,"detail":"{detail}"}}"#
        );
        assert_eq!(*response.body(), expected);
    }
    clock.set(START_MS + 61_500);
    let still = seen(&limiter, &layer).await;
    assert_eq!(still, (429, true), "the limit still holds");
}

#[tokio::test]
async fn jitter_only_adds_to_a_bans_retry_after() {
    let (limiter, _) = memory();
    let words = |rejection: &Rejection, _: &Parts| match rejection {
        Rejection::Blocked(blocked) => {
            let wait = blocked.retry_after().unwrap().as_millis();
            Response::new(wait.to_string())
        }
        _ => Response::new(String::new()),
    };
    let layer = over(&limiter).limit(login(), alice());
    let layer = layer.jitter(HOUR).rejection(words);
    for _ in 0..3 {
        ask(&limiter, &layer).await;
    }
    let mut told = Vec::new();
    for _ in 0..9 {
        let response = ask(&limiter, &layer).await;
        let wait: u64 = response.body().parse().unwrap();
        assert!((61_500..=61_500 + 3_600_000).contains(&wait), "{wait}");
        let seconds = wait.div_ceil(1_000).to_string();
        assert_eq!(field(response.headers(), "retry-after"), seconds);
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
    let app = Router::new().fallback(async || "hi").layer(layer);
    let request = Request::post("/").header("content-type", kind);
    let request = request.header("x-user", SECRET).body(Body::empty());
    let response = ServiceExt::oneshot(app, request.unwrap()).await;
    limiter.strikes_counted().await;
    let (head, body) = response.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    (head.status.as_u16(), String::from_utf8(body).unwrap())
}

#[tokio::test]
async fn a_response_to_429s_alone_is_for_denials_and_bans_and_names_no_key() {
    let (limiter, _) = memory();
    let denied = "denied by `1/1h` of policy `login`, retry after 61m";
    let banned = "blocked (source: ban), retry after 61500ms";
    for expected in [denied, denied, denied, banned] {
        let layer = over(&limiter).limit(login(), alice());
        let answer = own_429s(&limiter, layer, "text/plain").await;
        assert_eq!(answer, (429, expected.to_owned()));
    }
    let closed = over(&limiter).limit(policy("closed", "0/1h"), bob());
    // So is a cost that never fits.
    let large = over(&limiter).limit(free(), bob()).cost(|_, _| 101);
    for (layer, status, denied) in [
        (closed, 429, "`0/1h` of policy `closed`"),
        (large, 413, "`100/1h` of policy `free`"),
    ] {
        let expected = format!("denied by {denied}, do not retry");
        let answer = own_429s(&limiter, layer, "text/plain").await;
        assert_eq!(answer, (status, expected));
    }
}

#[tokio::test]
async fn a_response_to_429s_alone_leaves_all_other_rejections_as_they_were() {
    let (limiter, _) = memory();
    let layer = || over(&limiter).limit(free(), alice());
    let failing = support::limiter(Scripted::failing()).on_failure(FailurePolicy::Closed);
    let failing = over(&failing).limit(free(), alice());
    let absent = layer().limit(login(), Header::new("absent"));
    limiter.block(&bob(), HOUR).await.unwrap();
    for (layer, status, title) in [
        (absent, 400, "Bad Request"),
        (layer().deny(|_| true), 403, "Forbidden"),
        (layer().limit(login(), bob()), 403, "Forbidden"),
        (failing, 503, "Temporary Reduced Capacity"),
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
    let layer = over(&limiter)
        .limit(login(), alice())
        .rejection(Grpc::new());
    for _ in 0..3 {
        ask(&limiter, &layer).await;
    }
    // RESOURCE_EXHAUSTED, and then PERMISSION_DENIED.
    for (status, pushback, wait) in [("8", "61500", "62"), ("7", "-1", "-")] {
        let response = send(&limiter, &layer, "application/grpc").await;
        assert_eq!(response.status(), 200);
        let field = |name| field(response.headers(), name);
        assert_eq!(field("grpc-status"), status);
        assert_eq!(field("grpc-retry-pushback-ms"), pushback);
        assert_eq!(field("retry-after"), wait);
        assert!(!has_quota(&response));
        limiter.unblock(&alice()).await.unwrap();
        limiter.block(&alice(), HOUR).await.unwrap();
    }
}

#[tokio::test]
async fn a_custom_rejection_shows_the_key_and_the_source_of_a_block() {
    let (limiter, _) = memory();
    let words = |rejection: &Rejection, _: &Parts| {
        Response::new(match rejection {
            Rejection::Blocked(it) => format!("{:?} {:?}", it.key().kind(), it.block()),
            Rejection::OnDenyList => "list".to_owned(),
            other => format!("{other:?}"),
        })
    };
    let layer = over(&limiter).limit(free(), alice());
    limiter.block(&alice(), Until::Forever).await.unwrap();
    // A function answers with the status that it likes.
    let expected = r#"200 Blocked | cache-control: no-store | "user" Block(operator, for ever)"#;
    let response = ask(&limiter, &layer.clone().rejection(words)).await;
    assert_eq!(whole(&response), expected);
    // The deny list comes first.
    let listed = layer.deny_keys(|_| true).rejection(words);
    assert_eq!(ask(&limiter, &listed).await.body(), "list");
}

#[tokio::test]
async fn keys_on_an_allow_list_are_never_blocked_nor_banned() {
    let (limiter, _) = memory();
    limiter.block(&alice(), HOUR).await.unwrap();
    let layer = over(&limiter).limit(login(), alice());
    let layer = layer.limit(login(), Header::new("x-user"));
    let skipping = layer.clone().skip_keys(|key| *key == alice());
    // Without alice's key, only the other identity is checked; that one is denied and gets a strike.
    for is_limit in [true, true, true, false] {
        assert_eq!(seen(&limiter, &skipping).await, (429, is_limit));
    }
    let all = layer.clone().skip_keys(|_| true);
    assert_eq!(status(&limiter, &all).await, 200);
    assert_eq!(status(&limiter, &layer.skip(|_| true)).await, 200);
    limiter.unblock(&alice()).await.unwrap();
    let decision = limiter.check([Charge::new(&login(), alice(), 1)]).await;
    let no_strikes = matches!(decision, Ok(Decision::Denied(_)));
    assert!(no_strikes, "alice has no strikes");
}

#[tokio::test]
async fn layers_around_each_other_charge_until_one_is_blocked_and_tell_no_quota() {
    let (limiter, _) = memory();
    let outer = over(&limiter.clone().enforce_blocks(false)).limit(free(), bob());
    let inner = over(&limiter).limit(free(), alice());
    limiter.block(&alice(), HOUR).await.unwrap();
    // A layer that does not enforce blocks ignores the block.
    limiter.block(&bob(), HOUR).await.unwrap();
    let response = crate::asking::ask(&(outer, inner)).await;
    assert_eq!(told(&response), "403 Blocked");
    let decisions = decisions(&response);
    let all: Vec<&Decision> = decisions.iter().collect();
    let [Decision::Blocked(_), Decision::Allowed(_)] = all[..] else {
        panic!("{all:?}");
    };
    assert!(decisions.by_policy("free").unwrap().is_allowed());
    assert_eq!(left_of(&limiter, &free(), &bob()).await, 99);
}

#[tokio::test]
async fn a_shadow_layer_blocks_and_bans_no_identity() {
    let (limiter, _) = memory();
    let layer = over(&limiter).limit(login(), alice()).shadow();
    limiter.block(&alice(), HOUR).await.unwrap();
    assert_eq!(status(&limiter, &layer).await, 200);
    limiter.unblock(&alice()).await.unwrap();
    for _ in 0..5 {
        assert_eq!(status(&limiter, &layer).await, 200);
    }
    let counting = over(&limiter).limit(free(), alice());
    assert_eq!(status(&limiter, &counting).await, 200);
}

#[tokio::test]
async fn a_ban_is_reloaded_with_its_policy() {
    let (limiter, _) = memory();
    let limiter = limiter.enforce_blocks(false);
    let plain = || Policies::new([policy("login", "1/1h")]).unwrap();
    let file = r#"{"login":{"rules":"1/1h","strikes":"2/10m","ban":"1h"}}"#;
    let banning = || serde_json::from_str::<Policies>(file).unwrap();
    let live = ReloadablePolicies::new(plain());
    let layer = over(&limiter).limit(live.policy("login").unwrap(), alice());
    // A ban has no quota to show. Without the ban, the layer enforces no blocks, but they are still stored.
    for (policies, limits) in [
        (plain(), &[true, true, true, true][..]),
        (banning(), &[true, true, false]),
        (plain(), &[true]),
        (banning(), &[false]),
    ] {
        live.replace(policies).unwrap();
        for is_limit in limits {
            assert_eq!(seen(&limiter, &layer).await, (429, *is_limit));
        }
    }
}

/// A ban, a request denied by it, an operator's block, and a request on a deny list.
async fn everything(observer: impl Observer) {
    let (limiter, _) = memory();
    let limiter = limiter.observer(observer);
    let layer = over(&limiter).limit(login(), Header::new("x-user"));
    let layer = layer.limit(free().shadow(), Header::new("x-user"));
    for _ in 0..4 {
        ask(&limiter, &layer).await;
    }
    let free = over(&limiter).limit(free(), alice());
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
    let expected = "
        bans_total policy=login = 1
        blocked_total policy= by=ban = 1, policy= by=operator = 1, policy=free by=list = 1
        decisions_total policy=login outcome=denied = 3
        denials_total policy=login rule=1/1h shadow=false = 3
        store_seconds call=block = 1, call=check = 5, call=unblock = 1
    ";
    assert_eq!(grouped(&seen), block(expected));
}

#[test]
fn events_name_the_source_of_a_block_and_the_policy_of_a_ban() {
    let lines = traced(true, everything(TracingObserver::new()));
    let about = |it: &&String| it.contains("ban") || it.contains("block");
    let told: Vec<&String> = lines.iter().filter(about).collect();
    let expected = r#"
        DEBUG banned policy="login" until_ms=UNTIL
        DEBUG blocked by="ban"
        DEBUG call="block" policies= shadow=false
        DEBUG blocked by="operator"
        DEBUG call="unblock" policies= shadow=false
        DEBUG blocked policy="free" by="list"
    "#;
    let expected = expected.replace("UNTIL", &(START_MS + 61_500).to_string());
    assert_eq!(told, block(&expected));
    assert!(!lines.concat().contains(SECRET));
}

#[tokio::test]
async fn a_layer_may_leave_blocks_to_another_one() {
    let (limiter, _) = memory();
    limiter.block(&alice(), HOUR).await.unwrap();
    let enforcing = over(&limiter).limit(free(), alice());
    let layer = over(&limiter.clone().enforce_blocks(false)).limit(free(), alice());
    // Each layer looks up its identity, and one check enforces the blocks of all identities.
    for (layer, expected) in [
        (enforcing, 403),
        (layer.clone(), 200),
        (layer.clone().deny_blocked(alice()), 403),
        (layer.clone().deny_blocked(bob()), 403),
        (layer.limit(login(), bob()), 403),
    ] {
        assert_eq!(status(&limiter, &layer).await, expected, "{layer:?}");
    }
}

#[tokio::test]
async fn what_is_looked_up_is_in_one_check_with_the_limits_and_in_no_header() {
    let store = Scripted::allowing();
    let limiter = support::limiter(store.clone());
    let layer = over(&limiter)
        .limit(free(), alice())
        .deny_blocked(Header::new("x-user"))
        .deny_blocked(alice())
        .decisions_in_response();
    let response = ask(&limiter, &layer).await;
    let quota = field(response.headers(), "ratelimit-policy");
    assert_eq!(quota, r#""free";q=100;w=3600"#);
    // The block of alice is looked up with her charge.
    let expected = ["free user 1", "!look-ups header 0"];
    assert_eq!(store.only_check(), expected);
    assert!(store.checks()[0].enforces_blocks());
    let usage = decisions(&response).iter().next().unwrap().usage();
    assert_eq!(usage.policies().count(), 1);
    let settlement = Settlement::new(usage, Charge::cost).unwrap();
    assert_eq!(settlement.costs(), [1], "so much is to be settled");
}

#[tokio::test]
async fn a_look_up_follows_the_lists_and_rejects_who_has_no_key() {
    let (limiter, _) = memory();
    limiter.block(&alice(), HOUR).await.unwrap();
    let layer = || over(&limiter);
    let denying = || layer().deny_blocked(alice());
    let absent = || Header::new("x-none");
    for (layer, expected) in [
        (denying(), 403),
        (denying().shadow(), 403),
        (denying().skip(|_| true), 200),
        (denying().skip_keys(|_| true), 200),
        (layer().deny_blocked(bob()).deny_keys(|_| true), 403),
        (layer().deny_blocked(absent()), 400),
        (layer().deny_blocked(absent()).shadow(), 200),
        (layer().deny_blocked(absent().or_skip()), 200),
    ] {
        assert_eq!(status(&limiter, &layer).await, expected, "{layer:?}");
    }
}

#[tokio::test]
async fn a_look_up_that_cannot_be_decided_follows_the_failure_policy() {
    let (store, _) = Flaky::new();
    store.is_now(State::Down);
    let limiter = support::limiter(store);
    let under = |policy| over(&limiter.clone().on_failure(policy)).deny_blocked(alice());
    let open = || under(FailurePolicy::Open);
    let closed = || under(FailurePolicy::Closed);
    let shadow = free().shadow().on_failure(FailurePolicy::Closed);
    for (layer, expected) in [
        (open(), 200),
        (under(FailurePolicy::Local), 200),
        (open().limit(shadow, alice()), 200),
        (closed(), 503),
        (closed().limit(free().shadow(), alice()), 503),
        (closed().shadow(), 200),
    ] {
        assert_eq!(status(&limiter, &layer).await, expected, "{layer:?}");
    }
}

#[tokio::test]
async fn an_observer_hears_that_a_shadow_layer_passes_what_cannot_be_decided() {
    let (store, _) = Flaky::new();
    store.is_now(State::Down);
    let log = Log::default();
    let limiter = support::limiter(store).on_failure(FailurePolicy::Closed);
    let looking = over(&limiter.clone().observer(log.clone()));
    let looking = looking.deny_blocked(alice()).shadow();
    for layer in [&looking, &looking.clone().limit(free(), bob())] {
        assert_eq!(status(&limiter, layer).await, 200);
    }
    let lines = log.lines();
    let lines = lines.iter().map(|line| line.split(" in ").next().unwrap());
    let expected = [
        "check  unavailable passed",
        "shadow check free unavailable passed",
    ];
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn callers_wait_in_one_queue_whatever_is_looked_up_with_them() {
    let (limiter, _) = memory();
    let slow = policy("slow", "1/1h");
    let layer = over(&limiter).limit(slow.clone(), alice());
    let layer = layer.deny_blocked(bob()).max_wait(2 * HOUR);
    assert_eq!(status(&limiter, &layer).await, 200);
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { status(&limiter, &layer).await }
    });
    sleep(Duration::from_secs(1)).await;
    limiter.reset(&slow, &alice()).await.unwrap();
    assert_eq!(waiting.await.unwrap(), 200);
}
