//! While the store cannot decide, this process decides within its share. Each decision is settled where it was made.

use sluicegate::{
    FailurePolicy::{self, Closed, Local, Open},
    error::ExtractError,
    middleware::{Decisions, HeaderStyle},
};
use support::prelude::*;

/// A store that decides normally while it is up.
#[derive(Clone)]
struct Shared {
    store: Fated,
    is_down: Arc<AtomicBool>,
    asked: Arc<AtomicU32>,
}

impl Shared {
    fn new() -> Self {
        let (is_down, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let (down, count) = (Arc::clone(&is_down), Arc::clone(&asked));
        let store = Fated::new(memory().0, move |_| {
            count.fetch_add(1, SeqCst);
            match down.load(SeqCst) {
                true => Fate::unavailable(),
                false => Fate::Answered,
            }
        });
        Self {
            store,
            is_down,
            asked,
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
}

/// A limiter that decides locally as one of this many replicas, with a stopped clock, and calls the store each time.
fn limiter(store: &Shared, replicas: u32) -> Limiter {
    by_replicas(store.store.clone(), replicas)
}

fn by_replicas(store: impl Store, replicas: u32) -> Limiter {
    support::limiter(store)
        .on_failure(Local)
        .replicas(replicas)
        .local_store(MemoryStore::new().clock(ManualClock::new(0)))
        .probe_interval(Duration::ZERO)
}

fn policy(rules: &str) -> Policy {
    Policy::parse("api", rules).unwrap()
}

fn alice() -> Key {
    user("alice")
}

fn charge(policy: &Policy, cost: u64) -> [Charge; 1] {
    [Charge::new(policy, alice(), cost)]
}

async fn ask(layer: &RateLimitLayer) -> Response<String> {
    send(layer, to("/")).await
}

async fn status(layer: &RateLimitLayer) -> StatusCode {
    ask(layer).await.status()
}

#[test]
fn each_row_about_local_decisions_holds() {
    for (replicas, table) in [(11, OF_ELEVEN), (4, OF_FOUR), (2, OF_TWO), (1, OF_ONE)] {
        hold(table, |store, _| by_replicas(store.clone(), replicas));
    }
    let full = || MemoryStore::new().capacity(1);
    hold(FULL, |store, _| {
        by_replicas(store.clone(), 1).local_store(full())
    });
}

const OF_ELEVEN: &str = "
A share is at least one unit unless the limit is 0
 p = 10/1m; none = 0/1m; down; p alice ^ = 1; p alice 1 ^; p alice 1 !^; none alice 1 !^
";

const OF_FOUR: &str = "
A process admits its share and no more
 p = 10/1m,100/1h; down; p alice ^ = 2 25; 2* p alice 1 ^; p alice 1 !^
A cost above the share is undecided and one above the limit is denied for ever
 p = 10/1m; down; p alice 3 !error; p alice 10 !error; p alice 11 !never^; p alice 2 ^
";

const OF_TWO: &str = "
The share of the largest limit is exact
 p = 9007199254740991/1m; down; p alice ^ = 4503599627370495; p alice 4503599627370495 ^; p alice 1 !^
A decision is settled where it was made
 p = 10/1m; a: p alice 4; b: p alice 1; down; c: p alice 3 ^; p alice ^ = 2
 # During the outage, the local decision can be settled, and the store's cannot.
 settle c 1 = 4; p alice ^ = 4; settle a 0 !; p alice ^ = 4; d: p alice 2 ^; p alice ^ = 2
 # After it, local decisions can still be settled.
 up; p alice = 5; settle d 0 = 4; p alice = 5; settle b 0 = 6; down; p alice ^ = 4
";

const OF_ONE: &str = "
A process that is alone admits the limit
 p = 10/1m; down; p alice ^ = 10; p alice 10 ^; p alice 1 !^
A reset reaches both
 p = 10/1m; p alice 4; down; p alice 3 ^; reset p alice !; p alice ^ = 10; p alice 3 ^; up; p alice = 6
 reset p alice; p alice = 10; down; p alice ^ = 10
";

const FULL: &str = "
A full memory rejects new keys and decides about those it keeps
 p = 1/1d; down; p alice 1 ^; p bob 1 !error; p alice 1 !^
";

#[tokio::test]
async fn no_client_is_told_that_a_cost_above_the_share_never_passes() {
    let layer = support::layer(limiter(&Shared::down(), 4).probe_interval(ms(1_250)))
        .limit(policy("300/1m"), alice())
        .cost(|_, _| 100);
    let response = ask(&layer).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["retry-after"], "2");
    assert!(!response.body().contains("never"), "{}", response.body());

    let call = Request::post("/").header("content-type", "application/grpc");
    let answer = send(&layer, call.body(String::new()).unwrap()).await;
    let headers = answer.headers();
    assert_eq!(headers["grpc-status"], "14");
    assert_eq!(headers["retry-after"], "2");
    assert!(!headers.contains_key("grpc-retry-pushback-ms"));

    assert_eq!(status(&layer.cost(|_, _| 301)).await, 413);
}

#[test]
fn a_limiter_shows_its_failure_policy_and_its_store() {
    let limiter = support::limiter(MemoryStore::new());
    assert_eq!(limiter.failure_policy(), Open);
    let limiter = limiter.on_failure(Closed);
    assert_eq!(limiter.failure_policy(), Closed);
    let text = format!("{limiter:?}");
    for part in ["MemoryStore", "failure_policy: Closed"] {
        assert!(text.contains(part), "{text}");
    }
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
        for admits in [expected != Closed, expected == Open] {
            assert_eq!(limiter.try_acquire(charges()).await, admits, "{name}");
        }

        let decided = limiter.check(charges()).await;
        assert_eq!(decided.is_ok(), expected == Local, "{name}");
        let waited = limiter.acquire(charges(), Duration::ZERO).await;
        assert_eq!(waited.is_ok(), expected == Local, "{name}");

        let [login, pages] = policies;
        let layer = support::layer(limiter)
            .limit(login, alice())
            .limit(pages, alice());
        let answered = match expected {
            Open => 200,
            Local => 429,
            _ => 503,
        };
        assert_eq!(status(&layer).await, answered, "{name}");
    }
}

#[tokio::test]
async fn a_client_sees_the_limits_that_were_applied() {
    let limiter = limiter(&Shared::down(), 3);
    let api = policy("9/1m,30/1h");
    let layer = support::layer(limiter)
        .limit(api, alice())
        .limit(Policy::parse("trial", "6/1d").unwrap().shadow(), alice())
        .headers(
            HeaderStyle::DRAFT_11
                .with_shadows()
                .and(HeaderStyle::X_RATE_LIMIT),
        )
        .decisions_in_response();
    let response = ask(&layer).await;
    let headers = response.headers();
    let (listed, left) = (
        r#""api/1m";q=3;w=60, "api/1h";q=10;w=3600, "trial";q=2;w=86400;sluicegate-shadow"#,
        r#""api/1m";r=2;t=61, "api/1h";r=9;t=3660, "trial";r=1;t=87840;sluicegate-shadow"#,
    );
    for (name, expected) in [
        ("ratelimit-policy", listed),
        ("ratelimit", left),
        ("x-ratelimit-limit", "3"),
        ("x-ratelimit-remaining", "2"),
    ] {
        assert_eq!(headers[name], expected);
    }
    assert_eq!(headers.get_all("ratelimit-policy").iter().count(), 1);
    let decisions: &Decisions = response.extensions().get().unwrap();
    let decision = decisions.by_policy("api").unwrap();
    assert!(decision.usage().is_local());
    assert!(decision.usage().shadow().unwrap().usage().is_local());

    ask(&layer).await;
    ask(&layer).await;
    let response = ask(&layer).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["ratelimit"], r#""api/1m";r=0;t=61"#);
    assert_eq!(response.headers()["retry-after"], "61");
    let body = response.body();
    let violated = r#""violated-policies":["api/1m"]"#;
    assert!(body.contains(violated), "{body}");
}

#[tokio::test]
async fn the_memory_decides_shadows_together_with_the_policies_that_count() {
    let store = Shared::new();
    let limiter = limiter(&store, 2);
    let trial = Policy::parse("trial", "4/1m").unwrap().shadow();
    let api = policy("10/1m");
    let charges = |trial| [&api, trial].map(|it| Charge::new(it, alice(), 1));

    let decision = limiter.check(charges(&trial)).await.unwrap();
    let shadow = decision.usage().shadow().unwrap();
    assert!(!decision.usage().is_local() && !shadow.usage().is_local());

    store.goes_down();
    for shadow_allows in [true, true, false] {
        let asked = store.asked.load(SeqCst);
        let decision = limiter.check(charges(&trial)).await.unwrap();
        let shadow = decision.usage().shadow().unwrap();
        assert!(decision.is_allowed() && decision.usage().is_local() && shadow.usage().is_local());
        assert_eq!(shadow.is_allowed(), shadow_allows);
        assert_eq!(store.asked.load(SeqCst), asked + 1);
    }
    // If other policies count, the failure policy of a shadow does not matter.
    let closed = trial.clone().on_failure(Closed);
    let decision = limiter.check(charges(&closed)).await.unwrap();
    assert!(decision.is_allowed() && !decision.usage().shadow().unwrap().is_allowed());

    // Without other policies, the failure policy of the shadow applies.
    for (shadow, shadow_is_decided) in [(&trial, true), (&closed, false)] {
        let decision = limiter.check(charge(shadow, 0)).await.unwrap();
        assert!(decision.is_allowed());
        assert_eq!(decision.usage().shadow().is_some(), shadow_is_decided);
    }
}

#[tokio::test]
async fn a_caller_waits_for_room_in_the_memory_and_asks_no_more_than_it_has_to() {
    let store = Shared::down();
    let limiter = support::limiter(store.store.clone())
        .on_failure(Local)
        .replicas(2)
        .probe_interval(Duration::ZERO);
    let theirs = policy("4/120ms@exact");
    let start = std::time::Instant::now();
    for _ in 0..3 {
        let decision = limiter.acquire(charge(&theirs, 1), MINUTE).await.unwrap();
        assert!(decision.is_allowed() && decision.usage().is_local());
    }
    assert!(start.elapsed() >= ms(120), "{:?}", start.elapsed());
    // Twice for the third call, and once more if the timer was early.
    let asked = store.asked.load(SeqCst);
    assert!((4..=6).contains(&asked), "{asked}");
}

#[tokio::test]
async fn a_limit_without_a_known_key_is_left_out_under_an_open_policy_and_rejected_otherwise() {
    let no_key = |_: &Parts| Err::<Key, _>(ExtractError::unavailable("the directory is down"));
    for (on_failure, expected) in [(Open, 200), (Local, 503), (Closed, 503)] {
        let pages = Policy::parse("pages", "10/1m").unwrap();
        let pages = pages.on_failure(on_failure);
        for other in [Open, Local, Closed] {
            let layer = support::layer(limiter(&Shared::new(), 1).on_failure(other));
            let layer = layer.limit(pages.clone(), no_key);
            assert_eq!(status(&layer).await, expected, "{on_failure:?}");
            // The other limit still applies.
            let both = layer.limit(policy("0/1m"), alice());
            let rejected = if expected == 200 { 429 } else { expected };
            assert_eq!(status(&both).await, rejected, "{on_failure:?}");
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

#[test]
fn local_decisions_need_no_runtime() {
    let limiter = limiter(&Shared::down(), 1);
    let api = policy("1/1d");
    let admitted = [(); 2].map(|()| block_on(limiter.try_acquire(charge(&api, 1))));
    assert_eq!(admitted, [true, false]);
    assert_eq!(FailurePolicy::default(), Open);
}
