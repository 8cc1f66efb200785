//! Blocks and bans in Redis: they take effect in every replica. The stored form, the cost, and foreign values.

use std::{
    convert::Infallible,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::future::join_all;
use http::{Request, Response};
use sluicegate::{
    Charge, Decision, Key, Limiter, Policy, RateLimitLayer, RedisStore, Store,
    block::{Block, BlockedBy, Until},
    error::{StoreError, StoreErrorKind},
    manual_clock::ManualClock,
    store::{Check, CheckBatch, Operation, Reply, StoreExt},
};
use support::{
    contract::patient,
    history::START_MS,
    redis::Server,
    served::{BLOCKS_RIGHTS, LEAST_RIGHTS, limited},
};
use tower::{Layer, ServiceExt, service_fn};

const HOUR: Duration = Duration::from_secs(3_600);

/// The keys of alice: her block, and her counts under `api`.
const NAME: &str = "sluicegate:{user=alice}:!block";
const INDEX: &str = "sluicegate:!blocks";
const COUNTS: &str = "sluicegate:{user=alice}:api";

fn user(name: &str) -> Key {
    Key::new("user", name)
}

fn api() -> Policy {
    Policy::parse("api", "5/1d").unwrap()
}

fn charges(users: &[&str]) -> Vec<Charge> {
    let charge = |name: &&str| Charge::new(&api(), user(name), 1);
    users.iter().map(charge).collect()
}

/// A check of these users that enforces blocks.
fn check(users: &[&str]) -> Operation {
    let check = Check::new(charges(users)).unwrap();
    Operation::Check(check.enforce_blocks(true))
}

/// A limiter with a separate store and connection, like another process.
async fn process(server: &Server) -> Limiter {
    patient(RedisStore::connect(server.url()).await.unwrap())
}

async fn is_blocked(limiter: &Limiter, name: &str) -> bool {
    let decision = limiter.check(charges(&[name])).await.unwrap();
    matches!(decision, Decision::Blocked(_))
}

#[tokio::test]
async fn every_replica_enforces_a_block_and_its_end_at_its_next_check() {
    let server = Server::start();
    let operator = process(&server).await;
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(process(&server).await);
    }
    for blocked in [false, true, false, true, false] {
        if blocked {
            operator.block(&user("alice"), HOUR).await.unwrap();
        } else {
            operator.unblock(&user("alice")).await.unwrap();
        }
        for replica in &replicas {
            assert_eq!(is_blocked(replica, "alice").await, blocked);
            assert!(!is_blocked(replica, "bob").await);
            operator.reset(&api(), &user("bob")).await.unwrap();
            operator.reset(&api(), &user("alice")).await.unwrap();
        }
    }
}

#[tokio::test]
async fn blocks_outlast_restarts_of_services_and_scripts_that_are_forgotten() {
    let server = Server::start();
    process(&server)
        .await
        .block(&user("alice"), Until::Forever)
        .await
        .unwrap();
    let limiter = process(&server).await;
    assert!(is_blocked(&limiter, "alice").await);
    server.run::<()>("SCRIPT FLUSH");
    assert!(is_blocked(&limiter, "alice").await);
    server.run::<()>("SCRIPT FLUSH");
    limiter.unblock(&user("alice")).await.unwrap();
    server.run::<()>("SCRIPT FLUSH");
    let block = limiter.block(&user("alice"), HOUR).await.unwrap();
    assert!(block.until_ms().is_some());
    assert!(is_blocked(&limiter, "alice").await);
}

#[tokio::test]
async fn a_blocks_key_expires_when_it_ends_by_the_clock_of_the_server() {
    let server = Server::start();
    let limiter = process(&server).await;
    let ttl = || server.run::<i64>(&format!("PTTL {NAME}"));
    limiter.block(&user("alice"), HOUR).await.unwrap();
    assert!((3_590_000..=3_600_000).contains(&ttl()), "{}", ttl());
    let until = SystemTime::now() + 2 * HOUR;
    let block = limiter.block(&user("alice"), until).await.unwrap();
    let until_ms = until
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos()
        .div_ceil(1_000_000);
    assert_eq!(u128::from(block.until_ms().unwrap()), until_ms);
    // Only an approximate time: Redis 6.2 does not report when a key expires.
    let expires_in_ms = |expected: u64| {
        let ms = u64::try_from(ttl()).unwrap();
        assert!(ms.abs_diff(expected) < 10_000, "{ms}");
    };
    expires_in_ms(7_200_000);
    // A shorter block leaves the first unchanged.
    limiter.block(&user("alice"), HOUR).await.unwrap();
    expires_in_ms(7_200_000);
    limiter.block(&user("alice"), Until::Forever).await.unwrap();
    let now_ms = u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    expires_in_ms((1 << 48) - 1 - now_ms);
    let value: Vec<u8> = server.run(&format!("GET {NAME}"));
    assert_eq!(value[..8], [255, 255, 255, 255, 255, 255, 1, 1]);

    limiter.unblock(&user("alice")).await.unwrap();
    assert_eq!(ttl(), -2);
    limiter
        .block(&user("alice"), UNIX_EPOCH + HOUR)
        .await
        .unwrap();
    limiter.block(&user("alice"), Duration::ZERO).await.unwrap();
    assert_eq!(ttl(), -2);
    assert_eq!(server.run::<Vec<String>>("KEYS *"), [INDEX]);
}

