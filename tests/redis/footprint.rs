//! Proves the effects of decisions on a server: the reads and writes, the lifetime of keys, and broken values.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
};

use crate::prelude::*;

const NAME: &str = "sluicegate:{user=alice}:p~1";

/// A limiter that reports nothing: tests count keys and commands, and reports would add to both.
fn limiter(store: RedisStore) -> Limiter {
    patient(store).count_denials(false)
}

async fn served() -> (Server, Limiter) {
    let server = Server::start();
    let limiter = limiter(connect(&server).await);
    (server, limiter)
}

async fn by_clock() -> (Server, Limiter, ManualClock) {
    let (server, clock) = (Server::start(), ManualClock::new(1_700_000_000_000));
    let limiter = limiter(connect(&server).await.clock(clock.clone()));
    (server, limiter, clock)
}

/// The numbers of commands that `act` causes in scripts (TIME, reads, and those that set and delete a value), and of the
/// changes of any key by any command.
async fn commands(server: &Server, act: impl Future<Output = ()>) -> [u64; 5] {
    let changes = || server.info("persistence", "rdb_changes_since_last_save");
    let before = changes();
    server.run::<()>("CONFIG RESETSTAT");
    act.await;
    let count = |commands: &[&str]| commands.iter().map(|it| server.calls(it)).sum();
    [
        count(&["time"]),
        count(&["get", "getrange", "exists"]),
        count(&["set", "setrange"]),
        count(&["del"]),
        changes() - before,
    ]
}

/// The maximum time from the last release to the expiry of a key.
const MOST_SLACK: Duration = Duration::from_secs(60);

/// The remaining lifetime of alice's key. It must have one.
fn ttl(server: &Server) -> Duration {
    let ttl: i64 = server.run(&format!("PTTL {NAME}"));
    Duration::from_millis(u64::try_from(ttl).expect("it has a TTL"))
}

/// Charges alice. The check must be admitted.
async fn admit(limiter: &Limiter, policy: &Policy, cost: u64) -> Usage {
    match limiter
        .check([charge(policy, "alice", cost)])
        .await
        .unwrap()
    {
        Decision::Allowed(usage) => usage,
        other => panic!("not admitted: {other:?}"),
    }
}

#[tokio::test]
async fn a_check_reads_the_clock_and_the_block_once_and_reads_and_writes_each_key_once() {
    let (server, limiter) = served().await;
    let (few, many) = (policy("few", "5/1h,6/1d,7/7d"), policy("many", "100/1d"));
    // The script only reads the beginning of a key that is charged without cost.
    for (cost, writes) in [(1, 2), (1, 2), (0, 1)] {
        let charged = commands(&server, async {
            let charges = [charge(&few, "alice", cost), charge(&many, "alice", 1)];
            assert!(limiter.check(charges).await.unwrap().is_allowed());
        });
        assert_eq!(charged.await, [1, 3, writes, 0, writes]);
    }
}

/// The commands that scripts send, one after another.
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn new(server: &Server) -> Self {
        let socket = server.socket_url().replace("unix://", "");
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(30 * SOON)).unwrap();
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
            assert!(!line.is_empty(), "the server says no more");
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
    let (server, limiter, clock) = by_clock().await;
    let rules = policy("p", "90/1m,90/1h,90/1d");
    for _ in 0..5 {
        admit(&limiter, &rules, 1).await;
        clock.advance(Duration::from_secs(600));
    }
    admit(&limiter, &rules, 1).await;
    let mut raw = Raw(server.connect());
    let (before, mut monitor) = (raw.get(), Monitor::new(&server));
    let done = commands(&server, async {
        admit(&limiter, &rules, 64).await;
    });
    // The counts and the block are read.
    assert_eq!(done.await, [0, 2, 1, 0, 1]);

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
    let (server, limiter) = served().await;
    let mut monitor = Monitor::new(&server);
    let usage = admit(&limiter, &policy("p", "9/1d@1h"), 1).await;
    let written = monitor.next("SET");
    let [.., option, time] = &written[..] else {
        panic!("{written:?}")
    };
    let expiry: u64 = time.parse().unwrap();
    // A minute after the last release.
    assert_eq!((&option[..], expiry % 3_600_000), ("PXAT", 60_000));
    let reset = usage.rules().next().unwrap().reset_after();
    assert!(ttl(&server) <= reset + MOST_SLACK);
}

