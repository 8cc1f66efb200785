//! Proves that the parts that reduce the load on Redis compose: denials that are cached, over leases over shared calls.

use support::served::fresh;

use crate::prelude::*;

#[tokio::test]
async fn two_processes_admit_exactly_the_limit_with_few_calls() {
    let server = Server::start();
    for caches in [false, true] {
        let (store, clock) = fresh(&server).await;
        clock.set(START_MS);
        let processes = [(); 2].map(|()| {
            let limiter =
                patient(Leases::new(store.clone()).clock(clock.clone())).cache_denials(caches);
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
