//! The contract of stores that keep contributors, as tests: see `contributors!`.

use std::{sync::Arc, time::Duration};

use sluicegate::{
    Charge, Decision, Key, Limiter, Policy, Store, contributors::Contributors,
    manual_clock::ManualClock,
};

use super::{contract::patient, history::START_MS};

/// Makes one test of each sentence; `$new` is an `async fn() -> (impl Store, ManualClock)`.
#[macro_export]
macro_rules! contributors {
    ($new:path) => {
        $crate::contributors! { @each $new:
            the_greatest_contributors_come_first
            what_is_denied_or_only_looked_at_is_no_contribution
            settling_changes_what_was_contributed
            a_late_refund_goes_to_the_span_of_the_charge_and_further_units_to_that_of_now
            shadows_have_contributors_too
            replicas_are_added_up
            accounts_do_not_meet
            contributions_leave_with_the_window
            a_fixed_window_begins_anew
            who_emptied_a_bucket_is_known_until_it_is_full
            of_many_contributors_the_greatest_are_kept_within_the_error
            a_label_is_short_and_hides_what_is_secret
            a_reset_leaves_who_has_contributed
        }
    };
    (@each $new:path: $($sentence:ident)*) => {
        $(
            #[test]
            fn $sentence() {
                $crate::sentence::about_a_store($new, |store, clock| {
                    Box::pin($crate::contributors::$sentence(store.clone(), clock))
                });
            }
        )*
    };
}

fn policy(rules: &str) -> Policy {
    Policy::parse("api", rules).unwrap()
}

fn acme() -> Key {
    Key::new("account", "acme")
}

fn charge(policy: &Policy, user: &str, cost: u64) -> Charge {
    Charge::new(policy, acme(), cost).with_contributor(Key::new("user", user))
}

async fn check(limiter: &Limiter, policy: &Policy, user: &str, cost: u64) -> Decision {
    limiter.check([charge(policy, user, cost)]).await.unwrap()
}

async fn contributors(limiter: &Limiter, policy: &Policy) -> Contributors {
    limiter.contributors(policy, &acme()).await.unwrap()
}

/// `alice 5, bob 3`, without the kind.
fn text(contributors: &Contributors) -> String {
    let list = contributors.iter().map(|it| {
        let user = it.label().strip_prefix("user=").unwrap();
        format!("{user} {}", it.units())
    });
    list.collect::<Vec<_>>().join(", ")
}

async fn told(limiter: &Limiter, policy: &Policy) -> String {
    text(&contributors(limiter, policy).await)
}

pub async fn the_greatest_contributors_come_first(store: Arc<dyn Store>, _: ManualClock) {
    let (limiter, policy) = (patient(store), policy("100/1m"));
    assert_eq!(told(&limiter, &policy).await, "");
    for (user, cost) in [("bob", 5), ("alice", 7), ("carol", 1), ("bob", 9)] {
        check(&limiter, &policy, user, cost).await;
    }
    let contributors = contributors(&limiter, &policy).await;
    assert_eq!(text(&contributors), "bob 14, alice 7, carol 1");
    assert_eq!((contributors.total(), contributors.error()), (22, 0));
}

pub async fn what_is_denied_or_only_looked_at_is_no_contribution(
    store: Arc<dyn Store>,
    _: ManualClock,
) {
    let (limiter, policy) = (patient(store), policy("10/1m"));
    check(&limiter, &policy, "alice", 6).await;
    assert!(!check(&limiter, &policy, "bob", 5).await.is_allowed());
    limiter.peek([charge(&policy, "carol", 1)]).await.unwrap();
    check(&limiter, &policy, "dave", 0).await;
    assert_eq!(told(&limiter, &policy).await, "alice 6");
}

pub async fn settling_changes_what_was_contributed(store: Arc<dyn Store>, _: ManualClock) {
    let (limiter, policy) = (patient(store), policy("100/1m"));
    for (user, cost) in [("alice", 0), ("bob", 25), ("carol", 4)] {
        let decision = check(&limiter, &policy, user, 10).await;
        // The result is the same whether the limiter reports before or after the settlement.
        if user == "carol" {
            assert_eq!(told(&limiter, &policy).await, "bob 25, carol 10");
        }
        limiter.settle(decision.usage(), |_| cost).await.unwrap();
    }
    let contributors = contributors(&limiter, &policy).await;
    assert_eq!(text(&contributors), "bob 25, carol 4");
    assert_eq!(contributors.total(), 29);
}