#[tokio::test]
async fn a_denial_and_a_look_write_nothing() {
    let (server, limiter) = served().await;
    let (few, many) = (policy("few", "5/1m,6/1h"), policy("many", "100/1h"));
    let (of_few, of_many) = (|cost| charge(&few, "alice", cost), charge(&many, "bob", 1));
    assert!(limiter.check([of_few(5)]).await.unwrap().is_allowed());
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
        let done @ [time, reads, changes @ ..] = done.await;
        assert_eq!((time, changes), (2, [0; 3]), "{charges:?}");
        // The check and the peek read the beginning of each key, and then the whole of some; if a later key denies, they
        // read twice. The check asks once whether any is blocked.
        let once = 2 * charges.len() as u64;
        assert!((once + 1..=3 * once + 1).contains(&reads), "{done:?}");
    }
    assert_eq!(server.run::<u64>("DBSIZE"), 1);
}

#[tokio::test]
async fn a_key_is_gone_when_its_last_unit_is_taken_back() {
    let (server, limiter) = served().await;
    let policy = policy("p", "9/1m,9/1h");
    let usage = admit(&limiter, &policy, 3).await;
    assert_eq!(server.run::<u64>("DBSIZE"), 1);
    limiter.settle(&usage, |_| 0).await.unwrap();
    assert_eq!(server.run::<u64>("DBSIZE"), 0);
    // The step can still be settled upward. Then the key comes back, with a TTL.
    let usage = admit(&limiter, &policy, 0).await;
    limiter.settle(&usage, |_| 2).await.unwrap();
    assert!(ttl(&server) > Duration::from_secs(3_500));
}

/// A server in cluster mode rejects a script with keys in different slots.
#[tokio::test]
async fn all_policies_of_one_identity_share_a_slot() {
    let server = node_with_all_slots();
    let limiter = process(&server).await;
    let policies = ["p", "q", "a.b-c_d"].map(|name| policy(name, "9/1h"));
    let long = "x".repeat(65_536);
    for value in ["alice", "", "a}b", "{a}b", "}", "{", "{}", "a\0b", &long] {
        for key in [Key::new("user", value), Key::secret("{k}", value)] {
            let charges = policies.iter().map(|it| Charge::new(it, key.clone(), 1));
            assert!(limiter.check(charges).await.unwrap().is_allowed());
        }
    }
    let others = ["alice", "bob"].map(|name| charge(&policies[0], name, 1));
    let refused = limiter.check(others).await;
    assert_eq!(kind(refused), Some(StoreErrorKind::Protocol));
}

struct Raw(redis::Connection);

impl Raw {
    fn get(&mut self) -> Vec<u8> {
        redis::cmd("GET").arg(NAME).query(&mut self.0).unwrap()
    }

    fn set(&mut self, value: &[u8]) {
        let mut set = redis::cmd("SET");
        set.arg(NAME).arg(value).exec(&mut self.0).unwrap();
    }
}

/// A ring has a place for each step, so a burst needs no more memory than one charge. A queue has entries.
#[tokio::test]
async fn what_a_burst_needed_is_given_back_after_a_silence() {
    let (server, limiter, clock) = by_clock().await;
    for (rule, entry) in [("1000/1m", 0), ("1000/1m@exact", 8)] {
        let policy = policy("p", rule);
        let mut raw = Raw(server.connect());
        let mut charge_after = async |seconds| {
            clock.advance(Duration::from_secs(seconds));
            admit(&limiter, &policy, 1).await;
            raw.get().len()
        };
        let single = charge_after(3_600).await;
        let mut busy = 0;
        for _ in 0..59 {
            busy = charge_after(1).await;
        }
        assert_eq!(busy, single + 59 * entry, "{rule}");
        assert_eq!(charge_after(30).await, single + 31 * entry);
        assert_eq!(charge_after(3_600).await, single);
    }
}

