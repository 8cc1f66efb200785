//! Whatever happens to the server, the network and the clocks: no request waits longer than its timeout, never more
//! than the limit is admitted, and all works again by itself.
//!
//! `plain` looks at single answers. The rest runs traffic through a proxy while faults are done to the server, and
//! prints a table, a row for each run. The short form, each fault alone over a store's own connection, runs with all
//! other tests; the long form takes about a quarter of an hour, and does every pair of faults that can be combined over
//! each kind of connection, with a process that decides by itself meanwhile, and with leases and a deny cache:
//!
//! ```console
//! cargo test --all-features --test faults -- --ignored --nocapture
//! ```
//!
//! `FAULTS=stopped` limits both forms to runs with this in their row, such as `FAULTS="Pool | stopped"`.
#![cfg(all(feature = "bb8", feature = "redis", unix))]

#[path = "../common/mod.rs"]
mod common;

mod bounds;
mod clock;
mod fault;
mod plain;
mod proxy;
mod run;
mod setup;
mod site;
mod skew;
mod table;
mod tally;
mod traffic;

use std::{
    sync::Mutex,
    thread::{available_parallelism, scope},
};

use clock::Clock;
use fault::{Fault, names};
use setup::{Kind, Setup};
use table::judge;

#[test]
fn each_fault_alone() {
    let open = Fault::ALL.map(|fault| (Setup::over(Kind::Url), vec![fault]));
    let silent = Fault::ALL.into_iter().filter(|fault| fault.silences());
    let local = silent.map(|fault| (Setup::LOCAL, vec![fault]));
    let under_load = Fault::ALL.map(|fault| (Setup::UNDER_LOAD, vec![fault]));
    let transactions = Fault::ALL.map(|fault| (Setup::over(Kind::Transactions), vec![fault]));
    let all = open.into_iter().chain(local).chain(under_load);
    runs(all.chain(transactions).collect());
}

#[test]
#[ignore = "the long form"]
fn every_fault_and_every_pair_over_each_kind_of_connection() {
    let pairs = Fault::ALL.iter().enumerate().flat_map(|(i, &outer)| {
        let inner = Fault::ALL[i + 1..]
            .iter()
            .filter(move |&&inner| outer.makes_a_pair_with(inner));
        inner.map(move |&inner| vec![outer, inner])
    });
    let all: Vec<_> = Fault::ALL
        .iter()
        .map(|&fault| vec![fault])
        .chain(pairs)
        .collect();
    let others = [Setup::LOCAL, Setup::UNDER_LOAD];
    let setups = Kind::ALL.map(Setup::over).into_iter().chain(others);
    let over = |setup| all.iter().map(move |faults| (setup, faults.clone()));
    runs(setups.flat_map(over).collect());
}

/// Runs all combinations that can be made, some at a time, and judges all.
fn runs(wanted: Vec<(Setup, Vec<Fault>)>) {
    let with_clock = Clock::is_available();
    let only = std::env::var("FAULTS").unwrap_or_default();
    let wanted: Vec<_> = wanted
        .into_iter()
        .filter(|(setup, faults)| {
            format!("| {setup} | {} |", names(faults)).contains(&only)
                && faults
                    .iter()
                    .all(|fault| with_clock || !fault.needs_clock())
        })
        .collect();
    // They mostly wait.
    let at_once = 2 * available_parallelism().map_or(1, usize::from).min(4);
    let queue = Mutex::new(wanted.into_iter().enumerate());
    let rows = Mutex::new(Vec::new());
    scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap().next();
                    let Some((place, (setup, faults))) = next else {
                        break;
                    };
                    let row = run::run(setup, &faults);
                    eprintln!("{row}");
                    rows.lock().unwrap().push((place, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap();
    rows.sort_by_key(|&(place, _)| place);
    judge(&rows.into_iter().map(|(_, row)| row).collect::<Vec<_>>());
}
