//! Proves which contributions and denials Redis keeps, and for how long, and the behaviour during outages and without
//! the rights for them.

use std::time::{Duration, Instant};

use sluicegate::{
    Charge, Key, Limiter, Policy, RedisStore, contributors::Contributors, error::StoreErrorKind,
    manual_clock::ManualClock,
};
use support::{redis::Server, stores};

fn policy() -> Policy {
    Policy::parse("api", "1000000000/1h").unwrap()
}

fn acme() -> Key {
    Key::new("account", "acme")
}

fn charge(user: &str, cost: u64) -> [Charge; 1] {
    [Charge::new(&policy(), acme(), cost).with_contributor(Key::new("user", user))]
}

async fn limiter(url: &str) -> Limiter {
    let store = RedisStore::connect(url).await.unwrap();
    Limiter::new(store).timeout(Duration::from_secs(30))
}

async fn deny(limiter: &Limiter, user: &str) {
    let full = Policy::parse("api", "0/1h").unwrap();
    let charge = Charge::new(&full, Key::new("user", user), 1);
    assert!(!limiter.check([charge]).await.unwrap().is_allowed());
}

async fn told(limiter: &Limiter) -> Contributors {
    limiter.contributors(&policy(), &acme()).await.unwrap()
}

fn sets(server: &Server, pattern: &str) -> Vec<String> {
    let mut sets: Vec<String> = server.run(&format!("KEYS sluicegate:{pattern}"));
    sets.sort_unstable();
    sets
}

const CONTRIBUTIONS: &str = "{account=acme}:api:by:*";

const DENIALS: &str = "{!denied}:*";

#[tokio::test]
async fn an_account_takes_at_most_8_kb_and_every_set_expires_with_the_window() {
    let server = Server::start();
    let clock = ManualClock::new(1_700_000_000_000);
    let store = RedisStore::connect(server.url()).await.unwrap();
    let limiter = Limiter::new(store.clock(clock.clone())).timeout(Duration::from_secs(30));
    for _ in 0..7 {
        for user in 0..40 {
            // The longest label that is not hashed, and counts of 32 bits.
            let user = format!("{user:039}");
            limiter.check(charge(&user, 3_000_000)).await.unwrap();
        }
        told(&limiter).await;
        clock.advance(Duration::from_secs(600));
    }
    let sets = sets(&server, CONTRIBUTIONS);
    assert_eq!(sets.len(), 7);
    let mut bytes = 0;
    for set in &sets {
        bytes += server.run::<usize>(&format!("MEMORY USAGE {set}"));
        assert_eq!(server.run::<usize>(&format!("ZCARD {set}")), 18, "{set}");
        let encoding: String = server.run(&format!("OBJECT ENCODING {set}"));
        // Before Redis 7.0, the encoding has the other name.
        assert!(["listpack", "ziplist"].contains(&&*encoding), "{encoding}");
        let ttl: i64 = server.run(&format!("PTTL {set}"));
        assert!((1..=7 * 600_000 + 1_000).contains(&ttl), "{set}: {ttl}");
    }
    eprintln!("{bytes} bytes in 7 sets");
    assert!(bytes <= 8_192, "{bytes}");
}

#[tokio::test]
async fn without_a_label_nothing_is_stored_but_the_counts() {
    let server = Server::start();
    let limiter = limiter(&server.url()).await;
    let charge = [Charge::new(&policy(), acme(), 1)];
    limiter.check(charge).await.unwrap();
    assert!(told(&limiter).await.iter().next().is_none());
    let keys: Vec<String> = server.run("KEYS *");
    assert_eq!(keys, ["sluicegate:{account=acme}:api"]);
}