/// A user makes three charges every two seconds, which fill and empty a queue. A settlement leaves room for the next
/// charge.
#[tokio::test]
async fn a_queue_that_fills_and_empties_again_and_again_leaves_the_rest_of_the_value_where_it_is() {
    for (settled, in_place) in [(None, 30), (Some(2), 60)] {
        let (server, limiter, clock) = by_clock().await;
        let policy = policy("p", "9/1s,9000/1d");
        // The first time makes the queue.
        for visit in 0..11 {
            if visit == 1 {
                server.run::<()>("CONFIG RESETSTAT");
            }
            clock.advance(Duration::from_secs(2));
            for _ in 0..3 {
                clock.advance(Duration::from_millis(100));
                let usage = admit(&limiter, &policy, 1).await;
                if let Some(cost) = settled {
                    limiter.settle(&usage, |_| cost).await.unwrap();
                }
            }
        }
        assert_eq!(server.calls("set"), 0);
        assert_eq!(server.calls("setrange"), in_place);
    }
}

/// The script does not trust the length in a value.
#[tokio::test]
async fn a_value_that_others_wrote_cut_or_lengthened_is_an_error_and_stays_and_takes_no_memory() {
    let (server, limiter, clock) = by_clock().await;
    let policy = policy("p", "9/1m,9/1h,9/1d@exact");
    for _ in 0..9 {
        admit(&limiter, &policy, 1).await;
        clock.advance(Duration::from_secs(1));
    }
    let mut raw = Raw(server.connect());
    let sound = raw.get();
    let mut values: Vec<_> = (1..sound.len()).map(|to| sound[..to].to_vec()).collect();
    values.push([&sound[..], b"x"].concat());
    let mut too_long = sound.clone();
    let length_at = sound.len() - 2 - 4; // behind the last label
    too_long[length_at..length_at + 4].copy_from_slice(&(1_u32 << 27).to_le_bytes());
    values.push(too_long);
    let zeros = "\0".repeat(300); // a bitmap may begin like this
    let foreign = ["x", "0", "hello", "{\"count\":17}", "\u{1}"].into_iter();
    let foreign = foreign.chain(["\u{2}short", "\0", &zeros]);
    values.extend(foreign.map(|it| it.as_bytes().to_vec()));
    for value in values {
        raw.set(&value);
        let result = limiter.check(one(&policy, "alice")).await;
        assert_eq!(kind(result), Some(StoreErrorKind::Protocol), "{value:?}");
        assert_eq!(raw.get(), value);
    }
    assert!(server.info("memory", "used_memory_peak") < 1 << 26);
}

/// With steps of 17 ms, each step moves the last release, but not the expiry.
#[tokio::test]
async fn under_load_most_charges_are_written_in_place() {
    let (server, limiter, clock) = by_clock().await;
    let policy = policy("p", "1000000/1s");
    let charges = async |count| {
        for _ in 0..count {
            clock.advance(Duration::from_millis(20));
            admit(&limiter, &policy, 1).await;
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
    let (server, limiter, clock) = by_clock().await;
    let policy = policy("p", "1000000+3/1s@bucket");
    for _ in 0..1_000 {
        clock.advance(Duration::from_millis(7));
        admit(&limiter, &policy, 1).await;
    }
    let bytes: u64 = server.run(&format!("MEMORY USAGE {NAME} SAMPLES 0"));
    assert!((1..200).contains(&bytes), "{bytes}");
}
