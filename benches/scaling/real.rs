//! The small end, measured: one process and one Redis server, which share the cores with no other program if possible.
//!
//! Each has its own core. The costs are the working times for 32 callers: with shared calls, without, and with one user
//! for all. Then 64 callers ask at once, and the simulation with these costs must predict the rate of decisions.

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use sluicegate::{
    Charge, Key, Limiter, Policy, RedisStore, Rule, Store,
    store::{Check, CheckBatch, Operation},
};
use support::redis::Server;

use crate::{
    costs::Costs,
    model::{Load, Model, Seen, Setting},
    traffic::{Placement, Traffic, Users},
};

type Error = Box<dyn std::error::Error>;

/// Odd, so that the median is one of them.
const TURNS: usize = 5;
const WARM_UP: Duration = Duration::from_millis(300);
const MEASURED: Duration = Duration::from_millis(700);
const IDENTITIES: u32 = 10_000;
const CALLERS: usize = 64;
const IN_FLIGHT: usize = 4;
const PIPELINE: usize = 16;
const PLENTY: u64 = 1_000_000_000;

/// The maximum deviation of the simulation from the measurement.
pub(crate) const MOST: f64 = 0.25;

/// The compared cases.
const CASES: [(&str, Users, usize); 3] = [
    ("random users, calls shared", Users::Random, IN_FLIGHT),
    ("random users, a call each", Users::Random, 0),
    ("one user, calls shared", Users::One, IN_FLIGHT),
];

/// Returns whether the simulation was close enough in each case.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn compare() -> Result<bool, Error> {
    let server = Server::start();
    // The simulation gives the server and the process a core each.
    pin(server.id(), "0");
    pin(std::process::id(), "1");
    let bench = Bench::new(server).await?;
    let mut costs = Vec::new();
    let mut turns: [Vec<(Measured, Seen)>; 3] = Default::default();
    for _ in 0..TURNS {
        let measured = bench.costs().await?;
        for ((_, users, in_flight), turns) in CASES.into_iter().zip(&mut turns) {
            let real = bench.run(users, CALLERS, in_flight).await?;
            turns.push((real, simulated(users, in_flight, measured)));
        }
        costs.push(measured);
    }
    print_costs(&costs);
    println!(
        "\n{:<28} {:>10} {:>10} {:>7} {:>18} {:>16} {:>16}",
        "one process, one server",
        "measured",
        "simulated",
        "ratio",
        "calls a decision",
        "Redis busy",
        "process busy"
    );
    let mut is_close = true;
    for ((name, ..), turns) in CASES.into_iter().zip(&turns) {
        let of = |figure: fn(&(Measured, Seen)) -> f64| median(turns.iter().map(figure));
        let ratio = of(|(real, seen)| seen.rate / real.rate());
        is_close &= (ratio - 1.0).abs() <= MOST;
        println!(
            "{name:<28} {:>10.0} {:>10.0} {ratio:>7.2} {:>8.3} and {:>5.3} {:>6.2} and {:>5.2} {:>6.2} and {:>5.2}",
            of(|(real, _)| real.rate()),
            of(|(_, seen)| seen.rate),
            of(|(real, _)| real.calls / real.decisions),
            of(|(_, seen)| seen.calls),
            of(|(real, _)| real.server_us / real.time.as_secs_f64() / 1e6),
            of(|(_, seen)| seen.server),
            of(|(real, _)| real.process_us / real.time.as_secs_f64() / 1e6),
            of(|(_, seen)| seen.process),
        );
    }
    Ok(is_close)
}

fn simulated(users: Users, in_flight: usize, costs: Costs) -> Seen {
    let setting = Setting {
        processes: 1,
        servers: 1,
        placement: Placement::Rendezvous,
        in_flight,
        users,
        deny_cache: false,
        leases: false,
        load: Load::Closed(CALLERS),
        costs,
    };
    Model::new(&setting, &Traffic::new(users)).run(1e5, 1.1e6)
}

struct Bench {
    server: Server,
    store: RedisStore,
    policy: Policy,
}

/// The work of callers and cores in a span of time.
struct Measured {
    time: Duration,
    decisions: f64,
    calls: f64,
    process_us: f64,
    server_us: f64,
    script_us: f64,
    /// The number of times that the server has read from a connection.
    reads: f64,
}

impl Measured {
    fn rate(&self) -> f64 {
        self.decisions / self.time.as_secs_f64()
    }