pub async fn a_late_refund_goes_to_the_span_of_the_charge_and_further_units_to_that_of_now(
    store: Arc<dyn Store>,
    clock: ManualClock,
) {
    let (limiter, policy) = (patient(store), policy("100/1m"));
    let first = check(&limiter, &policy, "alice", 10).await;
    let second = check(&limiter, &policy, "bob", 10).await;
    clock.advance(Duration::from_secs(30));
    check(&limiter, &policy, "alice", 3).await;
    limiter.settle(first.usage(), |_| 1).await.unwrap();
    limiter.settle(second.usage(), |_| 12).await.unwrap();
    assert_eq!(told(&limiter, &policy).await, "bob 12, alice 4");
    clock.advance(Duration::from_secs(41));
    assert_eq!(told(&limiter, &policy).await, "alice 3, bob 2");
}

pub async fn shadows_have_contributors_too(store: Arc<dyn Store>, _: ManualClock) {
    let limiter = patient(store);
    let counting = policy("100/1m");
    let shadow = Policy::parse("trial", "5/1m").unwrap().shadow();
    for user in ["alice", "bob"] {
        let charges = [charge(&counting, user, 4), charge(&shadow, user, 4)];
        limiter.check(charges).await.unwrap();
    }
    assert_eq!(told(&limiter, &counting).await, "alice 4, bob 4");
    assert_eq!(told(&limiter, &shadow).await, "alice 4");
}

pub async fn replicas_are_added_up(store: Arc<dyn Store>, _: ManualClock) {
    let (first, second) = (patient(store.clone()), patient(store));
    let policy = policy("100/1m");
    check(&first, &policy, "alice", 5).await;
    check(&second, &policy, "alice", 6).await;
    check(&second, &policy, "bob", 7).await;
    // The first limiter reports alice only when it is asked.
    assert_eq!(told(&second, &policy).await, "bob 7, alice 6");
    assert_eq!(told(&first, &policy).await, "alice 11, bob 7");
    check(&first, &policy, "bob", 10).await;
    assert_eq!(told(&first, &policy).await, "bob 17, alice 11");
}

pub async fn accounts_do_not_meet(store: Arc<dyn Store>, _: ManualClock) {
    let limiter = patient(store);
    let (api, other) = (policy("9/1m"), Policy::parse("other", "9/1m").unwrap());
    check(&limiter, &api, "alice", 1).await;
    check(&limiter, &other, "bob", 2).await;
    let globex = Key::new("account", "globex");
    let carol = Charge::new(&api, globex.clone(), 3).with_contributor(Key::new("user", "carol"));
    limiter.check([carol]).await.unwrap();
    assert_eq!(told(&limiter, &api).await, "alice 1");
    assert_eq!(told(&limiter, &other).await, "bob 2");
    let contributors = limiter.contributors(&api, &globex).await.unwrap();
    assert_eq!(text(&contributors), "carol 3");
}

pub async fn contributions_leave_with_the_window(store: Arc<dyn Store>, clock: ManualClock) {
    // If there are several rules, the longest window counts.
    let (limiter, policy) = (patient(store), policy("100/1s,100/1m"));
    let span_ms = 10_000;
    let start = START_MS - START_MS % span_ms + 1_234;
    for (at_ms, user) in [(0, "alice"), (25_000, "bob")] {
        clock.set(start + at_ms);
        check(&limiter, &policy, user, 1).await;
    }
    for (at_ms, expected) in [
        (25_000, "alice 1, bob 1"),
        (60_000, "alice 1, bob 1"),
        (70_000 - 1_235, "alice 1, bob 1"),
        (70_000 - 1_234, "bob 1"),
        (85_000, "bob 1"),
        (95_000, ""),
    ] {
        clock.set(start + at_ms);
        assert_eq!(told(&limiter, &policy).await, expected, "{at_ms}");
    }
}

