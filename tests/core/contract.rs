//! Proves that the memory store keeps the contract, and that it is bounded.

mod memory {
    use std::{fmt::Display, time::Duration};

    use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy, test_util::TestClock};

    crate::contract!(new);
    crate::calls!(new);
    crate::contributors!(new);
    crate::blocks!(new);

    async fn new() -> (MemoryStore, TestClock) {
        let clock = TestClock::new(0);
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

    #[tokio::test]
    async fn a_flood_of_keys_stays_within_the_capacity() {
        for capacity in [1, 2, 100, 1_500, 5_000] {
            let store = MemoryStore::new().capacity(capacity);
            let policy = Policy::parse("p", "1/1h").unwrap();
            flood(&Limiter::new(store.clone()), &policy, 0..12_000).await;
            assert_eq!(store.len(), capacity);
        }
    }

    #[tokio::test]
    async fn a_check_over_more_keys_than_fit_stays_within_the_capacity() {
        let store = MemoryStore::new().capacity(2);
        let policy = Policy::parse("p", "1/1h").unwrap();
        let charges = (0..8).flat_map(|key| charge(&policy, key));
        let decision = Limiter::new(store.clone()).check(charges).await.unwrap();
        assert!(decision.is_allowed());
        assert_eq!(store.len(), 2);
    }

    #[tokio::test]
    async fn what_counts_no_more_goes_first_and_then_what_is_released_first() {
        let clock = TestClock::new(0);
        let limiter = Limiter::new(MemoryStore::new().capacity(3).clock(clock.clone()));
        let hour = Policy::parse("hour", "1/1h").unwrap();
        let minute = Policy::parse("minute", "1/1m").unwrap();
        let second = Policy::parse("second", "1/1s").unwrap();
        let admits = async |policy, key| {
            limiter
                .check(charge(policy, key))
                .await
                .unwrap()
                .is_allowed()
        };
        assert!(admits(&minute, 'a').await);
        assert!(admits(&second, 'b').await);
        assert!(admits(&hour, 'c').await);

        clock.advance(Duration::from_secs(2));
        assert!(admits(&second, 'd').await, "takes the place of b");
        assert!(!admits(&minute, 'a').await);
        assert!(
            admits(&hour, 'e').await,
            "takes the place of d, which is released first"
        );
        assert!(
            admits(&second, 'd').await,
            "has been forgotten, and takes the place of a"
        );
        assert!(!admits(&second, 'd').await);
        assert!(!admits(&hour, 'c').await);
        assert!(!admits(&hour, 'e').await);
        assert!(admits(&minute, 'a').await, "has been forgotten");
    }

    #[tokio::test]
    async fn a_key_that_is_charged_again_is_released_later() {
        let clock = TestClock::new(0);
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
        let clock = TestClock::new(0);
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
    #[should_panic(expected = "a store for no keys")]
    fn a_store_for_no_keys_cannot_be_made() {
        let _ = MemoryStore::new().capacity(0);
    }
}
