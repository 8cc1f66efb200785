//! The first of several policies that has room: each try is one check, and only the answer counts.

use support::{
    first_of::{CREDITS, Charged, PLAN, credits, names, plan, rush, used, user},
    prelude::*,
};

fn charge(policy: &Policy) -> Charge {
    Charge::new(policy, user("alice"), 1)
}

/// A list of one charge for each policy.
fn one_each<const N: usize>(policies: [&Policy; N]) -> [[Charge; 1]; N] {
    policies.map(|policy| [charge(policy)])
}

fn plans(rules: [&str; 2]) -> [Policy; 2] {
    [policy("plan", rules[0]), policy("credits", rules[1])]
}

async fn first<const N: usize>(limiter: &Limiter, policies: [&Policy; N]) -> Decision {
    limiter.check_first(one_each(policies)).await.unwrap()
}

/// Records decisions, blocks and errors.
fn seen() -> Log {
    Log::of(|event| match event {
        Event::Decision { decision, .. } => {
            let names = decision.policies().map(|it| it.policy().name().to_owned());
            let names: Vec<String> = names.collect();
            Some(format!("{} {}", names.join("+"), decision.is_allowed()))
        }
        Event::Blocked { .. } => Some("blocked".to_owned()),
        Event::Error { error, .. } => Some(format!("{:?}", error.kind())),
        Event::NearLimit { policy, .. } => Some(format!("{} near its limit", policy.name())),
        _ => None,
    })
}

/// The names of decisions, and whether they allow.
fn named<const N: usize>(expected: [(&str, bool); N]) -> [(String, bool); N] {
    expected.map(|(name, allowed)| (name.to_owned(), allowed))
}

/// Denies by the policies of these names, for these times, and allows the rest.
fn denying(waits: &'static [(&'static str, u64)]) -> Arc<Scripted> {
    Scripted::new(move |check| {
        let mut charges = check.charges().iter();
        let denies = charges.find_map(|charge| {
            let name = charge.policy().name();
            waits.iter().find(|(denying, _)| *denying == name)
        });
        StoreFuture::ready(match denies {
            Some((_, ms)) => denied(check, *ms),
            None => allowed(check),
        })
    })
}

#[tokio::test]
async fn callers_together_never_charge_both_nor_above_either_limit() {
    let expected = Charged {
        plan: PLAN,
        credits: CREDITS,
        denied: 48 - PLAN - CREDITS,
    };
    for caches in [false, true] {
        let limiter = support::limiter(MemoryStore::new()).cache_denials(caches);
        let alice = user("alice");
        let charged = rush(std::slice::from_ref(&limiter), &alice, &alice).await;
        assert_eq!(charged, expected, "cache: {caches}");
        assert_eq!(used(&limiter, &plan(), &alice).await, PLAN);
        assert_eq!(used(&limiter, &credits(), &alice).await, CREDITS);
    }
}

#[tokio::test]
async fn only_the_answer_is_observed_counted_and_strikes() {
    let seen = seen();
    let limiter = support::limiter(MemoryStore::new())
        .observer(seen.clone())
        .near_limit_at(100);
    let ban = "1/10m=1h".parse().unwrap();
    let (plan, credits) = (policy("plan", "1/1h").ban(ban), policy("credits", "2/1h"));
    let ask = async || first(&limiter, [&plan, &credits]).await;
    for _ in 0..3 {
        assert!(ask().await.is_allowed());
    }
    limiter.strikes_counted().await;
    assert_eq!(seen.take(), ["plan true", "credits true", "credits true"]);
    assert!(limiter.denials().await.unwrap().is_empty());

    assert!(!ask().await.is_allowed());
    limiter.strikes_counted().await;
    assert_eq!(seen.take(), ["plan false"], "equal times: the first one");
    assert_eq!(limiter.denials().await.unwrap().len(), 1);
    let Decision::Blocked(blocked) = ask().await else {
        panic!("banned by the only denial that counted");
    };
    assert_eq!(blocked.key(), &user("alice"));
    assert_eq!(seen.take(), ["blocked"], "a block ends the tries");
}

#[tokio::test]
async fn if_all_are_denied_the_answer_is_the_denial_that_ends_first() {
    for (waits, answer) in [
        (&[("a", 300), ("b", 200), ("c", 400)], "b"),
        (&[("a", 200), ("b", 200), ("c", 200)], "a"),
    ] {
        let limiter = support::limiter(denying(waits));
        let [a, b, c] = ["a", "b", "c"].map(|name| policy(name, "9/1h"));
        let denied = first(&limiter, [&a, &b, &c]).await;
        assert_eq!(names(&denied), [answer]);
    }
    // A cost that never fits ends last.
    let limiter = support::limiter(MemoryStore::new());
    let (small, full) = (policy("small", "1/1h"), policy("full", "5/1h"));
    let cost = |policy: &Policy| [Charge::new(policy, user("alice"), 3)];
    limiter.check(cost(&full)).await.unwrap();
    let denied = limiter.check_first([cost(&small), cost(&full)]).await;
    assert_eq!(names(&denied.unwrap()), ["full"]);
}