pub async fn a_fixed_window_begins_anew(store: Arc<dyn Store>, clock: ManualClock) {
    let (limiter, policy) = (patient(store), policy("100/1m@fixed"));
    let start = START_MS - START_MS % 60_000;
    for (at_ms, user) in [(0, "alice"), (59_999, "bob"), (60_000, "carol")] {
        clock.set(start + at_ms);
        check(&limiter, &policy, user, 1).await;
    }
    for (at_ms, expected) in [
        (60_000, "carol 1"),
        (119_999, "carol 1"),
        (59_999, "alice 1, bob 1"),
        (120_000, ""),
    ] {
        clock.set(start + at_ms);
        assert_eq!(told(&limiter, &policy).await, expected, "{at_ms}");
    }
}

pub async fn who_emptied_a_bucket_is_known_until_it_is_full(
    store: Arc<dyn Store>,
    clock: ManualClock,
) {
    let (limiter, policy) = (patient(store), policy("600+1/1s@bucket"));
    check(&limiter, &policy, "alice", 600).await;
    for (seconds, expected) in [(20, "alice 600"), (600, "alice 600"), (701, "")] {
        clock.set(START_MS + seconds * 1_000);
        assert_eq!(told(&limiter, &policy).await, expected, "{seconds} s");
    }
}

pub async fn of_many_contributors_the_greatest_are_kept_within_the_error(
    store: Arc<dyn Store>,
    _: ManualClock,
) {
    let (limiter, policy) = (patient(store), policy("1000000/1m"));
    for round in 0..3 {
        for user in 0..60_u64 {
            let cost = if user < 5 { 500 - user } else { 1 + user % 7 };
            check(&limiter, &policy, &user.to_string(), cost).await;
        }
        assert_eq!(
            contributors(&limiter, &policy).await.total(),
            (round + 1) * (2_490 + (5..60).map(|user| 1 + user % 7).sum::<u64>())
        );
    }
    let contributors = contributors(&limiter, &policy).await;
    assert_eq!(contributors.iter().len(), 16);
    assert!(contributors.error() <= contributors.total() / 20);
    for (place, contributor) in contributors.iter().enumerate().take(5) {
        assert_eq!(contributor.label(), format!("user={place}"));
        let truth = 3 * (500 - place as u64);
        let units = contributor.units();
        assert!(units <= truth && truth <= units + contributors.error());
    }
}

pub async fn a_label_is_short_and_hides_what_is_secret(store: Arc<dyn Store>, _: ManualClock) {
    let (limiter, policy) = (patient(store), policy("100/1m"));
    let long = "x".repeat(100_000);
    for (cost, label) in [
        (5, Key::secret("api-key", "s3cret")),
        (4, Key::new("user", &long)),
        (3, Key::new("user", format!("{long}y"))),
        (2, Key::new("user", "a\r\nb")),
        (1, Key::new("user", "")),
    ] {
        let charge = Charge::new(&policy, acme(), cost).with_contributor(label);
        limiter.check([charge]).await.unwrap();
    }
    let contributors = contributors(&limiter, &policy).await;
    let labels: Vec<_> = contributors.iter().map(|it| it.label()).collect();
    let kinds: Vec<_> = labels
        .iter()
        .map(|it| it.split('#').next().unwrap())
        .collect();
    assert_eq!(kinds, ["api-key=", "user=", "user=", "user=", "user="]);
    assert!(labels.iter().all(|it| it.len() <= 44), "{labels:?}");
    assert!(!format!("{contributors:?}").contains('#'));
}

pub async fn a_reset_leaves_who_has_contributed(store: Arc<dyn Store>, _: ManualClock) {
    let (limiter, policy) = (patient(store), policy("10/1m"));
    check(&limiter, &policy, "alice", 10).await;
    limiter.reset(&policy, &acme()).await.unwrap();
    check(&limiter, &policy, "bob", 1).await;
    assert_eq!(told(&limiter, &policy).await, "alice 10, bob 1");
}
