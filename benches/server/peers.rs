//! Other crates under the same load: servers of the package `benches/peers`, each limited as the crate's own example
//! shows it, with one rule and with three, beside this crate, one empty script for each request, and no limit.

use std::{env, path::PathBuf, process::Command};

use support::{redis::Server, root};

use super::{Load, Measured, measure, median, print_rows, run as serve};

const ROUNDS: usize = 5;

/// Without rules.
const FLOORS: [&str; 2] = ["bare", "script"];
const OURS: [&str; 2] = ["sluicegate-memory", "sluicegate"];
const OTHERS_IN_MEMORY: [&str; 1] = ["governor"];
const OTHERS: [&str; 4] = ["rate-limit-redis", "rate-tier", "barnacle", "axum-limit"];

/// The most CPU time of a request, of the best other crate's: with one rule, and with three. First the bar, then the aim.
const IN_MEMORY: [[f64; 2]; 2] = [[1.4, 1.1], [1.2, 1.0]];
const OVER_REDIS: [[f64; 2]; 2] = [[1.25, 0.95], [0.7, 0.6]];

/// Returns whether each bar is met. `rounds` is a number from the command line.
pub(crate) fn run(rounds: Option<usize>) -> bool {
    let program = build();
    let with_rules = OURS.iter().chain(&OTHERS_IN_MEMORY).chain(&OTHERS);
    let with_rules = with_rules.flat_map(|name| [(*name, 1), (*name, 3)]);
    let names: Vec<_> = FLOORS
        .map(|name| (name, 0))
        .into_iter()
        .chain(with_rules)
        .collect();
    // Each has a Redis of its own: servers with one rule and with three would count under the same keys.
    let start = |(name, rules): &(&str, u8)| {
        let (mut command, redis) = (Command::new(&program), Server::start());
        let server = serve(command.args([name, &*rules.to_string(), &redis.url()]));
        (server, redis)
    };
    let servers: Vec<_> = names.iter().map(start).collect();
    let mut load = Load::new();
    let mut results: Vec<Vec<Measured>> = servers.iter().map(|_| Vec::new()).collect();
    let rounds = rounds.unwrap_or(ROUNDS);
    for round in 0..rounds {
        // Each is the first in turn, since the speed of the machine also changes within a round.
        for place in 0..servers.len() {
            let place = (place + round) % servers.len();
            let (server, redis) = &servers[place];
            results[place].push(measure(&mut load, server, redis));
        }
    }
    let title = |(name, rules): &(&str, u8)| match rules {
        0 => (*name).to_owned(),
        _ => format!("{name}, {rules}"),
    };
    print_rows(names.iter().map(title).zip(&results));
    let of = |name: &str, rules| {
        let place = names.iter().position(|it| *it == (name, rules));
        &results[place.expect("it was measured")]
    };
    println!();
    let mut is_met = true;
    for (place, rules) in [1, 3].into_iter().enumerate() {
        for (name, others, bars) in [
            (OURS[0], &OTHERS_IN_MEMORY[..], IN_MEMORY),
            (OURS[1], &OTHERS, OVER_REDIS),
        ] {
            let others = others.iter().map(|other| (*other, of(other, rules)));
            is_met &= is_within(
                &format!("{name}, {rules}"),
                of(name, rules),
                others,
                bars[place],
            );
        }
    }
    is_met
}

/// In µs of a request, in the server and in Redis.
fn cpu(measured: &Measured) -> f64 {
    measured.server_us + measured.redis_us
}

/// Compares with the best of the others, within each round.
fn is_within<'a>(
    name: &str,
    ours: &[Measured],
    others: impl Iterator<Item = (&'a str, &'a Vec<Measured>)>,
    [bar, aim]: [f64; 2],
) -> bool {
    let all = others.map(|(other, rounds)| {
        let of = |figure: fn(&Measured) -> f64| {
            let pairs = ours.iter().zip(rounds);
            median(pairs.map(|(ours, other)| figure(ours) / figure(other)))
        };
        (of(cpu), of(Measured::rate), other)
    });
    let (ratio, rate, other) = all.max_by(|one, two| one.0.total_cmp(&two.0)).unwrap();
    let verdict = if ratio <= bar { "ok    " } else { "MISSED" };
    println!(
        "{verdict} {name}, CPU of {other}: {ratio:.2}, at most {bar:.2}, aim {aim:.2}; its requests: {rate:.2}"
    );
    ratio <= bar
}

/// The program with all servers, in a target folder of its own, since no other build has its dependencies.
fn build() -> PathBuf {
    let bench = env::current_exe().unwrap();
    let target = bench.ancestors().nth(3).unwrap().join("peers");
    let manifest = root().join("benches/peers/Cargo.toml");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--locked", "--release", "--manifest-path"]);
    cargo.arg(manifest).arg("--target-dir").arg(&target);
    assert!(cargo.status().unwrap().success(), "it does not build");
    target.join("release/peers")
}
