//! The contract for calls of several operations, for batches and for shadows, as tests: see `calls!`.

use std::time::Duration;

use sluicegate::{
    Charge, Decision, Key, Policy, Store, StoreError,
    manual_clock::ManualClock,
    store::{Check, CheckBatch, Operation, Reply, Settlement, StoreExt},
};

use super::{history::START_MS, outcome::Outcome};

/// Makes one test of each sentence; `$new` is an `async fn() -> (impl Store, ManualClock)`.
#[macro_export]
macro_rules! calls {
    ($new:path) => {
        $crate::calls! { @each $new:
            operations_are_answered_one_by_one_in_their_order
            a_call_of_nothing_answers_nothing
            a_settlement_and_a_check_in_one_call_follow_each_other
            a_fill_answers_what_its_checks_would_one_after_another
            a_fill_above_a_limit_admits_none_whatever_it_costs
            a_check_of_a_fill_can_be_settled
            a_check_of_shadows_alone_is_admitted
            shadows_of_a_fill_are_a_fill_of_what_was_admitted
            shadows_that_admit_all_that_a_fill_admitted_do_not_fail_it
            what_a_shadow_charged_is_settled_by_its_own_usage
            the_usage_tells_the_time_of_the_decision
        }
    };
    (@each $new:path: $($sentence:ident)*) => {
        $(
            #[test]
            fn $sentence() {
                $crate::sentence::about_a_store($new, |store, clock| {
                    Box::pin($crate::calls::$sentence(&**store, clock))
                });
            }
        )*
    };
}

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

fn charge(policy: &Policy, key: &str, cost: u64) -> Charge {
    Charge::new(policy, Key::new("user", key), cost)
}

fn check(charges: impl IntoIterator<Item = Charge>) -> Check {
    Check::new(charges).unwrap()
}

async fn call(store: &dyn Store, operations: Vec<Operation>) -> Vec<Result<Reply, StoreError>> {
    store.call(operations).await.unwrap()
}

/// Decides these checks in one call.
pub async fn check_all(
    store: &dyn Store,
    checks: impl IntoIterator<Item = Check>,
) -> Vec<Decision> {
    let operations = checks.into_iter().map(Operation::Check).collect();
    let decision = |reply| match reply {
        Ok(Reply::Check(decision)) => decision,
        other => panic!("not a decision: {other:?}"),
    };
    call(store, operations)
        .await
        .into_iter()
        .map(decision)
        .collect()
}

async fn fill(store: &dyn Store, check: Check, count: u16) -> Vec<Decision> {
    match call(
        store,
        vec![Operation::CheckBatch(CheckBatch::new(check, count))],
    )
    .await
    .remove(0)
    {
        Ok(Reply::CheckBatch(decisions)) => decisions,
        other => panic!("not the reply to a batch: {other:?}"),
    }
}

fn remaining(decision: &Decision) -> Vec<u64> {
    decision
        .usage()
        .rules()
        .map(|rule| rule.remaining())
        .collect()
}

/// The units that are left under each rule.
async fn left(store: &dyn Store, charges: impl IntoIterator<Item = Charge>) -> Vec<u64> {
    remaining(&store.check(&check(charges).without_cost()).await.unwrap())
}

fn admitted(decisions: &[Decision]) -> usize {
    decisions.iter().filter(|it| it.is_allowed()).count()
}

