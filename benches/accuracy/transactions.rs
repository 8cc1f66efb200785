//! Decisions by transactions, and their rate beside that of the script.

use std::time::Duration;

use crate::{
    fleet::Fleet,
    job::{Job, Where},
    judge::{Answer, Record},
    page::{Page, Promise, head, line, table},
    rule,
};
use support::redis::Server;

const CROWDED: &str = "100/1s";

/// A limit that is never reached, so that each decision is written.
const PLENTY: &str = "1000000000/1m";

const MANY_KEYS: u64 = 10_000;
const TASKS: u64 = 16;
const TIME: Duration = Duration::from_secs(2);
const PROCESSES: [usize; 4] = [1, 2, 4, 8];

pub(crate) fn transactions(page: &mut Page) {
    table(
        &format!(
            "By transactions, 4 keys under `{CROWDED}`, {TASKS} requests at once in each process"
        ),
        &["processes"],
    );
    let server = Server::start();
    let by_transactions = || Where::Transactions(server.url());
    for processes in PROCESSES {
        let job = Job::crowd(by_transactions(), CROWDED, format!("{processes}-"), TASKS);
        let records = Fleet::start(&job, processes).end_after(TIME);
        page.row(&[&processes], &rule(CROWDED), &records, Promise::Intact);
    }

    head(
        &format!("Admissions a second, {TASKS} requests at once in each process"),
        &[
            "processes",
            "one key, script",
            "one key, transactions",
            "10 000 keys, script",
            "10 000 keys, transactions",
        ],
    );
    for processes in PROCESSES {
        let mut admitted = |at, keys| {
            // Other names for each figure, so that none finds counts of another.
            let by = if matches!(at, Where::Server(_)) {
                "script"
            } else {
                "transactions"
            };
            let load = format!("{by}-{processes}-{keys}-");
            let job = Job {
                keys,
                ..Job::crowd(at, PLENTY, load, TASKS)
            };
            let records = Fleet::start(&job, processes).end_after(TIME);
            per_second(page, processes, &records)
        };
        let by_script = || Where::Server(server.url());
        line(&[
            &processes,
            &admitted(by_script(), 1),
            &admitted(by_transactions(), 1),
            &admitted(by_script(), MANY_KEYS),
            &admitted(by_transactions(), MANY_KEYS),
        ]);
    }
}

fn per_second(page: &mut Page, processes: usize, records: &[Record]) -> u64 {
    let admitted = records
        .iter()
        .filter(|record| record.answer == Answer::Admitted);
    let admitted = admitted.count();
    page.promise(
        admitted == records.len(),
        format!("{processes} processes with plenty: a request was not admitted"),
    );
    admitted as u64 / TIME.as_secs()
}
