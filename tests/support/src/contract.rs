//! The contract of stores, as tests: see `contract!`.

use std::{sync::Arc, time::Duration};

use sluicegate::{
    Charge, Decision, Key, Limiter, Policy, Store, Usage, error::StoreErrorKind,
    manual_clock::ManualClock, rule::MAX_UNITS,
};

use super::{
    history::START_MS,
    outcome::{Outcome, ms},
};

/// Makes one test of each sentence of the contract; `$new` is an `async fn() -> (impl Store, ManualClock)`.
#[macro_export]
macro_rules! contract {
    ($new:path) => {
        $crate::contract! { apart $new }
        $crate::contract! { @each $new: a_check_over_many_keys_is_atomic_under_concurrency }
    };
    // For a store that may decide the keys of one check separately.
    (apart $new:path) => {
        $crate::contract! { @each $new:
            a_denied_check_is_charged_nowhere
            a_peek_changes_nothing
            the_largest_limit_is_counted_exactly
            a_wait_for_almost_the_largest_limit_is_exact
            running_totals_may_outgrow_32_and_53_bits
            a_cost_above_the_limit_never_fits
            a_response_that_outlives_its_step_pays_all_the_same
            a_settlement_after_a_reset_charges_what_it_adds
            a_settlement_counts_under_the_rules_of_its_check
            settling_stops_at_the_largest_number
            a_refund_of_a_released_step_changes_nothing
            further_units_go_to_the_newest_step_while_the_clock_is_behind
            the_newest_step_is_taken_back_however_much_was_charged_before
            settling_takes_no_more_than_its_step_has
            settling_twice_is_an_error
            reset_forgets_one_key_under_one_policy
            hostile_keys_never_meet
            policies_do_not_meet
            a_new_limit_takes_effect_on_existing_counts
            a_new_window_starts_empty
            sections_of_other_rules_are_carried_until_they_are_released
            time_stands_still_while_the_clock_is_behind
            time_does_not_stand_still_for_what_was_taken_back
            a_step_far_ahead_is_not_believed
            a_step_far_ahead_is_dropped_from_other_rules
            a_write_of_other_rules_releases_steps_for_good
            settling_a_bucket_changes_what_is_missing_now
            time_stands_still_for_a_bucket_but_not_far_ahead
            a_write_of_other_rules_leaves_a_bucket_as_it_is
            a_new_burst_takes_effect_and_another_refill_starts_full
            the_clock_may_show_the_epoch_or_its_latest_time
            the_largest_check_is_decided_and_settled
            exactly_the_limit_is_admitted_under_concurrency
        }
    };
    (@each $new:path: $($sentence:ident)*) => {
        $(
            #[test]
            fn $sentence() {
                $crate::sentence::about_a_limiter($new, |gate, clock| {
                    Box::pin($crate::contract::$sentence(gate, clock))
                });
            }
        )*
    };
}

/// A limiter for tests on a busy machine.
pub fn patient(store: impl Store) -> Limiter {
    let limiter = Limiter::new(store).timeout(Duration::from_secs(30));
    limiter.publish_policies(false) // tests count keys and commands
}

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

fn user(name: &str) -> Key {
    Key::new("user", name)
}

async fn check(gate: &Limiter, policy: &Policy, key: &str, cost: u64) -> Decision {
    let charge = Charge::new(policy, user(key), cost);
    gate.check([charge]).await.unwrap()
}

async fn try_acquire(gate: &Limiter, policy: &Policy, key: &str, cost: u64) -> bool {
    check(gate, policy, key, cost).await.is_allowed()
}

/// The units that are left under each rule.
async fn left(gate: &Limiter, policy: &Policy, key: &str) -> Vec<u64> {
    let peeked = gate.peek([Charge::new(policy, user(key), 0)]);
    remaining(&peeked.await.unwrap())
}

fn remaining(usage: &Usage) -> Vec<u64> {
    usage.rules().map(|rule| rule.remaining()).collect()
}

