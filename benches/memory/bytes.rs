//! Bytes of an identity, a held slot, a waiting caller and a connection, in this process and in Redis, against the budgets
//! of `bytes.toml`. `cargo bench --bench memory -- bytes` takes seconds, and `./test` runs it; `-- bytes renew` writes the
//! file.
//!
//! An allocator counts the bytes of this process, so the machine's other work changes nothing. Fails when a row takes more than
//! its budget and the tolerance, or much less, so that a gain is kept. The budgets hold for one toolchain and one version of
//! Redis; with others, the bench only prints.

use std::{
    collections::BTreeMap, env, fs, future::Future, pin::Pin, process::Command, time::Duration,
};

use allocation_counter::measure;
use futures::{executor::block_on, future::join_all, poll};
use serde::{Deserialize, Serialize};
use sluicegate::{
    Charge, Key, Limiter, MemoryStore, Policy, RedisStore, Store, limiter::Background,
    manual_clock::ManualClock,
};
use support::redis::Server;
use tokio::runtime::Runtime;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/memory/bytes.toml");
const HEAD: &str = "\
# Bytes of one identity, slot, caller or connection, as `cargo bench --bench memory -- bytes` counts them; `-- bytes renew`
# writes this file. They hold for this toolchain and this version of Redis.

";
/// In percent.
const TOLERANCE: u64 = 5;

const START_MS: u64 = 1_700_000_000_500;
const ONE: &str = "1000000/1m";
const THREE: &str = "1000000/1s,1000000/1m,1000000/1h";
const IDENTITIES: u64 = 10_000;
/// Of one key.
const SLOTS: u64 = 1_000;
const CALLERS: u64 = 1_000;
/// Through these, each rule has a charge in each of its 60 steps.
const BUSY_MS: [u64; 3] = [60_000, 1_000, 17];

type Rows = BTreeMap<String, u64>;

#[derive(Serialize, Deserialize, PartialEq)]
struct Budgets {
    toolchain: String,
    redis: String,
    rows: Rows,
}

/// Returns whether each row is within its budget.
pub(crate) fn run(renews: bool) -> bool {
    let measured = measure_all();
    for (name, bytes) in &measured.rows {
        println!("{name:<44}{bytes:>8}");
    }
    if renews {
        let budgets = toml::to_string(&measured).unwrap();
        fs::write(FILE, format!("{HEAD}{budgets}")).unwrap();
        return true;
    }
    let budgets: Budgets = toml::from_str(&fs::read_to_string(FILE).unwrap()).unwrap();
    let Budgets {
        toolchain, redis, ..
    } = &measured;
    if (toolchain, redis) != (&budgets.toolchain, &budgets.redis) {
        println!(
            "not checked: the budgets hold for {} and Redis {}",
            budgets.toolchain, budgets.redis
        );
        return true;
    }
    let mut is_met = true;
    for (name, bytes) in &measured.rows {
        let budget = budgets.rows.get(name).copied().unwrap_or_default();
        if bytes.abs_diff(budget) * 100 > budget * TOLERANCE {
            println!("{name}: {bytes} bytes, and its budget is {budget} ± {TOLERANCE} %");
            is_met = false;
        }
    }
    is_met
}

fn measure_all() -> Budgets {
    let (runtime, server) = (support::runtime(), Server::start());
    let _entered = runtime.enter();
    let mut rows = Rows::new();
    for (rules, text) in [("one rule", ONE), ("three rules", THREE)] {
        for (state, rounds) in [("idle", 0), ("busy", 60)] {
            let bytes = identity_in_memory(text, rounds);
            rows.insert(format!("identity, {rules}, {state}, in memory"), bytes);
            let bytes = runtime.block_on(identity_in_redis(&server, text, rounds));
            rows.insert(format!("identity, {rules}, {state}, in Redis"), bytes);
        }
    }
    rows.insert("slot, over memory".into(), slot(&runtime, &memory()));
    let over_redis = runtime.block_on(over_redis(&server));
    rows.insert("slot, over Redis".into(), slot(&runtime, &over_redis));
    rows.insert(
        "slot, in Redis".into(),
        runtime.block_on(slot_in_redis(&server, &over_redis)),
    );
    rows.insert(
        "caller that waits for Redis".into(),
        runtime.block_on(caller(&server, &over_redis)),
    );
    rows.insert("caller that waits for room".into(), caller_for_room());
    let (here, there) = connection(&runtime, &server);
    rows.insert("connection".into(), here);
    rows.insert("connection, in Redis".into(), there);
    Budgets {
        toolchain: toolchain(),
        redis: version(&server),
        rows,
    }
}

