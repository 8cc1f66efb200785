//! Many processes, many simultaneous requests, wrong clocks.

use std::time::Duration;

use crate::{
    clock::Clock,
    fleet::Fleet,
    job::{Job, Where},
    page::{Page, Promise, table},
    rule,
};
use support::redis::Server;

const CROWDED: &str = "100/1s";

pub(crate) fn crowds(page: &mut Page) {
    table(
        &format!("Processes and concurrency, 4 keys under `{CROWDED}`"),
        &["processes", "requests at once in each"],
    );
    let server = Server::start();
    for processes in [1, 2, 4, 8] {
        for tasks in [1, 16, 64] {
            let job = Job::crowd(at(&server), CROWDED, format!("{processes}-{tasks}-"), tasks);
            let records = Fleet::start(&job, processes).end_after(Duration::from_secs(2));
            page.row(
                &[&processes, &tasks],
                &rule(CROWDED),
                &records,
                Promise::Intact,
            );
        }
    }
}

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

pub(crate) fn clocks(page: &mut Page) {
    table(
        &format!(
            "Clocks of clients, 4 keys under `{CROWDED}`, 16 requests at once in each process"
        ),
        &["clocks of three processes are ahead by"],
    );
    if !Clock::is_available() {
        return;
    }
    let server = Server::start();
    let wrong = |by: Duration, ahead| {
        let clock = Clock::new();
        clock.jump(by, ahead);
        clock
    };
    for (load, by) in [("hour", HOUR), ("day", DAY)] {
        let clocks = [Clock::new(), wrong(by, true), wrong(by, false)];
        let job = Job::crowd(at(&server), CROWDED, load.into(), 16);
        let fleet = Fleet::with_clocks(&job, &clocks);
        let ahead = fleet
            .minutes_ahead()
            .map(|minutes| format!("{minutes:+} min"));
        let ahead = ahead.collect::<Vec<_>>().join(", ");
        // If the clocks had not reached the processes, the row would prove nothing.
        page.promise(!ahead.ends_with("+0 min"), "no clock is wrong");
        let records = fleet.end_after(Duration::from_secs(2));
        page.row(&[&ahead], &rule(CROWDED), &records, Promise::Intact);
    }
}

fn at(server: &Server) -> Where {
    Where::Server(server.url())
}
