//! Notice before the limit: the one check that takes an identity past a share of a limit.

use support::{prelude::*, scripted::Scripted};

/// 2027-02-28T23:00:00Z: March begins in Berlin.
const START_MS: u64 = 1_803_855_600_000;

fn memory() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new(START_MS);
    (MemoryStore::new().clock(clock.clone()), clock)
}

/// Writes down each notice.
#[derive(Clone, Default)]
struct Notices(Arc<Mutex<Vec<String>>>);

impl Observer for Notices {
    fn on_event(&self, event: &Event<'_>) {
        let Event::NearLimit { policy, rule, .. } = event else {
            return;
        };
        let shadow = if policy.is_shadow() { " shadow" } else { "" };
        let line = format!(
            "{} {} {}{shadow}",
            policy.name(),
            rule.rule(),
            rule.remaining()
        );
        self.0.lock().unwrap().push(line);
    }
}

impl Notices {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn limiter(store: impl Store) -> (Limiter, Notices) {
    let notices = Notices::default();
    (support::limiter(store).observer(notices.clone()), notices)
}

fn policy(rules: &str) -> Policy {
    Policy::parse("api", rules).unwrap()
}

fn alice(policy: &Policy, cost: u64) -> Charge {
    charge(policy, "alice", cost)
}

/// The rules of a notice, each with the units left.
fn noticed(usage: &Usage) -> Vec<(String, u64)> {
    let rules = usage.near_limit().map(|(charge, rule)| {
        assert_eq!(
            (charge.policy().name(), charge.key().value()),
            ("api", &b"alice"[..])
        );
        (rule.rule().to_string(), rule.remaining())
    });
    rules.collect()
}

async fn notice_of(limiter: &Limiter, policy: &Policy, cost: u64) -> Vec<(String, u64)> {
    let decision = limiter.check([alice(policy, cost)]).await.unwrap();
    noticed(decision.usage())
}

#[tokio::test]
async fn the_check_that_reaches_the_share_has_the_notice_and_no_other_until_the_window_ends() {
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
                let noticed = notice_of(&limiter, &policy, 1).await;
                let expected = (used == 8).then(|| (rule.to_owned(), 2));
                assert_eq!(noticed, Vec::from_iter(expected), "{rule}: {used}");
            }
            assert_eq!(notices.take(), [format!("api {rule} 2")]);
            let usage = limiter.peek([alice(&policy, 0)]).await.unwrap();
            clock.advance(usage.rules().next().unwrap().reset_after());
        }
    }
}

#[tokio::test]
async fn a_cost_may_leap_over_the_share_and_each_rule_has_its_own() {
    let (limiter, notices) = limiter(memory().0);
    let policy = policy("20/1m,10/1h@fixed");
    assert_eq!(notice_of(&limiter, &policy, 0).await, []);
    assert_eq!(notice_of(&limiter, &policy, 7).await, []);
    let leap = notice_of(&limiter, &policy, 3).await;
    assert_eq!(leap, [("10/1h@fixed".to_owned(), 0)]);
    assert_eq!(notices.take(), ["api 10/1h@fixed 0"]);
    let both = limiter.clone().near_limit_at(50);
    let (rule, of) = (self::policy("20/1m,30/1h@fixed"), ["20/1m", "30/1h@fixed"]);
    let bob = charge(&rule, "bob", 15);
    let decision = both.check([bob]).await.unwrap();
    let rules: Vec<_> = decision
        .usage()
        .near_limit()
        .map(|it| it.1.rule().to_string())
        .collect();
    assert_eq!(rules, of);
}

#[tokio::test]
async fn of_all_replicas_one_check_has_the_notice_of_a_window_that_only_fills() {
    for (seed, rule) in [
        (1, "1000/1h@fixed"),
        (2, "1000/month@Asia/Kathmandu"),
        (3, "1000/1h"),
    ] {
        let (store, _clock) = memory();
        let (replicas, notices): (Vec<_>, Vec<_>) = (0..4).map(|_| limiter(store.clone())).unzip();
        let mut random = fastrand::Rng::with_seed(seed);
        let (policy, mut used) = (policy(rule), 0);
        for _ in 0..400 {
            let cost = random.u64(..9);
            let decision = replicas[random.usize(..4)]
                .check([alice(&policy, cost)])
                .await
                .unwrap();
            let before = used;
            used += if decision.is_allowed() { cost } else { 0 };
            let is_the_one = before < 800 && used >= 800;
            assert_eq!(
                decision.usage().near_limit().count(),
                usize::from(is_the_one)
            );
        }
        assert!(used > 900);
        let all: Vec<String> = notices.iter().flat_map(Notices::take).collect();
        assert_eq!(all.len(), 1, "{all:?}");
    }
}

