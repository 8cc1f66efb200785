//! Bans and blocks in a memory store.

use std::sync::Barrier;

use support::prelude::*;

/// A policy that denies every [`charge`].
fn policy(name: &str, ban: &str) -> Policy {
    let policy = Policy::parse(name, "1/1d").unwrap();
    policy.ban(ban.parse().unwrap())
}

fn memory() -> (Limiter, ManualClock) {
    let (store, clock) = support::prelude::memory();
    (support::limiter(store), clock)
}

fn charge(policy: &Policy, name: &str) -> Charge {
    Charge::new(policy, user(name), 2)
}

/// Decides, and waits until the strikes are counted.
async fn check(limiter: &Limiter, charges: impl IntoIterator<Item = Charge>) -> Decision {
    let decision = limiter.check(charges).await.unwrap();
    limiter.strikes_counted().await;
    decision
}

/// The time until which a user is blocked, in ms after the start.
async fn blocked(limiter: &Limiter, name: &str) -> Option<u64> {
    let look = Policy::parse("look", "9/1d").unwrap();
    let look = Charge::new(&look, user(name), 0);
    match check(limiter, [look]).await {
        Decision::Blocked(blocked) => Some(blocked.block().until_ms().unwrap() - START_MS),
        _ => None,
    }
}

#[test]
fn each_row_about_strikes_holds() {
    hold(ROWS, |store, _| support::limiter(store.clone()));
}

const ROWS: &str = "
A denial strikes only the identities that a policy with a ban denies
 login = 1/1d 2/1m=1h; plain = 0/1d; wide = 9/1d 1/1m=1h; look = 9/1d
 2* strike login alice & login bob & plain carol & wide dave !
 look alice 1 !ban:1h; look bob 1 !ban:1h; look carol 1; look dave 1
Unblocking forgets strikes that wait to be counted
 p = 1/1d 2/1m=1h; look = 9/1d; 2* p alice 2 !; 2* p bob 2 !; unblock alice; strike p carol !
 look alice 1; look bob 1 !ban:1h
";

#[tokio::test]
async fn denials_of_a_burst_are_counted_together_and_the_ban_begins_with_the_last() {
    let (limiter, clock) = memory();
    let policy = policy("login", "3/1m=1h");
    for at in 0..8 {
        clock.set(START_MS + at);
        let decision = limiter.check([charge(&policy, "alice")]).await.unwrap();
        assert!(is_denied(&decision), "the task has not run");
    }
    limiter.strikes_counted().await;
    assert_eq!(blocked(&limiter, "alice").await, Some(7 + 3_600_000));
}

#[tokio::test]
async fn strikes_of_long_values_wait_in_bounded_memory() {
    let (limiter, _) = memory();
    let policy = policy("login", "1/1d=1h");
    let long = |number| format!("{number}{}", "x".repeat(60_000));
    for round in 1..=2 {
        for number in 0..40 {
            let check = limiter.check([charge(&policy, &long(number))]);
            check.await.unwrap();
        }
        limiter.strikes_counted().await;
        let banned = limiter.blocks(99).await.unwrap().len();
        assert_eq!(banned, 17 * round, "1 MiB waits");
    }
}

#[tokio::test]
async fn a_blocked_identity_is_listed_by_a_short_label_and_told_from_others() {
    let (limiter, _) = memory();
    let long = "x".repeat(60_000);
    let names = [&*long, &format!("{long}y"), "alice"];
    for name in names {
        limiter.block(&user(name), HOUR).await.unwrap();
    }
    let secret = Key::secret("api-key", "sesame");
    limiter.block(&secret, HOUR).await.unwrap();
    let listed = limiter.blocks(9).await.unwrap();
    let labels: Vec<_> = listed.iter().map(|it| it.identity()).collect();
    assert!(labels.iter().all(|label| label.len() <= 44), "{labels:?}");
    let count = |start: &str| labels.iter().filter(|it| it.starts_with(start)).count();
    let counts = ["user=#", "user=alice", "api-key=#"].map(count);
    assert_eq!(counts, [2, 1, 1]);
    for name in names {
        assert!(blocked(&limiter, name).await.is_some());
        limiter.unblock(&user(name)).await.unwrap();
        assert!(blocked(&limiter, name).await.is_none());
    }
}

