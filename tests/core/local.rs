//! While the store cannot decide, this process decides within its share. Each decision is settled where it was made.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use http::{Request, Response, StatusCode, request::Parts};
use sluicegate::{
    Charge, Decision,
    FailurePolicy::{self, Closed, Local, Open},
    Key, Limiter, MemoryStore, Policy, RateLimitLayer, Store, StoreError, Usage,
    error::{ExtractError, StoreErrorKind},
    manual_clock::ManualClock,
    middleware::{Decisions, HeaderStyle},
    store::{Check, Operation, Reply, StoreFuture},
};
use tower::{Layer, ServiceExt, service_fn};

/// A store that decides normally while it is up.
#[derive(Clone, Debug)]
struct Shared {
    counts: MemoryStore,
    is_down: Arc<AtomicBool>,
    asked: Arc<AtomicU32>,
}

impl Shared {
    fn new() -> Self {
        Self {
            counts: MemoryStore::new().clock(ManualClock::new(0)),
            is_down: Arc::default(),
            asked: Arc::default(),
        }
    }

    fn down() -> Self {
        let store = Self::new();
        store.goes_down();
        store
    }

    fn goes_down(&self) {
        self.is_down.store(true, SeqCst);
    }

    fn comes_back(&self) {
        self.is_down.store(false, SeqCst);
    }

    fn or_fail<T>(&self, answer: impl FnOnce(&MemoryStore) -> StoreFuture<T>) -> StoreFuture<T> {
        self.asked.fetch_add(1, SeqCst);
        if self.is_down.load(SeqCst) {
            let error = StoreError::new(StoreErrorKind::Unavailable, "down");
            return StoreFuture::ready(Err(error));
        }
        answer(&self.counts)
    }
}

impl Store for Shared {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.or_fail(|store| store.check(check))
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        self.or_fail(|store| store.execute(operation))
    }
}

/// A limiter that decides locally as one of this many replicas, with a stopped clock, and calls the store each time.
fn limiter(store: &Shared, replicas: u32) -> Limiter {
    Limiter::new(store.clone())
        .on_failure(Local)
        .replicas(replicas)
        .local_store(MemoryStore::new().clock(ManualClock::new(0)))
        .probe_interval(Duration::ZERO)
}

fn policy(rules: &str) -> Policy {
    Policy::parse("api", rules).unwrap()
}

fn alice() -> Key {
    Key::new("user", "alice")
}

fn charge(policy: &Policy, cost: u64) -> [Charge; 1] {
    [Charge::new(policy, alice(), cost)]
}

fn remaining(usage: &Usage) -> Vec<u64> {
    usage.rules().map(|rule| rule.remaining()).collect()
}

async fn ask(layer: RateLimitLayer) -> Response<String> {
    let inner =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let request = Request::new(String::new());
    layer.layer(inner).oneshot(request).await.unwrap()
}

#[tokio::test]
async fn a_process_admits_its_share_and_no_more() {
    for (rules, replicas, shares) in [
        ("10/1m", 1, vec![10]),
        ("10/1m,100/1h", 4, vec![2, 25]),
        ("10/1m", 11, vec![1]),
        ("9007199254740991/1m", 2, vec![4_503_599_627_370_495]),
    ] {
        let api = policy(rules);
        let limiter = limiter(&Shared::down(), replicas);
        let usage = limiter.peek(charge(&api, 1)).await.unwrap();
        assert!(usage.is_local());
        assert_eq!(remaining(&usage), shares, "{rules} of {replicas}");
        let least = *shares.iter().min().unwrap();
        assert!(limiter.try_acquire(charge(&api, 1)).await);
        assert!(limiter.try_acquire(charge(&api, least - 1)).await);
        let decision = limiter.check(charge(&api, 1)).await.unwrap();
        let Decision::Denied(denial) = decision else {
            panic!("{rules} of {replicas}: {decision:?}");
        };
        assert_eq!(denial.rule().rule().limit(), least);
        assert!(denial.retry_after().is_some());
        assert!(denial.usage().is_local());
    }
    let nothing = policy("0/1m");
    assert!(
        !limiter(&Shared::down(), 3)
            .try_acquire(charge(&nothing, 1))
            .await
    );
}

