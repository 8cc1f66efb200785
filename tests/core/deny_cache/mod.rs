//! Proves that a `DenyCache` refuses no request that the store would admit, except after refunds elsewhere.

mod edges;
mod histories;
mod repeats;
mod slots;

mod contract {
    use sluicegate::{MemoryStore, manual_clock::ManualClock};

    use support::verified::Verified;

    support::contract!(new);
    support::calls!(new);
    support::contributors!(new);
    support::denials!(new);
    support::blocks!(new);
    support::kinds!(new);

    async fn new() -> (Verified<MemoryStore>, ManualClock) {
        let clock = ManualClock::new(0);
        Verified::new((MemoryStore::new().clock(clock.clone()), clock))
    }
}