/// The delay in ms; `None` for never.
fn retry_after(decision: &Decision) -> Option<u64> {
    match decision {
        Decision::Denied(denial) => denial.retry_after().map(ms),
        Decision::Blocked(blocked) => blocked.retry_after().map(ms),
        other => panic!("it was not refused: {other:?}"),
    }
}

pub async fn a_denied_check_is_charged_nowhere(gate: &Limiter, _: ManualClock) {
    let (wide, narrow) = (policy("wide", "10/1m,5/1h"), policy("narrow", "10/1m,1/1h"));
    assert!(try_acquire(gate, &narrow, "bob", 1).await);
    let charges = || {
        [
            Charge::new(&wide, user("alice"), 1),
            Charge::new(&wide, user("bob"), 1),
            Charge::new(&narrow, user("bob"), 1),
        ]
    };
    for _ in 0..3 {
        let decision = gate.check(charges()).await.unwrap();
        let Decision::Denied(denial) = &decision else {
            panic!("it was allowed");
        };
        assert_eq!(denial.policy(), &narrow);
        assert_eq!(denial.rule().rule(), "1/1h".parse().unwrap());
        assert_eq!(remaining(denial.usage()), [10, 5, 10, 5, 9, 0]);
    }
    assert_eq!(left(gate, &wide, "alice").await, [10, 5]);
    assert_eq!(left(gate, &wide, "bob").await, [10, 5]);
    assert_eq!(left(gate, &narrow, "bob").await, [9, 0]);
}

pub async fn a_peek_changes_nothing(gate: &Limiter, clock: ManualClock) {
    let policy = policy("p", "2/1s@exact,3/1m");
    assert!(try_acquire(gate, &policy, "alice", 1).await);
    clock.advance(Duration::from_millis(500));
    let decision = check(gate, &policy, "alice", 1).await;
    let peek = || gate.peek([Charge::new(&policy, user("alice"), 7)]);
    for _ in 0..3 {
        assert_eq!(
            Outcome::from(&peek().await.unwrap()),
            Outcome::from(&decision)
        );
    }
    // Far in the future everything is released, but the store has dropped nothing.
    clock.advance(Duration::from_secs(3_600));
    assert_eq!(remaining(&peek().await.unwrap()), [2, 3]);
    clock.set(START_MS + 500);
    assert_eq!(
        Outcome::from(&peek().await.unwrap()),
        Outcome::from(&decision)
    );
}

pub async fn the_largest_limit_is_counted_exactly(gate: &Limiter, clock: ManualClock) {
    let policy = policy("p", "9007199254740991/1s@exact");
    for _ in 0..3 {
        assert!(try_acquire(gate, &policy, "alice", MAX_UNITS - 1).await);
        assert_eq!(left(gate, &policy, "alice").await, [1]);
        assert!(!try_acquire(gate, &policy, "alice", 2).await);
        clock.advance(Duration::from_millis(1));
        assert!(try_acquire(gate, &policy, "alice", 1).await);
        let decision = check(gate, &policy, "alice", 1).await;
        assert_eq!(retry_after(&decision), Some(1_000));
        clock.advance(Duration::from_millis(1_000));
        assert_eq!(left(gate, &policy, "alice").await, [MAX_UNITS - 1]);
        clock.advance(Duration::from_millis(1));
    }
    // Running totals of such numbers soon overflow 64 bits.
    for _ in 0..3_000 {
        clock.advance(Duration::from_millis(1_001));
        assert!(try_acquire(gate, &policy, "alice", MAX_UNITS).await);
    }
    assert_eq!(left(gate, &policy, "alice").await, [0]);
}

/// The used units and the cost add up to more than 2^53 here, where the script's numbers are not exact.
pub async fn a_wait_for_almost_the_largest_limit_is_exact(gate: &Limiter, clock: ManualClock) {
    let policy = policy("p", "9007199254740991/1s@exact");
    assert!(try_acquire(gate, &policy, "alice", 1).await);
    clock.advance(Duration::from_millis(1));
    assert!(try_acquire(gate, &policy, "alice", MAX_UNITS - 1).await);
    for (cost, wait) in [(1, 1_000), (2, 1_001), (3, 1_001)] {
        let decision = check(gate, &policy, "alice", cost).await;
        assert_eq!(retry_after(&decision), Some(wait), "{cost}");
    }
}

