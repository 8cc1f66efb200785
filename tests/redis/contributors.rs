//! Proves which contributions Redis keeps, and for how long, and the behaviour during outages.

use std::{
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use redis::{
    Cmd, Pipeline, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use sluicegate::{
    Charge, FailurePolicy, Key, Limiter, Policy, RedisStore, contributors::Contributors,
    error::StoreErrorKind, manual_clock::ManualClock,
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

async fn limiter(server: &Server) -> Limiter {
    let store = RedisStore::connect(server.url()).await.unwrap();
    Limiter::new(store).timeout(Duration::from_secs(30))
}

async fn told(limiter: &Limiter) -> Contributors {
    limiter.contributors(&policy(), &acme()).await.unwrap()
}

fn sets(server: &Server) -> Vec<String> {
    server.run("KEYS sluicegate:{account=acme}:api:by:*")
}

/// The number of the true top five among the first five. Four operating system processes admit a Zipf load at the same
/// time, each over its own connection, and report once a second.
async fn recall(server: &Server, account: u64) -> usize {
    let processes = join_all((0..4).map(|process| load_of_a_process(server, account, process)));
    let mut truth = vec![0_u64; 2_000];
    for counts in processes.await {
        for (all, count) in truth.iter_mut().zip(counts) {
            *all += count;
        }
    }
    let limiter = limiter(server).await;
    let key = Key::new("account", account.to_string());
    let told = limiter.contributors(&policy(), &key).await.unwrap();
    assert_eq!(told.total(), 12_000);
    let mut sorted = truth.clone();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let labels = told.iter().take(5);
    let labels = labels.map(|it| it.label()[5..].parse::<usize>().unwrap());
    labels.filter(|label| truth[*label] >= sorted[4]).count()
}

const LOAD: &str = "CONTRIBUTORS_LOAD";

/// Runs this test program again with one test: a process that admits a load. Returns its units by label.
async fn load_of_a_process(server: &Server, account: u64, process: u64) -> Vec<u64> {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "contributors::a_process_that_admits_a_load",
            "--exact",
            "--nocapture",
        ])
        .env(LOAD, format!("{} {account} {process}", server.url()))
        .kill_on_drop(true);
    let output = command.output().await.unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let counts = output.lines().find_map(|line| line.split_once("truth "));
    let counts = counts.unwrap_or_else(|| panic!("{output}")).1;
    counts.split(' ').map(|it| it.parse().unwrap()).collect()
}

#[tokio::test]
async fn a_process_that_admits_a_load() {
    let Ok(load) = std::env::var(LOAD) else {
        return;
    };
    let [url, account, process] = load.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let (key, process) = (
        Key::new("account", account),
        process.parse::<u64>().unwrap(),
    );
    let mut random = fastrand::Rng::with_seed(account.parse::<u64>().unwrap() * 4 + process);
    let store = RedisStore::connect(url).await.unwrap();
    let limiter = Limiter::new(store).timeout(Duration::from_secs(30));
    let mut sum = 0.0;
    let sums = (0..=2_000).map(|n| {
        sum += if n > 0 { 1.0 / f64::from(n) } else { 0.0 };
        sum
    });
    let sums: Vec<f64> = sums.collect();
    let mut truth = vec![0_u64; 2_000];
    for round in 0..60 {
        let checks = (0..50).map(|_| {
            let at = random.f64() * sums[2_000];
            let label = sums.partition_point(|sum| *sum < at).max(1) - 1;
            truth[label] += 1;
            let label = Key::new("user", label.to_string());
            limiter.check([Charge::new(&policy(), key.clone(), 1).with_contributor(label)])
        });
        for decision in join_all(checks).await {
            assert!(decision.unwrap().is_allowed());
        }
        // Like after a second.
        if round % 10 == process {
            limiter.contributors(&policy(), &key).await.unwrap();
        }
    }
    limiter.contributors(&policy(), &key).await.unwrap();
    let truth: Vec<String> = truth.iter().map(u64::to_string).collect();
    println!("\ntruth {}", truth.join(" "));
}

#[tokio::test]
async fn of_the_true_top_five_at_least_95_percent_are_found_over_four_processes() {
    let server = Server::start();
    let mut right = 0;
    for account in 0..4 {
        right += recall(&server, account).await;
    }
    assert!(right >= 19, "{right} of 20");
}

/// Sends this number of commands, and then none.
#[derive(Clone)]
struct Ending {
    connection: MultiplexedConnection,
    left: Arc<AtomicUsize>,
}

impl ConnectionLike for Ending {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let left = self
            .left
            .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        match left {
            Ok(_) => self.connection.req_packed_command(cmd),
            Err(_) => Box::pin(async { Err(std::io::Error::from(ErrorKind::BrokenPipe).into()) }),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

#[tokio::test]
async fn wherever_a_connection_ends_no_set_stays_without_a_ttl() {
    let server = Server::start();
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    for more in 0..30 {
        let ending = Ending {
            connection: connection.clone(),
            left: Arc::new(AtomicUsize::new(usize::MAX)),
        };
        let left = ending.left.clone();
        let limiter = Limiter::new(RedisStore::from_connection(ending));
        let limiter = limiter.timeout(Duration::from_secs(30));
        for user in ["alice", "bob"] {
            limiter.check(charge(user, 1)).await.unwrap();
        }
        left.store(more, SeqCst);
        let _ = limiter.contributors(&policy(), &acme()).await;
        left.store(0, SeqCst); // what is told when it is dropped
        for set in sets(&server) {
            let ttl: i64 = server.run(&format!("PTTL {set}"));
            assert!(ttl > 0, "{set} after {more} commands: {ttl}");
            server.run::<()>(&format!("DEL {set}"));
        }
    }
}

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
    let sets = sets(&server);
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
    let limiter = limiter(&server).await;
    let charge = [Charge::new(&policy(), acme(), 1)];
    limiter.check(charge).await.unwrap();
    assert!(told(&limiter).await.iter().next().is_none());
    let keys: Vec<String> = server.run("KEYS *");
    assert_eq!(keys, ["sluicegate:{account=acme}:api"]);
}

#[tokio::test]
async fn a_check_sends_nothing_more_and_the_rest_is_told_within_two_seconds() {
    let server = Server::start();
    let limiter = limiter(&server).await;
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
    let limiter = limiter(&server).await.timeout(Duration::from_millis(300));
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
async fn what_was_decided_locally_is_no_contribution() {
    let mut server = Server::start();
    let limiter = limiter(&server).await.timeout(Duration::from_millis(300));
    let limiter = limiter.on_failure(FailurePolicy::Local);
    server.kill();
    let decision = limiter.check(charge("alice", 5)).await.unwrap();
    assert!(decision.usage().is_local());
    server.restart();
    let start = Instant::now();
    while limiter.contributors(&policy(), &acme()).await.is_err() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "it never answers"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(sets(&server).is_empty());
}

#[tokio::test]
async fn a_set_that_was_not_written_by_this_crate_is_an_error_and_changes_no_check() {
    let server = Server::start();
    let limiter = limiter(&server).await;
    limiter.check(charge("alice", 5)).await.unwrap();
    told(&limiter).await;
    for set in sets(&server) {
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
