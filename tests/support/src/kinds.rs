//! Tests of concurrency and calendar rules for every store, made by `kinds!`.

use std::{sync::Arc, time::Duration};

use sluicegate::{
    Charge, Decision, Key, Policy, Store, Usage,
    manual_clock::ManualClock,
    store::{Check, CheckBatch, HeldSlots, Operation, Reply, Settlement, Slots, StoreExt},
};

use super::{history::START_MS, outcome::ms};

type AnyStore = Arc<dyn Store>;

/// Makes one test of each sentence; `$new` is an `async fn() -> (impl Store, ManualClock)`.
#[macro_export]
macro_rules! kinds {
    ($new:path) => {
        $crate::kinds! { @each $new:
            a_slot_is_free_once_it_is_returned
            a_slot_that_is_not_renewed_is_free_when_it_expires
            a_renewed_slot_is_held_for_longer
            messages_about_slots_may_come_twice
            a_lost_slot_is_neither_renewed_nor_taken_from_others
            a_settlement_leaves_slots_alone
            slots_are_taken_with_other_charges_or_not_at_all
            slots_of_a_key_are_renewed_and_returned_one_by_one
            a_limit_of_no_slots_is_a_switch
            a_check_may_take_several_slots
            a_lower_limit_takes_no_slot_away
            each_check_of_a_batch_has_slots_of_its_own
            slots_of_a_shadow_are_held
            slots_are_taken_and_returned_by_their_keys
            another_expiry_starts_empty_and_the_first_is_still_returned
            a_policy_may_change_from_rates_to_slots_and_to_another_expiry
            slots_last_longer_while_the_clock_is_behind_and_are_not_believed_beyond_their_window
            a_denial_tells_the_wait_besides_slots
            a_new_limit_takes_effect_within_a_period
            another_zone_or_day_starts_empty_and_the_first_is_carried_along
            time_stands_still_for_a_quota_while_the_clock_is_behind
            a_day_that_begins_more_than_two_days_ahead_is_not_believed
            a_month_that_begins_more_than_two_days_ahead_is_not_believed
            a_quota_is_forgotten_when_it_is_reset
        }
    };
    (@each $new:path: $($sentence:ident)*) => {
        $(
            #[test]
            fn $sentence() {
                $crate::sentence::about_a_store($new, |store, clock| {
                    Box::pin($crate::kinds::$sentence(store, clock))
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

async fn check(store: &AnyStore, charges: impl IntoIterator<Item = Charge> + Send) -> Decision {
    store.check(&Check::new(charges).unwrap()).await.unwrap()
}

async fn take(store: &AnyStore, policy: &Policy, key: &str) -> Slots {
    let decision = check(store, [charge(policy, key, 1)]).await;
    assert!(decision.is_allowed(), "a slot is free");
    slots_of(decision.usage())
}

fn slots_of(usage: &Usage) -> Slots {
    let mut all = Slots::of(usage);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

async fn is_free(store: &AnyStore, policy: &Policy, key: &str) -> bool {
    left(store, policy, key).await > 0
}

async fn left(store: &AnyStore, policy: &Policy, key: &str) -> u64 {
    let look = check(store, [charge(policy, key, 0)]).await;
    remaining(look.usage())[0]
}

fn remaining(usage: &Usage) -> Vec<u64> {
    usage.rules().map(|rule| rule.remaining()).collect()
}

fn retry_after(decision: &Decision) -> u64 {
    match decision {
        Decision::Denied(denial) => ms(denial.retry_after().unwrap()),
        other => panic!("it was not denied: {other:?}"),
    }
}

async fn renew(store: &AnyStore, slots: &Slots) -> HeldSlots {
    store.renew(slots).await.unwrap()
}

async fn give_back(store: &AnyStore, slots: &Slots) -> HeldSlots {
    store.give_back(slots).await.unwrap()
}

async fn settle(store: &AnyStore, usage: &Usage, cost: u64) -> Usage {
    let settlement = Settlement::new(usage, |_| cost).unwrap();
    store.settle(&settlement).await.unwrap()
}

/// Sets the clock to this time in UTC.
fn at(clock: &ManualClock, text: &str) {
    let time: jiff::Timestamp = text.parse().unwrap();
    clock.set(time.as_millisecond().try_into().unwrap());
}

pub async fn a_slot_is_free_once_it_is_returned(store: &AnyStore, clock: ManualClock) {
    let policy = policy("exports", "2/30s@concurrent");
    let first = take(store, &policy, "alice").await;
    clock.advance(Duration::from_secs(1));
    let second = take(store, &policy, "alice").await;
    let denied = check(store, [charge(&policy, "alice", 1)]).await;
    assert_eq!(retry_after(&denied), 29_000);
    assert!(is_free(store, &policy, "bob").await);
    give_back(store, &first).await;
    assert_eq!(left(store, &policy, "alice").await, 1);
    let returned = give_back(store, &second).await;
    assert!(returned.are_held());
    assert_eq!(remaining(returned.usage()), [2]);
    assert_eq!(left(store, &policy, "alice").await, 2);
}

pub async fn a_slot_that_is_not_renewed_is_free_when_it_expires(
    store: &AnyStore,
    clock: ManualClock,
) {
    let policy = policy("exports", "1/30s@concurrent");
    clock.advance(Duration::from_millis(200));
    let slots = take(store, &policy, "alice").await;
    let denied = check(store, [charge(&policy, "alice", 1)]).await;
    assert_eq!(retry_after(&denied), 30_000);
    clock.advance(Duration::from_millis(29_999));
    assert!(!is_free(store, &policy, "alice").await);
    clock.advance(Duration::from_millis(1));
    assert!(is_free(store, &policy, "alice").await);
    assert!(!give_back(store, &slots).await.are_held());
}

pub async fn a_renewed_slot_is_held_for_longer(store: &AnyStore, clock: ManualClock) {
    let policy = policy("exports", "1/30s@concurrent");
    let slots = take(store, &policy, "alice").await;
    for _ in 0..10 {
        clock.advance(Duration::from_secs(25));
        let renewed = renew(store, &slots).await;
        assert!(renewed.are_held());
        assert_eq!(remaining(renewed.usage()), [0]);
        let rule = *renewed.usage().rules().next().unwrap();
        assert_eq!(ms(rule.reset_after()), 30_000);
    }
    assert!(!is_free(store, &policy, "alice").await);
    give_back(store, &slots).await;
    assert!(is_free(store, &policy, "alice").await);
}

pub async fn messages_about_slots_may_come_twice(store: &AnyStore, clock: ManualClock) {
    let policy = policy("exports", "2/30s@concurrent");
    let one = Check::new([charge(&policy, "alice", 1)]).unwrap();
    let admitted = store.check(&one).await.unwrap();
    let slots = slots_of(admitted.usage());
    clock.advance(Duration::from_secs(10));
    // Takes no second slot, and does not extend the first.
    let again = store.check(&one).await.unwrap();
    assert_eq!(remaining(again.usage()), [1]);
    let other = take(store, &policy, "alice").await;
    assert!(
        store.check(&one).await.unwrap().is_allowed(),
        "it needs no room"
    );
    assert_eq!(left(store, &policy, "alice").await, 0);
    clock.advance(Duration::from_secs(20));
    assert_eq!(
        left(store, &policy, "alice").await,
        1,
        "the first has expired"
    );
    for is_held in [true, false] {
        assert!(!renew(store, &slots).await.are_held(), "nothing revives");
        assert_eq!(give_back(store, &other).await.are_held(), is_held);
        assert_eq!(left(store, &policy, "alice").await, 2);
    }
    assert!(store.check(&one).await.unwrap().is_allowed());
    assert_eq!(left(store, &policy, "alice").await, 1);
}

pub async fn a_lost_slot_is_neither_renewed_nor_taken_from_others(
    store: &AnyStore,
    clock: ManualClock,
) {
    let policy = policy("exports", "1/30s@concurrent");
    let lost = take(store, &policy, "alice").await;
    clock.advance(Duration::from_secs(30));
    let other = take(store, &policy, "alice").await;
    let renewed = renew(store, &lost).await;
    assert!(!renewed.are_held());
    assert_eq!(remaining(renewed.usage()), [0]);
    give_back(store, &lost).await;
    assert!(!is_free(store, &policy, "alice").await);
    assert!(renew(store, &other).await.are_held());
}

pub async fn a_settlement_leaves_slots_alone(store: &AnyStore, _: ManualClock) {
    let (rate, exports) = (
        policy("rate", "9/1m"),
        policy("exports", "1/30s@concurrent"),
    );
    let charges = [charge(&exports, "alice", 1), charge(&rate, "alice", 3)];
    let admitted = check(store, charges).await;
    let settled = settle(store, admitted.usage(), 0).await;
    assert_eq!(remaining(&settled), [0, 9]);
    assert!(Settlement::new(admitted.usage(), |_| 0).is_err());
    give_back(store, &slots_of(admitted.usage())).await;
    assert!(is_free(store, &exports, "alice").await);
    assert_eq!(left(store, &rate, "alice").await, 9);
}

pub async fn slots_are_taken_with_other_charges_or_not_at_all(store: &AnyStore, _: ManualClock) {
    let (rate, exports) = (
        policy("rate", "1/1m"),
        policy("exports", "1/30s@concurrent"),
    );
    let both = || [charge(&rate, "alice", 1), charge(&exports, "alice", 1)];
    let slots = take(store, &exports, "alice").await;
    assert!(!check(store, both()).await.is_allowed());
    assert_eq!(left(store, &rate, "alice").await, 1);
    give_back(store, &slots).await;
    assert!(check(store, [charge(&rate, "alice", 1)]).await.is_allowed());
    assert!(!check(store, both()).await.is_allowed());
    assert!(is_free(store, &exports, "alice").await);
}

pub async fn slots_of_a_key_are_renewed_and_returned_one_by_one(
    store: &AnyStore,
    clock: ManualClock,
) {
    let policy = policy("exports", "4/10s@concurrent");
    let two = Check::new([charge(&policy, "alice", 2)]).unwrap();
    let first = slots_of(store.check(&two).await.unwrap().usage());
    clock.advance(Duration::from_secs(5));
    let two = Check::new([charge(&policy, "alice", 2)]).unwrap();
    let second = slots_of(store.check(&two).await.unwrap().usage());
    clock.advance(Duration::from_secs(5));
    // The first have expired. Both are in one set, and each id has an answer of its own.
    assert_eq!(renew(store, &first).await.held(), [false, false]);
    assert_eq!(renew(store, &second).await.held(), [true, true]);
    clock.advance(Duration::from_secs(9));
    assert_eq!(give_back(store, &first).await.held(), [false, false]);
    assert_eq!(left(store, &policy, "alice").await, 2);
    assert_eq!(give_back(store, &second).await.held(), [true, true]);
    assert_eq!(left(store, &policy, "alice").await, 4);
}

pub async fn a_limit_of_no_slots_is_a_switch(store: &AnyStore, _: ManualClock) {
    let policy = policy("exports", "0/30s@concurrent");
    for cost in [1, 2] {
        let Decision::Denied(denial) = check(store, [charge(&policy, "alice", cost)]).await else {
            panic!("it was not denied");
        };
        assert_eq!(denial.retry_after(), None);
    }
    let look = check(store, [charge(&policy, "alice", 0)]).await;
    assert!(look.is_allowed() && Slots::of(look.usage()).is_empty());
}

pub async fn a_check_may_take_several_slots(store: &AnyStore, clock: ManualClock) {
    let policy = policy("exports", "600/30s@concurrent");
    let many = async |cost| check(store, [charge(&policy, "alice", cost)]).await;
    let admitted = many(400).await;
    assert_eq!(retry_after(&many(201).await), 30_000);
    clock.advance(Duration::from_secs(10));
    assert!(many(150).await.is_allowed());
    assert_eq!(
        retry_after(&many(100).await),
        20_000,
        "when the first expire"
    );
    assert_eq!(
        retry_after(&many(500).await),
        30_000,
        "when the others expire"
    );
    let slots = Slots::of(admitted.usage());
    assert_eq!(
        slots.iter().map(|it| it.ids().len()).collect::<Vec<_>>(),
        [256, 144]
    );
    for slots in &slots {
        assert!(renew(store, slots).await.are_held());
        assert!(give_back(store, slots).await.are_held());
    }
    assert_eq!(left(store, &policy, "alice").await, 450);
}

pub async fn a_lower_limit_takes_no_slot_away(store: &AnyStore, _: ManualClock) {
    let (high, low) = (
        policy("exports", "3/30s@concurrent"),
        policy("exports", "1/30s@concurrent"),
    );
    let three = Check::new([charge(&high, "alice", 3)]).unwrap();
    let slots = slots_of(store.check(&three).await.unwrap().usage());
    assert!(!check(store, [charge(&low, "alice", 1)]).await.is_allowed());
    assert!(renew(store, &slots).await.are_held());
    give_back(store, &slots).await;
    assert!(is_free(store, &low, "alice").await);
}

pub async fn each_check_of_a_batch_has_slots_of_its_own(store: &AnyStore, _: ManualClock) {
    let policy = policy("exports", "3/30s@concurrent");
    let check = Check::new([charge(&policy, "alice", 1)]).unwrap();
    let batch = Operation::CheckBatch(CheckBatch::new(check, 5));
    let Reply::CheckBatch(decisions) = store.execute(batch).await.unwrap() else {
        panic!("not the reply to a batch");
    };
    let left_then: Vec<_> = decisions
        .iter()
        .map(|it| remaining(it.usage())[0])
        .collect();
    assert_eq!(left_then, [2, 1, 0, 0, 0]);
    let admitted = decisions.iter().filter(|it| it.is_allowed());
    let taken: Vec<Slots> = admitted.map(|it| slots_of(it.usage())).collect();
    assert_eq!(taken.len(), 3);
    for (returned, slots) in (1..).zip(taken) {
        give_back(store, &slots).await;
        assert_eq!(left(store, &policy, "alice").await, returned);
    }
}

pub async fn slots_of_a_shadow_are_held(store: &AnyStore, _: ManualClock) {
    let rate = policy("rate", "9/1m");
    let trial = policy("trial", "1/30s@concurrent").shadow();
    let both = async || {
        check(
            store,
            [charge(&rate, "alice", 1), charge(&trial, "alice", 1)],
        )
        .await
    };
    let is_allowed = |decision: &Decision| decision.usage().shadow().unwrap().is_allowed();
    let admitted = both().await;
    assert!(Slots::of(admitted.usage()).is_empty());
    let slots = slots_of(admitted.usage().shadow().unwrap().usage());
    let denied_by_shadow = both().await;
    assert!(denied_by_shadow.is_allowed() && !is_allowed(&denied_by_shadow));
    give_back(store, &slots).await;
    assert!(is_allowed(&both().await));
}

pub async fn slots_are_taken_and_returned_by_their_keys(store: &AnyStore, _: ManualClock) {
    let policy = policy("exports", "1/30s@concurrent");
    let alice = take(store, &policy, "alice").await;
    let bob = take(store, &policy, "bob").await;
    give_back(store, &alice).await;
    assert!(is_free(store, &policy, "alice").await && !is_free(store, &policy, "bob").await);
    store
        .reset(&policy, &Key::new("user", "bob"))
        .await
        .unwrap();
    assert!(is_free(store, &policy, "bob").await);
    assert!(!renew(store, &bob).await.are_held());
}

pub async fn another_expiry_starts_empty_and_the_first_is_still_returned(
    store: &AnyStore,
    _: ManualClock,
) {
    let (long, short) = (
        policy("exports", "1/30s@concurrent"),
        policy("exports", "1/10s@concurrent"),
    );
    let before = take(store, &long, "alice").await;
    let after = take(store, &short, "alice").await;
    assert!(renew(store, &before).await.are_held());
    assert!(give_back(store, &before).await.are_held());
    assert!(is_free(store, &long, "alice").await && !is_free(store, &short, "alice").await);
    give_back(store, &after).await;
    assert!(is_free(store, &short, "alice").await);
}

pub async fn a_policy_may_change_from_rates_to_slots_and_to_another_expiry(
    store: &AnyStore,
    _: ManualClock,
) {
    let rules = ["10/1h", "3/30s@concurrent", "3/10s@concurrent"];
    let releases = rules.map(|rules| policy("p", rules));
    let all = async || {
        let mut all = Vec::new();
        for release in &releases {
            all.push(left(store, release, "alice").await);
        }
        all
    };
    // At the end, the rates are back.
    for (release, units) in [(0, 4), (1, 2), (2, 3), (0, 5)] {
        let admitted = check(store, [charge(&releases[release], "alice", units)]).await;
        assert!(admitted.is_allowed());
    }
    assert_eq!(all().await, [1, 1, 0]);
    let alice = Key::new("user", "alice");
    store.reset(&releases[1], &alice).await.unwrap();
    assert_eq!(all().await, [1, 3, 0]);
    store.reset(&releases[0], &alice).await.unwrap();
    assert_eq!(all().await, [10, 3, 0]);
}

pub async fn slots_last_longer_while_the_clock_is_behind_and_are_not_believed_beyond_their_window(
    store: &AnyStore,
    clock: ManualClock,
) {
    let policy = policy("exports", "1/30s@concurrent");
    let slots = take(store, &policy, "alice").await;
    clock.set(START_MS + 10_000);
    clock.set(START_MS + 5_000);
    assert!(!is_free(store, &policy, "alice").await);
    clock.set(START_MS - 1);
    assert!(
        is_free(store, &policy, "alice").await,
        "it expires in 30 001 ms"
    );
    assert!(!renew(store, &slots).await.are_held());
    clock.set(START_MS);
    assert!(renew(store, &slots).await.are_held());
}

pub async fn a_denial_tells_the_wait_besides_slots(store: &AnyStore, clock: ManualClock) {
    let rate = policy("rate", "1/10s@1s");
    let exports = policy("exports", "1/30s@concurrent");
    let both = || [charge(&rate, "alice", 1), charge(&exports, "alice", 1)];
    let slots = slots_of(check(store, both()).await.usage());
    let wait = async || match check(store, both()).await {
        Decision::Denied(denial) => {
            assert_eq!(denial.policy().name(), "exports");
            (
                ms(denial.retry_after().unwrap()),
                denial.retry_after_besides_slots().map(ms),
            )
        }
        other => panic!("it was not denied: {other:?}"),
    };
    assert_eq!(wait().await, (30_000, Some(11_000)));
    clock.advance(Duration::from_secs(11));
    assert_eq!(wait().await, (19_000, Some(0)));
    let never = policy("rate", "0/10s@1s");
    let denied = check(
        store,
        [charge(&never, "alice", 1), charge(&exports, "alice", 1)],
    )
    .await;
    let Decision::Denied(denial) = denied else {
        panic!("it was not denied");
    };
    assert_eq!(denial.retry_after_besides_slots(), None);
    give_back(store, &slots).await;
}

pub async fn a_new_limit_takes_effect_within_a_period(store: &AnyStore, clock: ManualClock) {
    at(&clock, "2024-05-10T00:00:00Z");
    let small = policy("plan", "2/month@Europe/Berlin");
    let large = policy("plan", "9/month@Europe/Berlin");
    assert!(
        check(store, [charge(&small, "alice", 2)])
            .await
            .is_allowed()
    );
    assert!(
        !check(store, [charge(&small, "alice", 1)])
            .await
            .is_allowed()
    );
    assert!(
        check(store, [charge(&large, "alice", 1)])
            .await
            .is_allowed()
    );
    assert_eq!(left(store, &large, "alice").await, 6);
    assert_eq!(left(store, &small, "alice").await, 0);
}

pub async fn another_zone_or_day_starts_empty_and_the_first_is_carried_along(
    store: &AnyStore,
    clock: ManualClock,
) {
    at(&clock, "2024-05-10T00:00:00Z");
    let first = policy("plan", "9/month@UTC");
    assert!(
        check(store, [charge(&first, "alice", 3)])
            .await
            .is_allowed()
    );
    for rules in [
        "9/month@Etc/UTC",
        "9/month:2@UTC",
        "9/week@UTC",
        "9/31d",
        "9/31d@fixed",
    ] {
        let other = policy("plan", rules);
        assert!(
            check(store, [charge(&other, "alice", 1)])
                .await
                .is_allowed()
        );
        assert_eq!(left(store, &other, "alice").await, 8, "{rules}");
        assert_eq!(left(store, &first, "alice").await, 6, "{rules}");
    }
}

pub async fn time_stands_still_for_a_quota_while_the_clock_is_behind(
    store: &AnyStore,
    clock: ManualClock,
) {
    let policy = policy("quota", "5/month@UTC");
    at(&clock, "2024-06-01T00:00:00Z");
    assert!(
        check(store, [charge(&policy, "alice", 2)])
            .await
            .is_allowed()
    );
    at(&clock, "2024-05-31T00:00:00Z");
    assert!(
        check(store, [charge(&policy, "alice", 2)])
            .await
            .is_allowed()
    );
    let look = check(store, [charge(&policy, "alice", 0)]).await;
    assert_eq!(remaining(look.usage()), [1]);
    assert_eq!(
        ms(look.usage().rules().next().unwrap().reset_after()),
        31 * 86_400_000
    );
    at(&clock, "2024-06-30T23:59:59Z");
    assert_eq!(left(store, &policy, "alice").await, 1);
    at(&clock, "2024-07-01T00:00:00Z");
    assert_eq!(left(store, &policy, "alice").await, 5);
}

/// A server's clock is a month ahead for one charge, and is set right.
pub async fn a_month_that_begins_more_than_two_days_ahead_is_not_believed(
    store: &AnyStore,
    clock: ManualClock,
) {
    let policy = policy("quota", "5/month@UTC");
    at(&clock, "2024-01-10T12:00:00Z");
    let charged = check(store, [charge(&policy, "alice", 2)]).await;
    assert!(charged.is_allowed());
    at(&clock, "2024-02-10T12:00:00Z");
    let ahead = check(store, [charge(&policy, "alice", 3)]).await;
    assert!(ahead.is_allowed());
    for (time, expected) in [
        ("2024-01-10T12:00:00Z", 5),
        ("2024-01-29T23:59:59.999Z", 5),
        ("2024-01-30T00:00:00Z", 2),
    ] {
        at(&clock, time);
        assert_eq!(left(store, &policy, "alice").await, expected, "{time}");
    }
    at(&clock, "2024-01-29T23:59:59.999Z");
    assert_eq!(remaining(&settle(store, ahead.usage(), 1).await), [5]);
    assert!(
        check(store, [charge(&policy, "alice", 4)])
            .await
            .is_allowed()
    );
    assert_eq!(left(store, &policy, "alice").await, 1);
    at(&clock, "2024-02-01T00:00:00Z");
    assert_eq!(left(store, &policy, "alice").await, 5);
}

pub async fn a_day_that_begins_more_than_two_days_ahead_is_not_believed(
    store: &AnyStore,
    clock: ManualClock,
) {
    let policy = policy("quota", "5/day@UTC");
    at(&clock, "2024-06-04T12:00:00Z");
    assert!(
        check(store, [charge(&policy, "alice", 2)])
            .await
            .is_allowed()
    );
    at(&clock, "2024-06-02T00:00:00Z");
    assert_eq!(left(store, &policy, "alice").await, 3);
    at(&clock, "2024-06-01T23:59:59.999Z");
    assert_eq!(left(store, &policy, "alice").await, 5);
    assert!(
        check(store, [charge(&policy, "alice", 1)])
            .await
            .is_allowed()
    );
    assert_eq!(left(store, &policy, "alice").await, 4);
}

pub async fn a_quota_is_forgotten_when_it_is_reset(store: &AnyStore, clock: ManualClock) {
    let policy = policy("quota", "5/year@UTC");
    at(&clock, "2024-06-04T12:00:00Z");
    let admitted = check(store, [charge(&policy, "alice", 5)]).await;
    store
        .reset(&policy, &Key::new("user", "alice"))
        .await
        .unwrap();
    assert_eq!(left(store, &policy, "alice").await, 5);
    // The period is current, so that units settled upward count.
    assert_eq!(remaining(&settle(store, admitted.usage(), 7).await), [3]);
}