#[tokio::test]
async fn a_check_sends_nothing_more_and_the_rest_is_told_within_two_seconds() {
    let server = Server::start();
    let limiter = limiter(&server.url()).await;
    server.run::<()>("CONFIG RESETSTAT");
    for _ in 0..100 {
        limiter.check(charge("alice", 1)).await.unwrap();
    }
    assert!(
        server.calls("zincrby") <= 6,
        "it is told at most twice meanwhile"
    );
    let start = Instant::now();
    let total = async || {
        let store = RedisStore::connect(server.url()).await.unwrap();
        Limiter::new(store)
            .contributors(&policy(), &acme())
            .await
            .unwrap()
            .total()
    };
    while total().await < 100 {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "nothing was told"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn while_the_server_is_gone_checks_pass_and_afterwards_contributors_are_kept_again() {
    let mut server = Server::start();
    let limiter = limiter(&server.url())
        .await
        .timeout(Duration::from_millis(300));
    limiter.check(charge("alice", 5)).await.unwrap();
    told(&limiter).await;
    server.kill();
    for _ in 0..50 {
        assert!(limiter.try_acquire(charge("bob", 1)).await);
    }
    assert!(limiter.contributors(&policy(), &acme()).await.is_err());
    server.restart();
    let start = Instant::now();
    while limiter.check(charge("alice", 1)).await.is_err() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "it never decides again"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The server has lost all earlier contributions. The process reports those that it still has.
    limiter.check(charge("alice", 1)).await.unwrap();
    told(&limiter).await;
    let told = told(&limiter).await;
    let list: Vec<_> = told.iter().map(|it| (it.label(), it.units())).collect();
    assert_eq!(list, [("user=alice", 7)]);
}

#[tokio::test]
async fn a_set_that_was_not_written_by_this_crate_is_an_error_and_changes_no_check() {
    let server = Server::start();
    let limiter = limiter(&server.url()).await;
    limiter.check(charge("alice", 5)).await.unwrap();
    told(&limiter).await;
    for set in sets(&server, CONTRIBUTIONS) {
        server.run::<()>(&format!("SET {set} x"));
    }
    assert!(
        limiter
            .check(charge("alice", 5))
            .await
            .unwrap()
            .is_allowed()
    );
    let error = limiter.contributors(&policy(), &acme()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Protocol);
}

#[tokio::test]
async fn it_works_over_every_kind_of_connection() {
    let server = Server::start();
    for (place, (name, store)) in (1..).zip(stores::all(&server).await) {
        let limiter = Limiter::new(store).timeout(Duration::from_secs(30));
        limiter.check(charge("alice", 1)).await.unwrap();
        assert_eq!(told(&limiter).await.total(), place, "{name}");
    }
}

#[tokio::test]
async fn there_is_a_set_for_a_sixth_of_the_minute_and_of_the_hour_and_both_expire() {
    const START_MS: u64 = 1_790_000_123_456;
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let limiter = Limiter::new(store.clock(ManualClock::new(START_MS)));
    for user in ["alice", "alice", "bob"] {
        deny(&limiter, user).await;
    }
    limiter.denials().await.unwrap();
    let names = ["10000:1790000120000", "600000:1789999800000"];
    let names = names.map(|it| format!("sluicegate:{{!denied}}:{it}"));
    assert_eq!(sets(&server, DENIALS), names);
    for (name, most_ms) in names.iter().zip([71_000, 4_201_000]) {
        let members: Vec<String> = server.run(&format!("ZRANGE {name} 0 -1"));
        assert_eq!(members[..2], ["api user=bob", "api user=alice"]);
        let ttl: i64 = server.run(&format!("PTTL {name}"));
        assert!((1..=most_ms).contains(&ttl), "{ttl}");
    }
}

#[tokio::test]
async fn an_hour_of_denials_takes_less_than_2_mb() {
    const START_MS: u64 = 1_790_000_000_000;
    let server = Server::start();
    let clock = ManualClock::new(START_MS);
    let store = RedisStore::connect(server.url()).await.unwrap();
    let limiter = Limiter::new(store.clock(clock.clone())).timeout(Duration::from_secs(30));
    let used = || server.info("memory", "used_memory");
    deny(&limiter, "alice").await;
    limiter.denials().await.unwrap();
    let before = used();
    let policy = Policy::parse("a-policy-with-a-long-name", "0/1h").unwrap();
    // Spans of both lengths, each with its own full set.
    let times = (0..7)
        .map(|span| span * 600_000)
        .chain((0..6).map(|span| 3_600_000 + span * 10_000));
    for at_ms in times {
        clock.set(START_MS + at_ms);
        for user in 0..800 {
            let charge = Charge::new(&policy, Key::new("user", format!("{user:048}")), 1);
            limiter.check([charge]).await.unwrap();
        }
        limiter.denials().await.unwrap();
    }
    // At most 14 sets count at a time. The others have not expired, because the real time has not passed.
    let sets = sets(&server, DENIALS).len() as u64;
    assert!(sets >= 14);
    let taken = (used() - before) / sets * 14;
    eprintln!("{taken} bytes");
    assert!(taken < 2_000_000, "{taken}");
}