/// The script stores running totals in four bytes as long as the units that count fit.
pub async fn running_totals_may_outgrow_32_and_53_bits(gate: &Limiter, clock: ManualClock) {
    for cost in [1 << 25, 1 << 29, 1 << 40, MAX_UNITS / 11] {
        let policy = policy("p", &format!("{}/1s@100ms", 11 * cost));
        let key = cost.to_string();
        // Eleven steps count at the same time.
        for step in 0..300_u64 {
            assert!(try_acquire(gate, &policy, &key, cost).await, "{step}");
            let room = cost * 10_u64.saturating_sub(step);
            assert_eq!(left(gate, &policy, &key).await, [room], "{step}");
            if room == 0 {
                let decision = check(gate, &policy, &key, cost).await;
                assert_eq!(retry_after(&decision), Some(100));
            }
            clock.advance(Duration::from_millis(100));
        }
    }
}

pub async fn a_cost_above_the_limit_never_fits(gate: &Limiter, _: ManualClock) {
    let policy = policy("p", "5/1s,9007199254740991/1m");
    for cost in [6, MAX_UNITS, MAX_UNITS + 1, u64::MAX] {
        let decision = check(gate, &policy, "alice", cost).await;
        assert_eq!(retry_after(&decision), None, "{cost}");
    }
    assert_eq!(left(gate, &policy, "alice").await, [5, MAX_UNITS]);
}

pub async fn a_response_that_outlives_its_step_pays_all_the_same(
    gate: &Limiter,
    clock: ManualClock,
) {
    let rules = [
        "1000/1s",
        "1000/1s@exact",
        "1000/1s@fixed",
        "1000+1000/1s@bucket",
    ];
    for (rules, estimate) in rules.into_iter().flat_map(|it| [(it, 0), (it, 1)]) {
        let (policy, user) = (policy("p", rules), format!("{estimate} under {rules}"));
        let decision = check(gate, &policy, &user, estimate).await;
        clock.advance(Duration::from_secs(5));
        let settled = gate.settle(decision.usage(), |charge| charge.cost() + 800);
        assert_eq!(remaining(&settled.await.unwrap()), [200], "{user}");
        assert!(!try_acquire(gate, &policy, &user, 201).await, "{user}");
        assert!(try_acquire(gate, &policy, &user, 200).await, "{user}");
        clock.advance(Duration::from_secs(3));
        assert_eq!(left(gate, &policy, &user).await, [1_000], "{user}");
    }
}

/// The reset forgot the charge, and so nothing can be taken back; what is used beyond it counts.
pub async fn a_settlement_after_a_reset_charges_what_it_adds(gate: &Limiter, clock: ManualClock) {
    let policy = policy("p", "10/1m,10/1h@fixed");
    let [up, down] = [
        check(gate, &policy, "alice", 4).await,
        check(gate, &policy, "alice", 4).await,
    ];
    clock.advance(Duration::from_secs(2));
    gate.reset(&policy, &user("alice")).await.unwrap();
    let settled = gate.settle(up.usage(), |_| 7).await.unwrap();
    assert_eq!(remaining(&settled), [7, 7]);
    // The fixed window is the step of both charges.
    let settled = gate.settle(down.usage(), |_| 0).await.unwrap();
    assert_eq!(remaining(&settled), [7, 10]);
}

/// The rules were replaced while the response was under way.
pub async fn a_settlement_counts_under_the_rules_of_its_check(gate: &Limiter, clock: ManualClock) {
    let (before, after) = (policy("p", "10/1s@exact"), policy("p", "10/1m"));
    let early = check(gate, &before, "alice", 1).await;
    clock.advance(Duration::from_secs(2));
    assert!(try_acquire(gate, &after, "alice", 2).await);
    let settled = gate.settle(early.usage(), |_| 5).await.unwrap();
    assert_eq!(remaining(&settled), [6]);
    assert_eq!(left(gate, &after, "alice").await, [8]);
    assert_eq!(left(gate, &before, "alice").await, [6]);
}

