//! Proves that the store in the documentation answers calls correctly with the default of `Store::call`, and that the
//! layer there changes nothing.

use example::MapStore;
use support::prelude::*;

#[path = "../../examples/custom_store.rs"]
mod example;

support::calls!(new);

async fn new() -> (MapStore, ManualClock) {
    let clock = ManualClock::new(0);
    let now_ms = {
        let clock = clock.clone();
        move || clock.now_ms()
    };
    (MapStore::new(now_ms), clock)
}

#[tokio::test]
async fn a_store_without_buckets_and_slots_says_so() {
    for rules in ["2+1/1s@bucket", "2/30s@concurrent"] {
        let (store, _) = new().await;
        let policy = policy("p", rules);
        let charge = charge(&policy, "alice", 1);
        let error = support::limiter(store).check([charge]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidRequest);
        assert_eq!(error.to_string(), "the store has no buckets and no slots");
    }
}

#[tokio::test]
async fn a_response_that_outlives_its_step_pays_all_the_same() {
    let (store, clock) = new().await;
    let limiter = support::limiter(store);
    let policy = policy("p", "10/1s");
    let charge = charge(&policy, "alice", 1);
    let admitted = limiter.check([charge]).await.unwrap();
    clock.advance(Duration::from_secs(5));
    let settled = limiter.settle(admitted.usage(), |_| 9).await.unwrap();
    assert_eq!(remaining(&settled)[0], 2);
}

#[tokio::test]
async fn a_store_that_keeps_no_blocks_says_so() {
    let (store, _) = new().await;
    let alice = user("alice");
    let unblock = Operation::Unblock { key: alice.clone() };
    let replies = store.call(vec![unblock]).await.unwrap();
    let limiter = support::limiter(store);
    for error in [
        limiter.block(&alice, Until::Forever).await.unwrap_err(),
        limiter.unblock(&alice).await.unwrap_err(),
        replies.into_iter().next().unwrap().unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::InvalidRequest);
        assert_eq!(error.to_string(), "the store keeps no blocks");
    }
}
