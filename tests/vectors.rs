//! Proves that every store gives the right answer, to the millisecond, at each step of the recorded histories.

mod common;

use common::vectors::replay_all;
use sluicegate::{MemoryStore, test_util::TestClock};

#[tokio::test]
async fn the_memory_store_agrees_with_the_vectors() {
    replay_all(async || {
        let clock = TestClock::new(0);
        (MemoryStore::new().clock(clock.clone()), clock)
    })
    .await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn the_redis_store_agrees_with_the_vectors() {
    let server = common::redis::Server::start();
    replay_all(async || common::served::fresh(&server).await).await;
}
