//! Proves the effects of decisions on a server: the reads and writes, the lifetime of keys, and broken values.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use sluicegate::{
    Charge, Decision, Key, Limiter, Policy, RedisStore, Store, StoreError, Usage,
    error::StoreErrorKind,
    manual_clock::ManualClock,
    store::{Check, CheckBatch, Operation, Settlement},
};
use support::redis::Server;

/// Alice's key under the policy `p`.
const NAME: &str = "sluicegate:{user=alice}:p";

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

fn charge(policy: &Policy, user: &str, cost: u64) -> Charge {
    Charge::new(policy, Key::new("user", user), cost)
}

fn check(charges: impl IntoIterator<Item = Charge>) -> Check {
    Check::new(charges).unwrap()
}

async fn store(server: &Server) -> RedisStore {
    RedisStore::connect(server.url()).await.unwrap()
}

/// A limiter that reports nothing.
fn limiter(store: &RedisStore) -> Limiter {
    let limiter = Limiter::new(store.clone()).timeout(Duration::from_secs(30));
    // Tests count keys and commands, and reports would add to both.
    limiter.count_denials(false).publish_policies(false)
}

/// The numbers of commands from scripts.
#[derive(Debug, PartialEq, Eq)]
struct Commands {
    time: u64,
    reads: u64,
    set: u64,
    del: u64,
    /// Changes of any key by any command.
    changes: u64,
}

/// The commands that `act` causes.
async fn commands(server: &Server, act: impl Future<Output = ()>) -> Commands {
    let before = server.info("persistence", "rdb_changes_since_last_save");
    server.run::<()>("CONFIG RESETSTAT");
    act.await;
    Commands {
        time: server.calls("time"),
        reads: server.calls("get") + server.calls("getrange") + server.calls("exists"),
        set: server.calls("set") + server.calls("setrange"),
        del: server.calls("del"),
        changes: server.info("persistence", "rdb_changes_since_last_save") - before,
    }
}

/// The maximum time from the last release to the expiry of a key.
const MOST_SLACK: Duration = Duration::from_secs(60);

/// The remaining lifetime of a key in ms. The key must have one.
fn ttl(server: &Server, name: &str) -> u64 {
    let ttl: i64 = server.run(&format!("PTTL {name}"));
    u64::try_from(ttl).unwrap_or_else(|_| panic!("{name} has no TTL: {ttl}"))
}

fn allowed(decision: Result<Decision, StoreError>) -> Usage {
    match decision.unwrap() {
        Decision::Allowed(usage) => usage,
        other => panic!("not admitted: {other:?}"),
    }
}

#[tokio::test]
async fn a_check_reads_the_clock_and_the_block_once_and_reads_and_writes_each_key_once() {
    let server = Server::start();
    let limiter = limiter(&store(&server).await);
    let (few, many) = (policy("few", "5/1h,6/1d,7/7d"), policy("many", "100/1d"));
    for _ in 0..2 {
        let charged = commands(&server, async {
            let charges = [charge(&few, "alice", 1), charge(&many, "alice", 1)];
            allowed(limiter.check(charges).await);
        });
        let expected = Commands {
            time: 1,
            reads: 3,
            set: 2,
            del: 0,
            changes: 2,
        };
        assert_eq!(charged.await, expected);
    }
    // The script only reads the beginning of a key that is charged without cost.
    let charged = commands(&server, async {
        let charges = [charge(&few, "alice", 0), charge(&many, "alice", 1)];
        allowed(limiter.check(charges).await);
    });
    let charged = charged.await;
    assert_eq!((charged.reads, charged.set, charged.changes), (3, 1, 1));
}

/// The commands that scripts send, one after another.
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn new(server: &Server) -> Self {
        let socket = server.socket_url().replace("unix://", "");
        let mut stream = UnixStream::connect(socket).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut monitor = Self(BufReader::new(stream));
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    /// The words of the next such command, in the server's quotation.
    fn next(&mut self, command: &str) -> Vec<String> {
        loop {
            let line = self.line();
            let words = line.split(' ').skip(3).map(|word| word.trim_matches('"'));
            let words: Vec<String> = words.map(Into::into).collect();
            if line.contains(" lua] ") && words[0] == command {
                return words;
            }
        }
    }
}

