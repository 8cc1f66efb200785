//! The contract of stores that keep contributors, as tests: see `contributors!`.

use std::collections::HashMap;

use sluicegate::contributors::Contributors;

use super::{contract::patient, prelude::*};

/// Makes one test of each sentence; `$new` is an `async fn() -> (impl Store, ManualClock)`.
#[macro_export]
macro_rules! contributors {
    ($new:path) => {
        $crate::sentences! { about_a_store $new, contributors[]:
            each_row_about_contributors_holds
            shadows_have_contributors_too
            replicas_are_added_up
            accounts_do_not_meet
            of_many_contributors_the_greatest_are_kept_and_all_are_in_the_total
            a_label_is_short_and_hides_what_is_secret
        }
    };
}

fn policy(rules: &str) -> Policy {
    Policy::parse("api", rules).unwrap()
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

/// Rules, and acts on the account: charges of users, `settle`, `look`, `reset`, times after the start, and after
/// `=`, the contributors.
const ROWS: &str = "
The greatest contributors come first
 100/1m; =; bob 5; alice 7; carol 1; bob 9; = bob 14, alice 7, carol 1
What is denied or only looked at is no contribution
 10/1m; alice 6; bob 5 !; look carol; dave 0; = alice 6
Settling changes what was contributed, whether the limiter reports before or after it
 100/1m; a: alice 10; settle a 0; b: bob 10; settle b 25; c: carol 10; = bob 25, carol 10; settle c 4
 = bob 25, carol 4
A late refund goes to the span of the charge and further units to that of now
 100/1m; a: alice 10; b: bob 10; @30s; alice 3; settle a 1; settle b 12; = bob 12, alice 4; @71s; = alice 3, bob 2
Contributions leave with the window, the longest of several
 100/1s,100/1m; @1234; alice 1; @26234; bob 1; = alice 1, bob 1; @61234; = alice 1, bob 1
 @69999; = alice 1, bob 1; @70000; = bob 1; @86234; = bob 1; @96234; =
A fixed window begins anew
 100/1m@fixed; alice 1; @59999; bob 1; @60s; carol 1; = carol 1; @119999; = carol 1; @59999; = alice 1, bob 1; @2m; =
The contributor that emptied a bucket is known until it is full
 600+1/1s@bucket; alice 600; @20s; = alice 600; @600s; = alice 600; @701s; =
A reset leaves the contributors
 10/1m; alice 10; reset; bob 1; = alice 10, bob 1
";

/// Each under another policy.
pub async fn each_row_about_contributors_holds(store: Arc<dyn Store>, clock: ManualClock) {
    let limiter = patient(store);
    for (number, (sentence, acts)) in rows(ROWS).into_iter().enumerate() {
        clock.set(START_MS);
        let policy = Policy::parse(format!("api-{number}"), acts[0]).unwrap();
        let mut checks = HashMap::new();
        for act in &acts[1..] {
            let words: Vec<&str> = act.split(' ').collect();
            match words[..] {
                ["=", ..] => {
                    let contributors = contributors(&limiter, &policy).await;
                    let text = format!("= {}", text(&contributors));
                    assert_eq!(text.trim(), *act, "{sentence}");
                    let total: u64 = contributors.iter().map(|it| it.units()).sum();
                    assert_eq!(contributors.total(), total);
                }
                ["look", user] => drop(limiter.peek([charge(&policy, user, 1)]).await.unwrap()),
                ["reset"] => limiter.reset(&policy, &acme()).await.unwrap(),
                ["settle", check, cost] => {
                    let (decision, cost): (&Decision, _) = (&checks[check], cost.parse().unwrap());
                    limiter.settle(decision.usage(), |_| cost).await.unwrap();
                }
                [time] => clock.set(START_MS.saturating_add_signed(millis(&time[1..]))),
                [.., user, cost, "!"] => {
                    let decision = check(&limiter, &policy, user, cost.parse().unwrap()).await;
                    assert!(!decision.is_allowed(), "{sentence}: {act}");
                }
                [ref label @ .., user, cost] => {
                    let decision = check(&limiter, &policy, user, cost.parse().unwrap()).await;
                    assert!(decision.is_allowed(), "{sentence}: {act}");
                    checks.extend(label.first().map(|it| (it.trim_end_matches(':'), decision)));
                }
                _ => panic!("{act}"),
            }
        }
    }
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

pub async fn of_many_contributors_the_greatest_are_kept_and_all_are_in_the_total(
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
    for (place, contributor) in contributors.iter().enumerate().take(5) {
        assert_eq!(contributor.label(), format!("user={place}"));
        assert_eq!(contributor.units(), 3 * (500 - place as u64));
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
    let kinds = labels.iter().map(|it| it.split('#').next().unwrap());
    assert!(kinds.eq(["api-key=", "user=", "user=", "user=", "user="]));
    assert!(labels.iter().all(|it| it.len() <= 44), "{labels:?}");
    assert!(!format!("{contributors:?}").contains('#'));
}