/// In either order: the strikes are reset, or the ban ends.
#[tokio::test]
async fn an_identity_unblocked_at_the_same_time_is_not_banned() {
    let store = MemoryStore::new();
    let limiter = support::limiter(store.clone());
    let policy = policy("login", "9/1d=1h");
    let strikes = "2/1d".parse().unwrap();
    for round in 0..500 {
        check(&limiter, [charge(&policy, "alice")]).await;
        check(&limiter, [charge(&policy, "alice")]).await;
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                drop(store.ban(&user("alice"), strikes, Until::Forever.into()));
            });
            start.wait();
            drop(store.unblock(&user("alice")));
        });
        assert_eq!(store.blocks(1).await.unwrap(), [], "round {round}");
    }
}

#[tokio::test]
async fn a_ban_is_not_made_while_a_longer_block_holds() {
    let (limiter, _) = memory();
    let log = Log::default();
    let limiter = limiter.observer(log.clone());
    let policy = policy("login", "1/1d=1m");
    // The block is made after the denial, so the denial still counts.
    limiter.check([charge(&policy, "alice")]).await.unwrap();
    limiter.block(&user("alice"), HOUR).await.unwrap();
    limiter.strikes_counted().await;
    assert_eq!(blocked(&limiter, "alice").await, Some(3_600_000));
    let lines = log.lines();
    assert!(lines.iter().all(|it| !it.contains("bans")), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_in_vain_is_struck_once() {
    let (limiter, _) = memory();
    let policy = Policy::parse("login", "2/1m").unwrap();
    let policy = policy.ban("2/1d=1h".parse().unwrap());
    let first = check(&limiter, [charge(&policy, "alice")]).await;
    assert!(first.is_allowed());
    for expected in [None, Some(3_600_000)] {
        let decision = limiter.acquire([charge(&policy, "alice")], Duration::from_secs(5));
        assert!(matches!(decision.await.unwrap(), Decision::Denied(_)));
        limiter.strikes_counted().await;
        assert_eq!(blocked(&limiter, "alice").await, expected);
    }
    // A blocked caller does not wait.
    let decision = limiter.acquire([charge(&policy, "alice")], 2 * HOUR);
    assert!(matches!(decision.await.unwrap(), Decision::Blocked(_)));
}

#[tokio::test]
async fn try_acquire_strikes_and_a_peek_does_not() {
    let (limiter, _) = memory();
    let policy = policy("login", "2/1d=1h");
    for _ in 0..3 {
        limiter.peek([charge(&policy, "alice")]).await.unwrap();
    }
    for expected in [None, Some(3_600_000)] {
        assert!(!limiter.try_acquire([charge(&policy, "alice")]).await);
        limiter.strikes_counted().await;
        assert_eq!(blocked(&limiter, "alice").await, expected);
    }
}

#[tokio::test]
async fn local_decisions_strike_no_identity() {
    let script = Scripted::new(|check| {
        StoreFuture::ready(match check.enforces_blocks() {
            true => Err(unavailable()),
            false => denied(check, 1),
        })
    });
    let (store, calls) = recording(script, false);
    let limiter = support::limiter(store).on_failure(FailurePolicy::Local);
    for _ in 0..5 {
        let decision = check(&limiter, [charge(&policy("login", "1/1d=1h"), "alice")]).await;
        assert!(is_denied(&decision));
        assert!(decision.usage().is_local());
    }
    assert_eq!(calls.lock().unwrap().len(), 0);
}

type Calls = Arc<Mutex<Vec<Vec<Operation>>>>;

/// Decides with a script, and records the calls of several operations, which fail or hang. Each strike is one operation.
fn recording(script: Arc<Scripted>, hangs: bool) -> (impl Store, Calls) {
    let calls = Calls::default();
    let record = calls.clone();
    let store = Fated::by_call(script, move |asked| {
        let Asked::Call(operations) = asked else {
            return Fate::Answered;
        };
        record.lock().unwrap().push(operations.to_vec());
        match hangs {
            true => Fate::Hangs,
            false => Fate::unavailable(),
        }
    });
    (store, calls)
}

#[tokio::test]
async fn at_most_1024_identities_wait_and_those_that_do_are_struck_on() {
    let (store, calls) = recording(Scripted::denying_for(1), false);
    let limiter = support::limiter(store);
    let policy = policy("login", "9/1d=1h");
    for _ in 0..2 {
        for name in 0..3_000 {
            let check = limiter.check([charge(&policy, &name.to_string())]);
            check.await.unwrap();
        }
    }
    limiter.strikes_counted().await;
    let calls = calls.lock().unwrap();
    assert_eq!(calls.len(), 1_024);
    for call in &*calls {
        let [Operation::Check(check)] = &call[..] else {
            panic!("{call:?}");
        };
        assert_eq!(check.charges()[0].cost(), 2);
        assert!(!check.enforces_blocks());
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_count_costs_a_timeout_and_later_strikes_count() {
    let (store, calls) = recording(Scripted::denying_for(1), true);
    let limiter = support::limiter(store).timeout(SECOND);
    let policy = policy("login", "1/1d=1h");
    for expected in 1..4 {
        let start = Instant::now();
        check(&limiter, [charge(&policy, "alice")]).await;
        assert!(start.elapsed() < ms(1_100));
        assert_eq!(calls.lock().unwrap().len(), expected);
    }
}

#[test]
fn a_ban_needs_no_timers_where_the_store_answers_at_once() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let (limiter, _) = memory();
    let policy = policy("login", "2/1d=1h");
    runtime.unwrap().block_on(async {
        for _ in 0..2 {
            check(&limiter, [charge(&policy, "alice")]).await;
        }
        assert_eq!(blocked(&limiter, "alice").await, Some(3_600_000));
    });
}

#[tokio::test]
async fn clones_of_a_limiter_count_their_strikes_together_and_an_observer_hears_of_one_ban() {
    let log = Log::default();
    let (limiter, _) = memory();
    let limiter = limiter.observer(log.clone());
    let clone = limiter.clone();
    let policy = policy("login", "4/1d=1h");
    for limiter in [&limiter, &clone, &limiter, &clone] {
        check(limiter, [charge(&policy, "alice")]).await;
    }
    let bans = log.lines().into_iter().filter(|it| it.contains("bans"));
    let expected = format!("login bans until {:?}", Some(START_MS + 3_600_000));
    assert_eq!(bans.collect::<Vec<_>>(), [expected]);
}

#[tokio::test]
async fn a_store_without_blocks_makes_no_ban_and_denies_on() {
    let limiter = support::limiter(Scripted::denying_for(1));
    for _ in 0..3 {
        let decision = check(&limiter, [charge(&policy("login", "1/1d=1h"), "alice")]).await;
        assert!(is_denied(&decision));
    }
}

#[tokio::test]
async fn a_check_enforces_blocks_if_its_limiter_does_or_a_policy_that_counts_bans() {
    let store = Scripted::allowing();
    let (plain, banning) = (Policy::parse("a", "9/1d").unwrap(), policy("b", "9/1d=1h"));
    let limiter = support::limiter(store.clone()).enforce_blocks(false);
    let alone = || vec![charge(&plain, "alice")];
    let with = |policy: &Policy, name| vec![charge(&plain, "alice"), charge(policy, name)];
    for (limiter, charges) in [
        (&limiter, alone()),
        (&limiter, with(&banning, "alice")),
        (&limiter, with(&banning.clone().shadow(), "bob")),
        (&support::limiter(store.clone()), alone()),
    ] {
        let _ = limiter.check(charges.clone()).await;
        let _ = limiter.peek(charges).await;
    }
    let enforced: Vec<bool> = store.checks().iter().map(Check::enforces_blocks).collect();
    assert_eq!(
        enforced,
        [false, false, true, false, false, false, true, false]
    );
    let both = Check::new([charge(&plain, "alice"), charge(&banning, "alice")]).unwrap();
    assert!(both.enforces_blocks());
    assert_eq!(both.keys().collect::<Vec<_>>(), [&user("alice")]);
}
