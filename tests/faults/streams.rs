//! Streams that are cut at random points: clients leave, the server panics, timeouts strike.

use support::{
    cut_streams::{PATIENCE, cut_streams},
    prelude::*,
    redis::Server,
};

/// After the last stream.
const SOON: Duration = Duration::from_millis(100);

async fn over_redis(server: &Server) -> Limiter {
    let store = RedisStore::connect(server.url()).await.unwrap();
    Limiter::new(store).timeout(Duration::from_secs(10))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_cut_anywhere_leave_no_slot_in_redis() {
    let server = Server::start();
    let limiter = over_redis(&server).await;
    cut_streams(limiter, 2_000, Duration::from_secs(1), PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long form"]
async fn a_hundred_thousand_streams_that_are_cut_leave_no_slot_in_memory() {
    let limiter = Limiter::new(MemoryStore::new().capacity(1_000_000));
    let took = cut_streams(limiter, 100_000, Duration::from_millis(50), SOON).await;
    println!("all slots are free {took:?} after the last stream");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long form"]
async fn a_hundred_thousand_streams_that_are_cut_leave_no_slot_in_redis() {
    let server = Server::start();
    let limiter = over_redis(&server).await;
    let took = cut_streams(limiter, 100_000, Duration::from_millis(500), SOON).await;
    println!("all slots are free {took:?} after the last stream");
}
