//! Proves that the memory store keeps the contract, and that memory is bounded.

mod memory {
    use std::{fmt::Display, time::Duration};

    use sluicegate::{
        Charge, Decision, Key, Limiter, MemoryStore, Policy, StoreError, error::StoreErrorKind,
        limiter::Slot, manual_clock::ManualClock,
    };
    use support::trace::traced;

    support::contract!(new);
    support::calls!(new);
    support::contributors!(new);
    support::denials!(new);
    support::blocks!(new);
    support::kinds!(new);

    async fn new() -> (MemoryStore, ManualClock) {
        let clock = ManualClock::new(0);
        (MemoryStore::new().clock(clock.clone()), clock)
    }

    fn charge(policy: &Policy, key: impl Display) -> [Charge; 1] {
        [Charge::new(policy, Key::new("user", format!("{key}")), 1)]
    }

    async fn flood(limiter: &Limiter, policy: &Policy, keys: std::ops::Range<u32>) {
        for key in keys {
            let decision = limiter.check(charge(policy, key)).await.unwrap();
            assert!(decision.is_allowed(), "a new key is never denied");
        }
    }

    async fn left(limiter: &Limiter, policy: &Policy, key: impl Display) -> u64 {
        let usage = limiter.peek(charge(policy, key)).await.unwrap();
        usage.rules().next().unwrap().remaining()
    }

    fn is_full(result: Result<Decision, StoreError>) -> bool {
        result.is_err_and(|error| error.kind() == StoreErrorKind::Full)
    }

    #[tokio::test]
    async fn a_flood_of_keys_stays_within_the_capacity() {
        for capacity in [1, 2, 100, 1_500, 5_000] {
            let store = MemoryStore::new().capacity(capacity);
            let policy = Policy::parse("p", "2/1h").unwrap();
            flood(&Limiter::new(store.clone()), &policy, 0..12_000).await;
            assert_eq!(store.len(), capacity);
        }
    }

    #[tokio::test]
    async fn a_flood_of_ten_times_the_capacity_lifts_no_limit() {
        let store = MemoryStore::new().capacity(5_000);
        let limiter = Limiter::new(store.clone());
        let policy = Policy::parse("p", "1000/1h").unwrap();
        let limited = (0..1_000).map(|n| format!("limited {n}"));
        let limited: Vec<String> = limited.collect();
        for (index, key) in limited.iter().enumerate() {
            // Half of the keys are at their limit, and half have a tenth left.
            let units = if index % 2 == 0 { 1_000 } else { 900 };
            let charge = Charge::new(&policy, Key::new("user", key.as_str()), units);
            assert!(limiter.check([charge]).await.unwrap().is_allowed());
        }
        flood(&limiter, &policy, 0..50_000).await;
        assert!(store.len() <= 5_000);
        for (index, key) in limited.iter().enumerate() {
            let expected = if index % 2 == 0 { 0 } else { 100 };
            assert_eq!(left(&limiter, &policy, key).await, expected, "{key}");
        }
    }

    #[tokio::test]
    async fn a_flood_of_ten_times_the_capacity_loses_no_slot() {
        let limiter = Limiter::new(MemoryStore::new().capacity(5_000));
        let slots = Policy::parse("slots", "2/1h@concurrent").unwrap();
        let mut held = Vec::new();
        for key in 0..1_000 {
            let slot = limiter.acquire_slot(charge(&slots, key), Duration::ZERO);
            held.extend(slot.await.unwrap().unwrap());
        }
        flood(&limiter, &Policy::parse("p", "2/1h").unwrap(), 0..50_000).await;
        for key in 0..1_000 {
            assert_eq!(left(&limiter, &slots, key).await, 1, "{key}");
        }
        assert!(held.iter().all(Slot::is_held));
    }

