//! Proves that the memory store gives the right answer, to the millisecond, at each step of the recorded histories.

use sluicegate::{MemoryStore, manual_clock::ManualClock};
use support::vectors::{replay_all, replay_blocks, replay_kinds};

#[tokio::test]
async fn the_memory_store_agrees_with_the_vectors() {
    replay_all(async || {
        let clock = ManualClock::new(0);
        (MemoryStore::new().clock(clock.clone()), clock)
    })
    .await;
}

#[tokio::test]
async fn the_memory_store_agrees_with_the_vectors_of_calendar_rules() {
    replay_kinds(async || {
        let clock = ManualClock::new(0);
        (MemoryStore::new().clock(clock.clone()), clock)
    })
    .await;
}

#[tokio::test]
async fn the_memory_store_agrees_with_the_vectors_of_blocks_and_bans() {
    replay_blocks(async || {
        let clock = ManualClock::new(0);
        (MemoryStore::new().clock(clock.clone()), clock)
    })
    .await;
}
