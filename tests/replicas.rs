//! Proves that replicas share one limit, over connections of their own: those that refuse and those that wait.
#![cfg(feature = "redis")]

mod common;

use std::time::{Duration, Instant};

use common::redis::Server;
use futures::future::join_all;
use sluicegate::{Charge, Key, Limiter, Policy, RedisStore};

async fn replicas(server: &Server) -> [Limiter; 2] {
    let replica = async || {
        let store = RedisStore::connect(server.url()).await.unwrap();
        Limiter::new(store).deadline(Duration::from_secs(30))
    };
    [replica().await, replica().await]
}

fn charge(rules: &str) -> [Charge; 1] {
    let policy = Policy::parse("their-api", rules).unwrap();
    [Charge::new(&policy, Key::new("account", "ours"), 1)]
}

#[tokio::test]
async fn who_waits_in_two_replicas_stays_within_one_limit() {
    let server = Server::start();
    let replicas = replicas(&server).await;
    let start = Instant::now();
    let calls = (0..12).map(|call| {
        let replica = &replicas[call % 2];
        replica.wait(charge("3/100ms@exact"), Duration::from_secs(30))
    });
    for decision in join_all(calls).await {
        assert!(decision.unwrap().is_allowed());
    }
    // Twelve calls, three in any 100 ms: the last three come after three whole windows.
    assert!(start.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn who_is_refused_by_one_replica_is_refused_by_the_other() {
    let server = Server::start();
    let [first, second] = replicas(&server).await;
    for (replica, admitted) in [
        (&first, true),
        (&second, true),
        (&first, false),
        (&second, false),
    ] {
        let decision = replica.check(charge("2/1d")).await.unwrap();
        assert_eq!(decision.is_allowed(), admitted);
    }
}
