//! Proves that a `DenyCache` refuses no request that the store would admit, except after refunds elsewhere.

mod edges;
mod histories;
mod repeats;
mod slots;

mod contract {
    use sluicegate::{MemoryStore, test_util::TestClock};

    use crate::common::verified::Verified;

    crate::contract!(new);
    crate::calls!(new);
    crate::contributors!(new);
    crate::denials!(new);
    crate::blocks!(new);
    crate::kinds!(new);

    async fn new() -> (Verified<MemoryStore>, TestClock) {
        let clock = TestClock::new(0);
        Verified::new((MemoryStore::new().clock(clock.clone()), clock))
    }
}
