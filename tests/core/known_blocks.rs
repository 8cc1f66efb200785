//! A process enforces the blocks that it has made or seen while the store cannot decide.

use std::time::SystemTime;

use support::{
    flaky::{Flaky, State},
    prelude::*,
};

fn charge(name: &str) -> [Charge; 1] {
    let api = policy("api", "9/1d");
    [Charge::new(&api, user(name), 1)]
}

/// A store, and a process that uses the store.
fn process() -> (Flaky, Limiter) {
    let (store, _) = Flaky::new();
    (store.clone(), support::limiter(store))
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

#[test]
fn each_row_about_known_blocks_holds() {
    hold(ROWS, |store, _| support::limiter(store.clone()));
}

const ROWS: &str = "
A block ends at its time by the clock of the process
 p = 9/1d; block alice 1h; block bob 1m; block carol forever; down; +59999; p bob 1 !operator:1^; +1; p bob 1 !error
 p alice 1 !operator:3540000^; +1h; p alice 1 !error; p carol 1 !operator:never^
A block that was made elsewhere is known once it was seen
 p = 9/1d; elsewhere block alice 1h; elsewhere block bob 1h; p alice 1 !operator; down; +1m
 p alice 1 !operator:3540000^; p bob 1 !error
A ban that this process made holds for as long as it has grown
 p = login 1/1d 2/10m=1m,1h; +1m; 2* strike p alice !; +1m; 2* strike p alice !; down; +1m
 p alice 2 !ban:3540000^; +59m; p alice 2 !error
Unblocking here ends it also where the store cannot do it
 p = 9/1d; block alice 1h; block bob 1h; unblock alice; down; p alice 1 !error; p bob 1 !operator:3600000^
 unblock bob !; p bob 1 !error
A block that was ended elsewhere is forgotten with the store's next answer
 # A look does not search for blocks.
 p = 9/1d; full = 0/1d; block alice 1h; block bob 1h; block carol 1h; elsewhere unblock alice
 elsewhere unblock bob; elsewhere unblock carol; p alice 1; full bob 1 !; p carol = 9; down
 p alice 1 !error; p bob 1 !error; p carol 1 !operator:3600000^
A shorter block than that of another process holds for ever
 p = 9/1d; elsewhere block alice forever; block alice 1m; down; +2m; p alice 1 !operator:never^
A block whose call failed is not known
 p = 9/1d; down; block alice 1h !; p alice 1 !error; hangs; block alice 1h !; p alice 1 !error
";

#[tokio::test(start_paused = true)]
async fn a_block_that_this_process_made_holds_under_every_failure_policy() {
    use FailurePolicy::{Closed, Local, Open};
    for policy in [Open, Closed, Local] {
        for state in [State::Down, State::Hanging] {
            let (store, limiter) = process();
            // Clones share their knowledge of blocks.
            let maker = limiter.clone();
            let limiter = limiter.on_failure(policy);
            maker.block(&user("alice"), HOUR).await.unwrap();
            store.is_now(state);
            // More failures than the breaker needs to open.
            for _ in 0..9 {
                let decision = limiter.check(charge("alice")).await.unwrap();
                assert!(is_blocked(&decision), "{policy:?}");
                assert!(decision.usage().is_local());
                assert!(!limiter.try_acquire(charge("alice")).await);
                let waited = limiter.acquire(charge("alice"), MINUTE).await.unwrap();
                assert!(is_blocked(&waited));
            }
            let passes = limiter.try_acquire(charge("bob")).await;
            assert_eq!(passes, policy != Closed, "{policy:?}");
        }
    }
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

/// The store answers a check late; before the answer comes, the block is made or ended.
#[tokio::test(start_paused = true)]
async fn an_answer_from_before_a_block_was_made_or_ended_here_changes_nothing() {
    for was_blocked in [false, true] {
        let (store, limiter) = process();
        let limiter = limiter.timeout(MINUTE);
        limiter.block(&user("bob"), HOUR).await.unwrap();
        if was_blocked {
            limiter.block(&user("alice"), HOUR).await.unwrap();
        }
        store.is_now(State::Slow);
        let asking = limiter.clone();
        let check = tokio::spawn(async move { asking.check(charge("alice")).await });
        yield_now().await;
        store.is_now(State::Up);
        match was_blocked {
            true => limiter.unblock(&user("alice")).await.unwrap(),
            false => drop(limiter.block(&user("alice"), HOUR).await.unwrap()),
        }
        let late = check.await.unwrap().unwrap();
        assert_eq!(is_blocked(&late), was_blocked);
        store.is_now(State::Down);
        assert_eq!(known(&limiter, "alice").await.is_none(), was_blocked);
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
