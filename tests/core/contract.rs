//! Proves that the memory store keeps the contract, and that memory is bounded.

mod memory {
    use std::{fmt::Display, time::Duration};

    use sluicegate::{
        Charge, Decision, Key, Limiter, MemoryStore, Policy, StoreError, error::StoreErrorKind,
        limiter::Slot, manual_clock::ManualClock,
    };
    use support::{rows::rows, sentence::of_each_row, trace::traced};

    support::contracts!(new: contract calls contributors denials blocks kinds);

    async fn new() -> (MemoryStore, ManualClock) {
        let clock = ManualClock::new(0);
        (MemoryStore::new().clock(clock.clone()), clock)
    }

    #[test]
    fn each_row_about_a_full_store_holds() {
        for (capacity, table) in (1..).zip(FULL) {
            let new = async || {
                let clock = ManualClock::new(0);
                (
                    MemoryStore::new().capacity(capacity).clock(clock.clone()),
                    clock,
                )
            };
            of_each_row(new, &rows(table));
        }
    }

    /// For stores of one, of two and of three keys.
    const FULL: [&str; 3] = [
        "
A settlement reaches a forgotten key only if there is a place
 p = 9/1h; x: p a 1; p b 9; settle x 3 !; p b = 0
",
        "
A store of keys at their limits decides about no new one
 # This number of full stores would open a breaker, if they counted as failures.
 minute = 1/1m; hour = 1/1h; minute a 1; hour b 1; 20* hour c 1 !error; hour b 1 & hour c 1 !; minute a = 0
 hour b = 0; +62s; hour c 1; hour d 1 !error
A check over more keys than fit charges none
 p = 9/1h; p a 1; p a 1 & p b 1 & p c 1 !error; p a = 8; p b 1 & p a 1
A key that has room again stands where its other rules put it
 both = 64/1d,2/1s; hour = 8/1h; both burst 2; hour regular 3; +2s; hour new 1; both burst = 64 2; hour regular = 5
A key that is charged again is released later
 p = 2/1m; p a 1; +10s; p b 1; +10s; p a 1; +10s; p c 1; +10s; p a = 0; p b = 2; p c = 1
",
        "
What counts no more goes first and then the key with the most room
 # d comes in the place of a, e in that of b, which has used least, and f in that of d.
 hour = 8/1h; second = 8/1s; second a 8; hour b 1; hour c 4; +2s; hour d 2; hour b = 7; hour e 7; hour b = 8
 hour f 1; hour c = 4; hour d = 8; hour e = 1; hour f = 7
",
    ];

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
            flood(&support::limiter(store.clone()), &policy, 0..12_000).await;
            assert_eq!(store.len(), capacity);
        }
    }

    #[tokio::test]
    async fn a_flood_of_ten_times_the_capacity_lifts_no_limit() {
        let store = MemoryStore::new().capacity(5_000);
        let limiter = support::limiter(store.clone());
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
        let limiter = support::limiter(MemoryStore::new().capacity(5_000));
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

    #[test]
    fn a_spell_of_a_full_store_is_one_warning() {
        let lines = traced(false, async {
            let clock = ManualClock::new(0);
            let limiter = support::limiter(MemoryStore::new().capacity(1).clock(clock.clone()));
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
    async fn a_shadow_without_a_place_changes_nothing_else() {
        let limiter = support::limiter(MemoryStore::new().capacity(1));
        let policy = Policy::parse("p", "1/1h").unwrap();
        let trial = Policy::parse("trial", "1/1h").unwrap().shadow();
        let charges = [charge(&policy, 'a'), charge(&trial, 'a')].concat();
        let decision = limiter.check(charges).await.unwrap();
        assert!(decision.is_allowed() && decision.usage().shadow().is_none());
        assert_eq!(left(&limiter, &policy, 'a').await, 0);
    }

    #[tokio::test]
    async fn the_store_shrinks_again_after_a_flood() {
        let clock = ManualClock::new(0);
        let store = MemoryStore::new().capacity(10_000).clock(clock.clone());
        let limiter = support::limiter(store.clone());
        let policy = Policy::parse("p", "1/1s").unwrap();
        flood(&limiter, &policy, 0..8_000).await;
        assert!(store.len() >= 8_000);
        clock.advance(Duration::from_secs(5));
        flood(&limiter, &policy, 10_000..14_000).await;
        assert!(store.len() < 5_000, "{}", store.len());
        let last = Key::new("user", "13999");
        limiter.reset(&policy, &last).await.unwrap();
        assert_eq!(left(&limiter, &policy, 13_999).await, 1);
    }

    #[test]
    #[should_panic(expected = "the capacity must be at least one key")]
    fn a_store_for_no_keys_is_an_error_when_built() {
        let _ = MemoryStore::new().capacity(0);
    }
}
