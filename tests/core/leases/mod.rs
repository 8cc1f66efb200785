//! Proves that a store with leases keeps the contract, and never admits one unit too many.

mod adversary;
mod races;
mod spending;

mod contract {
    use sluicegate::{MemoryStore, manual_clock::ManualClock, store::Leases};

    support::contract!(apart new);
    support::contracts!(new: calls contributors denials blocks kinds);

    pub(super) async fn new() -> (Leases, ManualClock) {
        let clock = ManualClock::new(0);
        let store = MemoryStore::new().clock(clock.clone());
        (support::leases(store).clock(clock.clone()), clock)
    }
}

#[tokio::test]
async fn the_store_agrees_with_the_vectors() {
    support::vectors::replay_all(contract::new).await;
}
