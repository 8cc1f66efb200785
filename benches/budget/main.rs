//! Instructions, allocations and copies of one request, held against the budgets of `budgets.toml`.
//!
//! `cargo bench --bench budget` runs each row under callgrind twice, the second time with more requests, and divides the
//! difference; so neither the start nor the warm-up counts. Instructions do not depend on how busy a machine is. Fails when
//! a row takes more than its budget and the tolerance, or much less, so that a gain is kept. The budgets hold for one
//! toolchain; with another one the bench only prints. `cargo bench --bench budget -- renew` writes the file. The row of
//! `tower_governor` is a yardstick, and is not checked.
//!
//! `cargo bench --bench budget -- functions` lists the functions that a check over Redis calls; without this argument,
//! the bench only counts them.
//!
//! `cargo bench --bench budget -- redis` counts the instructions of the Redis server for a check, against the budgets of
//! `redis.toml`, which hold for one version of Redis; `-- redis renew` writes that file.
//!
//! A commit that raises a budget says why in its message.

mod callgrind;
mod functions;
mod redis;
mod rows;
mod server;

use std::{
    collections::BTreeMap,
    env, fs,
    process::{Command, ExitCode},
};

use callgrind::{Callgrind, Counts};
use serde::{Deserialize, Serialize};
use support::{example, redis::Server};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/budget/budgets.toml");
const HEAD: &str = "\
# Instructions, allocations (malloc, realloc and the like) and copies (memcpy, memmove) of one request, check or
# settlement, as `cargo bench --bench budget` counts them; `-- renew` writes this file. A commit that raises a figure
# says why.
#
# They hold for this toolchain. CI fails when instructions differ by more than the tolerance: of rows over Redis and of
# the server, whose calls share what happens to be in flight, by 5 %.

";

/// In percent.
const TOLERANCE: u64 = 2;
const TOLERANCE_OF_SERVERS: u64 = 5;

const REQUESTS: usize = 4_000;
const ROUNDS: usize = 100;

#[derive(Serialize, Deserialize)]
struct Budgets {
    toolchain: String,
    rows: BTreeMap<String, Budget>,
}

/// Of one request.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Budget {
    instructions: u64,
    allocations: u64,
    copies: u64,
}

impl Budget {
    fn of(counts: Counts, requests: usize) -> Self {
        let each = |count: u64| (count + requests as u64 / 2) / requests as u64;
        Self {
            instructions: each(counts.instructions),
            allocations: each(counts.allocations),
            copies: each(counts.copies),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [command, name, requests] = &arguments[..]
        && command == "row"
    {
        rows::run(name, requests.parse().unwrap());
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|it| it == "in-redis") {
        redis::run();
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|it| it == "redis") {
        return redis::check(arguments.iter().any(|it| it == "renew"));
    }
    let (callgrind, redis) = (Callgrind::new(), Server::start());
    if arguments.iter().any(|it| it == "functions") {
        return code(functions::check(&callgrind, &redis, true));
    }
    let toolchain = toolchain();
    let measured = measure_all(&callgrind, &redis);
    if arguments.iter().any(|it| it == "renew") {
        let rows = measured.into_iter().collect();
        let budgets = toml::to_string(&Budgets { toolchain, rows }).unwrap();
        fs::write(FILE, format!("{HEAD}{budgets}")).unwrap();
        return ExitCode::SUCCESS;
    }
    let budgets: Budgets = toml::from_str(&fs::read_to_string(FILE).unwrap()).unwrap();
    if budgets.toolchain != toolchain {
        println!(
            "not checked: the budgets hold for {}, and this is {toolchain}",
            budgets.toolchain
        );
        return ExitCode::SUCCESS;
    }
    let missed = measured
        .iter()
        .filter(|(name, counted)| !is_within(name, *counted, &budgets));
    let is_in_budget = missed.count() == 0;
    code(functions::check(&callgrind, &redis, false) && is_in_budget)
}

fn code(is_success: bool) -> ExitCode {
    match is_success {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn toolchain() -> String {
    let output = Command::new("rustc").arg("--version").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn measure_all(callgrind: &Callgrind, redis: &Server) -> Vec<(String, Budget)> {
    let mut measured = Vec::new();
    println!(
        "{:<32}{:>14}{:>13}{:>8}",
        "", "instructions", "allocations", "copies"
    );
    let mut add = |name: &str, counts: Counts, requests: usize| {
        let budget = Budget::of(counts, requests);
        let Budget {
            instructions,
            allocations,
            copies,
        } = budget;
        println!("{name:<32}{instructions:>14}{allocations:>13}{copies:>8}");
        measured.push((name.to_owned(), budget));
    };
    let program = env::current_exe().unwrap();
    for name in rows::NAMES {
        let count = |requests: usize| {
            let mut command = callgrind.command(&program);
            command.args(["row", name, &requests.to_string()]);
            if !name.starts_with(rows::OVER_REDIS) {
                command.env("FIXED_CLOCK", "1"); // elsewhere, timeouts have to pass
            }
            callgrind.run(command.env(rows::REDIS, redis.url()))
        };
        add(name, count(2 * REQUESTS) - count(REQUESTS), REQUESTS);
    }
    let program = example::build("server");
    for (name, path, over_redis) in server::ROWS {
        let redis = over_redis.then_some(redis);
        let count = |rounds| server::count(callgrind, &program, path, redis, rounds);
        add(
            name,
            count(2 * ROUNDS) - count(ROUNDS),
            server::requests(ROUNDS),
        );
    }
    measured
}

/// Says which budget a row misses.
fn is_within(name: &str, counted: Budget, budgets: &Budgets) -> bool {
    let Some(budget) = budgets.rows.get(name) else {
        println!("{name}: has no budget; `cargo bench --bench budget -- renew` adds it");
        return false;
    };
    if name == rows::YARDSTICK {
        return true;
    }
    let is_server = name.starts_with("server") || name.starts_with(rows::OVER_REDIS);
    let tolerance = if is_server {
        TOLERANCE_OF_SERVERS
    } else {
        TOLERANCE
    };
    let difference = counted.instructions.abs_diff(budget.instructions);
    let is_within = difference * 100 <= budget.instructions * tolerance;
    if !is_within {
        let Budget { instructions, .. } = counted;
        println!(
            "{name}: {instructions} instructions, and its budget is {} ± {tolerance} %",
            budget.instructions
        );
    }
    is_within
}