    #[tokio::test]
    async fn a_store_of_keys_at_their_limits_decides_about_no_new_one() {
        let clock = ManualClock::new(0);
        let limiter = Limiter::new(MemoryStore::new().capacity(2).clock(clock.clone()));
        let (minute, hour) = (
            Policy::parse("minute", "1/1m").unwrap(),
            Policy::parse("hour", "1/1h").unwrap(),
        );
        for (policy, key) in [(&minute, 'a'), (&hour, 'b')] {
            limiter.check(charge(policy, key)).await.unwrap();
        }
        // This number of full stores would open the breaker, if they counted as failures.
        for key in 0..20 {
            assert!(is_full(limiter.check(charge(&hour, key)).await));
        }
        let both = [charge(&hour, 'b'), charge(&hour, 'c')].concat();
        assert!(!limiter.check(both).await.unwrap().is_allowed());
        assert_eq!(left(&limiter, &minute, 'a').await, 0);
        assert_eq!(left(&limiter, &hour, 'b').await, 0);
        clock.advance(Duration::from_secs(62));
        assert!(
            limiter
                .check(charge(&hour, 'c'))
                .await
                .unwrap()
                .is_allowed()
        );
        assert!(is_full(limiter.check(charge(&hour, 'd')).await));
    }

    #[test]
    fn a_spell_of_a_full_store_is_one_warning() {
        let lines = traced(false, async {
            let clock = ManualClock::new(0);
            let limiter = Limiter::new(MemoryStore::new().capacity(1).clock(clock.clone()));
            let policy = Policy::parse("p", "1/1d").unwrap();
            limiter.check(charge(&policy, "limited")).await.unwrap();
            for seconds in [1, 50, 50, 61, 1] {
                assert!(is_full(limiter.check(charge(&policy, "alice")).await));
                clock.advance(Duration::from_secs(seconds));
            }
        });
        assert_eq!(lines.len(), 2, "{lines:?}");
        for line in lines {
            assert!(line.starts_with("WARN a memory store is full"), "{line}");
            assert!(!line.contains("alice"), "{line}");
        }
    }

    #[tokio::test]
    async fn a_check_over_more_keys_than_fit_charges_none() {
        let store = MemoryStore::new().capacity(2);
        let limiter = Limiter::new(store.clone());
        let policy = Policy::parse("p", "9/1h").unwrap();
        flood(&limiter, &policy, 0..1).await;
        let charges = (0..8).flat_map(|key| charge(&policy, key));
        assert!(is_full(limiter.check(charges).await));
        assert_eq!(store.len(), 1);
        assert_eq!(left(&limiter, &policy, 0).await, 8);
    }

    #[tokio::test]
    async fn a_shadow_without_a_place_changes_nothing_else() {
        let limiter = Limiter::new(MemoryStore::new().capacity(1));
        let policy = Policy::parse("p", "1/1h").unwrap();
        let trial = Policy::parse("trial", "1/1h").unwrap().shadow();
        let charges = [charge(&policy, 'a'), charge(&trial, 'a')].concat();
        let decision = limiter.check(charges).await.unwrap();
        assert!(decision.is_allowed() && decision.usage().shadow().is_none());
        assert_eq!(left(&limiter, &policy, 'a').await, 0);
    }

