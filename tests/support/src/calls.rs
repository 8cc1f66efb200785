//! The contract for calls of several operations, for batches and for shadows, as tests: see `calls!`.

use super::prelude::*;

/// Makes one test of each sentence; `$new` is an `async fn() -> (impl Store, ManualClock)`.
#[macro_export]
macro_rules! calls {
    ($new:path) => {
        $crate::sentences! { about_a_store $new, calls[&]:
            operations_are_answered_one_by_one_in_their_order
            a_fill_answers_what_its_checks_would_one_after_another
            a_fill_above_a_limit_admits_none_whatever_it_costs
            a_check_of_a_fill_can_be_settled
            a_check_of_shadows_alone_is_admitted
            shadows_of_a_fill_are_a_fill_of_what_was_admitted
            what_a_shadow_charged_is_settled_by_its_own_usage
            the_usage_tells_the_time_of_the_decision
        }
    };
}

async fn call(store: &dyn Store, operations: Vec<Operation>) -> Vec<Result<Reply, StoreError>> {
    store.call(operations).await.unwrap()
}

async fn fill<const N: usize>(
    store: &dyn Store,
    charges: [Charge; N],
    count: u16,
) -> Vec<Decision> {
    let batch = CheckBatch::new(Check::new(charges).unwrap(), count);
    match call(store, vec![Operation::CheckBatch(batch)])
        .await
        .remove(0)
    {
        Ok(Reply::CheckBatch(decisions)) => decisions,
        other => panic!("not the reply to a batch: {other:?}"),
    }
}

async fn decide(store: &dyn Store, policy: &Policy, cost: u64) -> Decision {
    store.check(&check_of(policy, "alice", cost)).await.unwrap()
}

async fn settle(store: &dyn Store, usage: &Usage, cost: u64) -> Usage {
    let settlement = Settlement::new(usage, |_| cost).unwrap();
    store.settle(&settlement).await.unwrap()
}

async fn units(store: &dyn Store, policy: &Policy) -> Vec<u64> {
    remaining(decide(store, policy, 0).await.usage())
}

fn admitted(decisions: &[Decision]) -> usize {
    decisions.iter().filter(|it| it.is_allowed()).count()
}

/// Whether a check is admitted, and whether the shadow would be.
fn both(decision: &Decision) -> (bool, Option<bool>) {
    let shadow = decision.usage().shadow().map(Decision::is_allowed);
    (decision.is_allowed(), shadow)
}

pub async fn operations_are_answered_one_by_one_in_their_order(store: &dyn Store, _: ManualClock) {
    assert!(call(store, Vec::new()).await.is_empty());
    let api = policy("api", "3/1h");
    let alice = |cost| Operation::Check(check_of(&api, "alice", cost));
    let before = decide(store, &api, 3).await;
    let settlement = Settlement::new(before.usage(), |_| 0).unwrap();
    let operations = vec![
        alice(3),
        Operation::Settle(settlement),
        alice(2),
        alice(2),
        Operation::Check(check_of(&api, "bob", 1)),
        Operation::Reset {
            policy: api.clone(),
            key: user("alice"),
        },
        alice(2),
        Operation::CheckBatch(CheckBatch::new(check_of(&api, "alice", 1), 2)),
    ];
    let replies = call(store, operations).await;
    let told = replies.iter().map(|reply| match reply.as_ref().unwrap() {
        Reply::Check(it) => format!("{} {:?}", it.is_allowed(), remaining(it.usage())),
        Reply::CheckBatch(it) => format!("{} of {}", admitted(it), it.len()),
        Reply::Settle(usage) => format!("settled {:?}", remaining(usage)),
        Reply::Reset => "reset".to_owned(),
        other => panic!("not asked for: {other:?}"),
    });
    let expected = "false [0], settled [3], true [1], false [1], true [2], reset, true [1], 1 of 2";
    assert_eq!(told.collect::<Vec<_>>().join(", "), expected);
}