#[tokio::test]
async fn a_charge_within_open_steps_writes_its_counts_and_nothing_else() {
    let server = Server::start();
    let clock = ManualClock::new(1_700_000_000_000);
    let limiter = limiter(&store(&server).await.clock(clock.clone()));
    let rules = policy("p", "90/1m,90/1h,90/1d");
    for _ in 0..5 {
        allowed(limiter.check([charge(&rules, "alice", 1)]).await);
        clock.advance(Duration::from_secs(600));
    }
    allowed(limiter.check([charge(&rules, "alice", 1)]).await);
    let mut raw = Raw::new(&server);
    let (before, mut monitor) = (raw.get(), Monitor::new(&server));
    let done = commands(&server, async {
        allowed(limiter.check([charge(&rules, "alice", 64)]).await);
    });
    let done = done.await;
    // The counts and the block.
    assert_eq!((done.reads, done.set, done.changes), (2, 1, 1));

    // The server shows 65 and 70 as letters.
    let zeros = r"\x00".repeat(6);
    let counts = format!("A{zeros}F{zeros}F{zeros}");
    assert_eq!(monitor.next("SETRANGE")[1..], [NAME, "43", &counts]);
    let after = raw.get();
    assert_eq!(after.len(), before.len());
    assert_eq!((&after[..43], &after[64..]), (&before[..43], &before[64..]));
}

/// With a relative time, a clock that is set between the script's look and its write would change the lifetime.
#[tokio::test]
async fn a_key_expires_at_a_time_and_not_after_a_while() {
    let server = Server::start();
    let limiter = limiter(&store(&server).await);
    let mut monitor = Monitor::new(&server);
    let rules = policy("p", "9/1d@1h");
    let usage = allowed(limiter.check([charge(&rules, "alice", 1)]).await);
    let written = monitor.next("SET");
    let [.., option, time] = &written[..] else {
        panic!("{written:?}")
    };
    let expiry: u64 = time.parse().unwrap();
    // A minute after the last release.
    assert_eq!((&option[..], expiry % 3_600_000), ("PXAT", 60_000));
    let reset = usage.rules().next().unwrap().reset_after();
    let left = ttl(&server, NAME);
    assert!(Duration::from_millis(left) <= reset + MOST_SLACK);
}

#[tokio::test]
async fn a_denial_and_a_look_write_nothing() {
    let server = Server::start();
    let limiter = limiter(&store(&server).await);
    let (few, many) = (policy("few", "5/1m,6/1h"), policy("many", "100/1h"));
    allowed(limiter.check([charge(&few, "alice", 5)]).await);
    let (of_few, of_many) = (|cost| charge(&few, "alice", cost), charge(&many, "bob", 1));
    for charges in [
        vec![of_few(1)],
        vec![of_few(1), of_many.clone()],
        vec![of_many.clone(), of_few(1)],
        vec![of_many.clone(), of_few(7)],
        vec![of_few(0)],
        vec![charge(&many, "nobody", 0)],
    ] {
        let is_look = charges.iter().all(|charge| charge.cost() == 0);
        let done = commands(&server, async {
            let decision = limiter.check(charges.clone()).await.unwrap();
            assert_eq!(decision.is_allowed(), is_look);
            limiter.peek(charges.clone()).await.unwrap();
        });
        let done = done.await;
        assert_eq!((done.set, done.del, done.changes), (0, 0, 0), "{charges:?}");
        assert_eq!(done.time, 2);
        // The check and the peek read the beginning of each key, and then the whole of some; if a later key denies, they
        // read twice. The check asks once whether any is blocked.
        let once = 2 * charges.len() as u64;
        assert!(
            (once + 1..=3 * once + 1).contains(&done.reads),
            "{}",
            done.reads
        );
    }
    assert_eq!(server.run::<u64>("DBSIZE"), 1);
}

