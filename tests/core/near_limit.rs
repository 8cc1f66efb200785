//! Notice before the limit: at most one in a window for each process and policy.

use support::prelude::*;

/// 2027-02-28T23:00:00Z: March begins in Berlin.
const START_MS: u64 = 1_803_855_600_000;

fn memory() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new(START_MS);
    (MemoryStore::new().clock(clock.clone()), clock)
}

/// A limiter, and the notices.
fn limiter(store: impl Store) -> (Limiter, Log) {
    let notices = Log::of(|event| {
        let Event::NearLimit { policy, rule, .. } = event else {
            return None;
        };
        let (name, left) = (policy.name(), rule.remaining());
        let shadow = if policy.is_shadow() { " shadow" } else { "" };
        Some(format!("{name} {} {left}{shadow}", rule.rule()))
    });
    (support::limiter(store).observer(notices.clone()), notices)
}

fn policy(rules: &str) -> Policy {
    Policy::parse("api", rules).unwrap()
}

fn alice(policy: &Policy, cost: u64) -> Charge {
    charge(policy, "alice", cost)
}

async fn check(limiter: &Limiter, policy: &Policy, cost: u64) -> Usage {
    let decision = limiter.check([alice(policy, cost)]).await.unwrap();
    decision.usage().clone()
}

#[tokio::test]
async fn the_check_that_reaches_the_share_gives_notice_and_no_other_until_the_window_ends() {
    for rule in [
        "10/1h",
        "10/1h@exact",
        "10/1h@fixed",
        "10+10/1h@bucket",
        "10/day@Europe/Berlin",
        "10/month:15@UTC",
    ] {
        let (store, clock) = memory();
        let (limiter, notices) = limiter(store);
        let policy = policy(rule);
        for _ in 0..2 {
            for used in 1..=12 {
                check(&limiter, &policy, 1).await;
                let expected = (used == 8).then(|| format!("api {rule} 2"));
                assert_eq!(notices.take(), Vec::from_iter(expected), "{rule}: {used}");
            }
            let usage = limiter.peek([alice(&policy, 0)]).await.unwrap();
            clock.advance(usage.rules().next().unwrap().reset_after());
        }
    }
}

#[tokio::test]
async fn a_cost_may_leap_over_the_share_and_of_several_rules_the_one_with_the_longest_to_go_is_named()
 {
    let (limiter, notices) = limiter(memory().0);
    let policy = policy("20/1m,10/1h@fixed");
    for cost in [0, 7, 3] {
        assert_eq!(notices.take(), [""; 0]);
        check(&limiter, &policy, cost).await;
    }
    assert_eq!(notices.take(), ["api 10/1h@fixed 0"]);
    let both = limiter.clone().near_limit_at(50);
    let other = self::policy("20/1m,30/1d");
    both.check([charge(&other, "bob", 15)]).await.unwrap();
    assert_eq!(notices.take(), ["api 30/1d 15"]);
}

#[tokio::test]
async fn each_process_gives_one_notice_of_a_policy_whoever_is_near() {
    for (seed, rule) in [
        (1, "1000/1h@fixed"),
        (2, "1000/month@Asia/Kathmandu"),
        (3, "1000/1h"),
    ] {
        let (store, _clock) = memory();
        let (replicas, notices): (Vec<_>, Vec<_>) = (0..4).map(|_| limiter(store.clone())).unzip();
        // Each process has read the policy apart.
        let policies = [(); 4].map(|()| policy(rule));
        let mut random = fastrand::Rng::with_seed(seed);
        for number in 0..400 {
            let (place, user) = (random.usize(..4), ["alice", "bob"][number % 2]);
            let charge = charge(&policies[place], user, random.u64(..18));
            replicas[place].check([charge]).await.unwrap();
        }
        for notices in notices {
            let all = notices.take();
            assert_eq!(all.len(), 1, "{all:?}");
        }
    }
}

#[tokio::test]
async fn a_client_that_stays_about_the_share_of_a_sliding_window_has_one_notice_in_each() {
    let (store, clock) = memory();
    let (limiter, notices) = limiter(store);
    let policy = policy("100/10m@exact");
    // Each minute, 8 units come back before 8 are charged. So each check reaches the share.
    for _ in 0..100 {
        check(&limiter, &policy, 8).await;
        clock.advance(ms(60_001));
    }
    assert_eq!(notices.take().len(), 10, "in ten windows");
}

#[tokio::test]
async fn a_settlement_that_adds_units_gives_notice_once() {
    let (limiter, notices) = limiter(memory().0);
    let policy = policy("1000/1h@fixed");
    let charged = async |cost| {
        let decision = limiter.check([alice(&policy, cost)]).await.unwrap();
        assert!(decision.is_allowed());
        decision.usage().clone()
    };
    // A thousand tokens at most, and 850 in the end.
    limiter.settle(&charged(1).await, |_| 700).await.unwrap();
    assert_eq!(notices.take(), [""; 0]);
    limiter.settle(&charged(1).await, |_| 150).await.unwrap();
    assert_eq!(notices.take(), ["api 1000/1h@fixed 150"]);
    // A refund takes the usage below the share, and the next check past it again.
    let usage = charged(100).await;
    limiter.settle(&usage, |_| 0).await.unwrap();
    let usage = charged(60).await;
    limiter.settle(&usage, |_| 0).await.unwrap();
    charged(90).await;
    limiter.settle(&charged(1).await, |_| 9_000).await.unwrap();
    assert_eq!(notices.take(), [""; 0]);
}

#[tokio::test]
async fn nothing_is_noticed_without_a_charge_of_the_store_or_if_it_is_switched_off() {
    let (limiter, notices) = limiter(memory().0);
    let policy = policy("10/1h");
    for cost in [11, 0] {
        check(&limiter, &policy, cost).await;
    }
    let off = limiter.clone().near_limit_at(100);
    check(&off, &policy, 9).await;
    limiter.peek([alice(&policy, 9)]).await.unwrap();
    let none = self::policy("0/1h");
    assert!(!limiter.check([alice(&none, 1)]).await.unwrap().is_allowed());
    let slots = Policy::parse("slots", "1/30s@concurrent").unwrap();
    let decision = limiter.check([alice(&slots, 1)]).await.unwrap();
    assert!(decision.is_allowed());
    assert_eq!(notices.take(), [""; 0]);
    let (local, notices) = self::limiter(Scripted::failing());
    let local = local.on_failure(FailurePolicy::Local);
    for _ in 0..3 {
        let decision = local.check([alice(&policy, 3)]).await.unwrap();
        assert!(decision.is_allowed() && decision.usage().is_local());
    }
    assert_eq!(notices.take(), [""; 0]);
}

#[tokio::test]
async fn a_shadow_gives_notice_apart() {
    let (limiter, notices) = limiter(memory().0);
    let trial = Policy::parse("trial", "10/1h").unwrap().shadow();
    let api = policy("100/1h");
    for used in 1..=20 {
        let charges = [alice(&api, 1), alice(&trial, 1)];
        let decision = limiter.check(charges).await.unwrap();
        assert!(decision.is_allowed());
        let expected = (used == 8).then_some("trial 10/1h 2 shadow");
        assert_eq!(notices.take(), Vec::from_iter(expected));
    }
}
