//! The functions of this crate that a check over Redis calls: on the way to the socket, and on the way back.
//!
//! Counted in the optimised program, from `Limiter::check` on: without the middleware, without what the compiler has inlined,
//! without destructors, which it makes itself, and without traits of this crate for foreign types. A function is on the way
//! out if it runs before Redis answers, and on the way back if it runs afterwards.

use std::{collections::BTreeMap, env};

use support::redis::Server;

use super::{callgrind::Callgrind, rows};

/// The most functions out and back.
const MOST: [usize; 2] = [39, 26];

/// Returns whether there are few enough.
pub(crate) fn check(callgrind: &Callgrind, redis: &Server, lists: bool) -> bool {
    let whole = calls_of_one(callgrind, redis, rows::ANSWERED, [400, 1_200]);
    let before_answer = calls_of_one(callgrind, redis, rows::UNANSWERED, [0, rows::IN_FLIGHT]);
    let (mut out, mut back) = (Vec::new(), Vec::new());
    // Jobs, retries, and what several checks share run less often.
    for (name, calls) in whole.iter().filter(|(_, calls)| **calls > 0.5) {
        let before = before_answer.get(name).copied().unwrap_or(0.0);
        if before > 0.5 {
            out.push(name);
        }
        if calls - before > 0.5 {
            back.push(name);
        }
    }
    let counts = [out.len(), back.len()];
    println!(
        "functions of a check over Redis: {} out, where the bar is {}, and {} back, where it is {}",
        counts[0], MOST[0], counts[1], MOST[1]
    );
    if lists {
        println!("out:\n{out:#?}\nback:\n{back:#?}");
    }
    counts
        .iter()
        .zip(MOST)
        .all(|(count, most)| (1..=most).contains(count))
}

/// How often a check calls each function of this crate: the difference of two runs, the second with more checks.
fn calls_of_one(
    callgrind: &Callgrind,
    redis: &Server,
    row: &str,
    checks: [usize; 2],
) -> BTreeMap<String, f64> {
    let program = env::current_exe().unwrap();
    let [before, mut calls] = checks.map(|checks| {
        let mut command = callgrind.command(&program);
        command.args(["row", row, &checks.to_string()]);
        callgrind.run(command.env(rows::REDIS, redis.url()));
        callgrind.calls_of_this_crate()
    });
    for (name, warm_up) in before {
        calls.entry(name).and_modify(|all| *all -= warm_up);
    }
    #[expect(clippy::cast_precision_loss, reason = "there are not that many")]
    let each = calls.into_iter().map(|(name, calls)| {
        let of_one = calls as f64 / (checks[1] - checks[0]) as f64;
        (name, of_one)
    });
    each.collect()
}