/// Uses the server's own clock and expiry, without waiting: a TTL covers the time until no unit counts.
#[tokio::test]
async fn every_key_lives_as_long_as_its_longest_section() {
    let server = Server::start();
    let limiter = limiter(&store(&server).await);
    let (short, long) = (policy("p", "9/1m,9/1h"), policy("p", "9/1d,9/1h"));
    let mut longest = Duration::ZERO;
    let mut start = Instant::now();
    let mut covers = |usage: &Usage| {
        longest = longest.saturating_sub(start.elapsed());
        start = Instant::now();
        let reset = usage.rules().map(|rule| rule.reset_after()).max().unwrap();
        longest = longest.max(reset);
        let ttl = Duration::from_millis(ttl(&server, NAME));
        let (rounding, late) = (Duration::from_millis(5), Duration::from_secs(5));
        assert!(
            ttl <= longest + rounding + MOST_SLACK,
            "{ttl:?} {longest:?}"
        );
        assert!(ttl + late > longest, "{ttl:?} {longest:?}");
    };
    for _ in 0..2 {
        covers(&allowed(limiter.check([charge(&short, "alice", 1)]).await));
    }
    // A write by other rules keeps the sections of these rules, and the other way round.
    let usage = allowed(limiter.check([charge(&long, "alice", 2)]).await);
    covers(&usage);
    covers(&allowed(limiter.check([charge(&short, "alice", 1)]).await));
    covers(&limiter.settle(&usage, |_| 5).await.unwrap());
    let usage = allowed(limiter.check([charge(&short, "alice", 1)]).await);
    covers(&usage);
    covers(&limiter.settle(&usage, |_| 0).await.unwrap());
}

#[tokio::test]
async fn a_key_is_gone_when_its_last_unit_is_taken_back() {
    let server = Server::start();
    let limiter = limiter(&store(&server).await);
    let policy = policy("p", "9/1m,9/1h");
    let usage = allowed(limiter.check([charge(&policy, "alice", 3)]).await);
    assert_eq!(server.run::<u64>("DBSIZE"), 1);
    limiter.settle(&usage, |_| 0).await.unwrap();
    assert_eq!(server.run::<u64>("DBSIZE"), 0);
    // The step can still be settled upward. Then the key comes back, with a TTL.
    let usage = allowed(limiter.check([charge(&policy, "alice", 0)]).await);
    limiter.settle(&usage, |_| 2).await.unwrap();
    assert!(ttl(&server, NAME) > 3_500_000);
}

/// A server in cluster mode rejects a script with keys in different slots.
#[tokio::test]
async fn all_policies_of_one_identity_share_a_slot() {
    let server = Server::with(&["--cluster-enabled", "yes"]);
    let slots: String = (0..16_384).map(|slot| format!(" {slot}")).collect();
    server.run::<()>(&format!("CLUSTER ADDSLOTS{slots}"));
    while !server
        .run::<String>("CLUSTER INFO")
        .contains("cluster_state:ok")
    {
        std::thread::yield_now();
    }
    let limiter = limiter(&store(&server).await);
    let policies = ["p", "q", "a.b-c_d"].map(|name| policy(name, "9/1h"));
    let long = "x".repeat(65_536);
    for value in ["alice", "", "a}b", "{a}b", "}", "{", "{}", "a\0b", &long] {
        for key in [Key::new("user", value), Key::secret("{k}", value)] {
            let charges = policies
                .iter()
                .map(|policy| Charge::new(policy, key.clone(), 1));
            allowed(limiter.check(charges).await);
        }
    }
    let others = [
        charge(&policies[0], "alice", 1),
        charge(&policies[0], "bob", 1),
    ];
    let error = limiter.check(others).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Protocol);
}

#[tokio::test]
async fn a_value_that_others_wrote_is_an_error_and_stays() {
    let server = Server::start();
    let limiter = limiter(&store(&server).await);
    let policy = policy("p", "9/1m,9/1h");
    let zeros = "\0".repeat(300); // a bitmap may begin like this
    for value in [
        "x",
        "0",
        "hello",
        "{\"count\":17}",
        "\u{1}",
        "\u{2}short",
        "\0",
        &zeros,
    ] {
        server.run::<()>(&format!("SET {NAME} {value}"));
        let error = limiter
            .check([charge(&policy, "alice", 1)])
            .await
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Protocol, "{value}");
        let stays: String = server.run(&format!("GET {NAME}"));
        assert_eq!(stays, value);
    }
}