fn toolchain() -> String {
    let output = Command::new("rustc").arg("--version").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn version(server: &Server) -> String {
    let info: String = server.run("INFO server");
    let line = info
        .lines()
        .find_map(|it| it.strip_prefix("redis_version:"));
    line.unwrap().to_owned()
}

/// The bytes that `act` keeps, divided by the `number` of things that it makes.
fn kept(number: u64, act: impl FnOnce()) -> u64 {
    u64::try_from(measure(act).bytes_current).unwrap() / number
}

fn memory() -> Limiter {
    limiter(MemoryStore::new())
}

fn limiter(store: impl Store) -> Limiter {
    let limiter = Limiter::new(store).background(Background::Here);
    limiter
        .publish_policies(false)
        .timeout(Duration::from_secs(60))
}

fn charge(policy: &Policy, user: u64) -> [Charge; 1] {
    [Charge::new(
        policy,
        Key::new("user", format!("user-{user:08}")),
        1,
    )]
}

/// Moves the clock so that each step of each rule is charged, and acts at each time.
fn at_each_step(clock: &ManualClock, rounds: u64, mut act: impl FnMut()) {
    act();
    for step_ms in BUSY_MS {
        for _ in 0..rounds {
            clock.advance(Duration::from_millis(step_ms));
            act();
        }
    }
}

fn identity_in_memory(rules: &str, rounds: u64) -> u64 {
    let clock = ManualClock::new(START_MS);
    let limiter = limiter(MemoryStore::new().clock(clock.clone()));
    let policy = Policy::parse("api", rules).unwrap();
    kept(IDENTITIES, || {
        at_each_step(&clock, rounds, || {
            for user in 0..IDENTITIES {
                let decision = block_on(limiter.check(charge(&policy, user))).unwrap();
                assert!(decision.is_allowed());
            }
        });
    })
}

async fn identity_in_redis(server: &Server, rules: &str, rounds: u64) -> u64 {
    server.run::<()>("FLUSHALL");
    let clock = ManualClock::new(START_MS);
    let store = RedisStore::connect(server.url()).await.unwrap();
    let limiter = limiter(store.clock(clock.clone()));
    let policy = Policy::parse("api", rules).unwrap();
    let mut steps = vec![0];
    steps.extend(BUSY_MS.iter().flat_map(|ms| (0..rounds).map(move |_| *ms)));
    for step_ms in steps {
        clock.advance(Duration::from_millis(step_ms));
        let decision = limiter.check(charge(&policy, 0)).await.unwrap();
        assert!(decision.is_allowed());
    }
    usage(server, "sluicegate:{user=user-00000000}:api~1")
}

fn usage(server: &Server, key: &str) -> u64 {
    server.run(&format!("MEMORY USAGE {key} SAMPLES 0"))
}

async fn over_redis(server: &Server) -> Limiter {
    server.run::<()>("FLUSHALL");
    let limiter = limiter(RedisStore::connect(server.url()).await.unwrap());
    let policy = Policy::parse("warm", ONE).unwrap();
    limiter.check(charge(&policy, 0)).await.unwrap();
    limiter
}

fn jobs() -> Policy {
    Policy::parse("jobs", "1000000/10m@concurrent").unwrap()
}

/// The bytes of this process: the slot, its renewal, and the counts of a store in memory.
fn slot(runtime: &Runtime, limiter: &Limiter) -> u64 {
    let jobs = jobs();
    let mut held = Vec::with_capacity(usize::try_from(SLOTS).unwrap());
    let mut take = |user: u64| {
        let taken = runtime.block_on(limiter.acquire_slot(charge(&jobs, user), Duration::ZERO));
        held.push(taken.unwrap().unwrap().unwrap());
    };
    take(0);
    let bytes = kept(SLOTS - 1, || (1..SLOTS).for_each(|_| take(0)));
    drop(held);
    assert_eq!(runtime.block_on(limiter.finish(Duration::from_secs(10))), 0);
    bytes
}

async fn slot_in_redis(server: &Server, limiter: &Limiter) -> u64 {
    let jobs = jobs();
    let takes = (0..SLOTS).map(|_| limiter.acquire_slot(charge(&jobs, 0), Duration::ZERO));
    let held = join_all(takes).await;
    assert!(held.iter().all(|it| matches!(it, Ok(Ok(Some(_))))));
    usage(server, "sluicegate:{user=user-00000000}:jobs@600000") / SLOTS
}

/// Callers that have begun, while the server pauses; the calls that are under way count, too.
async fn caller(server: &Server, limiter: &Limiter) -> u64 {
    let policy = Policy::parse("api", ONE).unwrap();
    // The first take room that is kept.
    for _ in 0..2 {
        let checks = (0..CALLERS).map(|user| limiter.check(charge(&policy, user)));
        join_all(checks).await;
    }
    server.run::<()>("CLIENT PAUSE 60000 WRITE");
    let mut waiting = waiting(|user| limiter.check(charge(&policy, user)));
    let bytes = kept(CALLERS, || waiting.begin());
    server.run::<()>("CLIENT UNPAUSE");
    join_all(waiting.begun).await;
    bytes
}

fn caller_for_room() -> u64 {
    let (limiter, policy) = (memory(), Policy::parse("full", "1/1d").unwrap());
    let wait = |_| limiter.acquire(charge(&policy, 0), Duration::from_secs(100_000));
    block_on(wait(0)).unwrap();
    let mut waiting = waiting(wait);
    kept(CALLERS, || waiting.begin())
}

struct Waiting<F, C> {
    call: C,
    begun: Vec<Pin<Box<F>>>,
}

fn waiting<F, C>(call: C) -> Waiting<F, C> {
    Waiting {
        call,
        begun: Vec::with_capacity(usize::try_from(CALLERS).unwrap()),
    }
}

impl<F: Future, C: Fn(u64) -> F> Waiting<F, C> {
    fn begin(&mut self) {
        for user in 0..CALLERS {
            let mut call = Box::pin((self.call)(user));
            assert!(block_on(async { poll!(&mut call) }).is_pending());
            self.begun.push(call);
        }
    }
}

/// The bytes of this process, with a store and a limiter, and those of Redis.
fn connection(runtime: &Runtime, server: &Server) -> (u64, u64) {
    let connected = || {
        let clients: String = server.run("CLIENT LIST");
        let own = clients.lines().filter(|it| it.contains("cmd=evalsha"));
        let bytes = own.filter_map(|it| {
            it.split("tot-mem=")
                .nth(1)?
                .split(' ')
                .next()?
                .parse::<u64>()
                .ok()
        });
        bytes.collect::<Vec<_>>()
    };
    let before = connected().len();
    let mut limiters = Vec::with_capacity(8);
    let policy = Policy::parse("warm", ONE).unwrap();
    let mut connect = || {
        let store = runtime.block_on(RedisStore::connect(server.url())).unwrap();
        let limiter = limiter(store);
        runtime.block_on(limiter.check(charge(&policy, 0))).unwrap();
        limiters.push(limiter);
    };
    connect();
    let here = kept(4, || (0..4).for_each(|_| connect()));
    let there = connected();
    assert_eq!(there.len(), before + 5);
    (here, there[there.len() - 1])
}