pub async fn a_fill_answers_what_its_checks_would_one_after_another(
    store: &dyn Store,
    clock: ManualClock,
) {
    let rules = "9/1s@100ms,20/1m,30/1h@fixed";
    let (together, apart) = (policy("together", rules), policy("apart", rules));
    for (cost, count) in [(1, 3), (2, 2), (3, 9), (1, 1), (1, 16), (7, 2)] {
        let decisions = fill(store, [charge(&together, "alice", cost)], count).await;
        assert_eq!(decisions.len(), usize::from(count));
        for decision in decisions {
            let expected = decide(store, &apart, cost).await;
            let (said, right) = (Outcome::from(&decision), Outcome::from(&expected));
            assert_eq!(said, right, "{count} for {cost}");
        }
        clock.advance(ms(600));
    }
}

pub async fn a_fill_above_a_limit_admits_none_whatever_it_costs(store: &dyn Store, _: ManualClock) {
    let api = policy("api", "2/1h");
    settle(store, decide(store, &api, 1).await.usage(), 3).await;
    for cost in [0, 1, 3] {
        let decisions = fill(store, [charge(&api, "alice", cost)], 2).await;
        assert_eq!((decisions.len(), admitted(&decisions)), (2, 0), "{cost}");
    }
}

pub async fn a_check_of_a_fill_can_be_settled(store: &dyn Store, _: ManualClock) {
    let api = policy("api", "5/1h");
    let decisions = fill(store, [charge(&api, "alice", 2)], 3).await;
    assert_eq!(admitted(&decisions), 2);
    for decision in &decisions[..2] {
        settle(store, decision.usage(), 1).await;
    }
    assert!(Settlement::new(decisions[2].usage(), |_| 0).is_err());
    assert_eq!(units(store, &api).await, [3]);
}

pub async fn a_check_of_shadows_alone_is_admitted(store: &dyn Store, _: ManualClock) {
    let trial = policy("trial", "1/1h").shadow();
    for shadow_allows in [true, false] {
        let decision = decide(store, &trial, 1).await;
        assert_eq!(both(&decision), (true, Some(shadow_allows)));
        assert_eq!(decision.usage().policies().count(), 0);
    }
}

pub async fn shadows_of_a_fill_are_a_fill_of_what_was_admitted(store: &dyn Store, _: ManualClock) {
    let (pass, would_not, denied) = ((true, Some(true)), (true, Some(false)), (false, None));
    for (limits, expected) in [
        (("4/1h", "3/1h"), vec![pass, pass, pass, would_not, denied]),
        (("2/1h", "9/1h"), vec![pass, pass, denied]), // the shadow fails none
    ] {
        let (api, trial) = (policy("api", limits.0), policy("trial", limits.1).shadow());
        let charges = [&api, &trial].map(|it| charge(it, limits.0, 1));
        let count = u16::try_from(expected.len()).unwrap();
        let decisions = fill(store, charges, count).await;
        assert_eq!(decisions.iter().map(both).collect::<Vec<_>>(), expected);
    }
}

pub async fn what_a_shadow_charged_is_settled_by_its_own_usage(store: &dyn Store, _: ManualClock) {
    let (api, trial) = (policy("api", "5/1h"), policy("trial", "5/1h"));
    let charges = [&api, &trial.clone().shadow()].map(|it| charge(it, "alice", 3));
    let decision = store.check(&Check::new(charges).unwrap()).await.unwrap();
    let Some(Decision::Allowed(shadow)) = decision.usage().shadow() else {
        panic!("the shadow has room");
    };
    settle(store, shadow, 1).await;
    assert_eq!(
        (units(store, &trial).await, units(store, &api).await),
        (vec![4], vec![2])
    );
    settle(store, decision.usage(), 0).await;
    assert_eq!(units(store, &api).await, [5]);
}

pub async fn the_usage_tells_the_time_of_the_decision(store: &dyn Store, clock: ManualClock) {
    let (api, other) = (policy("api", "1/1h"), policy("other", "1/1h"));
    for later in [0, 1, 999] {
        clock.set(START_MS + later);
        let decision = decide(store, &api, 1).await;
        assert_eq!(decision.usage().decided_at_ms(), START_MS + later);
    }
    let settled = settle(store, decide(store, &other, 1).await.usage(), 0).await;
    assert_eq!(settled.decided_at_ms(), START_MS + 999);
}