/// The bytes of alice's key.
struct Raw(redis::Connection);

impl Raw {
    fn new(server: &Server) -> Self {
        let client = redis::Client::open(server.socket_url()).unwrap();
        Self(client.get_connection().unwrap())
    }

    fn get(&mut self) -> Vec<u8> {
        redis::cmd("GET").arg(NAME).query(&mut self.0).unwrap()
    }

    fn set(&mut self, value: &[u8]) {
        redis::cmd("SET")
            .arg(NAME)
            .arg(value)
            .exec(&mut self.0)
            .unwrap();
    }
}

/// A ring has a place for each step, so a burst needs no more memory than one charge. A queue has entries.
#[tokio::test]
async fn what_a_burst_needed_is_given_back_after_a_silence() {
    let server = Server::start();
    let clock = ManualClock::new(1_700_000_000_000);
    let limiter = limiter(&store(&server).await.clock(clock.clone()));
    for (rule, entry) in [("1000/1m", 0), ("1000/1m@exact", 8)] {
        let policy = policy("p", rule);
        let mut raw = Raw::new(&server);
        let mut charge_after = async |pause| {
            clock.advance(pause);
            allowed(limiter.check([charge(&policy, "alice", 1)]).await);
            raw.get().len()
        };
        let one = charge_after(Duration::from_secs(3_600)).await;
        let mut busy = 0;
        for _ in 0..59 {
            busy = charge_after(Duration::from_secs(1)).await;
        }
        assert_eq!(busy, one + 59 * entry, "{rule}");
        assert_eq!(
            charge_after(Duration::from_secs(30)).await,
            one + 31 * entry
        );
        assert_eq!(charge_after(Duration::from_secs(3_600)).await, one);
    }
}

/// The numbers of whole writes and of writes in place. A user makes three charges every two seconds, which fill and
/// empty a queue: ten times, without counting the first. `cost` settles each charge.
async fn writes_of_visits(cost: Option<u64>) -> (u64, u64) {
    let server = Server::start();
    let clock = ManualClock::new(1_700_000_000_000);
    let limiter = limiter(&store(&server).await.clock(clock.clone()));
    let policy = policy("p", "9/1s,9000/1d");
    let visit = async || {
        clock.advance(Duration::from_secs(2));
        for _ in 0..3 {
            clock.advance(Duration::from_millis(100));
            let usage = allowed(limiter.check([charge(&policy, "alice", 1)]).await);
            if let Some(cost) = cost {
                limiter.settle(&usage, |_| cost).await.unwrap();
            }
        }
    };
    visit().await;
    server.run::<()>("CONFIG RESETSTAT");
    for _ in 0..10 {
        visit().await;
    }
    (server.calls("set"), server.calls("setrange"))
}

#[tokio::test]
async fn a_queue_that_fills_and_empties_again_and_again_leaves_the_rest_of_the_value_where_it_is() {
    assert_eq!(writes_of_visits(None).await, (0, 30));
}

#[tokio::test]
async fn a_settlement_leaves_the_room_that_the_next_charge_needs() {
    assert_eq!(writes_of_visits(Some(2)).await, (0, 60));
}

