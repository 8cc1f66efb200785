//! Blocks and bans in Redis: they take effect in every replica. The stored form, the cost, and foreign values.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::prelude::*;

/// The keys of alice: her block, her strikes, and her counts under `api`.
const NAME: &str = "sluicegate:{user=alice}:!block";
const STRIKES: &str = "sluicegate:{user=alice}:!strikes";
const COUNTS: &str = "sluicegate:{user=alice}:api~1";
const INDEX: &str = "sluicegate:!blocks";

fn five() -> Policy {
    api("5/1d")
}

fn charges(users: &[&str]) -> Vec<Charge> {
    users.iter().map(|name| charge(&five(), name, 1)).collect()
}

fn enforcing(users: &[&str]) -> Check {
    check(charges(users)).enforce_blocks(true)
}

fn asks(users: &[&str]) -> Operation {
    Operation::Check(enforcing(users))
}

/// Whether a check of these users meets a block.
async fn meets_block(limiter: &Limiter, users: &[&str]) -> bool {
    is_blocked(&limiter.check(charges(users)).await.unwrap())
}

async fn block_alice(limiter: &Limiter, until: impl Into<Until>) -> Block {
    limiter.block(&user("alice"), until.into()).await.unwrap()
}

async fn unblock_alice(limiter: &Limiter) {
    limiter.unblock(&user("alice")).await.unwrap();
}

/// The names of all keys but the index.
fn names(server: &Server) -> Vec<String> {
    let mut names: Vec<String> = server.run("KEYS *");
    names.retain(|it| it != INDEX);
    names.sort();
    names
}

/// The replies of a call that must be made.
async fn call<const N: usize>(store: &RedisStore, operations: [Operation; N]) -> Vec<Answer> {
    store.call(operations.to_vec()).await.unwrap()
}

type Answer = Result<Reply, StoreError>;

#[tokio::test]
async fn a_blocks_key_expires_when_it_ends_by_the_clock_of_the_server() {
    let server = Server::start();
    let limiter = process(&server).await;
    let ttl = || server.run::<i64>(&format!("PTTL {NAME}"));
    let now_ms = || u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let until = SystemTime::now() + 2 * HOUR;
    let since = until.duration_since(UNIX_EPOCH).unwrap();
    let until_ms = u64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap();
    // Only approximate times: Redis 6.2 does not report when a key expires. A shorter block leaves the last unchanged.
    for (until, expected_ms) in [
        (Until::After(HOUR), 3_600_000),
        (until.into(), 7_200_000),
        (Until::After(HOUR), 7_200_000),
        (Until::Forever, (1 << 48) - 1 - now_ms()),
    ] {
        let block = block_alice(&limiter, until).await;
        let ms = u64::try_from(ttl()).unwrap();
        assert!(ms.abs_diff(expected_ms) < 10_000, "{until:?}: {ms}");
        if let Until::At(_) = until {
            assert_eq!(block.until_ms(), Some(until_ms));
        }
    }
    let value: Vec<u8> = server.run(&format!("GET {NAME}"));
    assert_eq!(value[..8], [255, 255, 255, 255, 255, 255, 1, 1]);

    unblock_alice(&limiter).await;
    assert_eq!(ttl(), -2);
    block_alice(&limiter, UNIX_EPOCH + HOUR).await;
    block_alice(&limiter, Duration::ZERO).await;
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
    for users in [&["alice"][..], &["alice", "bob", "carol"]] {
        let count = users.len() as u64;
        for (limiter, exists) in [(&plain, 0), (&enforcing, 1)] {
            let expected = [1, 1, count, exists, 0, count];
            assert_eq!(commands(&server, limiter, users).await, expected);
        }
    }
    // The script asks once for all policies.
    let charges = ["a", "b", "c"].map(|it| charge(&policy(it, "5/1d"), "alice", 1));
    server.run::<()>("CONFIG RESETSTAT");
    enforcing.check(charges).await.unwrap();
    assert_eq!((reads(&server), server.calls("exists")), (3, 1));
    // If any identity is blocked, the script reads the blocks of all, but no counts, and writes nothing.
    block_alice(&enforcing, HOUR).await;
    let commands = commands(&server, &enforcing, &["alice", "bob"]).await;
    assert_eq!(commands, [1, 1, 2, 1, 0, 0]);
}

#[tokio::test]
async fn a_call_of_many_checks_asks_once_whether_any_is_blocked() {
    let server = Server::start();
    let store = connect(&server).await;
    server.run::<()>("CONFIG RESETSTAT");
    let users = ["alice", "bob", "carol", "dan"];
    let replies = call(&store, users.map(|user| asks(&[user]))).await;
    assert!(replies.iter().all(is_allowed), "{replies:?}");
    assert_eq!((reads(&server), server.calls("exists")), (4, 1));
    // More than Lua can pass on at once.
    let checks = (0..9_000).map(|number| asks(&[&number.to_string()]));
    let replies = store.call(checks.collect()).await.unwrap();
    assert!(replies.iter().all(is_allowed));
}

