//! Proves that a layer with only `check`, `execute` and `inner` changes nothing, at any place among the layers.

use std::time::Duration;

use sluicegate::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, Store,
    manual_clock::ManualClock,
    store::{Check, Leases, Operation, Reply, StoreFuture},
};
use tokio::time::Instant;

use support::{history::START_MS, plain::Plain};

fn memory() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new(START_MS);
    (MemoryStore::new().clock(clock.clone()), clock)
}

mod around_a_store {
    use super::{ManualClock, MemoryStore, Plain, memory};

    support::contract!(new);
    support::calls!(new);
    support::contributors!(new);
    support::denials!(new);
    support::blocks!(new);

    async fn new() -> (Plain<MemoryStore>, ManualClock) {
        let (store, clock) = memory();
        (Plain(store), clock)
    }
}

mod around_leases {
    use super::{Leases, ManualClock, Plain, memory};

    support::contract!(apart new);
    support::calls!(new);
    support::contributors!(new);
    support::denials!(new);
    support::blocks!(new);

    async fn new() -> (Plain<Leases>, ManualClock) {
        let (store, clock) = memory();
        (Plain(Leases::new(store).clock(clock.clone())), clock)
    }
}

mod around_and_within_leases {
    use super::{Leases, ManualClock, Plain, layered, memory};

    support::contract!(apart new);
    support::calls!(new);
    support::contributors!(new);
    support::denials!(new);
    support::blocks!(new);

    async fn new() -> (Plain<Leases>, ManualClock) {
        let (store, clock) = memory();
        (layered(store, &clock), clock)
    }
}

/// Leases around a store, with a plain layer between each two.
fn layered(store: impl Store, clock: &ManualClock) -> Plain<Leases> {
    Plain(Leases::new(Plain(store)).clock(clock.clone()))
}

/// A store that answers no check within a call, so that no lease arrives.
#[derive(Debug)]
struct LeasesNothing(MemoryStore);

impl Store for LeasesNothing {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.0.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        match operation {
            Operation::Check(_) => StoreFuture::pending(std::future::pending()),
            other => self.0.execute(other),
        }
    }
}

fn charge() -> Charge {
    let policy = Policy::parse("p", "100000/1h@1s").unwrap();
    Charge::new(&policy, Key::new("user", "alice"), 1)
}

/// The time to reset an identity while its lease never arrives. Leases wait for half of the timeout.
async fn time_of_a_reset(limiter: &Limiter, clock: &ManualClock) -> Duration {
    let charge = charge();
    for _ in 0..1_000 {
        clock.advance(Duration::from_millis(1));
        let decision = limiter.check([charge.clone()]).await.unwrap();
        assert!(decision.is_allowed());
        tokio::task::yield_now().await;
    }
    let start = Instant::now();
    let reset = limiter.reset(charge.policy(), charge.key()).await;
    reset.expect("the store has time to answer");
    start.elapsed()
}

fn assert_is_about(waited: Duration, expected: Duration) {
    // The timer of tokio is coarse: it counts whole milliseconds.
    let late = waited.saturating_sub(expected);
    assert!(
        waited >= expected && late.as_millis() <= 1,
        "{waited:?}, and not {expected:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn leases_within_know_how_long_their_limiter_waits() {
    let layers: [fn(LeasesNothing, ManualClock) -> Limiter; 3] = [
        |store, clock| Limiter::new(Leases::new(store).clock(clock)),
        |store, clock| Limiter::new(Plain(Leases::new(store).clock(clock))),
        |store, clock| Limiter::new(layered(store, &clock)),
    ];
    for limiter in layers {
        for (timeout_ms, half_ms) in [(None, 50), (Some(30), 15), (Some(4_000), 2_000)] {
            let (store, clock) = memory();
            let mut limiter = limiter(LeasesNothing(store), clock.clone());
            if let Some(ms) = timeout_ms {
                limiter = limiter.timeout(Duration::from_millis(ms));
            }
            let waited = time_of_a_reset(&limiter, &clock).await;
            assert_is_about(waited, Duration::from_millis(half_ms));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_limiters_over_the_same_leases_the_shortest_timeout_counts() {
    for (timeouts_ms, half_ms) in [
        ([5_000, 30], 15),
        ([30, 5_000], 15),
        ([3_000, 4_000], 1_500),
    ] {
        let (store, clock) = memory();
        let leases = Leases::new(LeasesNothing(store)).clock(clock.clone());
        let limiters =
            timeouts_ms.map(|ms| Limiter::new(leases.clone()).timeout(Duration::from_millis(ms)));
        // Leases learn a timeout from the first call that has to wait.
        for limiter in &limiters {
            time_of_a_reset(limiter, &clock).await;
        }
        for limiter in &limiters {
            let waited = time_of_a_reset(limiter, &clock).await;
            assert_is_about(waited, Duration::from_millis(half_ms));
        }
    }
}
