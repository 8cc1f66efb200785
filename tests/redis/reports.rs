//! Proves which contributions and denials Redis keeps, and for how long.

use sluicegate::contributors::Contributors;

use crate::prelude::*;

fn plenty() -> Policy {
    api("1000000000/1h")
}

/// A charge of the account to which this user contributes.
fn of_acme(name: &str, cost: u64) -> [Charge; 1] {
    [charge(&plenty(), "acme", cost).with_contributor(user(name))]
}

async fn deny(limiter: &Limiter, name: &str) {
    assert!(!take(limiter, &api("0/1h"), name).await.is_allowed());
}

async fn told(limiter: &Limiter) -> Contributors {
    limiter
        .contributors(&plenty(), &user("acme"))
        .await
        .unwrap()
}

async fn by_clock(server: &Server, start_ms: u64) -> (Limiter, ManualClock) {
    let clock = ManualClock::new(start_ms);
    (patient(connect(server).await.clock(clock.clone())), clock)
}

fn sets(server: &Server, pattern: &str) -> Vec<String> {
    let mut sets: Vec<String> = server.run(&format!("KEYS sluicegate:{pattern}"));
    sets.sort_unstable();
    sets
}

const CONTRIBUTIONS: &str = "{user=acme}:api:by:*";

const DENIALS: &str = "{!denied}:*";

#[tokio::test]
async fn an_account_takes_at_most_8_kb_and_every_set_expires_with_the_window() {
    let server = Server::start();
    let (limiter, clock) = by_clock(&server, 1_700_000_000_000).await;
    for _ in 0..7 {
        for user in 0..40 {
            // The longest label that is not hashed, and counts of 32 bits.
            let user = format!("{user:039}");
            limiter.check(of_acme(&user, 3_000_000)).await.unwrap();
        }
        told(&limiter).await;
        clock.advance(Duration::from_secs(600));
    }
    let sets = sets(&server, CONTRIBUTIONS);
    assert_eq!(sets.len(), 7);
    let mut bytes = 0;
    for set in &sets {
        bytes += server.run::<usize>(&format!("MEMORY USAGE {set}"));
        assert_eq!(server.run::<usize>(&format!("ZCARD {set}")), 17, "{set}");
        let encoding: String = server.run(&format!("OBJECT ENCODING {set}"));
        // Before Redis 7.0, the encoding has the other name.
        assert!(["listpack", "ziplist"].contains(&&*encoding), "{encoding}");
        let ttl: i64 = server.run(&format!("PTTL {set}"));
        assert!((1..=7 * 600_000 + 1_000).contains(&ttl), "{set}: {ttl}");
    }
    assert!(bytes <= 8_192, "{bytes}");
}

#[tokio::test]
async fn a_set_that_was_not_written_by_this_crate_is_an_error_and_changes_no_check() {
    let server = Server::start();
    let limiter = process(&server).await;
    limiter.check(of_acme("alice", 5)).await.unwrap();
    told(&limiter).await;
    for set in sets(&server, CONTRIBUTIONS) {
        server.run::<()>(&format!("SET {set} x"));
    }
    let decision = limiter.check(of_acme("alice", 5)).await.unwrap();
    assert!(decision.is_allowed());
    let refused = limiter.contributors(&plenty(), &user("acme")).await;
    assert_eq!(kind(refused), Some(StoreErrorKind::Protocol));
}

#[tokio::test]
async fn there_is_a_set_for_a_sixth_of_the_minute_and_of_the_hour_and_both_expire() {
    let server = Server::start();
    let (limiter, _) = by_clock(&server, 1_790_000_123_456).await;
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
    let (limiter, clock) = by_clock(&server, START_MS).await;
    let used = || server.info("memory", "used_memory");
    deny(&limiter, "alice").await;
    limiter.denials().await.unwrap();
    let before = used();
    let policy = policy("a-policy-with-a-long-name", "0/1h");
    // Spans of both lengths, each with its own full set.
    let times = (0..7)
        .map(|span| span * 600_000)
        .chain((0..6).map(|span| 3_600_000 + span * 10_000));
    for at_ms in times {
        clock.set(START_MS + at_ms);
        for user in 0..800 {
            take(&limiter, &policy, format!("{user:048}")).await;
            if user % 64 == 63 {
                limiter.denials().await.unwrap();
            }
        }
        limiter.denials().await.unwrap();
    }
    // At most 14 sets count at a time. The others have not expired, because the real time has not passed.
    let sets = sets(&server, DENIALS).len() as u64;
    assert!(sets >= 14);
    let taken = (used() - before) / sets * 14;
    assert!(taken < 2_000_000, "{taken}");
}