    /// The cost of a call without the script.
    fn server_around(&self) -> f64 {
        (self.server_us - self.script_us) / self.calls
    }

    fn script(&self) -> f64 {
        self.script_us / self.calls
    }
}

impl Bench {
    async fn new(server: Server) -> Result<Self, Error> {
        let store = RedisStore::connect(server.url()).await?;
        let rules = [
            Rule::per_second(PLENTY),
            Rule::per_minute(PLENTY),
            Rule::per_hour(PLENTY),
        ];
        Ok(Self {
            server,
            store,
            policy: Policy::new("p", rules)?,
        })
    }

    async fn costs(&self) -> Result<Costs, Error> {
        let one = self.run(Users::Random, 1, 1).await?;
        let apart = self.run(Users::Random, CALLERS / 2, 0).await?;
        let shared = self.run(Users::Random, CALLERS / 2, IN_FLIGHT / 2).await?;
        let one_user = self.run(Users::One, CALLERS / 2, IN_FLIGHT / 2).await?;
        let batch = self.batches().await?;
        let single = self.empty_scripts(CALLERS / 2, 1).await?;
        let piped = self.empty_scripts(4, PIPELINE).await?;
        let read = (single.server_around() - piped.server_around()) / (1.0 - 1.0 / PIPELINE as f64);
        let call = single.server_around() - read;
        // The cost of each further check in a call of several checks.
        let further = |of: &Measured| of.decisions / of.calls - 1.0;
        let around = |of: &Measured| of.server_around() - read * of.reads / of.calls;
        let parsed = (around(&shared) - around(&apart)) / further(&shared);
        let process = |of: &Measured| of.process_us / of.decisions;
        // With random users, each check is an operation; with one user, each call is one.
        let process_operation =
            (process(&shared) - process(&one_user)) / (1.0 - one_user.calls / one_user.decisions);
        let alone_us = one.time.as_secs_f64() * 1e6 - one.process_us - one.server_us;
        Ok(Costs {
            server_read: read,
            server_call: call,
            check: apart.script(),
            further: (shared.script() - apart.script()) / further(&shared) + parsed,
            batch: batch.script() - one.script(),
            process_check: process(&shared) - process_operation,
            process_operation,
            request: 0.0,
            round_trip: alone_us / one.decisions,
            ..Costs::REFERENCE
        })
    }

    /// Lets callers check for a while. Each asks again as soon as it has an answer.
    async fn run(&self, users: Users, callers: usize, in_flight: usize) -> Result<Measured, Error> {
        let store = self.store.clone().in_flight(in_flight);
        let limiter = Limiter::new(store).timeout(Duration::from_secs(5));
        let (limiter, policy) = (&limiter, &self.policy);
        self.measure(|end| {
            let calls = (0..callers).map(move |seed| {
                let (limiter, mut user) = (limiter.clone(), user(users, seed));
                async move {
                    let mut decisions = 0;
                    while Instant::now() < end {
                        let charge = Charge::new(policy, user(), 1);
                        assert!(limiter.check([charge]).await?.is_allowed());
                        decisions += 1;
                    }
                    Ok::<u32, sluicegate::StoreError>(decisions)
                }
            });
            async move { Ok(futures::future::try_join_all(calls).await?.iter().sum()) }
        })
        .await
    }

    /// One caller. Each call holds a batch.
    async fn batches(&self) -> Result<Measured, Error> {
        self.measure(|end| {
            let mut user = user(Users::Random, 0);
            async move {
                let mut calls = 0;
                while Instant::now() < end {
                    let check = Check::new([Charge::new(&self.policy, user(), 1)])?;
                    let batch = Operation::CheckBatch(CheckBatch::new(check, 16));
                    for reply in self.store.call(vec![batch]).await? {
                        reply?;
                    }
                    calls += 1;
                }
                Ok(calls)
            }
        })
        .await
    }

