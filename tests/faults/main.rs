//! Faults of the server, the network and the clocks: no request waits longer than its timeout, never more than the
//! limit is admitted, and everything recovers without help.
//!
//! `plain` tests single answers. The other tests run traffic through a proxy during faults of the server, and print a
//! table with a row for each run. `bounds` holds the allowed effect of each fault on the figures.
//!
//! `slots` kills and stops processes that hold slots.
//!
//! The short form runs with all other tests: each fault alone over a store's own connection and by transactions, and
//! each together with leases, latency, callers that leave and a second runtime. `streams` cuts responses off. Long
//! forms run the rest, each by its name:
//!
//! ```console
//! cargo test --test faults -- --ignored --nocapture each_fault    # in all circumstances, a quarter of an hour
//! cargo test --test faults -- --ignored --nocapture every_pair    # two faults at once, a quarter
//! cargo test --test faults -- --ignored --nocapture a_million     # slots of eight processes
//! cargo test --test faults -- --ignored --nocapture a_hundred_thousand    # streams, some minutes
//! cargo test --test faults -- --ignored --nocapture mixed_traffic    # an hour, or SOAK_MINUTES
//! ```
//!
//! `FAULTS=stopped` limits all forms to runs with this in their row, such as `FAULTS="Pool | stopped"`.

mod bounds;
mod clock;
mod fault;
mod job;
mod memory;
mod plain;
mod run;
mod setup;
mod site;
mod skew;
#[cfg(target_os = "linux")]
mod slots;
#[cfg(target_os = "linux")]
mod soak;
mod streams;
mod table;
mod tally;
mod traffic;

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{available_parallelism, scope},
};

use clock::Clock;
use fault::{Fault, names};
use setup::{Kind, Setup};
use table::judge;

#[test]
fn each_fault_alone() {
    let open = each(Setup::over(Kind::Url));
    let silent = Fault::ALL.into_iter().filter(|fault| fault.silences());
    let local = silent.map(|fault| (Setup::over(Kind::Url).local(), vec![fault]));
    let transactions = each(Setup::over(Kind::Transactions));
    runs(open.chain(local).chain(transactions).collect());
}

/// Each fault meets leases: alone, beside latency and callers that leave, and beside a second runtime.
#[test]
fn each_fault_in_circumstances() {
    let url = Setup::over(Kind::Url);
    let leased = url.under_load();
    let setups = [leased, leased.far().with_leavers(), leased.beside_a_job()];
    runs(setups.into_iter().flat_map(in_circumstances).collect());
}

#[test]
#[ignore = "a long form"]
fn each_fault_in_all_circumstances_over_each_kind_of_connection() {
    let kinds = Kind::ALL.into_iter();
    let setups = kinds.flat_map(Setup::in_all_circumstances);
    runs(setups.flat_map(in_circumstances).collect());
}

#[test]
#[ignore = "a long form"]
fn every_fault_and_every_pair_over_each_kind_of_connection() {
    let pairs = Fault::ALL.iter().enumerate().flat_map(|(i, &outer)| {
        let inner = Fault::ALL[i + 1..]
            .iter()
            .filter(move |&&inner| outer.makes_a_pair_with(inner));
        inner.map(move |&inner| vec![outer, inner])
    });
    let alone = Fault::ALL.into_iter().map(|fault| vec![fault]);
    let all: Vec<_> = alone.chain(pairs).collect();
    let url = Setup::over(Kind::Url);
    let others = [url.local(), url.under_load()];
    let setups = Kind::ALL.map(Setup::over).into_iter().chain(others);
    let over = |setup| all.iter().map(move |faults| (setup, faults.clone()));
    runs(setups.flat_map(over).collect());
}

fn each(setup: Setup) -> impl Iterator<Item = (Setup, Vec<Fault>)> {
    let alone = Fault::ALL.into_iter();
    alone.map(move |fault| (setup, vec![fault]))
}

/// The circumstances without a fault, and with each fault.
fn in_circumstances(setup: Setup) -> impl Iterator<Item = (Setup, Vec<Fault>)> {
    [(setup, vec![Fault::NONE])].into_iter().chain(each(setup))
}

/// One test after the other, because each uses the whole machine.
fn my_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs all possible combinations, some at a time, and judges all.
fn runs(wanted: Vec<(Setup, Vec<Fault>)>) {
    let _turn = my_turn();
    let with_clock = Clock::is_available();
    let only = std::env::var("FAULTS").unwrap_or_default();
    let wanted = wanted.into_iter().filter(|(setup, faults)| {
        format!("| {setup} | {} |", names(faults)).contains(&only)
            && (with_clock || !faults.iter().any(|fault| fault.needs_clock()))
    });
    // The runs spend most of their time waiting.
    let at_once = 2 * available_parallelism().map_or(1, usize::from).min(4);
    let queue = Mutex::new(wanted.collect::<Vec<_>>().into_iter().enumerate());
    let rows = Mutex::new(Vec::new());
    scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                let next = || queue.lock().unwrap().next();
                while let Some((place, (setup, faults))) = next() {
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
