//! Proves that a layer with only `check`, `execute` and `inner` changes nothing, at any place among the layers.

use support::{plain::Plain, prelude::*};

mod around_a_store {
    use super::{ManualClock, MemoryStore, Plain, memory};

    support::contracts!(new: contract calls contributors denials blocks);

    async fn new() -> (Plain<MemoryStore>, ManualClock) {
        let (store, clock) = memory();
        (Plain(store), clock)
    }
}

mod around_and_within_leases {
    use super::{Leases, ManualClock, Plain, layered, memory};

    support::contract!(apart new);
    support::contracts!(new: calls contributors denials blocks);

    async fn new() -> (Plain<Leases>, ManualClock) {
        let (store, clock) = memory();
        (layered(store, &clock), clock)
    }
}

/// Leases around a store, with a plain layer between each two.
fn layered(store: impl Store, clock: &ManualClock) -> Plain<Leases> {
    Plain(support::leases(Plain(store)).clock(clock.clone()))
}
