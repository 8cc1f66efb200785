//! Proves that the documentation's own store answers calls as it has to: by the default of `Store::call`.

use sluicegate::test_util::TestClock;

#[path = "../../examples/own_store.rs"]
mod example;

use example::MapStore;

crate::calls!(new);

async fn new() -> (MapStore, TestClock) {
    let clock = TestClock::new(0);
    let now_ms = {
        let clock = clock.clone();
        move || clock.now_ms()
    };
    (MapStore::new(now_ms), clock)
}