pub async fn settling_stops_at_the_largest_number(gate: &Limiter, clock: ManualClock) {
    let policy = policy("p", "9007199254740991/1s@exact");
    assert!(try_acquire(gate, &policy, "alice", 5).await);
    clock.advance(Duration::from_millis(1));
    let decision = check(gate, &policy, "alice", 10).await;
    let usage = gate.settle(decision.usage(), |_| u64::MAX).await.unwrap();
    assert_eq!(remaining(&usage), [0]);
    clock.set(START_MS + 1_001);
    assert_eq!(left(gate, &policy, "alice").await, [5]);
}

pub async fn a_refund_of_a_released_step_changes_nothing(gate: &Limiter, clock: ManualClock) {
    let policy = policy("p", "10/1s@exact,10/1m");
    let [early, late] = [
        check(gate, &policy, "alice", 4).await,
        check(gate, &policy, "alice", 4).await,
    ];
    clock.advance(Duration::from_millis(1_001));
    let usage = gate.settle(early.usage(), |_| 3).await.unwrap();
    assert_eq!(remaining(&usage), [10, 3]);
    clock.advance(Duration::from_secs(120));
    let usage = gate.settle(late.usage(), |_| 0).await.unwrap();
    assert_eq!(remaining(&usage), [10, 10]);
    // Nothing was written either: after a step back of the clock, the released units still count.
    clock.set(START_MS);
    assert_eq!(left(gate, &policy, "alice").await, [10, 3]);
}

/// Time stands still at the start of the newest step.
pub async fn further_units_go_to_the_newest_step_while_the_clock_is_behind(
    gate: &Limiter,
    clock: ManualClock,
) {
    let policy = policy("p", "10/1s@100ms");
    let first = check(gate, &policy, "alice", 1).await;
    clock.set(START_MS + 1_150);
    assert!(try_acquire(gate, &policy, "alice", 1).await);
    clock.set(START_MS + 50);
    let settled = gate.settle(first.usage(), |_| 3).await.unwrap();
    assert_eq!(remaining(&settled), [7]);
    clock.set(START_MS + 2_199);
    assert_eq!(left(gate, &policy, "alice").await, [7]);
    clock.set(START_MS + 2_200);
    assert_eq!(left(gate, &policy, "alice").await, [10]);
}

/// In between, the totals of the charges outgrow 16 bits.
pub async fn the_newest_step_is_taken_back_however_much_was_charged_before(
    gate: &Limiter,
    clock: ManualClock,
) {
    let policy = policy("p", "60000/1m");
    for _ in 0..4 {
        assert!(try_acquire(gate, &policy, "alice", 20_000).await);
        clock.advance(Duration::from_secs(30));
    }
    let newest = check(gate, &policy, "alice", 20_000).await;
    let usage = gate.settle(newest.usage(), |_| 0).await.unwrap();
    let rule = usage.rules().next().unwrap();
    assert_eq!(rule.remaining(), 20_000);
    assert_eq!(rule.reset_after(), Duration::from_secs(31));
}

/// The reset forgot this charge. After the clock had stepped back, others charged this step and an earlier one.
pub async fn settling_takes_no_more_than_its_step_has(gate: &Limiter, clock: ManualClock) {
    let policy = policy("p", "10/1m");
    clock.advance(Duration::from_secs(5));
    let forgotten = check(gate, &policy, "alice", 5).await;
    gate.reset(&policy, &user("alice")).await.unwrap();
    clock.set(START_MS);
    assert!(try_acquire(gate, &policy, "alice", 4).await);
    clock.advance(Duration::from_secs(5));
    assert!(try_acquire(gate, &policy, "alice", 2).await);
    gate.settle(forgotten.usage(), |_| 0).await.unwrap();
    assert_eq!(left(gate, &policy, "alice").await, [6]);
}

