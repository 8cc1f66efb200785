//! Proves that the parts that reduce the load on Redis compose: denials that are cached, over leases over shared calls.

use proptest::prelude::*;
use support::{
    history::*,
    promise::{admitted, assert_promise},
    served::fresh,
};

use crate::prelude::*;

mod leases {
    use super::*;

    support::contract!(apart new);
    support::contracts!(new: calls blocks kinds);

    async fn new() -> (Leases, ManualClock) {
        let (store, clock) = Served::start().await;
        (leased(store, &clock), clock)
    }
}

/// Leases of units that are charged in Redis, as of another process over the same server.
fn leased(store: impl Store, clock: &ManualClock) -> Leases {
    Leases::new(store).clock(clock.clone())
}

#[tokio::test]
async fn a_store_with_leases_agrees_with_the_vectors() {
    let server = Server::start();
    let store = async || {
        let (store, clock) = fresh(&server).await;
        (leased(store, &clock), clock)
    };
    replay_all(store).await;
}

#[test]
fn no_span_of_a_window_holds_more_than_the_limit() {
    let server = Server::start();
    let runtime = support::runtime();
    proptest!(few_cases(), |(steady in steady(), hot in hot())| {
        runtime.block_on(async {
            for history in [steady, hot] {
                let (store, clock) = fresh(&server).await;
                let [first, second] = [(); 2].map(|()| leased(store.clone(), &clock));
                assert_promise(&history, &admitted(&[&first, &second], &clock, &history).await);
            }
        });
    });
}

#[tokio::test]
async fn two_processes_admit_exactly_the_limit_with_few_calls() {
    let server = Server::start();
    for caches in [false, true] {
        let (store, clock) = fresh(&server).await;
        clock.set(START_MS);
        let processes = [(); 2].map(|()| {
            let limiter = patient(leased(store.clone(), &clock)).cache_denials(caches);
            limiter.denial_clock(clock.clone())
        });
        let policy = policy("p", "5000/1h");
        let before = server.calls("evalsha");
        let mut admitted = 0;
        for index in 0..if caches { 12_000 } else { 8_000_usize } {
            clock.advance(Duration::from_micros(300));
            let decision = take(&processes[index % 2], &policy, "alice").await;
            admitted += usize::from(decision.is_allowed());
            if index == 4_000 {
                let calls = server.calls("evalsha") - before;
                assert!(calls < 400, "{calls} calls for 4000 requests");
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(admitted, 5_000);
        // Without a cache, each denial is a call.
        let calls = server.calls("evalsha") - before;
        assert!(!caches || calls < 1_000, "{calls} calls for 12000 requests");
    }
}