#[tokio::test]
async fn blocks_hold_for_a_user_without_the_right_to_ask_whether_there_are_any() {
    let server = Server::start();
    let limiter = process(&server).await;
    server.run::<()>("ACL SETUSER default -exists");
    assert!(!meets_block(&limiter, &["bob", "alice"]).await);
    block_alice(&process(&server).await, HOUR).await;
    assert!(meets_block(&limiter, &["bob", "alice"]).await);
    assert!(!meets_block(&limiter, &["bob"]).await);
}

#[tokio::test]
async fn a_block_that_could_not_be_ended_is_still_listed() {
    let server = Server::start();
    let operator = process(&server).await;
    block_alice(&operator, HOUR).await;
    let rights = [&LEAST_RIGHTS[2..], &BLOCKS_RIGHTS, &["~sluicegate:*"]].concat();
    let store = RedisStore::connect(limited(&server, &rights))
        .await
        .unwrap();
    let key = user("alice");
    let refused = store.unblock(&key).await;
    assert_eq!(kind(refused), Some(StoreErrorKind::AccessDenied));
    let unblocks = store.call(vec![Operation::Unblock { key }]);
    assert!(unblocks.await.is_err());
    assert_eq!(operator.blocks(9).await.unwrap().len(), 1);
    unblock_alice(&operator).await;
    assert_eq!(server.run::<u64>("DBSIZE"), 0, "the index is empty");
}

fn is_allowed(reply: &Answer) -> bool {
    matches!(reply, Ok(Reply::Check(Decision::Allowed(_))))
}

