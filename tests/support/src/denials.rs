//! The contract of stores that keep denials, as tests: see `denials!`.

use sluicegate::denials::DeniedIdentity;

use super::{contract::patient, prelude::*};

/// Makes one test of each sentence; `$new` is an `async fn() -> (impl Store, ManualClock)`.
#[macro_export]
macro_rules! denials {
    ($new:path) => {
        $crate::sentences! { about_a_store $new, denials[]:
            an_identity_that_was_denied_is_listed_with_its_denials_alone
            a_blocked_identity_is_listed_under_no_policy
            each_policy_that_denies_is_listed
            what_shadows_and_peeks_deny_is_not_listed
            a_minute_and_an_hour_later_denials_have_left
            an_identity_is_short_and_hides_what_is_secret
            of_many_identities_those_that_were_denied_most_are_kept
            a_new_identity_is_listed_while_the_ten_minutes_have_no_room_for_it
        }
    };
}

/// `api user=alice 4 5`: the denials in the last minute and in the last hour.
fn text(it: &DeniedIdentity) -> String {
    let (policy, identity) = (it.policy().unwrap_or("(blocked)"), it.identity());
    let (minute, hour) = (it.last_minute(), it.last_hour());
    format!("{policy} {identity} {minute} {hour}")
}

async fn listed(limiter: &Limiter) -> Vec<String> {
    let denials = limiter.denials().await.unwrap();
    denials.iter().map(text).collect()
}

pub async fn an_identity_that_was_denied_is_listed_with_its_denials_alone(
    store: Arc<dyn Store>,
    _: ManualClock,
) {
    let (limiter, api) = (patient(store), policy("api", "0/1m"));
    let spacious = policy("api", "1000/1h");
    assert_eq!(listed(&limiter).await, [""; 0]);
    for request in 0..100 {
        let policy = if request % 25 < 12 { &api } else { &spacious };
        check(&limiter, policy, "office", 1).await;
        check(&limiter, &spacious, "office", 0).await;
        check(&limiter, &spacious, "alice", 1).await;
    }
    assert_eq!(listed(&limiter).await, ["api user=office 48 48"]);
}

pub async fn a_blocked_identity_is_listed_under_no_policy(store: Arc<dyn Store>, _: ManualClock) {
    let (limiter, api) = (patient(store), policy("api", "1/1h"));
    check(&limiter, &api, "mallory", 1).await;
    check(&limiter, &api, "mallory", 1).await;
    let mallory = Key::new("user", "mallory");
    limiter.block(&mallory, Until::Forever).await.unwrap();
    for _ in 0..3 {
        check(&limiter, &api, "mallory", 1).await;
    }
    let expected = ["(blocked) user=mallory 3 3", "api user=mallory 1 1"];
    assert_eq!(listed(&limiter).await, expected);
}

pub async fn each_policy_that_denies_is_listed(store: Arc<dyn Store>, _: ManualClock) {
    let limiter = patient(store);
    let key = || Key::new("user", "alice");
    let [tight, tighter, loose] = [("a", 2), ("b", 1), ("c", 9)]
        .map(|(name, limit)| Charge::new(&policy(name, &format!("{limit}/1h")), key(), 1));
    for _ in 0..2 {
        let charges = [tight.clone(), tighter.clone(), loose.clone()];
        limiter.check(charges).await.unwrap();
        limiter.check([tight.clone()]).await.unwrap();
    }
    let expected = ["a user=alice 2 2", "b user=alice 1 1"];
    assert_eq!(listed(&limiter).await, expected);
}

pub async fn what_shadows_and_peeks_deny_is_not_listed(store: Arc<dyn Store>, _: ManualClock) {
    let limiter = patient(store);
    let (shadow, full) = (policy("trial", "0/1h").shadow(), policy("full", "0/1h"));
    check(&limiter, &shadow, "alice", 1).await;
    let charge = Charge::new(&full, Key::new("user", "alice"), 1);
    limiter.peek([charge]).await.unwrap();
    assert_eq!(listed(&limiter).await, [""; 0]);
}

pub async fn a_minute_and_an_hour_later_denials_have_left(
    store: Arc<dyn Store>,
    clock: ManualClock,
) {
    let (limiter, api) = (patient(store), policy("api", "0/1m"));
    let start_ms = START_MS - START_MS % 600_000;
    for (at_ms, expected) in [
        (0, "1 1"),
        (60_000, "2 2"),
        (70_000, "2 3"),
        (200_000, "1 4"),
        (4_199_999, "1 5"),
        (4_200_000, "2 2"),
    ] {
        clock.set(start_ms + at_ms);
        check(&limiter, &api, "alice", 1).await;
        let expected = format!("api user=alice {expected}");
        assert_eq!(listed(&limiter).await, [expected], "{at_ms}");
    }
    clock.set(start_ms + 5_000_000);
    assert_eq!(listed(&limiter).await, ["api user=alice 0 2"]);
    clock.set(start_ms + 9_000_000);
    assert_eq!(listed(&limiter).await, [""; 0]);
}

pub async fn an_identity_is_short_and_hides_what_is_secret(store: Arc<dyn Store>, _: ManualClock) {
    let (limiter, api) = (patient(store), policy("api", "0/1h"));
    for key in [
        Key::secret("api-key", "s3cret"),
        Key::new("user", "x".repeat(1_000)),
        Key::new("user", "a\r\nb"),
    ] {
        limiter.check([Charge::new(&api, key, 1)]).await.unwrap();
    }
    let denials = limiter.denials().await.unwrap();
    assert_eq!(denials.iter().len(), 3);
    for it in denials.iter() {
        let (kind, token) = it.identity().split_once('=').unwrap();
        assert!(kind == "user" || kind == "api-key", "{kind}");
        assert!(token.starts_with('#') && token.len() == 33, "{token}");
    }
    assert!(!format!("{denials:?}").contains('#'));
}

/// Reports as many identities as a process counts in a second, if there are so many.
async fn report_64(limiter: &Limiter, user: u32) {
    if user % 64 == 63 {
        limiter.denials().await.unwrap();
    }
}

pub async fn of_many_identities_those_that_were_denied_most_are_kept(
    store: Arc<dyn Store>,
    _: ManualClock,
) {
    let (limiter, api) = (patient(store), policy("api", "0/1h"));
    for user in 0..600_u32 {
        let requests = if user % 100 == 7 { 3 } else { 1 };
        for _ in 0..requests {
            check(&limiter, &api, &user.to_string(), 1).await;
        }
        report_64(&limiter, user).await;
    }
    let denials = limiter.denials().await.unwrap();
    assert_eq!(denials.iter().len(), 512);
    let first = denials.iter().take(7).map(|it| it.last_minute());
    assert_eq!(first.collect::<Vec<_>>(), [3, 3, 3, 3, 3, 3, 1]);
}

pub async fn a_new_identity_is_listed_while_the_ten_minutes_have_no_room_for_it(
    store: Arc<dyn Store>,
    clock: ManualClock,
) {
    let (limiter, api) = (patient(store), policy("api", "0/1h"));
    clock.set(START_MS - START_MS % 600_000);
    for user in 0..512 {
        for _ in 0..4 {
            check(&limiter, &api, &user.to_string(), 1).await;
        }
        report_64(&limiter, user).await;
    }
    clock.advance(Duration::from_secs(120));
    for requests in [3, 6, 9] {
        for _ in 0..3 {
            check(&limiter, &api, "new", 1).await;
        }
        let first = listed(&limiter).await.swap_remove(0);
        assert_eq!(first, format!("api user=new {requests} {requests}"));
    }
}
