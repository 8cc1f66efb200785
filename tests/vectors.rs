//! Proves that every store gives the right answer, to the millisecond, at each step of the recorded histories.

mod common;

use std::{env, path::Path};

use common::vectors::replay_folder;
use sluicegate::{MemoryStore, Store, test_util::TestClock};

/// The vectors of this repository, and those of the folder that `SLUICEGATE_VECTORS` names.
async fn replay_all<S: Store>(new: impl AsyncFn() -> (S, TestClock)) {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    replay_folder(&own, &new).await;
    if let Some(folder) = env::var_os("SLUICEGATE_VECTORS") {
        replay_folder(Path::new(&folder), &new).await;
    }
}

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
