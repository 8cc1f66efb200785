//! With a distant server or a busy process, no fewer checks are decided.

use crate::prelude::*;

fn three_charges(user: usize) -> [Charge; 3] {
    ["one", "two", "three"].map(|name| charge(&policy(name, "1000000/1d"), user, 1))
}

#[tokio::test]
async fn checks_that_are_far_more_than_go_in_small_calls_are_all_decided() {
    // A tenth of the timeout, like 10 ms with the default. Ten calls in sequence fit into the timeout.
    const LATENCY: Duration = Duration::from_millis(100);
    let server = Server::start();
    let proxy = Proxy::new(server.address(), LATENCY).await;
    let store = RedisStore::connect(proxy.url()).await.unwrap();
    let limiter = Limiter::new(store).timeout(10 * LATENCY);
    limiter.check(three_charges(0)).await.unwrap();
    let checks = (0..600).map(|user| limiter.check(three_charges(user)));
    let decided = join_all(checks).await.into_iter().filter(Result::is_ok);
    assert_eq!(decided.count(), 600);
}

/// The index is written in two round trips, for which a block waits 50 ms.
#[tokio::test]
async fn a_block_on_a_distant_server_is_listed_all_the_same() {
    let server = Server::start();
    let proxy = Proxy::new(server.address(), Duration::from_millis(60)).await;
    let limiter = Limiter::new(RedisStore::connect(proxy.url()).await.unwrap()).timeout(SOON);
    limiter.block(&user("bob"), Until::Forever).await.unwrap();
    let is_listed = async || {
        limiter
            .blocks(9)
            .await
            .is_ok_and(|blocks| blocks.len() == 1)
    };
    until("it is listed", is_listed).await;
}

/// The results of ten thousand checks at once.
async fn burst(limiter: &Limiter) -> Vec<Result<Decision, StoreError>> {
    let tasks = (0..10_000).map(|user| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.check(three_charges(user)).await })
    });
    let results = join_all(tasks.collect::<Vec<_>>()).await.into_iter();
    results.map(Result::unwrap).collect()
}

#[tokio::test]
async fn a_burst_on_a_healthy_server_opens_no_breaker_and_is_decided_whole_where_there_is_time() {
    for in_flight in [4, 0] {
        let server = Server::start();
        let limiter = Limiter::new(connect(&server).await.in_flight(in_flight));
        limiter.check(three_charges(0)).await.unwrap();
        let errors = burst(&limiter).await.into_iter().filter_map(kind);
        assert!({ errors }.all(|kind| kind == StoreErrorKind::Timeout));
        support::finished(&limiter).await; // late answers are settled
        for user in 0..100 {
            limiter.check(three_charges(user)).await.unwrap();
        }
        // As long as any machine needs for ten thousand checks, so that only a lost check ends without a decision.
        let results = burst(&limiter.timeout(60 * SOON)).await;
        let decided = results.iter().filter(|result| result.is_ok());
        assert_eq!(decided.count(), 10_000, "{in_flight} in flight");
    }
}
