//! You can repeat a settlement that was not sent. A settlement goes to the named charges.

use std::collections::VecDeque;

use futures::FutureExt as _;
use support::prelude::*;

const LATE: Duration = Duration::from_millis(10);

/// A memory store with scripted failures of settlements: `true` means that the settlement was not sent.
fn failing(failures: impl Into<VecDeque<bool>>) -> Limiter {
    let failures = Mutex::new(failures.into());
    support::limiter(Fated::new(MemoryStore::new(), move |asked| {
        let failure = match asked {
            Asked::Execute(Operation::Settle(_)) => failures.lock().unwrap().pop_front(),
            _ => None,
        };
        match failure {
            None => Fate::Answered,
            Some(true) => Fate::Fails(unavailable().unsent()),
            Some(false) => Fate::unavailable(),
        }
    }))
}

fn charge(policy: &Policy, cost: u64) -> Charge {
    Charge::new(policy, user("alice"), cost)
}

async fn settle_to_nothing(limiter: &Limiter, usage: &Usage) -> Result<Vec<u64>, StoreErrorKind> {
    let settled = limiter.settle(usage, |_| 0).await;
    settled
        .map(|it| remaining(&it))
        .map_err(|error| error.kind())
}

#[tokio::test]
async fn a_settlement_that_was_not_sent_can_be_made_again() {
    let limiter = failing([true, true]);
    let policy = policy("api", "10/1h");
    let decision = limiter.check([charge(&policy, 4)]).await.unwrap();
    let usage = decision.usage();
    for _ in 0..2 {
        let failed = settle_to_nothing(&limiter, usage).await;
        assert_eq!(failed, Err(StoreErrorKind::Unavailable));
    }
    assert_eq!(settle_to_nothing(&limiter, usage).await, Ok(vec![10]));
    let again = settle_to_nothing(&limiter, usage).await;
    assert_eq!(again, Err(StoreErrorKind::InvalidRequest));
}

#[tokio::test]
async fn a_settlement_that_may_have_been_sent_is_not_made_again_whichever_part_that_was() {
    let policy = policy("api", "10/1h");
    let shadow = Policy::parse("trial", "10/1h").unwrap().shadow();
    for failures in [[false, true], [true, false], [false, false]] {
        let limiter = failing(failures);
        let charges = [charge(&policy, 4), charge(&shadow, 4)];
        let decision = limiter.check(charges).await.unwrap();
        let failed = settle_to_nothing(&limiter, decision.usage()).await;
        assert_eq!(failed, Err(StoreErrorKind::Unavailable));
        let again = settle_to_nothing(&limiter, decision.usage()).await;
        assert_eq!(again, Err(StoreErrorKind::InvalidRequest), "{failures:?}");
    }
}

#[tokio::test]
async fn a_part_that_was_settled_is_not_settled_again_beside_one_that_was_not_sent() {
    let limiter = failing([true]);
    let policy = policy("api", "10/1h");
    let shadow = Policy::parse("trial", "10/1h").unwrap().shadow();
    let charges = |cost| [charge(&policy, cost), charge(&shadow, cost)];
    let decision = limiter.check(charges(4)).await.unwrap();
    limiter.check(charges(4)).await.unwrap();
    let failed = settle_to_nothing(&limiter, decision.usage()).await;
    assert_eq!(failed, Err(StoreErrorKind::Unavailable));
    let again = settle_to_nothing(&limiter, decision.usage()).await;
    assert_eq!(again, Ok(vec![6]));
    let now = limiter.check(charges(0)).await.unwrap();
    assert_eq!(remaining(now.usage().shadow().unwrap().usage()), [6]);
}

#[tokio::test(start_paused = true)]
async fn in_the_background_a_part_that_was_not_sent_is_tried_again_beside_one_that_may_have_been() {
    let policy = policy("api", "10/1h");
    let shadow = Policy::parse("trial", "10/1h").unwrap().shadow();
    for (failures, left) in [([true, false], [10, 6]), ([false, true], [6, 10])] {
        let limiter = failing(failures);
        let charges = |cost| [charge(&policy, cost), charge(&shadow, cost)];
        let decision = limiter.check(charges(4)).await.unwrap();
        limiter.meter(&decision).set(0);
        assert_eq!(limiter.finish(Duration::from_secs(60)).await, 0);
        let now = limiter.check(charges(0)).await.unwrap();
        let shadow = remaining(now.usage().shadow().unwrap().usage());
        assert_eq!(
            [remaining(now.usage()), shadow].concat(),
            left,
            "{failures:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_one_part_leaves_the_other_to_be_tried_again() {
    let policy = policy("api", "10/1h");
    let shadow = Policy::parse("trial", "10/1h").unwrap().shadow();
    let fates = [Fate::Fails(unavailable().unsent()), Fate::Late(LATE)];
    let fates = Mutex::new(VecDeque::from(fates));
    let limiter = support::limiter(Fated::new(MemoryStore::new(), move |asked| match asked {
        Asked::Execute(Operation::Settle(_)) => {
            let fate = fates.lock().unwrap().pop_front();
            fate.unwrap_or(Fate::Answered)
        }
        _ => Fate::Answered,
    }));
    let charges = |cost| [charge(&policy, cost), charge(&shadow, cost)];
    let decision = limiter.check(charges(4)).await.unwrap();
    let settling = limiter.settle(decision.usage(), |_| 0).now_or_never();
    assert!(settling.is_none());
    assert_eq!(limiter.finish(Duration::from_secs(60)).await, 0);
    let now = limiter.check(charges(0)).await.unwrap();
    assert_eq!(remaining(now.usage()), [10]);
    assert_eq!(remaining(now.usage().shadow().unwrap().usage()), [10]);
}

#[tokio::test]
async fn a_settlement_that_finds_no_place_in_memory_can_be_made_again() {
    let clock = ManualClock::new(1_700_000_000_000);
    let limiter = support::limiter(MemoryStore::new().capacity(1).clock(clock.clone()));
    let policy = policy("api", "5/1s");
    let look = limiter.check([charge(&policy, 0)]).await.unwrap();
    let bob = Charge::new(&policy, user("bob"), 5);
    assert!(limiter.check([bob]).await.unwrap().is_allowed()); // at its limit, so never forgotten
    let full = limiter.settle(look.usage(), |_| 2).await.unwrap_err();
    assert_eq!(full.kind(), StoreErrorKind::Full);
    clock.advance(Duration::from_secs(2));
    let settled = limiter.settle(look.usage(), |_| 2).await.unwrap();
    assert_eq!(remaining(&settled), [3]);
}
