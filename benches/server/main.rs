//! End to end: the server example with three sliding rules through Redis, beside the same server with only an empty
//! script as its limit.
//!
//! `cargo bench --bench server` runs both in turn under the same load, for eight minutes. Fails when the example
//! answers less than 0.7 times as many requests a second. Each server has one worker thread; the load and Redis share
//! the machine with it.
//!
//! ```console
//! cargo bench --bench server -- --in-flight 0,4 --connections 256 --users zipf --rounds 20
//! ```
//!
//! runs the example with each of these settings in turn beside the floor, and prints the cost of each relative to the
//! first. `--connections` is 64 by default, `--users` is `random`. You can measure the cost of enforced blocks in the
//! same way, here with one rule: `--blocks --limit header:x-api-key=1000000/1s`.
//!
//! Before that, for two minutes, or alone with the argument `attack`: users that are all denied, with a deny cache
//! before Redis and without. `cargo bench --bench server -- leases` measures leases, in three minutes.
//! `cargo bench --bench server -- latency` measures how many checks are decided with a distant Redis, in twenty
//! seconds.
//!
//! `cargo bench --bench server -- peers` measures other crates, in six minutes. It compiles the package `benches/peers`,
//! which the rest does without. `-- peers 20` runs that number of rounds.

mod attack;
mod floor;
mod latency;
mod leases;
mod load;
mod peers;
mod settings;

#[path = "../../examples/server/src/app.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod app;
#[path = "../../examples/server/src/report.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod report;

use std::{
    env, fmt, fs,
    process::{self, Command, ExitCode},
    time::Duration,
};

use load::{Load, Round};
use support::example::Example;
use support::redis::Server;

const LIMIT: &str = "header:x-api-key=1000000/1s,60000000/1m,1000000000/1h";
const BUDGET: f64 = 0.7;
/// Many rounds: on a shared machine, the ratio of one round is accurate to 0.08, and the median of these to 0.01.
const ROUNDS: usize = 60;
/// Long enough that a user's first check after the other server's turn, which opens all steps, is one of many.
const WARM_UP: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(3);

/// Linux counts a process's time in hundredths of a second.
const TICK_US: f64 = 10_000.0;

fn main() -> ExitCode {
    if let Ok(url) = env::var(floor::REDIS) {
        floor::serve(&url);
        return ExitCode::SUCCESS;
    }
    // Only this part if you name it.
    if env::args().any(|argument| argument == "attack") {
        return exit(attack::run());
    }
    if env::args().any(|argument| argument == "leases") {
        return leases::measure_all();
    }
    if env::args().any(|argument| argument == "latency") {
        return exit(latency::run());
    }
    let arguments: Vec<String> = env::args().collect();
    if arguments.iter().any(|it| it == "peers") {
        let rounds = arguments.iter().find_map(|it| it.parse().ok());
        return exit(peers::run(rounds));
    }
    if let Some(settings) = settings::Settings::read() {
        settings.compare(&Server::start());
        return ExitCode::SUCCESS;
    }
    let is_refused = attack::run();
    let redis = Server::start();
    let floor = run_floor(&redis);
    let shared = run(example().args(["--redis", &redis.url()]));
    let alone = run(&mut example());
    let mut load = Load::new();
    let mut results: [Vec<Measured>; 3] = Default::default();
    for _ in 0..ROUNDS {
        results[0].push(measure(&mut load, &floor, &redis));
        results[1].push(measure(&mut load, &shared, &redis));
    }
    for _ in 0..ROUNDS / 20 {
        results[2].push(measure(&mut load, &alone, &redis));
    }
    let names = [
        "one empty script",
        "three rules, Redis",
        "three rules, memory",
    ];
    print_rows(names.iter().zip(&results));
    exit(verdict(&results[0], &results[1]) & is_refused)
}

fn print_rows<'a, N: fmt::Display>(rows: impl Iterator<Item = (N, &'a Vec<Measured>)>) {
    println!(
        "{:<20} {:>9} {:>9} {:>9} {:>11} {:>11} {:>11}",
        "", "req/s", "p50 ms", "p99 ms", "server us", "redis us", "load us"
    );
    for (name, rounds) in rows {
        let [rate, p50, p99, server, redis, load] =
            FIGURES.map(|figure| median(rounds.iter().map(figure)));
        println!(
            "{name:<20} {rate:>9.0} {p50:>9.3} {p99:>9.3} {server:>11.1} {redis:>11.1} {load:>11.1}"
        );
    }
}

/// Requests a second, latencies in ms, and CPU time in µs of each request.
const FIGURES: [fn(&Measured) -> f64; 6] = [
    Measured::rate,
    |measured| measured.round.latency_ms(0.50),
    |measured| measured.round.latency_ms(0.99),
    |measured| measured.server_us,
    |measured| measured.redis_us,
    |measured| measured.load_us,
];

fn run_floor(redis: &Server) -> Example {
    let program = env::current_exe().unwrap();
    run(Command::new(program).env(floor::REDIS, redis.url()))
}

fn example() -> Command {
    with_limit(LIMIT)
}

fn with_limit(limit: &str) -> Command {
    let mut command = Example::command();
    command.args([
        "--listen",
        "127.0.0.1:0",
        "--limit",
        limit,
        "--on-failure",
        "closed",
        "--timeout",
        "5s",
    ]);
    command
}

fn run(command: &mut Command) -> Example {
    Example::run(command.env("TOKIO_WORKER_THREADS", "1"))
}

/// One round, and the time of each request in the server, in Redis, and in this program, in µs.
struct Measured {
    round: Round,
    server_us: f64,
    redis_us: f64,
    load_us: f64,
}

impl Measured {
    fn rate(&self) -> f64 {
        self.round.rate()
    }
}

fn measure(load: &mut Load, server: &Example, redis: &Server) -> Measured {
    load.run(server.address(), WARM_UP);
    let used = || [server.id(), redis.id(), process::id()].map(ticks);
    let before = used();
    let round = load.run(server.address(), MEASURED);
    let after = used();
    let [server_us, redis_us, load_us] =
        [0, 1, 2].map(|process| (after[process] - before[process]) * TICK_US / round.requests());
    Measured {
        round,
        server_us,
        redis_us,
        load_us,
    }
}

/// The time that a process has used, including the system's work for it; zero without `/proc`.
fn ticks(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let fields = behind_name.split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<f64>().ok()).sum()
}

/// Compares within each round, since the speed of the machine changes from round to round.
fn verdict(floor: &[Measured], ours: &[Measured]) -> bool {
    let rounds = ours.iter().zip(floor);
    let ratios: Vec<f64> = rounds
        .map(|(ours, floor)| ours.rate() / floor.rate())
        .collect();
    let ratio = median(ratios.iter().copied());
    let (low, high) = ratios
        .iter()
        .fold((f64::MAX, 0.0_f64), |(low, high), ratio| {
            (low.min(*ratio), high.max(*ratio))
        });
    println!(
        "three rules / one empty script: {ratio:.2} (rounds {low:.2} to {high:.2}); at least {BUDGET} is asked for"
    );
    ratio >= BUDGET
}

fn exit(is_met: bool) -> ExitCode {
    if is_met {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
