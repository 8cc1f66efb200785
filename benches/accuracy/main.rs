//! The accuracy of the limits, against an exact model: `cargo bench --bench accuracy`.
//!
//! Starts Redis servers and worker processes that share limits through them, lets them ask for more than the limits,
//! and judges every decision by the store's own clock. Prints the tables of `docs/accuracy.md`, and draws
//! `target/figures/accuracy.svg`. Ends with 1 when a promise is broken. Takes about five minutes. You can choose one
//! section with an argument: `-- leases`.

mod buckets;
#[path = "../common/chart.rs"]
mod chart;
#[path = "../../tests/faults/clock.rs"]
mod clock;
mod crowds;
mod faults;
mod fleet;
mod job;
mod judge;
mod leases;
mod others;
mod page;
mod returning;
mod transactions;
mod windows;
mod worker;

use std::{env, process::ExitCode};

use page::Page;
use sluicegate::Rule;

/// A section and a name.
type Section = (&'static str, fn(&mut Page));

fn main() -> ExitCode {
    // The bench starts itself again as each process of a fleet.
    if let Ok(job) = env::var(job::JOB) {
        worker::work(&job);
        return ExitCode::SUCCESS;
    }
    let mut page = Page::default();
    let sections: [Section; 8] = [
        ("crowds", crowds::crowds),
        ("clocks", crowds::clocks),
        ("windows", windows::windows),
        ("buckets", buckets::buckets),
        ("returning", returning::returning),
        ("faults", faults::faults),
        ("leases", leases::leases),
        ("transactions", transactions::transactions),
    ];
    let wanted: Vec<String> = env::args().skip(1).collect();
    let is_wanted = |name: &str| wanted.iter().any(|argument| argument == name);
    let is_none_wanted = !sections.iter().any(|(name, _)| is_wanted(name));
    for (name, section) in sections {
        if is_none_wanted || is_wanted(name) {
            section(&mut page);
        }
    }
    if page.end() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn rule(text: &str) -> Rule {
    text.parse().unwrap()
}
