//! A process enforces the blocks that it has made or seen while the store cannot decide.

use std::time::{Duration, SystemTime};

use sluicegate::{
    Charge, Decision, FailurePolicy, Key, Limiter, Policy,
    block::{BlockedBy, Until},
    error::StoreErrorKind,
    store::Leases,
};
use support::{
    flaky::{Flaky, State},
    log::Log,
};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);

fn user(name: &str) -> Key {
    Key::new("user", name)
}

fn charge(name: &str) -> [Charge; 1] {
    let api = Policy::parse("api", "9/1d").unwrap();
    [Charge::new(&api, user(name), 1)]
}

/// A store, and a process that uses the store.
fn process() -> (Flaky, Limiter) {
    let (store, _) = Flaky::new();
    (store.clone(), Limiter::new(store))
}

/// The delay of an operator's block of the user; `None` if the process knows no block.
async fn known(limiter: &Limiter, name: &str) -> Option<Option<Duration>> {
    match limiter.check(charge(name)).await {
        Ok(Decision::Blocked(blocked)) => {
            assert_eq!(blocked.key(), &user(name));
            assert_eq!(blocked.block().source(), BlockedBy::Operator);
            Some(blocked.retry_after())
        }
        Ok(decision) => panic!("decided: {decision:?}"),
        Err(_) => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_that_this_process_made_holds_under_every_failure_policy() {
    for policy in [
        FailurePolicy::Open,
        FailurePolicy::Closed,
        FailurePolicy::Local,
    ] {
        for state in [State::Down, State::Hanging] {
            let (store, limiter) = process();
            let limiter = limiter.on_failure(policy);
            limiter.block(&user("alice"), HOUR).await.unwrap();
            store.is_now(state);
            // More failures than the breaker needs to open.
            for _ in 0..9 {
                let decision = limiter.check(charge("alice")).await.unwrap();
                assert!(matches!(decision, Decision::Blocked(_)), "{policy:?}");
                assert!(decision.usage().is_local());
                assert!(!limiter.try_acquire(charge("alice")).await);
                let waited = limiter.acquire(charge("alice"), MINUTE).await.unwrap();
                assert!(matches!(waited, Decision::Blocked(_)));
            }
            let passes = limiter.try_acquire(charge("bob")).await;
            assert_eq!(passes, policy != FailurePolicy::Closed, "{policy:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_ends_at_its_time_by_the_clock_of_the_process() {
    let (store, limiter) = process();
    for (name, until) in [
        ("alice", Until::After(HOUR)),
        ("bob", Until::After(MINUTE)),
        ("carol", Until::Forever),
    ] {
        limiter.block(&user(name), until).await.unwrap();
    }
    store.is_now(State::Down);
    tokio::time::advance(MINUTE - MS).await;
    assert_eq!(known(&limiter, "bob").await, Some(Some(MS)));
    tokio::time::advance(MS).await;
    assert_eq!(known(&limiter, "bob").await, None);
    assert_eq!(known(&limiter, "alice").await, Some(Some(HOUR - MINUTE)));
    tokio::time::advance(HOUR).await;
    assert_eq!(known(&limiter, "alice").await, None);
    assert_eq!(known(&limiter, "carol").await, Some(None));
}

#[tokio::test(start_paused = true)]
async fn a_block_until_a_time_is_known_until_about_then() {
    let (store, limiter) = process();
    let until = |span| Until::At(SystemTime::now() + span);
    limiter.block(&user("alice"), until(HOUR)).await.unwrap();
    let past = SystemTime::UNIX_EPOCH;
    limiter.block(&user("bob"), past).await.unwrap();
    store.is_now(State::Down);
    let left = known(&limiter, "alice").await.unwrap().unwrap();
    assert!((HOUR - MINUTE..=HOUR).contains(&left), "{left:?}");
    assert_eq!(known(&limiter, "bob").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_block_that_was_made_elsewhere_is_known_once_it_was_seen() {
    let (store, limiter) = process();
    let elsewhere = Limiter::new(store.clone());
    for name in ["alice", "bob"] {
        elsewhere.block(&user(name), HOUR).await.unwrap();
    }
    let seen = limiter.check(charge("alice")).await.unwrap();
    assert!(matches!(seen, Decision::Blocked(_)));
    store.is_now(State::Down);
    tokio::time::advance(MINUTE).await;
    assert_eq!(known(&limiter, "alice").await, Some(Some(HOUR - MINUTE)));
    assert_eq!(known(&limiter, "bob").await, None, "it was not seen");
    // Clones share the blocks that they have seen.
    let clone = limiter.clone().on_failure(FailurePolicy::Closed);
    assert!(known(&clone, "alice").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_ban_that_this_process_made_holds_for_as_long_as_it_has_grown() {
    let (store, clock) = Flaky::new();
    let limiter = Limiter::new(store.clone());
    let login = Policy::parse("login", "1/1d").unwrap();
    let login = login.ban("2/10m=1m,1h".parse().unwrap());
    let charge = || [Charge::new(&login, user("alice"), 2)];
    for _ in 0..2 {
        clock.advance(MINUTE);
        for _ in 0..2 {
            let denied = limiter.check(charge()).await.unwrap();
            assert!(matches!(denied, Decision::Denied(_)));
        }
        limiter.strikes_counted().await;
    }
    store.is_now(State::Down);
    tokio::time::advance(MINUTE).await;
    let Decision::Blocked(blocked) = limiter.check(charge()).await.unwrap() else {
        panic!("not banned");
    };
    assert_eq!(blocked.block().source(), BlockedBy::Ban);
    assert_eq!(blocked.retry_after(), Some(HOUR - MINUTE));
    tokio::time::advance(HOUR - MINUTE).await;
    assert!(limiter.check(charge()).await.is_err());
}

#[tokio::test]
async fn unblocking_here_ends_it_also_where_the_store_cannot_do_it() {
    let (store, limiter) = process();
    for name in ["alice", "bob"] {
        limiter.block(&user(name), HOUR).await.unwrap();
    }
    limiter.unblock(&user("alice")).await.unwrap();
    store.is_now(State::Down);
    assert_eq!(known(&limiter, "alice").await, None);
    assert!(known(&limiter, "bob").await.is_some());
    limiter.unblock(&user("bob")).await.unwrap_err();
    assert_eq!(known(&limiter, "bob").await, None);
}

#[tokio::test]
async fn a_block_that_was_ended_elsewhere_is_forgotten_with_the_stores_next_answer() {
    let (store, limiter) = process();
    let elsewhere = Limiter::new(store.clone());
    let full = Policy::parse("full", "0/1d").unwrap();
    let denied = [Charge::new(&full, user("bob"), 1)];
    for name in ["alice", "bob", "carol"] {
        limiter.block(&user(name), HOUR).await.unwrap();
        elsewhere.unblock(&user(name)).await.unwrap();
    }
    assert!(limiter.check(charge("alice")).await.unwrap().is_allowed());
    assert!(!limiter.check(denied).await.unwrap().is_allowed());
    // A peek does not look for blocks.
    limiter.peek(charge("carol")).await.unwrap();
    store.is_now(State::Down);
    assert_eq!(known(&limiter, "alice").await, None);
    assert_eq!(known(&limiter, "bob").await, None);
    assert!(known(&limiter, "carol").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_a_check_from_before_the_block_ends_nothing() {
    let (store, limiter) = process();
    let limiter = limiter.timeout(MINUTE);
    limiter.block(&user("bob"), HOUR).await.unwrap();
    store.is_now(State::Slow);
    let check = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.check(charge("alice")).await }
    });
    tokio::task::yield_now().await;
    store.is_now(State::Up);
    limiter.block(&user("alice"), HOUR).await.unwrap();
    assert!(check.await.unwrap().unwrap().is_allowed());
    store.is_now(State::Down);
    assert!(known(&limiter, "alice").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_before_a_block_was_ended_here_does_not_bring_it_back() {
    let (store, limiter) = process();
    let limiter = limiter.timeout(MINUTE);
    limiter.block(&user("alice"), HOUR).await.unwrap();
    store.is_now(State::Slow);
    let check = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.check(charge("alice")).await }
    });
    tokio::task::yield_now().await;
    store.is_now(State::Up);
    limiter.unblock(&user("alice")).await.unwrap();
    let late = check.await.unwrap().unwrap();
    assert!(matches!(late, Decision::Blocked(_)));
    store.is_now(State::Down);
    assert_eq!(known(&limiter, "alice").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_shorter_block_than_that_of_another_process_holds_for_ever() {
    let (store, limiter) = process();
    let other = Limiter::new(store.clone());
    other.block(&user("alice"), Until::Forever).await.unwrap();
    limiter.block(&user("alice"), MINUTE).await.unwrap();
    store.is_now(State::Down);
    tokio::time::advance(MINUTE * 2).await;
    assert_eq!(known(&limiter, "alice").await, Some(None));
}

#[tokio::test(start_paused = true)]
async fn a_block_whose_call_failed_is_not_known() {
    let (store, limiter) = process();
    for state in [State::Down, State::Hanging] {
        store.is_now(state);
        limiter.block(&user("alice"), HOUR).await.unwrap_err();
        assert_eq!(known(&limiter, "alice").await, None);
    }
}

#[tokio::test]
async fn an_observer_hears_of_the_failure_and_of_the_block() {
    let (store, limiter) = process();
    let log = Log::default();
    let limiter = limiter.observer(log.clone());
    limiter.block(&user("alice"), HOUR).await.unwrap();
    store.is_now(State::Down);
    limiter.check(charge("alice")).await.unwrap();
    let lines = log.lines();
    let lines = lines.iter().map(|it| it.split(" in ").next().unwrap());
    let expected = [
        "block ",
        "check api unavailable local",
        "? blocked by operator",
        "local check api",
    ];
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_limiter_that_enforces_no_blocks_makes_none_and_knows_none() {
    let (store, limiter) = process();
    let off = limiter.clone().enforce_blocks(false);
    let error = off.block(&user("alice"), HOUR).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidRequest);
    assert!(limiter.check(charge("alice")).await.unwrap().is_allowed());

    limiter.block(&user("alice"), HOUR).await.unwrap();
    assert!(off.check(charge("alice")).await.unwrap().is_allowed());
    store.is_now(State::Down);
    assert_eq!(known(&off, "alice").await, None);
    assert!(known(&limiter, "alice").await.is_some());
    store.is_now(State::Up);
    off.unblock(&user("alice")).await.unwrap();
    assert!(limiter.check(charge("alice")).await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_check_for_which_leased_units_were_spent_leaves_a_block_of_their_identity_known() {
    let (store, clock) = Flaky::new();
    let leases = Leases::new(store.clone()).clock(clock.clone());
    let limiter = Limiter::new(leases).on_failure(FailurePolicy::Open);
    let leased = |cost| {
        let policy = Policy::parse("requests", "100000/1m").unwrap();
        Charge::new(&policy, user("alice"), cost)
    };
    for checks in 0..2_100 {
        if checks == 2_000 {
            clock.set(clock.now_ms() / 1_000 * 1_000 + 1_000);
        }
        assert!(limiter.try_acquire([leased(1)]).await);
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        clock.advance(MS / 2);
    }
    let elsewhere = Limiter::new(store.clone());
    elsewhere.block(&user("alice"), HOUR).await.unwrap();
    assert_eq!(known(&limiter, "alice").await, Some(Some(HOUR)));
    let decision = limiter.check([leased(1)]).await.unwrap();
    assert!(
        decision.is_allowed(),
        "units of a lease were spent: {decision:?}"
    );
    // The store decides a check that it alone can pay, and sees the block.
    let address = Policy::parse("address", "9/1d").unwrap();
    let address = Charge::new(&address, Key::new("ip", "::1"), 1);
    let decision = limiter.check([leased(1), address]).await.unwrap();
    assert!(matches!(decision, Decision::Blocked(_)));
    store.is_now(State::Down);
    assert_eq!(known(&limiter, "alice").await, Some(Some(HOUR)));
}