#[tokio::test]
async fn a_cost_above_the_share_is_undecided_and_one_above_the_limit_is_denied_for_ever() {
    let limiter = limiter(&Shared::down(), 4);
    let api = policy("10/1m");
    for cost in [3, 10] {
        let error = limiter.check(charge(&api, cost)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(!limiter.try_acquire(charge(&api, cost)).await);
    }
    let decision = limiter.check(charge(&api, 11)).await;
    let Decision::Denied(denial) = decision.unwrap() else {
        panic!("it was allowed");
    };
    assert_eq!(denial.retry_after(), None);
    assert_eq!(denial.rule().rule().to_string(), "2/1m");
}

#[tokio::test]
async fn no_client_is_told_that_a_cost_above_the_share_never_passes() {
    let layer = RateLimitLayer::new(
        limiter(&Shared::down(), 4).probe_interval(Duration::from_millis(1_250)),
    )
    .limit(policy("300/1m"), alice())
    .cost(|_, _| 100);
    let response = ask(layer.clone()).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["retry-after"], "2");
    assert!(!response.body().contains("never"), "{}", response.body());

    let inner =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let call = Request::post("/").header("content-type", "application/grpc");
    let call = call.body(String::new()).unwrap();
    let answer = layer.clone().layer(inner).oneshot(call).await.unwrap();
    let headers = answer.headers();
    assert_eq!(headers["grpc-status"], "14");
    assert_eq!(headers["retry-after"], "2");
    assert!(!headers.contains_key("grpc-retry-pushback-ms"));

    let too_large = ask(layer.cost(|_, _| 301)).await;
    assert_eq!(too_large.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn a_decision_is_settled_where_it_was_made() {
    let store = Shared::new();
    let limiter = limiter(&store, 2);
    let api = policy("10/1m");
    let left = async || remaining(&limiter.peek(charge(&api, 0)).await.unwrap())[0];

    let by_store = limiter.check(charge(&api, 4)).await.unwrap();
    let other = limiter.check(charge(&api, 1)).await.unwrap();
    store.goes_down();
    let by_memory = limiter.check(charge(&api, 3)).await.unwrap();
    assert_eq!(
        (by_store.usage().is_local(), by_memory.usage().is_local()),
        (false, true)
    );

    // During the outage: the local decision can be settled, the store's cannot.
    let asked = store.asked.load(SeqCst);
    let settled = limiter.settle(by_memory.usage(), |_| 1).await.unwrap();
    assert!(settled.is_local());
    assert_eq!((remaining(&settled), left().await), (vec![4], 4));
    assert_eq!(store.asked.load(SeqCst), asked + 1); // by the look at what is left
    limiter.settle(by_store.usage(), |_| 0).await.unwrap_err();
    assert_eq!(left().await, 4);
    let later = limiter.check(charge(&api, 2)).await.unwrap();
    assert_eq!(left().await, 2);

    // After the outage, local decisions can still be settled.
    store.comes_back();
    assert_eq!(left().await, 5);
    assert_eq!(
        remaining(&limiter.settle(later.usage(), |_| 0).await.unwrap()),
        [4]
    );
    assert_eq!(left().await, 5);
    let settled = limiter.settle(other.usage(), |_| 0).await.unwrap();
    assert!(!settled.is_local());
    assert_eq!(remaining(&settled), [6]);
    store.goes_down();
    assert_eq!(left().await, 4);
}

#[test]
fn a_limiter_shows_its_failure_policy_and_its_store() {
    let limiter = Limiter::new(MemoryStore::new());
    assert_eq!(limiter.failure_policy(), Open);
    let limiter = limiter.on_failure(Closed);
    assert_eq!(limiter.failure_policy(), Closed);
    let text = format!("{limiter:?}");
    assert!(
        text.contains("MemoryStore") && text.contains("failure_policy: Closed"),
        "{text}"
    );
}

#[tokio::test]
async fn a_reset_reaches_both() {
    let store = Shared::new();
    let limiter = limiter(&store, 1);
    let api = policy("10/1m");
    let left = async || remaining(&limiter.peek(charge(&api, 0)).await.unwrap())[0];
    assert!(limiter.try_acquire(charge(&api, 4)).await);
    store.goes_down();
    assert!(limiter.try_acquire(charge(&api, 3)).await);
    assert_eq!(
        limiter.reset(&api, &alice()).await.unwrap_err().kind(),
        StoreErrorKind::Unavailable
    );
    assert_eq!(left().await, 10);
    assert!(limiter.try_acquire(charge(&api, 3)).await);
    store.comes_back();
    assert_eq!(left().await, 6);
    limiter.reset(&api, &alice()).await.unwrap();
    assert_eq!(left().await, 10);
    store.goes_down();
    assert_eq!(left().await, 10);
}

#[tokio::test]
async fn of_several_policies_the_strictest_applies() {
    let login = |own| (Policy::parse("login", "100/1m").unwrap(), own);
    let pages = |own| (Policy::parse("pages", "1/1m").unwrap(), own);
    for (limiters, own, expected) in [
        (Open, [None, None], Open),
        (Open, [Some(Local), None], Local),
        (Open, [None, Some(Closed)], Closed),
        (Closed, [None, Some(Open)], Closed),
        (Closed, [Some(Open), Some(Open)], Open),
        (Closed, [Some(Local), Some(Open)], Local),
        (Local, [Some(Open), Some(Closed)], Closed),
        (Local, [None, Some(Open)], Local),
    ] {
        let name = format!("{limiters:?} {own:?}");
        let policies = [login(own[0]), pages(own[1])].map(|(policy, own)| match own {
            Some(own) => policy.on_failure(own),
            None => policy,
        });
        let limiter = limiter(&Shared::down(), 1).on_failure(limiters);
        let charges = || policies.each_ref().map(|it| Charge::new(it, alice(), 1));
        // One of the policies has a limit of one.
        let admitted = [
            limiter.try_acquire(charges()).await,
            limiter.try_acquire(charges()).await,
        ];
        assert_eq!(admitted, [expected != Closed, expected == Open], "{name}");

        let decided = limiter.check(charges()).await;
        assert_eq!(decided.is_ok(), expected == Local, "{name}");
        let waited = limiter.acquire(charges(), Duration::ZERO).await;
        assert_eq!(waited.is_ok(), expected == Local, "{name}");

        let [login, pages] = policies;
        let layer = RateLimitLayer::new(limiter)
            .limit(login, alice())
            .limit(pages, alice());
        let status = match expected {
            Open => StatusCode::OK,
            Local => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        assert_eq!(ask(layer).await.status(), status, "{name}");
    }
}

#[tokio::test]
async fn a_client_sees_the_limits_that_were_applied() {
    let limiter = limiter(&Shared::down(), 3);
    let api = policy("9/1m,30/1h");
    let layer = RateLimitLayer::new(limiter)
        .limit(api, alice())
        .limit(Policy::parse("trial", "6/1d").unwrap().shadow(), alice())
        .headers(
            HeaderStyle::DRAFT_11
                .with_shadows()
                .and(HeaderStyle::X_RATE_LIMIT),
        )
        .decisions_in_response();
    let response = ask(layer.clone()).await;
    let headers = response.headers();
    assert_eq!(
        headers["ratelimit-policy"],
        r#""api/1m";q=3;w=60, "api/1h";q=10;w=3600, "trial";q=2;w=86400;sluicegate-shadow"#
    );
    assert_eq!(
        headers["ratelimit"],
        r#""api/1m";r=2;t=61, "api/1h";r=9;t=3660, "trial";r=1;t=87840;sluicegate-shadow"#
    );
    assert_eq!(
        (
            &headers["x-ratelimit-limit"],
            &headers["x-ratelimit-remaining"]
        ),
        (&"3".parse().unwrap(), &"2".parse().unwrap())
    );
    assert_eq!(headers.get_all("ratelimit-policy").iter().count(), 1);
    let decisions: &Decisions = response.extensions().get().unwrap();
    let decision = decisions.by_policy("api").unwrap();
    assert!(decision.usage().is_local());
    assert!(decision.usage().shadow().unwrap().usage().is_local());

    ask(layer.clone()).await;
    ask(layer.clone()).await;
    let response = ask(layer).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["ratelimit"], r#""api/1m";r=0;t=61"#);
    assert_eq!(response.headers()["retry-after"], "61");
    assert!(
        response
            .body()
            .contains(r#""violated-policies":["api/1m"]"#),
        "{}",
        response.body()
    );
}

#[tokio::test]
async fn the_memory_decides_shadows_together_with_the_policies_that_count() {
    let store = Shared::new();
    let limiter = limiter(&store, 2);
    let trial = Policy::parse("trial", "4/1m").unwrap().shadow();
    let charges = |api: &Policy| {
        [
            Charge::new(api, alice(), 1),
            Charge::new(&trial, alice(), 1),
        ]
    };
    let api = policy("10/1m");

    let decision = limiter.check(charges(&api)).await.unwrap();
    let shadow = decision.usage().shadow().unwrap();
    assert!(!decision.usage().is_local() && !shadow.usage().is_local());

    store.goes_down();
    for shadow_allows in [true, true, false] {
        let asked = store.asked.load(SeqCst);
        let decision = limiter.check(charges(&api)).await.unwrap();
        let shadow = decision.usage().shadow().unwrap();
        assert!(decision.is_allowed() && decision.usage().is_local() && shadow.usage().is_local());
        assert_eq!(shadow.is_allowed(), shadow_allows);
        assert_eq!(store.asked.load(SeqCst), asked + 1);
    }
    // If other policies count, the failure policy of a shadow does not matter.
    let closed = trial.clone().on_failure(Closed);
    let charges = [
        Charge::new(&api, alice(), 1),
        Charge::new(&closed, alice(), 1),
    ];
    let decision = limiter.check(charges).await.unwrap();
    assert!(decision.is_allowed() && !decision.usage().shadow().unwrap().is_allowed());

    // Without other policies, the failure policy of the shadow applies.
    for (shadow, shadow_is_decided) in [(&trial, true), (&closed, false)] {
        let decision = limiter
            .check([Charge::new(shadow, alice(), 0)])
            .await
            .unwrap();
        assert!(decision.is_allowed());
        assert_eq!(decision.usage().shadow().is_some(), shadow_is_decided);
    }
}

#[tokio::test]
async fn a_caller_waits_for_room_in_the_memory_and_asks_no_more_than_it_has_to() {
    let store = Shared::down();
    let limiter = Limiter::new(store.clone())
        .on_failure(Local)
        .replicas(2)
        .probe_interval(Duration::ZERO);
    let theirs = policy("4/120ms@exact");
    let start = std::time::Instant::now();
    for _ in 0..3 {
        let decision = limiter
            .acquire(charge(&theirs, 1), Duration::from_secs(60))
            .await
            .unwrap();
        assert!(decision.is_allowed() && decision.usage().is_local());
    }
    assert!(
        start.elapsed() >= Duration::from_millis(120),
        "{:?}",
        start.elapsed()
    );
    // Twice for the third call, and once more if the timer was early.
    let asked = store.asked.load(SeqCst);
    assert!((4..=6).contains(&asked), "{asked}");
}

#[tokio::test]
async fn a_limit_without_a_known_key_is_left_out_under_an_open_policy_and_rejected_otherwise() {
    let no_key = |_: &Parts| Err::<Key, _>(ExtractError::unavailable("the directory is down"));
    for (on_failure, expected) in [
        (Open, StatusCode::OK),
        (Local, StatusCode::SERVICE_UNAVAILABLE),
        (Closed, StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let pages = Policy::parse("pages", "10/1m")
            .unwrap()
            .on_failure(on_failure);
        for other in [Open, Local, Closed] {
            let layer = RateLimitLayer::new(limiter(&Shared::new(), 1).on_failure(other));
            let layer = layer.limit(pages.clone(), no_key);
            assert_eq!(
                ask(layer.clone()).await.status(),
                expected,
                "{on_failure:?}"
            );
            // The other limit still applies.
            let both = layer.limit(policy("0/1m"), alice());
            let rejected = if expected == StatusCode::OK {
                StatusCode::TOO_MANY_REQUESTS
            } else {
                expected
            };
            assert_eq!(ask(both).await.status(), rejected, "{on_failure:?}");
        }
    }
}

#[tokio::test]
async fn a_check_that_makes_no_sense_follows_no_failure_policy() {
    for on_failure in [Open, Local, Closed] {
        let limiter = limiter(&Shared::down(), 1).on_failure(on_failure);
        let twins = ["1/1m", "2/1m"].map(|rules| Charge::new(&policy(rules), alice(), 1));
        assert!(!limiter.try_acquire(twins.clone()).await);
        let error = limiter.check(twins).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidRequest);
    }
}

#[tokio::test]
async fn the_memory_is_bounded() {
    let memory = MemoryStore::new().capacity(2_000);
    let limiter = limiter(&Shared::down(), 3).local_store(memory.clone());
    let api = policy("9/1d");
    for n in 0..10_000 {
        let charge = Charge::new(&api, Key::new("user", format!("user {n}")), 1);
        assert!(limiter.try_acquire([charge]).await);
    }
    assert!((1_000..=2_000).contains(&memory.len()), "{}", memory.len());
}

#[tokio::test]
async fn a_full_memory_rejects_new_keys_and_decides_about_those_it_keeps() {
    let limiter = limiter(&Shared::down(), 1).local_store(MemoryStore::new().capacity(1));
    let api = policy("1/1d");
    assert!(limiter.try_acquire(charge(&api, 1)).await);
    let bob = [Charge::new(&api, Key::new("user", "bob"), 1)];
    assert!(!limiter.try_acquire(bob).await);
    let decision = limiter.check(charge(&api, 1)).await.unwrap();
    assert!(matches!(decision, Decision::Denied(_)));
}

#[test]
fn local_decisions_need_no_runtime() {
    let limiter = limiter(&Shared::down(), 1);
    let api = policy("1/1d");
    let admitted =
        [(); 2].map(|()| futures::executor::block_on(limiter.try_acquire(charge(&api, 1))));
    assert_eq!(admitted, [true, false]);
    assert_eq!(FailurePolicy::default(), Open);
}