pub async fn operations_are_answered_one_by_one_in_their_order(store: &dyn Store, _: ManualClock) {
    let api = policy("api", "3/1h");
    let alice = |cost| check([charge(&api, "alice", cost)]);
    let reset = Operation::Reset {
        policy: api.clone(),
        key: Key::new("user", "alice"),
    };
    let replies = call(
        store,
        vec![
            Operation::Check(alice(2)),
            Operation::Check(alice(2)),
            Operation::Check(check([charge(&api, "bob", 1)])),
            reset,
            Operation::Check(alice(2)),
            Operation::CheckBatch(CheckBatch::new(alice(1), 2)),
        ],
    )
    .await;
    let told: Vec<String> = replies
        .iter()
        .map(|reply| match reply.as_ref().unwrap() {
            Reply::Check(decision) => {
                format!("{} {:?}", decision.is_allowed(), remaining(decision))
            }
            Reply::CheckBatch(decisions) => {
                format!("{} of {}", admitted(decisions), decisions.len())
            }
            Reply::Reset => "reset".to_owned(),
            other => panic!("not asked for: {other:?}"),
        })
        .collect();
    assert_eq!(
        told,
        [
            "true [1]",
            "false [1]",
            "true [2]",
            "reset",
            "true [1]",
            "1 of 2"
        ]
    );
}

pub async fn a_call_of_nothing_answers_nothing(store: &dyn Store, _: ManualClock) {
    assert!(call(store, Vec::new()).await.is_empty());
}

pub async fn a_settlement_and_a_check_in_one_call_follow_each_other(
    store: &dyn Store,
    _: ManualClock,
) {
    let api = policy("api", "3/1h");
    let alice = || check([charge(&api, "alice", 3)]);
    let decision = store.check(&alice()).await.unwrap();
    let settlement = Settlement::new(decision.usage(), |_| 0).unwrap();
    let replies = call(
        store,
        vec![
            Operation::Check(alice()),
            Operation::Settle(settlement),
            Operation::Check(alice()),
        ],
    )
    .await;
    match &replies[..] {
        [
            Ok(Reply::Check(denied)),
            Ok(Reply::Settle(usage)),
            Ok(Reply::Check(allowed)),
        ] => {
            assert!(!denied.is_allowed() && allowed.is_allowed());
            assert_eq!(usage.rules().next().unwrap().remaining(), 3);
        }
        other => panic!("{other:?}"),
    }
}

pub async fn a_fill_answers_what_its_checks_would_one_after_another(
    store: &dyn Store,
    clock: ManualClock,
) {
    let rules = "9/1s@100ms,20/1m,30/1h@fixed";
    let (together, apart) = (policy("together", rules), policy("apart", rules));
    for (step, (cost, count)) in [(1, 3), (2, 2), (3, 9), (1, 1), (1, 16), (7, 2)]
        .into_iter()
        .enumerate()
    {
        let decisions = fill(store, check([charge(&together, "alice", cost)]), count).await;
        assert_eq!(decisions.len(), usize::from(count));
        for decision in decisions {
            let one = check([charge(&apart, "alice", cost)]);
            let expected = store.check(&one).await.unwrap();
            assert_eq!(Outcome::from(&decision), Outcome::from(&expected), "{step}");
        }
        clock.advance(Duration::from_millis(600));
    }
}

pub async fn a_fill_above_a_limit_admits_none_whatever_it_costs(store: &dyn Store, _: ManualClock) {
    let api = policy("api", "2/1h");
    let decision = store
        .check(&check([charge(&api, "alice", 1)]))
        .await
        .unwrap();
    store
        .settle(&Settlement::new(decision.usage(), |_| 3).unwrap())
        .await
        .unwrap();
    for cost in [0, 1, 3] {
        let decisions = fill(store, check([charge(&api, "alice", cost)]), 2).await;
        assert_eq!((decisions.len(), admitted(&decisions)), (2, 0), "{cost}");
    }
}

pub async fn a_check_of_a_fill_can_be_settled(store: &dyn Store, _: ManualClock) {
    let api = policy("api", "5/1h");
    let decisions = fill(store, check([charge(&api, "alice", 2)]), 3).await;
    assert_eq!(admitted(&decisions), 2);
    for decision in &decisions[..2] {
        let settlement = Settlement::new(decision.usage(), |_| 1).unwrap();
        store.settle(&settlement).await.unwrap();
    }
    assert!(Settlement::new(decisions[2].usage(), |_| 0).is_err());
    assert_eq!(left(store, [charge(&api, "alice", 1)]).await, [3]);
}