#[tokio::test]
async fn what_others_wrote_in_the_place_of_a_block_fails_that_check_alone() {
    let server = Server::start();
    let store = connect(&server).await;
    let soon = "\u{7f}".repeat(6);
    for (write, expected) in [
        (format!("RPUSH {NAME} hello"), "of another type"),
        (format!("SET {NAME} hello"), "cannot be read"),
        (format!("SET {NAME} "), "cannot be read"),
        (format!("SET {NAME} a-value-of-12"), "cannot be read"),
        (format!("SET {NAME} {soon}\u{1}\u{2}"), "cannot be read"),
        (format!("SET {NAME} {soon}\u{1}\u{1}+"), "cannot be read"),
        // The source of these blocks is unknown.
        (format!("SET {NAME} {soon}\u{4}\u{1}"), "cannot be read"),
        (format!("SET {NAME} {soon}\u{0}\u{1}"), "cannot be read"),
    ] {
        server.run::<()>(&format!("DEL {NAME}"));
        server.run::<()>(&write);
        let operations = [
            asks(&["bob"]),
            asks(&["alice"]),
            asks(&["bob", "alice", "carol"]),
            Operation::Block {
                key: user("alice"),
                request: HOUR.into(),
            },
            Operation::CheckBatch(CheckBatch::new(enforcing(&["alice"]), 3)),
            asks(&["bob"]),
            Operation::Check(check(charges(&["alice"]))),
        ];
        for (place, reply) in call(&store, operations).await.iter().enumerate() {
            if [0, 5, 6].contains(&place) {
                assert!(is_allowed(reply), "{write:?}, {place}: {reply:?}");
                continue;
            }
            let error = reply.as_ref().expect_err(expected);
            assert_eq!(error.kind(), StoreErrorKind::Protocol);
            let message = error.to_string();
            assert!(message.contains(expected), "{write:?}, {place}: {message}");
        }
        // Unblocking repairs this.
        store.unblock(&user("alice")).await.unwrap();
        let again = call(&store, [asks(&["alice"])]).await;
        assert!(is_allowed(&again[0]), "{again:?}");
        assert_eq!(server.run::<u64>(&format!("EXISTS {COUNTS}")), 1);
        for name in ["alice", "bob"] {
            store.reset(&five(), &user(name)).await.unwrap();
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
    let refused = limiter.block(&user("alice"), HOUR).await;
    assert_eq!(kind(refused), Some(StoreErrorKind::Refused));
    // The two urgent operations still work: denying a blocked identity, and unblocking one.
    assert!(meets_block(&limiter, &["bob"]).await);
    limiter.unblock(&user("bob")).await.unwrap();
    server.run::<()>("CONFIG SET maxmemory 0");
    assert!(!meets_block(&limiter, &["bob"]).await);
    assert!(!meets_block(&limiter, &["alice"]).await);
}

fn banning(strikes: &str) -> Policy {
    policy("login", "1/1d").ban(strikes.parse().unwrap())
}

/// A denial that is counted.
async fn strike(limiter: &Limiter, policy: &Policy) -> Decision {
    let decision = limiter.check([charge(policy, "alice", 2)]).await.unwrap();
    limiter.strikes_counted().await;
    decision
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_strike_at_the_same_time_ban_at_the_limit_and_not_before() {
    let server = Server::start();
    let processes = join_all((0..3).map(|_| process(&server))).await;
    let policy = &banning("30/1d=1h");
    let strike_all = async |times: usize| {
        let all = (0..times).flat_map(|_| &processes);
        let all = all.map(|it| it.check([charge(policy, "alice", 2)]));
        let decisions = join_all(all).await.into_iter();
        for limiter in &processes {
            limiter.strikes_counted().await;
        }
        decisions.map(Result::unwrap)
    };
    let is_denied = |it: Decision| matches!(it, Decision::Denied(_));
    assert!(strike_all(9).await.all(is_denied));
    // There are 27 strikes: the next two are not enough, the third is.
    for _ in 0..3 {
        assert!(is_denied(strike(&processes[0], policy).await));
    }
    for limiter in &processes {
        let Decision::Blocked(blocked) = strike(limiter, policy).await else {
            panic!("30 strikes are no ban");
        };
        let wait = blocked.retry_after().unwrap();
        assert!(wait <= HOUR && wait > HOUR - Duration::from_secs(60));
    }
    // Far more strikes than needed lead to the same ban.
    unblock_alice(&processes[0]).await;
    strike_all(40).await.for_each(drop);
    assert!(is_blocked(&strike(&processes[1], policy).await));
}

#[tokio::test]
async fn strikes_have_a_key_of_their_own_that_a_ban_and_an_unblock_remove() {
    let server = Server::start();
    let store = connect(&server).await.clock(ManualClock::new(START_MS));
    let (limiter, policy) = (patient(store), banning("2/1m=1h"));
    for (unblocks, expected) in [(false, STRIKES), (false, NAME), (true, STRIKES)] {
        if unblocks {
            unblock_alice(&limiter).await;
        }
        strike(&limiter, &policy).await;
        assert_eq!(names(&server), [expected]);
    }
    unblock_alice(&limiter).await;
    assert_eq!(server.run::<u64>("DBSIZE"), 0);
}

#[tokio::test]
async fn processes_that_ban_at_the_same_time_raise_one_level() {
    let (server, clock) = (Server::start(), ManualClock::new(START_MS));
    let bans = Log::of(|event| matches!(event, Event::Ban { .. }).then(String::new));
    let processes = (0..8).map(async |_| {
        let limiter = patient(connect(&server).await.clock(clock.clone()));
        limiter.observer(bans.clone())
    });
    let processes = join_all(processes).await;
    let policy = banning("1/1m=1m,1h,1d");
    for (level, minutes) in [(1, 1), (2, 60), (3, 1_440), (4, 1_440)] {
        // Each of the denials would be enough for a ban.
        join_all(processes.iter().map(|it| strike(it, &policy))).await;
        assert_eq!(bans.take().len(), 1);
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
    wait("it has loaded its data", || server.answers());
    let [seconds, _] = server.run::<[u64; 2]>("TIME");
    let clock = ManualClock::new((seconds + 5_400) * 1_000);
    let limiter = patient(connect(&server).await.clock(clock.clone()));
    assert!(!meets_block(&limiter, &["alice"]).await);
    let block = limiter.block(&user("alice"), request()).await.unwrap();
    assert_eq!(block.until_ms(), Some(clock.now_ms() + 86_400_000));
}

#[tokio::test]
async fn strikes_that_cannot_be_read_are_no_ban_and_disturb_no_other_operation() {
    let server = Server::start();
    let store = connect(&server).await;
    for write in ["SET {} garbage", "RPUSH {} 1"] {
        let _: redis::Value = server.run(&format!("DEL {STRIKES}"));
        let _: redis::Value = server.run(&write.replace("{}", STRIKES));
        let ban = Operation::Ban {
            key: user("alice"),
            strikes: "1/1d".parse().unwrap(),
            request: Until::Forever.into(),
        };
        let look = Operation::Check(check(charges(&["bob"])).without_cost());
        let replies = call(&store, [ban, look]).await;
        let error = replies[0].as_ref().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Protocol);
        assert!(is_allowed(&replies[1]));
        assert_eq!(names(&server), [STRIKES]);
    }
}

#[tokio::test]
async fn a_layer_makes_one_call_for_what_it_limits_and_what_it_only_looks_up() {
    let server = Server::start();
    let limiter = process(&server).await;
    let ask = async |layer: &RateLimitLayer| {
        assert_eq!(send(layer, to("/")).await.status(), 200);
    };
    let alone = RateLimitLayer::new(limiter).deny_blocked(user("alice"));
    ask(&alone).await;
    for (layer, expected) in [
        (alone.clone(), [1, 1, 1, 1, 0]),
        (alone.clone().limit(five(), user("alice")), [1, 1, 1, 1, 1]),
        // The fast path hands over an identity that is only looked up.
        (alone.limit(five(), user("bob")), [1, 1, 1, 3, 1]),
    ] {
        server.run::<()>("CONFIG RESETSTAT");
        ask(&layer).await;
        let [evalsha, time, exists, set] =
            ["evalsha", "time", "exists", "set"].map(|it| server.calls(it));
        assert_eq!([evalsha, time, exists, reads(&server), set], expected);
    }
}
