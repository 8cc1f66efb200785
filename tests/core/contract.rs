//! Proves that the memory store keeps the contract, and that memory is bounded.

use std::{fmt::Display, ops::Range};

use support::{prelude::*, sentence::of_each_row, vectors::replay_all};

support::contracts!(new: contract calls contributors denials blocks kinds);

async fn new() -> (MemoryStore, ManualClock) {
    memory()
}

/// A store for so many keys.
fn of_capacity(capacity: usize) -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new(START_MS);
    let store = MemoryStore::new().capacity(capacity);
    (store.clock(clock.clone()), clock)
}

/// To the millisecond, at each step of the recorded histories.
#[tokio::test]
async fn the_memory_store_agrees_with_the_vectors() {
    replay_all(new).await;
}

#[test]
fn each_row_about_a_full_store_holds() {
    for (capacity, table) in (1..).zip(FULL) {
        of_each_row(async || of_capacity(capacity), &rows(table));
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
An operator's block takes the room of the ban that ends first and a ban only that of a block that has ended
 long = 1/1d 1/1d=1h; short = 1/1d 1/1d=1m; longer = 1/1d 1/1d=2h; look = 9/1d; strike long a !; strike short b !
 block c 1h; look c 0 !operator:1h; look a 0 !ban:1h; look b 0; strike longer b !; look b 0
 @1h; strike longer b !; look b 0 !ban:2h
",
    "
What counts no more goes first and then the key with the most room
 # d comes in the place of a, e in that of b, which has used least, and f in that of d.
 hour = 8/1h; second = 8/1s; second a 8; hour b 1; hour c 4; +2s; hour d 2; hour b = 7; hour e 7; hour b = 8
 hour f 1; hour c = 4; hour d = 8; hour e = 1; hour f = 7
A store full of blocks has room for one when another has ended
 # A block that is there can become longer, and one in the past needs no room.
 look = 9/1d; block a 1m; block b 1h; block c 1h; block d 1h !; look d 0; block b 2h = 2h; block d 0
 +1m; block d 1h; block e 1h !; look b 0 !operator; look c 0 !operator; look d 0 !operator; unblock c; block e 1h
",
];

async fn flood(limiter: &Limiter, policy: &Policy, keys: Range<u32>) {
    for key in keys {
        let is_admitted = admits(limiter, policy, &key.to_string(), 1).await;
        assert!(is_admitted, "a new key is never denied");
    }
}

async fn left(limiter: &Limiter, policy: &Policy, key: impl Display) -> u64 {
    support::prelude::left(limiter, policy, &key.to_string()).await
}

#[tokio::test]
async fn a_flood_of_keys_stays_within_the_capacity() {
    for capacity in [1, 2, 100, 1_500, 5_000] {
        let (store, _) = of_capacity(capacity);
        let limiter = support::limiter(store.clone());
        flood(&limiter, &policy("p", "2/1h"), 0..12_000).await;
        assert_eq!(store.len(), capacity);
    }
}

#[tokio::test]
async fn a_flood_of_ten_times_the_capacity_lifts_no_limit() {
    let (store, _) = of_capacity(5_000);
    let limiter = support::limiter(store.clone());
    let policy = policy("p", "1000/1h");
    // Half of the keys are at their limit, and half have a tenth left.
    let units = |key: u32| if key.is_multiple_of(2) { 1_000 } else { 900 };
    for key in 0..1_000 {
        assert!(admits(&limiter, &policy, &key.to_string(), units(key)).await);
    }
    flood(&limiter, &policy, 1_000..51_000).await;
    assert!(store.len() <= 5_000);
    for key in 0..1_000 {
        let left = left(&limiter, &policy, key).await;
        assert_eq!(left, 1_000 - units(key), "{key}");
    }
}

#[tokio::test]
async fn a_flood_of_ten_times_the_capacity_loses_no_slot() {
    let limiter = support::limiter(of_capacity(5_000).0);
    let slots = policy("slots", "2/1h@concurrent");
    let mut held = Vec::new();
    for key in 0..1_000 {
        let charge = charge(&slots, &key.to_string(), 1);
        let slot = limiter.acquire_slot([charge], Duration::ZERO);
        held.extend(slot.await.unwrap().unwrap());
    }
    flood(&limiter, &policy("p", "2/1h"), 0..50_000).await;
    for key in 0..1_000 {
        assert_eq!(left(&limiter, &slots, key).await, 1, "{key}");
    }
    assert!(held.iter().all(Slot::is_held));
}

#[tokio::test]
async fn a_store_without_room_for_a_block_says_so() {
    let limiter = support::limiter(of_capacity(1).0);
    limiter.block(&user("alice"), HOUR).await.unwrap();
    let error: StoreError = limiter.block(&user("bob"), HOUR).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidRequest);
    assert_eq!(error.to_string(), "the store has no room for another block");
}

#[test]
fn a_spell_of_a_full_store_is_one_warning() {
    let lines = traced(false, async {
        let (store, clock) = of_capacity(1);
        let (limiter, policy) = (support::limiter(store), policy("p", "1/1d"));
        check(&limiter, &policy, "limited", 1).await;
        for seconds in [1, 50, 50, 61, 1] {
            let full = limiter.check([charge(&policy, "alice", 1)]).await;
            assert_eq!(kind_of(full), Some(StoreErrorKind::Full));
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
    let limiter = support::limiter(of_capacity(1).0);
    let policies = [policy("p", "1/1h"), policy("trial", "1/1h").shadow()];
    let charges = policies.each_ref().map(|it| charge(it, "a", 1));
    let decision = limiter.check(charges).await.unwrap();
    assert!(decision.is_allowed() && decision.usage().shadow().is_none());
    assert_eq!(left(&limiter, &policies[0], 'a').await, 0);
}

#[tokio::test]
async fn the_store_shrinks_again_after_a_flood() {
    let (store, clock) = of_capacity(10_000);
    let (limiter, policy) = (support::limiter(store.clone()), policy("p", "1/1s"));
    flood(&limiter, &policy, 0..8_000).await;
    assert!(store.len() >= 8_000);
    clock.advance(Duration::from_secs(5));
    flood(&limiter, &policy, 10_000..14_000).await;
    assert!(store.len() < 5_000, "{}", store.len());
    limiter.reset(&policy, &user("13999")).await.unwrap();
    assert_eq!(left(&limiter, &policy, 13_999).await, 1);
}

#[test]
#[should_panic(expected = "the capacity must be at least one key")]
fn a_store_for_no_keys_is_an_error_when_built() {
    let _ = MemoryStore::new().capacity(0);
}
