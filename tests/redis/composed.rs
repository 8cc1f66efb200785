//! Proves that the parts that reduce the load on Redis compose: denials that are cached, over leases over shared calls.

use std::time::Duration;

use proptest::prelude::*;
use sluicegate::{
    Charge, Key, Limiter, Policy, RedisStore, manual_clock::ManualClock, store::Leases,
};

use support::{
    history::{START_MS, few_cases, hot, steady},
    promise::{admitted, assert_promise},
    redis::Server,
    served::fresh,
};

/// Another process over the same server.
fn process(store: &RedisStore, clock: &ManualClock) -> Leases {
    Leases::new(store.clone()).clock(clock.clone())
}

#[test]
fn no_span_of_a_window_holds_more_than_the_limit() {
    let server = Server::start();
    let runtime = support::runtime();
    proptest!(few_cases(), |(steady in steady(), hot in hot())| {
        runtime.block_on(async {
            for history in [steady, hot] {
                let (store, clock) = fresh(&server).await;
                let [first, second] = [process(&store, &clock), process(&store, &clock)];
                assert_promise(&history, &admitted(&[&first, &second], &clock, &history).await);
            }
        });
    });
}

#[tokio::test]
async fn two_processes_admit_exactly_the_limit_with_few_calls() {
    let server = Server::start();
    let (store, clock) = fresh(&server).await;
    clock.set(START_MS);
    let processes = [process(&store, &clock), process(&store, &clock)]
        .map(|it| {
            Limiter::new(it)
                .cache_denials(true)
                .denial_clock(clock.clone())
        })
        .map(|it| it.timeout(Duration::from_secs(30)));
    let policy = Policy::parse("p", "5000/1h").unwrap();
    let before = server.calls("evalsha");
    let mut admitted = 0;
    for index in 0..12_000_usize {
        clock.advance(Duration::from_micros(300));
        let charge = Charge::new(&policy, Key::new("user", "alice"), 1);
        let decision = processes[index % 2].check([charge]).await.unwrap();
        admitted += usize::from(decision.is_allowed());
        tokio::task::yield_now().await;
    }
    assert_eq!(admitted, 5_000);
    let calls = server.calls("evalsha") - before;
    assert!(calls < 1_000, "{calls} calls for 12000 requests");
}
