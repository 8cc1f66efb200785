//! Proves that the memory store gives the right answer, to the millisecond, at each step of the recorded histories.

use sluicegate::{MemoryStore, manual_clock::ManualClock};
use support::vectors::replay_all;

async fn new() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new(0);
    (MemoryStore::new().clock(clock.clone()), clock)
}

#[tokio::test]
async fn the_memory_store_agrees_with_the_vectors() {
    replay_all(new).await;
}