    /// Callers with one connection each. Each sends `at_once` calls of an empty script at the same time.
    async fn empty_scripts(&self, callers: usize, at_once: usize) -> Result<Measured, Error> {
        let client = redis::Client::open(self.server.url())?;
        let script = redis::Script::new("return 0");
        let mut pipeline = redis::pipe();
        for _ in 0..at_once {
            let call = pipeline.cmd("EVALSHA").arg(script.get_hash());
            call.arg(1).arg("key").arg(&[0_u8; 60][..]);
        }
        let mut connections = Vec::new();
        for _ in 0..callers {
            let mut connection = client.get_multiplexed_async_connection().await?;
            // The pipeline calls by hash, so the server has to know the script.
            script.prepare_invoke().load_async(&mut connection).await?;
            connections.push(connection);
        }
        let pipeline = &pipeline;
        self.measure(|end| {
            let calls = connections
                .clone()
                .into_iter()
                .map(|mut connection| async move {
                    let mut calls = 0;
                    while Instant::now() < end {
                        pipeline.query_async::<()>(&mut connection).await?;
                        calls += 1;
                    }
                    Ok::<u32, redis::RedisError>(calls)
                });
            let calls: Vec<_> = calls.collect();
            async move { Ok(futures::future::try_join_all(calls).await?.iter().sum()) }
        })
        .await
    }

    /// Runs the closure as a warm-up, and again to measure.
    async fn measure<F>(&self, mut run: impl FnMut(Instant) -> F) -> Result<Measured, Error>
    where
        F: Future<Output = Result<u32, Error>>,
    {
        run(Instant::now() + WARM_UP).await?;
        self.server.run::<()>("CONFIG RESETSTAT");
        let (process, server, begun) = (thread_us()?, self.server_us()?, Instant::now());
        let decisions = run(begun + MEASURED).await?;
        let time = begun.elapsed();
        let (process_us, server_us) = (thread_us()? - process, self.server_us()? - server);
        let (calls, script_us) = self.scripts()?;
        Ok(Measured {
            time,
            decisions: decisions.into(),
            calls,
            process_us,
            server_us,
            script_us,
            reads: self.server.info("stats", "total_reads_processed") as f64,
        })
    }

    /// The working time of the server, including the system's work for it.
    fn server_us(&self) -> Result<f64, Error> {
        let info: String = self.server.run("INFO cpu");
        let of = |name| info.lines().find_map(|line| line.strip_prefix(name));
        let user: f64 = of("used_cpu_user:").ok_or("no used_cpu_user")?.parse()?;
        let system: f64 = of("used_cpu_sys:").ok_or("no used_cpu_sys")?.parse()?;
        Ok((user + system) * 1e6)
    }

    /// The number of script calls since the statistics were reset, and their time.
    fn scripts(&self) -> Result<(f64, f64), Error> {
        let info: String = self.server.run("INFO commandstats");
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let line = line.ok_or("no script was called")?;
        let field = |name| line.split(',').find_map(|field| field.strip_prefix(name));
        let calls = field("calls=").ok_or("no calls")?.parse()?;
        Ok((calls, field("usec=").ok_or("no usec")?.parse()?))
    }
}

/// The running time of this thread, which does all the work of the process.
fn thread_us() -> Result<f64, Error> {
    let stat = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos: f64 = stat.split(' ').next().ok_or("empty schedstat")?.parse()?;
    Ok(nanos / 1e3)
}

/// Pins a process to one core, as in the simulation, if the system can.
fn pin(process: u32, core: &str) {
    let process = process.to_string();
    let status = Command::new("taskset")
        .args(["-apc", core, &process])
        .stdout(Stdio::null())
        .status();
    if !status.is_ok_and(|status| status.success()) {
        println!(
            "process {process} is not held to a core: there is no taskset, or there is one core"
        );
    }
}

fn user(users: Users, seed: usize) -> impl FnMut() -> Key {
    let mut random = fastrand::Rng::with_seed(seed as u64);
    move || {
        let user = if users == Users::One {
            0
        } else {
            random.u32(1..=IDENTITIES)
        };
        Key::new("user", user.to_string())
    }
}

/// One of the costs.
type Figure = fn(&Costs) -> f64;

fn print_costs(turns: &[Costs]) {
    println!("costs in µs, the median of {TURNS} turns");
    let figures: [(&str, Figure); 8] = [
        ("server_read", |costs| costs.server_read),
        ("server_call", |costs| costs.server_call),
        ("check", |costs| costs.check),
        ("further", |costs| costs.further),
        ("batch", |costs| costs.batch),
        ("process_check", |costs| costs.process_check),
        ("process_operation", |costs| costs.process_operation),
        ("round_trip", |costs| costs.round_trip),
    ];
    for (name, figure) in figures {
        println!("  {name:<18} {:>7.2}", median(turns.iter().map(figure)));
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