/// The number of strings and parts of strings that were read.
fn reads(server: &Server) -> u64 {
    server.calls("get") + server.calls("getrange")
}

/// The numbers of commands for one check, inside the script and outside.
async fn commands(server: &Server, limiter: &Limiter, users: &[&str]) -> [u64; 6] {
    server.run::<()>("CONFIG RESETSTAT");
    limiter.check(charges(users)).await.unwrap();
    let [evalsha, time, exists, eval] =
        ["evalsha", "time", "exists", "eval"].map(|it| server.calls(it));
    let writes = server.calls("set") + server.calls("setrange") + server.calls("del");
    [evalsha, time, reads(server), exists, eval, writes]
}

#[tokio::test]
async fn enforcing_blocks_is_one_command_for_all_identities_and_no_round_trip() {
    let server = Server::start();
    let enforcing = process(&server).await;
    let plain = enforcing.clone().enforce_blocks(false);
    plain.check(charges(&["warm"])).await.unwrap();
    for (users, count) in [(&["alice"][..], 1), (&["alice", "bob", "carol"], 3)] {
        assert_eq!(
            commands(&server, &plain, users).await,
            [1, 1, count, 0, 0, count]
        );
        assert_eq!(
            commands(&server, &enforcing, users).await,
            [1, 1, count, 1, 0, count]
        );
    }
    // The script asks once for all policies.
    let names = ["a", "b", "c"].map(|it| Policy::parse(it, "5/1d").unwrap());
    let charges = names.iter().map(|it| Charge::new(it, user("alice"), 1));
    server.run::<()>("CONFIG RESETSTAT");
    enforcing.check(charges).await.unwrap();
    assert_eq!((reads(&server), server.calls("exists")), (3, 1));
    // If any identity is blocked, the script reads the blocks of all, but no counts, and writes nothing.
    enforcing.block(&user("alice"), HOUR).await.unwrap();
    let users = &["alice", "bob"];
    assert_eq!(
        commands(&server, &enforcing, users).await,
        [1, 1, 2, 1, 0, 0]
    );
}

#[tokio::test]
async fn a_call_of_many_checks_asks_once_whether_any_is_blocked() {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let users = ["alice", "bob", "carol", "dan"];
    server.run::<()>("CONFIG RESETSTAT");
    let replies = store
        .call(users.map(|user| check(&[user])).to_vec())
        .await
        .unwrap();
    assert!(replies.iter().all(is_allowed), "{replies:?}");
    assert_eq!((reads(&server), server.calls("exists")), (4, 1));
}

#[tokio::test]
async fn a_call_may_look_up_more_blocks_than_lua_can_pass_on_at_once() {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let checks = (0..9_000).map(|number| check(&[&number.to_string()]));
    let replies = store.call(checks.collect()).await.unwrap();
    assert!(replies.iter().all(is_allowed));
}