/// Each bit of a value is flipped in turn, and each end is cut off: the script still ends, with an answer or an error.
#[tokio::test]
async fn a_broken_value_ends_in_an_answer_or_an_error() {
    let server = Server::start();
    let clock = ManualClock::new(1_700_000_000_000);
    let limiter = limiter(&store(&server).await.clock(clock.clone()));
    let (rules, other) = (policy("p", "9/1m,100/1d@exact"), policy("p", "9/1m,9/2h"));
    for _ in 0..8 {
        allowed(limiter.check([charge(&rules, "alice", 1)]).await);
        clock.advance(Duration::from_millis(2)); // into another step
    }
    let mut raw = Raw::new(&server);
    let sound = raw.get();
    let turned = (0..8 * sound.len()).map(|bit| {
        let mut value = sound.clone();
        value[bit / 8] ^= 1 << (bit % 8);
        value
    });
    let cut = (0..sound.len()).map(|length| sound[..length].to_vec());
    for value in turned.chain(cut) {
        for policy in [&rules, &other] {
            raw.set(&sound);
            let usage = limiter.peek([charge(policy, "alice", 0)]).await.unwrap();
            raw.set(&value);
            let denied = limiter.check([charge(policy, "alice", 100)]).await;
            let settled = limiter.settle(&usage, |_| 2).await;
            let decision = limiter.check([charge(policy, "alice", 1)]).await;
            let errors = [denied.err(), settled.err(), decision.err()];
            for error in errors.into_iter().flatten() {
                assert_eq!(error.kind(), StoreErrorKind::Protocol, "{value:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_value_that_was_cut_or_lengthened_is_an_error_and_stays() {
    let server = Server::start();
    let clock = ManualClock::new(1_700_000_000_000);
    let limiter = limiter(&store(&server).await.clock(clock.clone()));
    let policy = policy("p", "9/1m,9/1h,9/1d@exact");
    for _ in 0..9 {
        allowed(limiter.check([charge(&policy, "alice", 1)]).await);
        clock.advance(Duration::from_secs(1));
    }
    let mut raw = Raw::new(&server);
    let sound = raw.get();
    let cut = (1..sound.len()).map(|length| sound[..length].to_vec());
    for value in cut.chain([[&sound[..], b"x"].concat()]) {
        raw.set(&value);
        let error = limiter.check([charge(&policy, "alice", 1)]).await;
        let kind = error.map_err(|error| error.kind());
        assert!(
            matches!(kind, Err(StoreErrorKind::Protocol)),
            "{} bytes",
            value.len()
        );
        assert_eq!(raw.get(), value);
    }
}

/// The script does not trust the length in a value.
#[tokio::test]
async fn a_broken_length_takes_no_memory() {
    let server = Server::start();
    let clock = ManualClock::new(1_700_000_000_000);
    let limiter = limiter(&store(&server).await.clock(clock.clone()));
    let policy = policy("p", "9/1d@exact");
    allowed(limiter.check([charge(&policy, "alice", 1)]).await);
    clock.advance(Duration::from_millis(2)); // into another step
    let mut raw = Raw::new(&server);
    let mut value = raw.get();
    let length_at = value.len() - 2 - 4; // behind the last label
    value[length_at..length_at + 4].copy_from_slice(&(1_u32 << 27).to_le_bytes());
    raw.set(&value);
    let error = limiter.check([charge(&policy, "alice", 1)]).await;
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::Protocol);
    assert_eq!(raw.get(), value);
    assert!(server.info("memory", "used_memory_peak") < 1 << 26);
}

/// Whether each operation succeeded.
async fn done(store: &RedisStore, operations: Vec<Operation>) -> Vec<bool> {
    let results = store.call(operations).await.unwrap();
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        assert_eq!(error.kind(), StoreErrorKind::Protocol);
    }
    results.iter().map(Result::is_ok).collect()
}

/// The units that a user has left under the only rule of a policy.
async fn left(store: &RedisStore, policy: &Policy, user: &str) -> u64 {
    let check = check([charge(policy, user, 0)]);
    let decision = store.check(&check).await.unwrap();
    decision.usage().rules().next().unwrap().remaining()
}

#[tokio::test]
async fn an_operation_that_cannot_be_done_fails_alone_and_writes_nothing() {
    let server = Server::start();
    let store = store(&server).await;
    let policy = policy("p", "9/1h");
    let take = |users: &[&str]| check(users.iter().map(|user| charge(&policy, user, 1)));
    let before = store.check(&take(&["list", "dave"])).await.unwrap();
    let settlement = || Settlement::new(before.usage(), |_| 3).unwrap();
    for (user, set) in [
        ("list", "RPUSH"),
        ("text", "SET"),
        ("newer", "SET"),
        ("older", "SET"),
    ] {
        let name = format!("sluicegate:{{user={user}}}:p");
        let value = if user == "newer" {
            "next\u{2}"
        } else {
            "hello"
        };
        server.run::<()>(&format!("DEL {name}"));
        server.run::<()>(&format!("{set} {name} {value}"));
    }
    let trial = Policy::parse("trial", "9/1h").unwrap().shadow();
    server.run::<()>("SET sluicegate:{user=carol}:trial hello");
    let with_shadow = check([charge(&policy, "carol", 1), charge(&trial, "carol", 1)]);
    let fill = |users: &[&str]| Operation::CheckBatch(CheckBatch::new(take(users), 4));
    let results = done(
        &store,
        vec![
            Operation::Check(take(&["list", "alice"])),
            Operation::Check(take(&["alice"])),
            Operation::Check(take(&["alice", "text"])),
            fill(&["alice", "newer", "bob"]),
            fill(&["bob"]),
            Operation::Settle(settlement()),
            Operation::Check(with_shadow),
            Operation::Check(take(&["bob", "list"])),
        ],
    )
    .await;
    assert_eq!(
        results,
        [false, true, false, false, true, false, true, false]
    );
    for (user, expected) in [("alice", 8), ("bob", 5), ("carol", 8), ("dave", 8)] {
        assert_eq!(left(&store, &policy, user).await, expected, "{user}");
    }
    let reset = |user| Operation::Reset {
        policy: policy.clone(),
        key: Key::new("user", user),
    };
    let after = vec![
        reset("list"),
        reset("text"),
        Operation::Check(take(&["list", "text"])),
    ];
    assert_eq!(done(&store, after).await, [true; 3]);
}

/// The server accepts no write of the call, so none was made before the first failure.
#[tokio::test]
async fn a_call_whose_writes_the_server_refuses_fails_as_a_whole() {
    let server = Server::start();
    let store = store(&server).await;
    let policy = policy("p", "2/1h");
    let take = |user| Operation::Check(check([charge(&policy, user, 1)]));
    assert_eq!(done(&store, vec![take("alice")]).await, [true]);
    server.run::<()>("CONFIG SET maxmemory 1");
    let error = store.call(vec![take("alice"), take("bob")]).await;
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::Unavailable);
    server.run::<()>("CONFIG SET maxmemory 0");
    assert_eq!(left(&store, &policy, "alice").await, 1);
    assert_eq!(left(&store, &policy, "bob").await, 2);
}

/// With steps of 17 ms, each step moves the last release, but not the expiry.
#[tokio::test]
async fn under_load_most_charges_are_written_in_place() {
    let server = Server::start();
    let clock = ManualClock::new(1_700_000_000_000);
    let limiter = limiter(&store(&server).await.clock(clock.clone()));
    let policy = policy("p", "1000000/1s");
    let charges = async |count| {
        for _ in 0..count {
            clock.advance(Duration::from_millis(20));
            allowed(limiter.check([charge(&policy, "alice", 1)]).await);
        }
    };
    charges(100).await; // until the queue is as long as it gets
    server.run::<()>("CONFIG RESETSTAT");
    charges(1_000).await;
    let (set, in_place) = (server.calls("set"), server.calls("setrange"));
    assert_eq!(set + in_place, 1_000);
    assert!(set <= 100, "{set} of 1000 are a SET");
}

#[tokio::test]
async fn a_bucket_takes_less_than_200_bytes_however_long_it_is_used() {
    let server = Server::start();
    let clock = ManualClock::new(1_700_000_000_000);
    let limiter = limiter(&store(&server).await.clock(clock.clone()));
    let policy = policy("p", "1000000+3/1s@bucket");
    for _ in 0..1_000 {
        clock.advance(Duration::from_millis(7));
        allowed(limiter.check([charge(&policy, "alice", 1)]).await);
    }
    let bytes: u64 = server.run("MEMORY USAGE sluicegate:{user=alice}:p SAMPLES 0");
    assert!((1..200).contains(&bytes), "{bytes}");
}
