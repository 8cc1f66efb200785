//! Slots are returned at any time, by any process: so a denial for want of a slot is repeated for a tenth of a second.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use http::{Request, Response, StatusCode};
use sluicegate::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, RateLimitLayer,
    limiter::Slot,
    manual_clock::ManualClock,
    observe::{Event, Observer},
};
use support::history::START_MS;
use tower::{ServiceBuilder, ServiceExt};

/// Counts the decisions that the store was asked for.
#[derive(Clone, Debug, Default)]
struct Asked(Arc<AtomicU32>);

impl Observer for Asked {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::Decision { decision, .. } = event {
            self.0.fetch_add(u32::from(!decision.is_cached()), Relaxed);
        }
    }
}

fn charges(rules: &[&str]) -> Vec<Charge> {
    let charges = rules.iter().map(|rules| {
        let name = if rules.contains("concurrent") {
            "exports"
        } else {
            "rate"
        };
        let policy = Policy::parse(name, rules).unwrap();
        Charge::new(&policy, Key::new("user", "alice"), 1)
    });
    charges.collect()
}

/// A limiter of another process, one that caches denials, and the clock.
fn site() -> (Limiter, Limiter, ManualClock) {
    let clock = ManualClock::new(START_MS);
    let store = MemoryStore::new().clock(clock.clone());
    let cached = Limiter::new(store.clone())
        .cache_denials(true)
        .denial_clock(clock.clone());
    (Limiter::new(store), cached, clock)
}

async fn take(limiter: &Limiter, charges: &[Charge]) -> Slot {
    let decision = limiter.check(charges.to_vec()).await.unwrap();
    limiter.hold(&decision).unwrap()
}

async fn give_back(limiter: &Limiter, slot: Slot) {
    drop(slot);
    limiter.return_slots().await;
}

async fn is_admitted(limiter: &Limiter, charges: &[Charge]) -> bool {
    let decision = limiter.check(charges.to_vec()).await.unwrap();
    decision.is_allowed()
}

/// Whether the cache denied without asking the store.
async fn is_repeated(cached: &Limiter, charges: &[Charge]) -> bool {
    let denied = cached.check(charges.to_vec()).await.unwrap();
    assert!(matches!(denied, Decision::Denied(_)));
    denied.usage().is_cached()
}

#[tokio::test]
async fn a_denial_for_want_of_a_slot_is_repeated_for_at_most_100_ms() {
    for rules in [&["1/30s@concurrent"][..], &["9/1m", "1/30s@concurrent"]] {
        let (other, cache, clock) = site();
        let check = charges(rules);
        let slot = take(&other, &check).await;
        assert!(!is_repeated(&cache, &check).await);
        // Another process returns a slot in the same millisecond.
        give_back(&other, slot).await;
        clock.set(START_MS + 98);
        assert!(is_repeated(&cache, &check).await, "{rules:?}");
        clock.set(START_MS + 100);
        assert!(is_admitted(&cache, &check).await, "{rules:?}");
    }
}

#[tokio::test]
async fn a_slot_that_is_returned_through_the_cache_ends_the_denial_at_once() {
    let (_, cache, _) = site();
    let check = charges(&["9/1m", "1/30s@concurrent"]);
    let slot = take(&cache, &check).await;
    assert!(!is_repeated(&cache, &check).await);
    assert!(is_repeated(&cache, &check).await);
    give_back(&cache, slot).await;
    assert!(is_admitted(&cache, &check).await);
}

#[tokio::test]
async fn a_denial_is_not_repeated_when_a_slot_has_expired() {
    let (other, cache, clock) = site();
    let check = charges(&["1/30s@concurrent"]);
    let _slots = take(&other, &check).await;
    let Decision::Denied(denial) = cache.check(check.clone()).await.unwrap() else {
        panic!("there is one slot");
    };
    let expiry_ms = START_MS + u64::try_from(denial.retry_after().unwrap().as_millis()).unwrap();
    clock.set(expiry_ms - 40);
    assert!(!is_repeated(&cache, &check).await);
    clock.set(expiry_ms - 2);
    assert!(is_repeated(&cache, &check).await);
    clock.set(expiry_ms);
    assert!(is_admitted(&cache, &check).await);
}

#[tokio::test]
async fn a_denial_by_a_rate_beside_a_missing_slot_is_repeated_as_long_as_the_rate_denies() {
    let (other, cache, clock) = site();
    let both = charges(&["1/1m", "1/30s@concurrent"]);
    let _slots = take(&other, &both).await;
    assert!(!is_repeated(&cache, &both).await);
    clock.set(START_MS + 998);
    assert!(is_repeated(&cache, &both).await);
    clock.set(START_MS + 1_000);
    assert!(!is_repeated(&cache, &both).await);
}

#[tokio::test]
async fn a_ban_in_a_layer_around_the_slots_holds_for_a_client_that_keeps_them_full() {
    let (_, cache, clock) = site();
    let asked = Asked::default();
    let limiter = cache.observer(asked.clone());
    let alice = Key::new("user", "alice");
    let rate = Policy::parse("rate", "100/1m").unwrap();
    let rate = rate.ban("5/10m=1h".parse().unwrap());
    let slots = Policy::parse("exports", "3/30s@concurrent").unwrap();
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(limiter.clone()).limit(rate, alice.clone()))
        .layer(RateLimitLayer::new(limiter.clone()).limit_concurrent(slots, alice))
        .service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new("an export".to_owned()))
        });
    let mut answers = Vec::new();
    for ms in 0..10_000 {
        clock.set(START_MS + ms);
        let response = service.clone().oneshot(Request::new(())).await.unwrap();
        limiter.strikes_counted().await;
        answers.push(response);
    }
    let served = answers.iter().filter(|it| it.status() == StatusCode::OK);
    assert_eq!(served.count(), 3);
    assert_eq!(
        answers[104].headers()["retry-after"],
        "61",
        "the rate denies"
    );
    assert_eq!(
        answers[200].headers()["retry-after"],
        "3600",
        "the ban holds"
    );
    let calls = asked.0.load(Relaxed);
    assert!(calls <= 250, "{calls}");
    drop(answers); // with the slots
    let banned = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(banned.status(), StatusCode::TOO_MANY_REQUESTS);
}
