//! Proves that a `RedisStore` gives the right answer, to the millisecond, at each step of the recorded histories.

use support::{
    redis::Server,
    served::fresh,
    vectors::{replay_all, replay_blocks, replay_kinds},
};

#[tokio::test]
async fn the_redis_store_agrees_with_the_vectors() {
    let server = Server::start();
    replay_all(async || fresh(&server).await).await;
    replay_kinds(async || fresh(&server).await).await;
}

#[tokio::test]
async fn a_store_that_shares_no_calls_agrees_with_the_vectors() {
    let server = Server::start();
    let fresh = async || {
        let (store, clock) = fresh(&server).await;
        (store.in_flight(0), clock)
    };
    replay_all(fresh).await;
    replay_blocks(fresh).await;
    replay_kinds(fresh).await;
}

#[tokio::test]
async fn the_redis_store_agrees_with_the_vectors_of_blocks_and_bans() {
    let server = Server::start();
    replay_blocks(async || fresh(&server).await).await;
}
