//! Thousands of streams that are cut at random points, over a store in memory.

use std::time::Duration;

use sluicegate::{Limiter, MemoryStore};
use support::cut_streams::{PATIENCE, cut_streams};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_cut_anywhere_leave_no_slot_and_cost_what_was_polled() {
    let limiter = Limiter::new(MemoryStore::new().capacity(100_000));
    cut_streams(limiter, 2_000, Duration::from_millis(20), PATIENCE).await;
}