    #[tokio::test]
    async fn a_settlement_reaches_a_forgotten_key_only_if_there_is_a_place() {
        let limiter = Limiter::new(MemoryStore::new().capacity(1));
        let policy = Policy::parse("p", "9/1h").unwrap();
        let decision = limiter.check(charge(&policy, 'a')).await.unwrap();
        let full = Charge::new(&policy, Key::new("user", "b"), 9);
        assert!(limiter.check([full]).await.unwrap().is_allowed());
        let error = limiter.settle(decision.usage(), |_| 3).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Full);
        assert!(error.is_unsent());
        assert_eq!(left(&limiter, &policy, 'b').await, 0);
    }

    #[tokio::test]
    async fn what_counts_no_more_goes_first_and_then_the_key_with_the_most_room() {
        let clock = ManualClock::new(0);
        let limiter = Limiter::new(MemoryStore::new().capacity(3).clock(clock.clone()));
        let hour = Policy::parse("hour", "8/1h").unwrap();
        let second = Policy::parse("second", "8/1s").unwrap();
        let spend = async |policy, key: &str, units| {
            let charge = Charge::new(policy, Key::new("user", key), units);
            let decision = limiter.check([charge]).await.unwrap();
            assert!(decision.is_allowed(), "{key}");
        };
        spend(&second, "a", 8).await;
        spend(&hour, "b", 1).await;
        spend(&hour, "c", 4).await;
        clock.advance(Duration::from_secs(2));
        spend(&hour, "d", 2).await; // in the place of a, which counts no more
        assert_eq!(left(&limiter, &hour, "b").await, 7);
        spend(&hour, "e", 7).await; // in the place of b, which has used least
        assert_eq!(left(&limiter, &hour, "b").await, 8);
        spend(&hour, "f", 1).await; // in the place of d
        for (key, units) in [("c", 4), ("d", 8), ("e", 1), ("f", 7)] {
            assert_eq!(left(&limiter, &hour, key).await, units, "{key}");
        }
    }

    #[tokio::test]
    async fn a_key_that_has_room_again_stands_where_its_other_rules_put_it() {
        let clock = ManualClock::new(0);
        let limiter = Limiter::new(MemoryStore::new().capacity(2).clock(clock.clone()));
        let both = Policy::parse("both", "64/1d,2/1s").unwrap();
        let hour = Policy::parse("hour", "8/1h").unwrap();
        for (policy, key, units) in [(&both, "burst", 2), (&hour, "regular", 3)] {
            let charge = Charge::new(policy, Key::new("user", key), units);
            limiter.check([charge]).await.unwrap();
        }
        clock.advance(Duration::from_secs(2));
        limiter.check(charge(&hour, "new")).await.unwrap();
        for (policy, key, units) in [(&both, "burst", 64), (&hour, "regular", 5)] {
            assert_eq!(left(&limiter, policy, key).await, units, "{key}");
        }
    }

    #[tokio::test]
    async fn a_key_that_is_charged_again_is_released_later() {
        let clock = ManualClock::new(0);
        let limiter = Limiter::new(MemoryStore::new().capacity(2).clock(clock.clone()));
        let policy = Policy::parse("p", "2/1m").unwrap();
        for key in ["a", "b", "a", "c"] {
            limiter.check(charge(&policy, key)).await.unwrap();
            clock.advance(Duration::from_secs(10));
        }
        for (key, left) in [("a", 0), ("b", 2), ("c", 1)] {
            let usage = limiter.peek(charge(&policy, key)).await.unwrap();
            assert_eq!(usage.rules().next().unwrap().remaining(), left, "{key}");
        }
    }

    #[tokio::test]
    async fn the_store_shrinks_again_after_a_flood() {
        let clock = ManualClock::new(0);
        let store = MemoryStore::new().capacity(10_000).clock(clock.clone());
        let limiter = Limiter::new(store.clone());
        let policy = Policy::parse("p", "1/1s").unwrap();
        flood(&limiter, &policy, 0..8_000).await;
        assert!(store.len() >= 8_000);
        clock.advance(Duration::from_secs(5));
        flood(&limiter, &policy, 10_000..14_000).await;
        assert!(store.len() < 5_000, "{}", store.len());
        limiter
            .reset(&policy, &Key::new("user", "13999"))
            .await
            .unwrap();
        let usage = limiter.peek(charge(&policy, 13_999)).await.unwrap();
        assert_eq!(usage.rules().next().unwrap().remaining(), 1);
    }

    #[test]
    fn no_runtime_is_needed() {
        let limiter = Limiter::new(MemoryStore::new());
        let policy = Policy::parse("p", "1/1h").unwrap();
        let check = || futures::executor::block_on(limiter.check(charge(&policy, 'a'))).unwrap();
        assert!(check().is_allowed());
        assert!(!check().is_allowed());
    }

    #[test]
    #[should_panic(expected = "the capacity must be at least one key")]
    fn a_store_for_no_keys_is_an_error_when_built() {
        let _ = MemoryStore::new().capacity(0);
    }
}