#[tokio::test(start_paused = true)]
async fn one_timeout_holds_for_all_tries() {
    let store = Scripted::far(ms(60));
    let limiter = support::limiter(store.clone());
    let [plan, credits] = plans(["0/1h", "5/1h"]);
    let start = Instant::now();
    let error = limiter.check_first(one_each([&plan, &credits])).await;
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::Timeout);
    assert_eq!(start.elapsed(), ms(100));
    assert_eq!(store.checks().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn local_decisions_go_on_to_the_next_within_the_same_timeout() {
    for store in [Scripted::failing(), Scripted::silent()] {
        let limiter = support::limiter(store.clone()).on_failure(FailurePolicy::Local);
        let [plan, credits] = plans(["1/1h", "1/1h"]);
        let mut charged = Vec::new();
        for _ in 0..3 {
            let start = Instant::now();
            let decision = first(&limiter, [&plan, &credits]).await;
            assert!(decision.usage().is_local());
            assert!(start.elapsed() <= ms(100));
            charged.push((names(&decision)[0].to_owned(), decision.is_allowed()));
        }
        assert_eq!(store.checks().len(), 3, "the store is asked once for each");
        let expected = [("plan", true), ("credits", true), ("plan", false)];
        assert_eq!(charged, named(expected));
    }
}

#[tokio::test]
async fn a_cached_denial_goes_on_to_the_next() {
    let clock = ManualClock::new(1_000_000);
    let store = denying(&[("plan", 60_000)]);
    let limiter = support::limiter(store.clone())
        .cache_denials(true)
        .denial_clock(clock);
    let [plan, credits] = plans(["5/1h", "5/1h"]);
    for _ in 0..3 {
        let decision = first(&limiter, [&plan, &credits]).await;
        assert_eq!(names(&decision), ["credits"]);
    }
    let asked: Vec<String> = store.checks().iter().map(first_name).collect();
    assert_eq!(asked, ["plan", "credits", "credits", "credits"]);
}

fn first_name(check: &Check) -> String {
    check.charges()[0].policy().name().to_owned()
}

#[tokio::test]
async fn shadows_go_with_the_list_that_is_admitted() {
    let limiter = support::limiter(MemoryStore::new());
    let [plan, credits] = plans(["0/1h", "5/1h"]);
    let [soon, later] = ["soon", "later"].map(|name| policy(name, "5/1h").shadow());
    let lists = [
        [charge(&plan), charge(&soon)],
        [charge(&credits), charge(&later)],
    ];
    let decision = limiter.check_first(lists).await.unwrap();
    assert_eq!(names(&decision), ["credits"]);
    assert_eq!(names(decision.usage().shadow().unwrap()), ["later"]);
    assert_eq!(used_as_shadow(&limiter, &soon).await, 0);
    assert_eq!(used_as_shadow(&limiter, &later).await, 1);
}

async fn used_as_shadow(limiter: &Limiter, policy: &Policy) -> u64 {
    let usage = limiter.peek([charge(policy)]).await.unwrap();
    let shadow = usage.shadow().unwrap().usage();
    5 - remaining(shadow)[0]
}

#[tokio::test]
async fn shadows_have_alternatives_too_and_deny_nothing() {
    let seen = seen();
    let limiter = support::limiter(MemoryStore::new())
        .observer(seen.clone())
        .near_limit_at(100);
    let [plan, credits] = plans(["1/1h", "1/1h"]).map(Policy::shadow);
    let mut shadows = Vec::new();
    for _ in 0..3 {
        let decision = first(&limiter, [&plan, &credits]).await;
        assert!(decision.is_allowed());
        let shadow = decision.usage().shadow().unwrap();
        shadows.push((names(shadow)[0].to_owned(), shadow.is_allowed()));
    }
    let expected = [("plan", true), ("credits", true), ("plan", false)];
    assert_eq!(shadows, named(expected));
    assert_eq!(seen.take(), ["plan true", "credits true", "plan false"]);
}

#[tokio::test]
async fn alternatives_that_count_cannot_stand_beside_shadows() {
    let limiter = support::limiter(MemoryStore::new());
    let (plan, credits) = (policy("plan", "1/1h"), policy("credits", "1/1h").shadow());
    let error = limiter.check_first(one_each([&plan, &credits])).await;
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::InvalidRequest);
    let none: [[Charge; 1]; 0] = [];
    let nothing = limiter.check_first(none).await;
    assert!(nothing.unwrap().is_allowed());
}

#[tokio::test]
async fn the_slots_of_the_alternative_that_was_charged_are_held() {
    let limiter = support::limiter(MemoryStore::new());
    let [own, shared] = ["own", "shared"].map(|name| policy(name, "1/30s@concurrent"));
    let lists = || one_each([&own, &shared]);
    let first = limiter.check_first(lists()).await.unwrap();
    let first = limiter.hold(&first).unwrap();
    let second = limiter.check_first(lists()).await.unwrap();
    assert_eq!(names(&second), ["shared"]);
    let second = limiter.hold(&second).unwrap();
    assert!(!limiter.check_first(lists()).await.unwrap().is_allowed());
    drop(second);
    yield_now().await;
    let third = limiter.check_first(lists()).await.unwrap();
    assert_eq!(names(&third), ["shared"]);
    drop(first);
}

#[tokio::test]
async fn the_notice_before_the_limit_is_that_of_the_alternative_that_was_charged() {
    let seen = seen();
    let limiter = support::limiter(MemoryStore::new()).observer(seen.clone());
    let [plan, credits] = plans(["1/1h", "1/1h"]);
    for _ in 0..2 {
        first(&limiter, [&plan, &credits]).await;
    }
    let notices = seen.take().into_iter().filter(|it| it.contains("near"));
    let expected = ["plan near its limit", "credits near its limit"];
    assert_eq!(notices.collect::<Vec<_>>(), expected);
}
