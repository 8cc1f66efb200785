//! Proves which denials Redis keeps, and for how long, and the behaviour without the rights for them.

use std::time::Duration;

use sluicegate::{
    Charge, Key, Limiter, Policy, RedisStore, error::StoreErrorKind, manual_clock::ManualClock,
};
use support::{
    redis::Server,
    served::{CONTRIBUTORS_RIGHTS, LEAST_RIGHTS, limited},
};

async fn limiter(url: &str) -> Limiter {
    let store = RedisStore::connect(url).await.unwrap();
    Limiter::new(store).timeout(Duration::from_secs(30))
}

async fn deny(limiter: &Limiter, user: &str) {
    let full = Policy::parse("api", "0/1h").unwrap();
    let charge = Charge::new(&full, Key::new("user", user), 1);
    assert!(!limiter.check([charge]).await.unwrap().is_allowed());
}

fn sets(server: &Server) -> Vec<String> {
    let mut sets: Vec<String> = server.run("KEYS sluicegate:{!denied}:*");
    sets.sort_unstable();
    sets
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
    assert_eq!(sets(&server), names);
    for (name, most_ms) in names.iter().zip([71_000, 4_201_000]) {
        let members: Vec<String> = server.run(&format!("ZRANGE {name} 0 -1"));
        assert_eq!(members, ["api user=bob", "api user=alice"]);
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
    let sets = sets(&server).len() as u64;
    assert!(sets >= 14);
    let taken = (used() - before) / sets * 14;
    eprintln!("{taken} bytes");
    assert!(taken < 2_000_000, "{taken}");
}

#[tokio::test]
async fn without_the_rights_checks_work_all_the_same() {
    for missing in CONTRIBUTORS_RIGHTS {
        let server = Server::start();
        let rights = LEAST_RIGHTS.into_iter().chain(CONTRIBUTORS_RIGHTS);
        let rights: Vec<_> = rights.filter(|&it| it != missing).collect();
        let limiter = limiter(&limited(&server, &rights)).await;
        deny(&limiter, "alice").await;
        let error = limiter.denials().await.expect_err(missing);
        assert_eq!(error.kind(), StoreErrorKind::AccessDenied, "{missing}");
        deny(&limiter, "alice").await;
    }
}
