//! Blocks and bans over the memory of a process.

use std::time::Duration;

use sluicegate::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, block::BlockedBy, test_util::TestClock,
};

use crate::common::history::START_MS;

fn alice() -> Key {
    Key::new("user", "alice")
}

#[tokio::test]
async fn who_is_denied_too_often_is_banned_from_the_last_strike_on() {
    let clock = TestClock::new(START_MS);
    let limiter = Limiter::new(MemoryStore::new().clock(clock.clone()));
    let policy = Policy::parse("login", "1/1d")
        .unwrap()
        .ban("3/1m=1h".parse().unwrap());
    let check = async || {
        let decision = limiter
            .check([Charge::new(&policy, alice(), 1)])
            .await
            .unwrap();
        limiter.strikes_counted().await;
        decision
    };
    assert!(check().await.is_allowed());
    for _ in 0..3 {
        assert!(matches!(check().await, Decision::Denied(_)));
    }
    let Decision::Blocked(blocked) = check().await else {
        panic!("not banned");
    };
    assert_eq!(blocked.block().by(), BlockedBy::Ban);
    assert_eq!(blocked.retry_after(), Some(Duration::from_secs(3600)));
    assert_eq!(blocked.block().until_ms(), Some(START_MS + 3_600_000));

    clock.set(START_MS + 3_599_999);
    assert!(matches!(check().await, Decision::Blocked(_)));
    clock.set(START_MS + 3_600_000);
    assert!(
        matches!(check().await, Decision::Denied(_)),
        "the ban has ended, the limit has not"
    );
}
