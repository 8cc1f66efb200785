//! Leases and a cache of denials together, in either order, keep the contract.

mod cache_outside {
    use sluicegate::{
        MemoryStore,
        store::{DenyCache, Leases},
        test_util::TestClock,
    };

    crate::contract!(apart new);
    crate::calls!(new);
    crate::contributors!(new);
    crate::blocks!(new);

    async fn new() -> (DenyCache, TestClock) {
        let clock = TestClock::new(0);
        let store = MemoryStore::new().clock(clock.clone());
        let leases = Leases::new(store).clock(clock.clone());
        (DenyCache::new(leases).clock(clock.clone()), clock)
    }
}

mod leases_outside {
    use sluicegate::{
        MemoryStore,
        store::{DenyCache, Leases},
        test_util::TestClock,
    };

    crate::contract!(apart new);
    crate::calls!(new);
    crate::contributors!(new);
    crate::blocks!(new);

    async fn new() -> (Leases, TestClock) {
        let clock = TestClock::new(0);
        let store = MemoryStore::new().clock(clock.clone());
        let cache = DenyCache::new(store).clock(clock.clone());
        (Leases::new(cache).clock(clock.clone()), clock)
    }
}
