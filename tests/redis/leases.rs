//! Leases of units that are charged in Redis.

use std::time::Duration;

use sluicegate::{Charge, Key, Limiter, Policy, manual_clock::ManualClock, store::Leases};

use support::{
    history::START_MS,
    redis::Server,
    served::{Served, fresh},
    vectors::{replay_all, replay_blocks, replay_kinds},
};

support::contract!(apart new);
support::calls!(new);
support::blocks!(new);
support::kinds!(new);

async fn new() -> (Leases, ManualClock) {
    let (store, clock) = Served::start().await;
    (Leases::new(store).clock(clock.clone()), clock)
}

#[tokio::test]
async fn a_store_with_leases_agrees_with_the_vectors() {
    let server = Server::start();
    let store = async || {
        let (store, clock) = fresh(&server).await;
        (Leases::new(store).clock(clock.clone()), clock)
    };
    replay_all(store).await;
    replay_blocks(store).await;
    replay_kinds(store).await;
}

#[tokio::test]
async fn two_processes_admit_exactly_the_limit() {
    let server = Server::start();
    let (store, clock) = fresh(&server).await;
    clock.set(START_MS);
    let process = || Limiter::new(Leases::new(store.clone()).clock(clock.clone()));
    let processes = [process(), process()].map(|it| it.timeout(Duration::from_secs(30)));
    let policy = Policy::parse("p", "5000/1h").unwrap();
    let before = server.calls("evalsha");
    let mut admitted = 0;
    for index in 0..8_000_usize {
        clock.advance(Duration::from_micros(300));
        let charge = Charge::new(&policy, Key::new("user", "alice"), 1);
        let decision = processes[index % 2].check([charge]).await.unwrap();
        admitted += usize::from(decision.is_allowed());
        if index == 4_000 {
            let calls = server.calls("evalsha") - before;
            assert!(calls < 400, "{calls} calls for 4000 requests");
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(admitted, 5_000);
}