#[tokio::test]
async fn blocks_hold_for_a_user_without_the_right_to_ask_whether_there_are_any() {
    let server = Server::start();
    let limiter = process(&server).await;
    server.run::<()>("ACL SETUSER default -exists");
    assert!(
        limiter
            .check(charges(&["bob", "alice"]))
            .await
            .unwrap()
            .is_allowed()
    );
    let operator = process(&server).await;
    operator.block(&user("alice"), HOUR).await.unwrap();
    assert!(
        !limiter
            .check(charges(&["bob", "alice"]))
            .await
            .unwrap()
            .is_allowed()
    );
    assert!(limiter.check(charges(&["bob"])).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_block_that_could_not_be_ended_is_still_listed() {
    let server = Server::start();
    let operator = process(&server).await;
    operator.block(&user("alice"), HOUR).await.unwrap();
    let rights = [&LEAST_RIGHTS[2..], &BLOCKS_RIGHTS, &["~sluicegate:*"]].concat();
    let store = RedisStore::connect(limited(&server, &rights))
        .await
        .unwrap();
    let key = user("alice");
    let error = store.unblock(&key).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::AccessDenied);
    let unblocks = store.call(vec![Operation::Unblock { key }]);
    assert!(unblocks.await.is_err());
    assert_eq!(operator.blocks(9).await.unwrap().len(), 1);
    operator.unblock(&user("alice")).await.unwrap();
    assert_eq!(server.run::<u64>("DBSIZE"), 0, "the index is empty");
}

fn is_allowed(reply: &Result<Reply, StoreError>) -> bool {
    matches!(reply, Ok(Reply::Check(Decision::Allowed(_))))
}

#[tokio::test]
async fn what_others_wrote_in_the_place_of_a_block_fails_that_check_alone() {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let soon = "\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}\u{7f}";
    for (value, expected) in [
        (None, "of another type"),
        (Some("hello".to_owned()), "cannot be read"),
        (Some(String::new()), "cannot be read"),
        (Some("a-value-of-12".to_owned()), "cannot be read"),
        (Some(format!("{soon}\u{1}\u{2}")), "another version"),
        (Some(format!("{soon}\u{1}\u{1}+")), "cannot be read"),
        // The source of these blocks is unknown.
        (Some(format!("{soon}\u{4}\u{1}")), "cannot be read"),
        (Some(format!("{soon}\u{0}\u{1}")), "cannot be read"),
    ] {
        server.run::<()>(&format!("DEL {NAME}"));
        match &value {
            None => server.run::<()>(&format!("RPUSH {NAME} hello")),
            Some(value) => server.run::<()>(&format!("SET {NAME} {value}")),
        }
        let operations = vec![
            check(&["bob"]),
            check(&["alice"]),
            check(&["bob", "alice", "carol"]),
            Operation::Block {
                key: user("alice"),
                request: HOUR.into(),
            },
            Operation::CheckBatch(CheckBatch::new(
                Check::new(charges(&["alice"]))
                    .unwrap()
                    .enforce_blocks(true),
                3,
            )),
            check(&["bob"]),
            Operation::Check(Check::new(charges(&["alice"])).unwrap()),
        ];
        let replies = store.call(operations).await.unwrap();
        for (place, reply) in replies.iter().enumerate().take(5).skip(1) {
            let error = reply.as_ref().expect_err(expected);
            assert_eq!(error.kind(), StoreErrorKind::Protocol);
            let message = error.to_string();
            assert!(message.contains(expected), "{value:?}, {place}: {message}");
        }
        for place in [0, 5, 6] {
            let Ok(Reply::Check(Decision::Allowed(_))) = &replies[place] else {
                panic!("{value:?}, {place}: {replies:?}");
            };
        }
        // Unblocking repairs this.
        store.unblock(&user("alice")).await.unwrap();
        let replies = store.call(vec![check(&["alice"])]).await.unwrap();
        assert!(matches!(
            &replies[0],
            Ok(Reply::Check(Decision::Allowed(_)))
        ));
        assert_eq!(server.run::<u64>(&format!("EXISTS {COUNTS}")), 1);
        for name in ["alice", "bob"] {
            store.reset(&api(), &user(name)).await.unwrap();
        }
        assert_eq!(server.run::<u64>("DBSIZE"), 0, "carol was not charged");
    }
}

#[tokio::test]
async fn a_block_that_the_server_refuses_to_store_is_an_error() {
    let server = Server::start();
    let limiter = process(&server).await;
    limiter.block(&user("bob"), HOUR).await.unwrap();
    server.run::<()>("CONFIG SET maxmemory 1");
    let error = limiter.block(&user("alice"), HOUR).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    // The two urgent operations still work: denying a blocked identity, and unblocking one.
    assert!(is_blocked(&limiter, "bob").await);
    limiter.unblock(&user("bob")).await.unwrap();
    server.run::<()>("CONFIG SET maxmemory 0");
    assert!(!is_blocked(&limiter, "bob").await);
    assert!(!is_blocked(&limiter, "alice").await);
}

#[tokio::test]
async fn a_secret_identity_is_blocked_under_a_hash() {
    let server = Server::start();
    let connect = async |secret: &str| {
        let store = RedisStore::connect(server.url()).await.unwrap();
        patient(store.secret(secret))
    };
    let (limiter, other) = (connect("a secret").await, connect("another").await);
    let key = Key::secret("api-key", "sk_live_do_not_show");
    limiter.block(&key, HOUR).await.unwrap();
    let decide = async |limiter: &Limiter| {
        let charge = Charge::new(&api(), key.clone(), 1);
        limiter.check([charge]).await.unwrap()
    };
    let decision = decide(&limiter).await;
    assert!(matches!(decision, Decision::Blocked(_)));
    assert!(!format!("{decision:?}").contains("do_not_show"));
    assert!(decide(&other).await.is_allowed());
    let names: Vec<String> = server.run("KEYS *");
    assert!(names.iter().any(|it| it.ends_with(":!block")), "{names:?}");
    assert!(!names.concat().contains("do_not_show"), "{names:?}");
}

fn banning(strikes: &str) -> Policy {
    let policy = Policy::parse("login", "1/1d").unwrap();
    policy.ban(strikes.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_strike_at_the_same_time_ban_at_the_limit_and_not_before() {
    let server = Server::start();
    let processes = [
        process(&server).await,
        process(&server).await,
        process(&server).await,
    ];
    let policy = banning("30/1d=1h");
    let strike = async |limiter: &Limiter| {
        let charge = Charge::new(&policy, user("alice"), 2);
        limiter.check([charge]).await.unwrap()
    };
    let strike_all = async |times: usize| {
        let all = (0..times).flat_map(|_| &processes).map(&strike);
        let decisions = join_all(all).await;
        for limiter in &processes {
            limiter.strikes_counted().await;
        }
        decisions
    };
    for decision in strike_all(9).await {
        assert!(matches!(decision, Decision::Denied(_)));
    }
    // There are 27 strikes: the next two are not enough, the third is.
    for _ in 0..3 {
        assert!(matches!(strike(&processes[0]).await, Decision::Denied(_)));
        processes[0].strikes_counted().await;
    }
    for limiter in &processes {
        let Decision::Blocked(blocked) = strike(limiter).await else {
            panic!("30 strikes are no ban");
        };
        let wait = blocked.retry_after().unwrap();
        assert!(wait <= HOUR && wait > HOUR - Duration::from_secs(60));
    }
    // Far more strikes than needed lead to the same ban.
    processes[0].unblock(&user("alice")).await.unwrap();
    strike_all(40).await;
    assert!(matches!(strike(&processes[1]).await, Decision::Blocked(_)));
}

#[tokio::test]
async fn strikes_have_a_key_of_their_own_that_a_ban_and_an_unblock_remove() {
    let server = Server::start();
    let clock = ManualClock::new(START_MS);
    let store = RedisStore::connect(server.url()).await.unwrap();
    let limiter = patient(store.clock(clock.clone()));
    let policy = banning("2/1m=1h");
    let strike = async || {
        let charge = Charge::new(&policy, user("alice"), 2);
        limiter.check([charge]).await.unwrap();
        limiter.strikes_counted().await;
        let mut names: Vec<String> = server.run("KEYS *");
        names.retain(|it| it != INDEX);
        names.sort();
        names
    };
    let strikes = "sluicegate:{user=alice}:!strikes";
    assert_eq!(strike().await, [strikes]);
    assert_eq!(strike().await, [NAME]);
    limiter.unblock(&user("alice")).await.unwrap();
    assert_eq!(strike().await, [strikes]);
    limiter.unblock(&user("alice")).await.unwrap();
    assert_eq!(server.run::<u64>("DBSIZE"), 0);
}

#[tokio::test]
async fn processes_that_ban_at_the_same_time_raise_one_level() {
    let server = Server::start();
    let clock = ManualClock::new(START_MS);
    let mut processes = Vec::new();
    for _ in 0..8 {
        let store = RedisStore::connect(server.url()).await.unwrap();
        processes.push(patient(store.clock(clock.clone())));
    }
    let policy = banning("1/1m=1m,1h,1d");
    let strike = async |limiter: &Limiter| {
        let charge = Charge::new(&policy, user("alice"), 2);
        limiter.check([charge]).await.unwrap();
        limiter.strikes_counted().await;
    };
    for (level, minutes) in [(1, 1), (2, 60), (3, 1_440), (4, 1_440)] {
        // Each of the denials would be enough for a ban.
        join_all(processes.iter().map(strike)).await;
        let listed = processes[0].blocks(2).await.unwrap();
        let end_ms = clock.now_ms() + minutes * 60_000;
        assert_eq!(listed[0].block(), Block::new(end_ms, BlockedBy::Ban));
        assert_eq!(listed[0].details().ban_level(), Some(level));
        // A long ban stays in the index, which other bans clean: with the latest end that the store could choose.
        let score: u64 = server.run(&format!("ZSCORE {INDEX} user=alice"));
        assert!(score >= end_ms, "{score}");
        clock.set(end_ms);
    }
}

#[tokio::test]
async fn a_level_outlasts_a_restart_of_the_server_and_expires_with_its_key() {
    let mut server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let request = || support::blocks::ban_until("1/1m=1h,1d", HOUR);
    let limiter = process(&server).await;
    limiter.block(&user("alice"), request()).await.unwrap();
    // As long after the ban as the ban lasted.
    let ttl: i64 = server.run(&format!("PTTL {NAME}"));
    assert!((7_190_000..=7_200_000).contains(&ttl), "{ttl}");
    server.kill();
    server.restart();
    assert!(
        (0..10_000).any(|_| server.answers()),
        "it has loaded its data"
    );
    let [seconds, _] = server.run::<[u64; 2]>("TIME");
    let clock = ManualClock::new((seconds + 5_400) * 1_000);
    let store = RedisStore::connect(server.url()).await.unwrap();
    let limiter = patient(store.clock(clock.clone()));
    assert!(!is_blocked(&limiter, "alice").await);
    let block = limiter.block(&user("alice"), request()).await.unwrap();
    assert_eq!(block.until_ms(), Some(clock.now_ms() + 86_400_000));
}

#[tokio::test]
async fn strikes_that_cannot_be_read_are_no_ban_and_disturb_no_other_operation() {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let strikes = "sluicegate:{user=alice}:!strikes";
    for write in [
        format!("SET {strikes} garbage"),
        format!("RPUSH {strikes} 1"),
    ] {
        let _: redis::Value = server.run(&format!("DEL {strikes}"));
        let _: redis::Value = server.run(&write);
        let check = Check::new(charges(&["bob"])).unwrap().without_cost();
        let operations = vec![
            Operation::Ban {
                key: user("alice"),
                strikes: "1/1d".parse().unwrap(),
                request: Until::Forever.into(),
            },
            Operation::Check(check),
        ];
        let replies = store.call(operations).await.unwrap();
        let error = replies[0].as_ref().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Protocol);
        assert!(matches!(&replies[1], Ok(Reply::Check(it)) if it.is_allowed()));
        let mut names = server.run::<Vec<String>>("KEYS *");
        names.retain(|it| it != INDEX);
        assert_eq!(names, [strikes]);
    }
}

#[tokio::test]
async fn every_kind_of_connection_knows_blocks() {
    let server = Server::start();
    for (kind, store) in support::stores::all(&server).await {
        let limiter = patient(store);
        let block = limiter.block(&user("alice"), Until::Forever).await.unwrap();
        assert_eq!(block, Block::new(u64::MAX, BlockedBy::Operator), "{kind}");
        assert!(is_blocked(&limiter, "alice").await, "{kind}");
        limiter.unblock(&user("alice")).await.unwrap();
        assert!(!is_blocked(&limiter, "alice").await, "{kind}");
    }
}

#[tokio::test]
async fn a_layer_makes_one_call_for_what_it_limits_and_what_it_only_looks_up() {
    let server = Server::start();
    let limiter = process(&server).await;
    let inner =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let ask = async |layer: &RateLimitLayer| {
        let service = layer.clone().layer(inner);
        let response = service.oneshot(Request::new(())).await.unwrap();
        assert_eq!(response.status(), 200);
    };
    let alone = RateLimitLayer::new(limiter).deny_blocked(user("alice"));
    ask(&alone).await;
    for (layer, expected) in [
        (alone.clone(), [1, 1, 1, 1, 0]),
        (alone.clone().limit(api(), user("alice")), [1, 1, 1, 1, 1]),
        // The fast path hands over an identity that is only looked up.
        (alone.limit(api(), user("bob")), [1, 1, 1, 3, 1]),
    ] {
        server.run::<()>("CONFIG RESETSTAT");
        ask(&layer).await;
        let [evalsha, time, exists, set] =
            ["evalsha", "time", "exists", "set"].map(|it| server.calls(it));
        assert_eq!([evalsha, time, exists, reads(&server), set], expected);
    }
}