pub async fn a_check_of_shadows_alone_is_admitted(store: &dyn Store, _: ManualClock) {
    let trial = policy("trial", "1/1h").shadow();
    for shadow_allows in [true, false] {
        let decision = store
            .check(&check([charge(&trial, "alice", 1)]))
            .await
            .unwrap();
        assert!(decision.is_allowed());
        assert_eq!(decision.usage().policies().count(), 0);
        assert_eq!(
            decision.usage().shadow().unwrap().is_allowed(),
            shadow_allows
        );
    }
}

pub async fn shadows_that_admit_all_that_a_fill_admitted_do_not_fail_it(
    store: &dyn Store,
    _: ManualClock,
) {
    let (api, trial) = (policy("api", "2/1h"), policy("trial", "9/1h").shadow());
    let charges = [charge(&api, "alice", 1), charge(&trial, "alice", 1)];
    let decisions = fill(store, check(charges), 3).await;
    let allowed: Vec<_> = decisions.iter().map(Decision::is_allowed).collect();
    assert_eq!(allowed, [true, true, false]);
    let shadow = |it: &Decision| it.usage().shadow().map(Decision::is_allowed);
    let shadows: Vec<_> = decisions.iter().map(shadow).collect();
    assert_eq!(shadows, [Some(true), Some(true), None]);
}

pub async fn shadows_of_a_fill_are_a_fill_of_what_was_admitted(store: &dyn Store, _: ManualClock) {
    let (api, trial) = (policy("api", "4/1h"), policy("trial", "3/1h").shadow());
    let charges = [charge(&api, "alice", 1), charge(&trial, "alice", 1)];
    let decisions = fill(store, check(charges), 5).await;
    let told: Vec<_> = decisions
        .iter()
        .map(|it| {
            (
                it.is_allowed(),
                it.usage().shadow().map(Decision::is_allowed),
            )
        })
        .collect();
    let (would_pass, would_not) = ((true, Some(true)), (true, Some(false)));
    assert_eq!(
        told,
        [would_pass, would_pass, would_pass, would_not, (false, None)]
    );
}

pub async fn what_a_shadow_charged_is_settled_by_its_own_usage(store: &dyn Store, _: ManualClock) {
    let (api, trial) = (policy("api", "5/1h"), policy("trial", "5/1h"));
    let charges = [
        charge(&api, "alice", 3),
        charge(&trial.clone().shadow(), "alice", 3),
    ];
    let decision = store.check(&check(charges)).await.unwrap();
    let Some(Decision::Allowed(shadow)) = decision.usage().shadow() else {
        panic!("the shadow has room");
    };
    store
        .settle(&Settlement::new(shadow, |_| 1).unwrap())
        .await
        .unwrap();
    assert_eq!(left(store, [charge(&trial, "alice", 1)]).await, [4]);
    assert_eq!(left(store, [charge(&api, "alice", 1)]).await, [2]);
    store
        .settle(&Settlement::new(decision.usage(), |_| 0).unwrap())
        .await
        .unwrap();
    assert_eq!(left(store, [charge(&api, "alice", 1)]).await, [5]);
}

pub async fn the_usage_tells_the_time_of_the_decision(store: &dyn Store, clock: ManualClock) {
    let api = policy("api", "1/1h");
    for later in [0, 1, 999] {
        clock.set(START_MS + later);
        let decision = store
            .check(&check([charge(&api, "alice", 1)]))
            .await
            .unwrap();
        assert_eq!(decision.usage().decided_at_ms(), START_MS + later);
    }
    let charges = [charge(&api, "bob", 1)];
    let decision = store.check(&check(charges)).await.unwrap();
    let usage = store
        .settle(&Settlement::new(decision.usage(), |_| 0).unwrap())
        .await
        .unwrap();
    assert_eq!(usage.decided_at_ms(), START_MS + 999);
}
