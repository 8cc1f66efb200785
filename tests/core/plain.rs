//! Proves that a layer with only `check`, `execute` and `inner` changes nothing, at any place among the layers.

use support::{plain::Plain, prelude::*};
use tokio::time::Instant;

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
    Plain(support::leases(Plain(store)).clock(clock.clone()))
}

fn charge() -> Charge {
    let policy = policy("p", "100000/1h@1s");
    Charge::new(&policy, user("alice"), 1)
}

/// The lease of the identity never arrives. The reset leaves the store most of the timeout.
#[tokio::test(start_paused = true)]
async fn a_reset_waits_20_ms_for_a_lease_that_never_arrives() {
    let layers: [fn(Fated, ManualClock) -> Limiter; 2] = [
        |store, clock| support::limiter(support::leases(store).clock(clock)),
        |store, clock| support::limiter(layered(store, &clock)),
    ];
    for limiter in layers {
        let ((store, clock), charge) = (memory(), charge());
        // It answers no check within a call, so that no lease arrives.
        let store = Fated::new(store, |asked| match asked {
            Asked::Execute(Operation::Check(_)) => Fate::Hangs,
            _ => Fate::Answered,
        });
        let limiter = limiter(store, clock.clone());
        for _ in 0..1_000 {
            clock.advance(ms(1));
            let decision = limiter.check([charge.clone()]).await.unwrap();
            assert!(decision.is_allowed());
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        let reset = limiter.reset(charge.policy(), charge.key()).await;
        reset.expect("the store has time to answer");
        let waited = start.elapsed().as_millis();
        // The timer of tokio counts whole milliseconds.
        assert!((20..=21).contains(&waited), "{waited}");
    }
}