pub async fn settling_twice_is_an_error(gate: &Limiter, _: ManualClock) {
    let policy = policy("p", "10/1m");
    let decision = check(gate, &policy, "alice", 4).await;
    gate.settle(decision.usage(), |_| 0).await.unwrap();
    let again = gate.settle(decision.usage(), |_| 0).await.unwrap_err();
    assert_eq!(again.kind(), StoreErrorKind::InvalidRequest);
    assert_eq!(left(gate, &policy, "alice").await, [10]);
}

pub async fn reset_forgets_one_key_under_one_policy(gate: &Limiter, _: ManualClock) {
    let (first, second) = (policy("first", "10/1m"), policy("second", "10/1m"));
    for key in ["alice", "bob"] {
        assert!(try_acquire(gate, &first, key, 4).await);
        assert!(try_acquire(gate, &second, key, 4).await);
    }
    gate.reset(&first, &user("alice")).await.unwrap();
    gate.reset(&first, &user("nobody")).await.unwrap();
    assert_eq!(left(gate, &first, "alice").await, [10]);
    assert_eq!(left(gate, &first, "bob").await, [6]);
    assert_eq!(left(gate, &second, "alice").await, [6]);
}

pub async fn hostile_keys_never_meet(gate: &Limiter, _: ManualClock) {
    let policy = policy("p", "1/1h");
    let long = vec![b'x'; 65_536];
    let plain: [(&'static str, &[u8]); 20] = [
        ("a", b""),
        ("", b"a"),
        ("a:b", b"c"),
        ("a", b"b:c"),
        ("a", b"b=c"),
        ("a=b", b"c"),
        ("a", b"bc"),
        ("ab", b"c"),
        ("a", b"{b}"),
        ("a", b"b}"),
        ("a", b"}{"),
        ("a", b"b:p"),
        ("a", b"\0"),
        ("a", b"\0\0"),
        ("a", b"\xff"),
        ("a", b"\xff\xfe"),
        ("a", "\u{fffd}".as_bytes()),
        ("a", b"b\r\n"),
        ("a", &long),
        ("a", &long[1..]),
    ];
    for (kind, value) in plain {
        for key in [Key::new(kind, value), Key::secret(kind, value)] {
            let charge = || [Charge::new(&policy, key.clone(), 1)];
            let met = format!("{kind:?} {:?}", &value[..value.len().min(8)]);
            assert!(gate.check(charge()).await.unwrap().is_allowed(), "{met}");
            assert!(!gate.check(charge()).await.unwrap().is_allowed(), "{met}");
        }
    }
}

pub async fn policies_do_not_meet(gate: &Limiter, _: ManualClock) {
    for name in ["p", "P", "p.", "p-q", "pp", "user"] {
        let policy = policy(name, "1/1h");
        assert!(try_acquire(gate, &policy, "p", 1).await, "{name}");
        assert!(!try_acquire(gate, &policy, "p", 1).await, "{name}");
    }
}

pub async fn a_new_limit_takes_effect_on_existing_counts(gate: &Limiter, _: ManualClock) {
    let (few, many) = (policy("p", "5/1m"), policy("p", "20/1m"));
    assert!(try_acquire(gate, &many, "alice", 8).await);
    assert_eq!(left(gate, &few, "alice").await, [0]);
    assert!(!try_acquire(gate, &few, "alice", 1).await);
    assert_eq!(left(gate, &many, "alice").await, [12]);
}

pub async fn a_new_window_starts_empty(gate: &Limiter, _: ManualClock) {
    assert!(try_acquire(gate, &policy("p", "10/1m"), "alice", 8).await);
    for rules in ["10/2m", "10/1m@2s", "10/1m@fixed"] {
        assert_eq!(
            left(gate, &policy("p", rules), "alice").await,
            [10],
            "{rules}"
        );
    }
}

pub async fn sections_of_other_rules_are_carried_until_they_are_released(
    gate: &Limiter,
    clock: ManualClock,
) {
    let (old, new) = (
        policy("p", "10/1s@exact,10/1h,10/2h"),
        policy("p", "10/2h,10/1m"),
    );
    assert!(try_acquire(gate, &old, "alice", 3).await);
    assert!(try_acquire(gate, &new, "alice", 1).await);
    assert_eq!(left(gate, &old, "alice").await, [7, 7, 6]);
    let decision = check(gate, &new, "alice", 1).await;
    gate.settle(decision.usage(), |_| 2).await.unwrap();
    assert_eq!(left(gate, &old, "alice").await, [7, 7, 4]);

    // A second later, the next write drops the shortest section for good, even if the clock steps back.
    clock.advance(Duration::from_millis(1_001));
    assert!(try_acquire(gate, &new, "alice", 1).await);
    clock.set(START_MS);
    assert_eq!(left(gate, &old, "alice").await, [10, 7, 3]);
}

pub async fn time_stands_still_while_the_clock_is_behind(gate: &Limiter, clock: ManualClock) {
    let policy = policy("p", "2/1s@100ms");
    assert!(try_acquire(gate, &policy, "alice", 1).await);
    clock.set(START_MS - 1_000);
    // The charge goes to the newest step, since an older step would be released too early.
    let decision = check(gate, &policy, "alice", 1).await;
    let reset_after = decision.usage().rules().next().unwrap().reset_after();
    assert_eq!(ms(reset_after), 1_000 + 100 + 1_000);
    assert_eq!(
        retry_after(&check(gate, &policy, "alice", 1).await),
        Some(2_100)
    );
    clock.set(START_MS + 1_099);
    assert!(!try_acquire(gate, &policy, "alice", 1).await);
    clock.set(START_MS + 1_100);
    assert!(try_acquire(gate, &policy, "alice", 2).await);
}

/// A key without units has no newest step, even if it had one before.
pub async fn time_does_not_stand_still_for_what_was_taken_back(gate: &Limiter, clock: ManualClock) {
    let policy = policy("p", "5/1s@100ms,5/1m");
    clock.set(START_MS - 30_000);
    assert!(try_acquire(gate, &policy, "alice", 1).await);
    clock.set(START_MS);
    let early = check(gate, &policy, "alice", 0).await;
    clock.set(START_MS + 1_250);
    let late = check(gate, &policy, "alice", 1).await;
    gate.settle(late.usage(), |_| 0).await.unwrap();
    clock.set(START_MS + 1_050);
    let settled = gate.settle(early.usage(), |_| 2).await.unwrap();
    assert_eq!(remaining(&settled), [3, 2]);
    let reset_after = settled.rules().next().unwrap().reset_after();
    assert_eq!(ms(reset_after), 1_050); // from the step of now
}

pub async fn a_write_of_other_rules_releases_steps_for_good(gate: &Limiter, clock: ManualClock) {
    let (before, after) = (policy("p", "7/10s@10s"), policy("p", "7/1d"));
    for at_ms in [START_MS, START_MS + 10_000] {
        clock.set(at_ms);
        assert!(try_acquire(gate, &before, "alice", 1).await);
    }
    // The first step is released, and the second still counts.
    clock.set(START_MS + 20_000);
    assert!(try_acquire(gate, &after, "alice", 1).await);
    clock.set(START_MS + 15_000);
    assert_eq!(left(gate, &before, "alice").await, [6]);
}

/// Each write drops the step, also a write with other rules.
pub async fn a_step_far_ahead_is_dropped_from_other_rules(gate: &Limiter, clock: ManualClock) {
    let (own, other) = (policy("p", "10/1m"), policy("p", "10/1s"));
    clock.advance(Duration::from_secs(3_600));
    assert!(try_acquire(gate, &other, "alice", 4).await);
    clock.set(START_MS);
    assert!(try_acquire(gate, &own, "alice", 1).await);
    clock.advance(Duration::from_secs(3_600));
    assert_eq!(left(gate, &other, "alice").await, [10]);
}

pub async fn settling_a_bucket_changes_what_is_missing_now(gate: &Limiter, clock: ManualClock) {
    let policy = policy("p", "10+1/1s@bucket");
    let first = check(gate, &policy, "alice", 4).await;
    let second = check(gate, &policy, "alice", 2).await;
    clock.advance(Duration::from_millis(2_500));
    let lower = gate.settle(first.usage(), |_| 3).await.unwrap();
    assert_eq!(remaining(&lower), [7]); // 2.5 are missing
    let higher = gate.settle(second.usage(), |_| 12).await.unwrap();
    assert_eq!(remaining(&higher), [0]); // 12.5 are missing
    let look = check(gate, &policy, "alice", 0).await;
    assert_eq!(retry_after(&look), Some(2_500));
    let larger = check(gate, &policy, "carol", 1).await;
    let largest = gate.settle(larger.usage(), |_| u64::MAX).await.unwrap();
    let reset_after = largest.rules().next().unwrap().reset_after();
    assert_eq!(ms(reset_after), MAX_UNITS / 1_000 * 1_000);
    let third = check(gate, &policy, "bob", 2).await;
    clock.advance(Duration::from_millis(1_999));
    let all = gate.settle(third.usage(), |_| 0).await.unwrap();
    assert_eq!(remaining(&all), [10]);
}

pub async fn time_stands_still_for_a_bucket_but_not_far_ahead(gate: &Limiter, clock: ManualClock) {
    let policy = policy("p", "2+1/1s@bucket");
    assert!(try_acquire(gate, &policy, "alice", 1).await);
    clock.set(START_MS - 2_000);
    assert_eq!(left(gate, &policy, "alice").await, [1]);
    assert!(try_acquire(gate, &policy, "alice", 1).await);
    assert_eq!(
        retry_after(&check(gate, &policy, "alice", 1).await),
        Some(3_000)
    );
    clock.set(START_MS - 2_001);
    assert_eq!(left(gate, &policy, "alice").await, [2]);
    // With a larger burst, a state further ahead is believed.
    let larger = Policy::parse("p", "5+1/1s@bucket").unwrap();
    assert_eq!(left(gate, &larger, "alice").await, [3]);
    clock.set(START_MS - 5_001);
    assert_eq!(left(gate, &larger, "alice").await, [5]);
    clock.set(START_MS + 999);
    assert!(!try_acquire(gate, &policy, "alice", 1).await);
    clock.set(START_MS + 1_000);
    assert!(try_acquire(gate, &policy, "alice", 1).await);
}

/// They write while the clock is ahead by more than a full refill takes, and would be believed no longer.
pub async fn a_write_of_other_rules_leaves_a_bucket_as_it_is(gate: &Limiter, clock: ManualClock) {
    let (own, others) = (policy("p", "2+1/1s@bucket"), policy("p", "9/1h"));
    let usage = check(gate, &own, "alice", 1).await;
    gate.settle(usage.usage(), |_| 100).await.unwrap();
    clock.advance(Duration::from_secs(60));
    assert!(try_acquire(gate, &others, "alice", 1).await);
    clock.set(START_MS + 10_000);
    assert_eq!(left(gate, &own, "alice").await, [0]);
    clock.set(START_MS + 99_000);
    assert_eq!(left(gate, &own, "alice").await, [1]);
}

pub async fn a_new_burst_takes_effect_and_another_refill_starts_full(
    gate: &Limiter,
    _: ManualClock,
) {
    let rules = ["2+1/1s@bucket", "5+1/1s@bucket", "5+2/1s@bucket", "5/1s"];
    let policies = rules.map(|rules| policy("p", rules));
    assert!(try_acquire(gate, &policies[0], "alice", 2).await);
    assert_eq!(left(gate, &policies[1], "alice").await, [3]);
    assert_eq!(left(gate, &policies[2], "alice").await, [5]);
    assert_eq!(left(gate, &policies[3], "alice").await, [5]);
    assert!(try_acquire(gate, &policies[1], "alice", 3).await);
    assert_eq!(left(gate, &policies[0], "alice").await, [0]);
}

pub async fn a_step_far_ahead_is_not_believed(gate: &Limiter, clock: ManualClock) {
    let policy = policy("p", "2/1s@100ms");
    assert!(try_acquire(gate, &policy, "alice", 2).await);
    clock.set(START_MS - 1_100);
    assert_eq!(left(gate, &policy, "alice").await, [0]);
    clock.set(START_MS - 1_101);
    assert_eq!(left(gate, &policy, "alice").await, [2]);
    // A look drops nothing; a charge drops the step for good.
    clock.set(START_MS);
    assert_eq!(left(gate, &policy, "alice").await, [0]);
    clock.set(START_MS - 1_101);
    assert!(try_acquire(gate, &policy, "alice", 1).await);
    clock.set(START_MS);
    assert_eq!(left(gate, &policy, "alice").await, [2]);
}

pub async fn the_clock_may_show_the_epoch_or_its_latest_time(gate: &Limiter, clock: ManualClock) {
    for (key, now_ms) in [("first", 0), ("last", u64::MAX)] {
        clock.set(now_ms);
        let now_ms = clock.now_ms();
        for window in ["1ms", "1s@exact", "36525d@1d", "1d@fixed"] {
            let policy = policy(window.split('@').next().unwrap(), &format!("2/{window}"));
            assert!(try_acquire(gate, &policy, key, 2).await);
            let decision = check(gate, &policy, key, 1).await;
            let step = ms(policy.rules()[0].step());
            let hold = ms(policy.rules()[0].window());
            let end = now_ms - now_ms % step + step;
            let release = if window.ends_with("fixed") {
                end
            } else {
                end + hold
            };
            assert_eq!(retry_after(&decision), Some(release - now_ms), "{window}");
        }
    }
}

pub async fn the_largest_check_is_decided_and_settled(gate: &Limiter, _: ManualClock) {
    let rules = (1..=16).map(|minutes| format!("{}/{minutes}m", minutes + 1));
    let policy = policy("p", &rules.collect::<Vec<_>>().join(","));
    let charge = |key: u32, cost| Charge::new(&policy, user(&key.to_string()), cost);
    let charges = |cost| (0..64).map(move |key| charge(key, cost));
    let decision = gate.check(charges(2)).await.unwrap();
    let left: Vec<u64> = (0..16).collect();
    assert_eq!(remaining(decision.usage()), left.repeat(64));
    assert!(!gate.check(charges(1)).await.unwrap().is_allowed());
    let settled = gate.settle(decision.usage(), |_| 1).await.unwrap();
    let left: Vec<u64> = (1..=16).collect();
    assert_eq!(remaining(&settled), left.repeat(64));
    assert!(gate.check(charges(1)).await.unwrap().is_allowed());
}

pub async fn exactly_the_limit_is_admitted_under_concurrency(gate: &Limiter, _: ManualClock) {
    let policy = policy("p", "1000/1h,500/1d");
    let admitted = by_64_tasks(gate, move |_| vec![Charge::new(&policy, user("alice"), 1)]);
    assert_eq!(admitted.await, 500);
}

pub async fn a_check_over_many_keys_is_atomic_under_concurrency(gate: &Limiter, _: ManualClock) {
    let (policy, shared) = (policy("own", "12/1h"), policy("shared", "500/1h"));
    // Different orders of the keys, and one key that all tasks share.
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let (own, all) = (policy.clone(), shared.clone());
    let admitted = by_64_tasks(gate, move |task| {
        let mut charges = vec![Charge::new(&all, user("all"), 1)];
        charges.extend(names.map(|name| Charge::new(&own, user(name), 1)));
        if task % 2 == 0 {
            charges.reverse();
        }
        charges
    });
    assert_eq!(admitted.await, 12);
    assert_eq!(left(gate, &shared, "all").await, [500 - 12]);
    for name in names {
        assert_eq!(left(gate, &policy, name).await, [0]);
    }
}

/// The number of admitted checks of 64 tasks that make 40 each.
async fn by_64_tasks(
    gate: &Limiter,
    charges: impl Fn(usize) -> Vec<Charge> + Send + Sync + 'static,
) -> usize {
    let charges = Arc::new(charges);
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let (gate, charges) = (gate.clone(), Arc::clone(&charges));
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..40 {
                    let decision = gate.check(charges(task)).await.unwrap();
                    admitted += usize::from(decision.is_allowed());
                    tokio::task::yield_now().await;
                }
                admitted
            })
        })
        .collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await.unwrap();
    }
    sum
}
