//! Slots are given back at any time, by any process: so a denial by a concurrency rule is not repeated.

use sluicegate::{
    Charge, Decision, Key, MemoryStore, Policy, Store,
    manual_clock::ManualClock,
    store::{Check, DenyCache, Slots, StoreExt},
};

fn check(rules: &[&str]) -> Check {
    let charges = rules.iter().map(|rules| {
        let name = if rules.contains("concurrent") {
            "exports"
        } else {
            "rate"
        };
        let policy = Policy::parse(name, rules).unwrap();
        Charge::new(&policy, Key::new("user", "alice"), 1)
    });
    Check::new(charges).unwrap()
}

#[tokio::test]
async fn a_denial_by_a_concurrency_rule_is_not_repeated() {
    for rules in [&["1/30s@concurrent"][..], &["9/1m", "1/30s@concurrent"]] {
        let clock = ManualClock::new(1_700_000_000_000);
        let store = MemoryStore::new().clock(clock.clone());
        let cache = DenyCache::new(store.clone()).clock(clock.clone());
        let slots = Slots::take(store.check(&check(rules)).await.unwrap().usage()).unwrap();
        let denied = cache.check(&check(rules)).await.unwrap();
        assert!(matches!(denied, Decision::Denied(_)));
        // Another process gives back its slot in the same millisecond.
        store.settle(&slots.give_back()).await.unwrap();
        assert!(
            cache.check(&check(rules)).await.unwrap().is_allowed(),
            "{rules:?}"
        );
    }
}

#[tokio::test]
async fn a_denial_by_a_rate_beside_a_free_slot_is_repeated() {
    let clock = ManualClock::new(1_700_000_000_000);
    let cache = DenyCache::new(MemoryStore::new().clock(clock.clone())).clock(clock.clone());
    let both = check(&["0/1m", "1/30s@concurrent"]);
    let repeated = [
        cache.check(&both).await.unwrap().usage().is_cached(),
        cache.check(&both).await.unwrap().usage().is_cached(),
    ];
    assert_eq!(repeated, [false, true]);
}