#[tokio::test]
async fn a_client_that_stays_about_the_share_of_a_sliding_window_has_one_notice_in_each() {
    let (store, clock) = memory();
    let (limiter, notices) = limiter(store);
    let policy = policy("100/10m@exact");
    // Each minute, 8 units come back before 8 are charged. So each check reaches the share.
    for _ in 0..100 {
        notice_of(&limiter, &policy, 8).await;
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
    let settled = limiter.settle(&charged(1).await, |_| 700).await.unwrap();
    assert_eq!(noticed(&settled), []);
    let settled = limiter.settle(&charged(1).await, |_| 150).await.unwrap();
    assert_eq!(noticed(&settled), [("1000/1h@fixed".to_owned(), 150)]);
    assert_eq!(notices.take(), ["api 1000/1h@fixed 150"]);
    // A refund takes the usage below the share, and the next check past it again.
    let usage = charged(100).await;
    limiter.settle(&usage, |_| 0).await.unwrap();
    let usage = charged(60).await;
    limiter.settle(&usage, |_| 0).await.unwrap();
    charged(90).await;
    let above = limiter.settle(&charged(1).await, |_| 9_000).await.unwrap();
    assert_eq!(noticed(&above), []);
    assert_eq!(notices.take(), [""; 0]);
}

#[tokio::test]
async fn nothing_is_noticed_without_a_charge_of_the_store_or_if_it_is_switched_off() {
    let (limiter, notices) = limiter(memory().0);
    let policy = policy("10/1h");
    for cost in [11, 0] {
        assert_eq!(notice_of(&limiter, &policy, cost).await, []);
    }
    let off = limiter.clone().near_limit_at(100);
    assert_eq!(notice_of(&off, &policy, 9).await, []);
    assert_eq!(
        notice_of(&limiter, &policy, 1).await,
        [],
        "the other check has passed it"
    );
    limiter.peek([alice(&policy, 9)]).await.unwrap();
    let none = self::policy("0/1h");
    assert!(!limiter.check([alice(&none, 1)]).await.unwrap().is_allowed());
    let slots = Policy::parse("slots", "1/30s@concurrent").unwrap();
    let decision = limiter.check([alice(&slots, 1)]).await.unwrap();
    assert!(decision.is_allowed());
    let local = limiter_of_failing();
    for _ in 0..3 {
        let decision = local.0.check([alice(&policy, 3)]).await.unwrap();
        assert!(decision.is_allowed() && decision.usage().is_local());
        assert_eq!(noticed(decision.usage()), []);
    }
    assert_eq!((notices.take(), local.1.take()), (vec![], vec![]));
}

fn limiter_of_failing() -> (Limiter, Notices) {
    let (limiter, notices) = limiter(Scripted::failing());
    (limiter.on_failure(FailurePolicy::Local), notices)
}

#[tokio::test]
async fn a_shadow_gives_notice_apart() {
    let (limiter, notices) = limiter(memory().0);
    let (api, trial) = (
        policy("100/1h"),
        Policy::parse("trial", "10/1h").unwrap().shadow(),
    );
    for used in 1..=20 {
        let charges = [alice(&api, 1), alice(&trial, 1)];
        let Decision::Allowed(usage) = limiter.check(charges).await.unwrap() else {
            panic!("it fits");
        };
        assert_eq!(noticed(&usage), []);
        let shadow = usage.shadow().unwrap().usage();
        assert_eq!(shadow.near_limit().count(), usize::from(used == 8));
    }
    assert_eq!(notices.take(), ["trial 10/1h 2 shadow"]);
}

#[tokio::test(start_paused = true)]
async fn behind_leases_each_process_gives_at_most_one_notice_and_all_of_them_one_at_least() {
    let (store, clock) = memory();
    let leased = || support::leases(store.clone()).clock(clock.clone());
    let (replicas, notices): (Vec<_>, Vec<_>) = (0..3).map(|_| limiter(leased())).unzip();
    let policy = policy("3000/1h@fixed");
    let mut admitted = 0;
    for round in 0..1_200 {
        for limiter in &replicas {
            let decision = limiter.check([alice(&policy, 1)]).await.unwrap();
            admitted += u64::from(decision.is_allowed());
        }
        if round % 4 == 0 {
            clock.advance(ms(1));
            tokio::time::sleep(ms(1)).await; // lets leases be fetched
        }
    }
    assert_eq!(admitted, 3_000);
    let counts: Vec<usize> = notices.iter().map(|it| it.take().len()).collect();
    assert!(counts.iter().all(|count| *count <= 1), "{counts:?}");
    assert!(counts.iter().sum::<usize>() >= 1, "{counts:?}");
}
