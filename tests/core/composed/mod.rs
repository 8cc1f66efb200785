//! Proves that a limiter that caches denials over leases keeps the promises that each of both keeps alone.

use support::prelude::*;

mod matrix;

#[tokio::test]
async fn two_processes_admit_exactly_the_limit_and_repeat_what_is_denied() {
    let clock = ManualClock::new(START_MS);
    let store = MemoryStore::new().clock(clock.clone());
    let process = || {
        let leases = support::leases(store.clone()).clock(clock.clone());
        let limiter = support::limiter(leases).cache_denials(true);
        limiter.denial_clock(clock.clone())
    };
    let processes = [process(), process()];
    let policy = policy("p", "5000/1h");
    let alice = || [charge(&policy, "alice", 1)];
    let (mut admitted, mut repeated) = (0, 0);
    for index in 0..20_000_usize {
        clock.advance(Duration::from_micros(900));
        let decision = processes[index % 2].check(alice()).await.unwrap();
        admitted += usize::from(decision.is_allowed());
        repeated += usize::from(decision.usage().is_cached());
        tokio::task::yield_now().await;
    }
    assert_eq!(admitted, 5_000);
    assert!(repeated > 14_000, "{repeated}");
    let peeked = support::limiter(store).peek(alice()).await.unwrap();
    assert_eq!(remaining(&peeked)[0], 0);
}
