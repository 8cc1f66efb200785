//! Proves that a store with leases keeps the contract, and never admits one unit too many.

mod adversary;
mod races;
mod spending;

mod contract {
    use sluicegate::{MemoryStore, store::Leases, test_util::TestClock};

    crate::contract!(apart new);
    crate::calls!(new);
    crate::contributors!(new);
    crate::denials!(new);
    crate::blocks!(new);
    crate::kinds!(new);

    pub(super) async fn new() -> (Leases, TestClock) {
        let clock = TestClock::new(0);
        let store = MemoryStore::new().clock(clock.clone());
        (Leases::new(store).clock(clock.clone()), clock)
    }
}

#[tokio::test]
async fn the_store_agrees_with_the_vectors() {
    crate::common::vectors::replay_all(contract::new).await;
    crate::common::vectors::replay_blocks(contract::new).await;
    crate::common::vectors::replay_kinds(contract::new).await;
}
