//! Shared calls, leases and a deny cache together.

use std::{thread::sleep, time::Duration};

use crate::{
    clock::Clock,
    fleet::Fleet,
    job::{Job, PATIENCE, Where},
    judge::{Record, Verdict, ms},
    page::{Page, head, line, percent},
    rule,
};
use support::{redis::Server, sentinel::Group};

/// The first is used up once, the second is used up and released again.
const RULES: [&str; 2] = ["20000/1h", "2000/10s"];

/// The rate of all processes together, for both rules.
const PER_SECOND: f64 = 5_000.0;

/// Enough to use up the first rule, and to release units of the second.
const TIME: Duration = Duration::from_secs(13);

/// The maximum time that units stay unspent, and that a denial is repeated.
const LONGEST: Duration = Duration::from_secs(10);
const REPEATED: Duration = Duration::from_secs(1);

/// A round trip on a busy machine.
const ROUND_TRIP: Duration = Duration::from_millis(500);

pub(crate) fn leases(page: &mut Page) {
    head(
        "Shared calls, leases and a deny cache, one key under each rule",
        &[
            "processes",
            "",
            "rule",
            "requests",
            "admitted",
            "no answer",
            "beyond the limit",
            "denied too early",
            "of requests",
            "for at most, ms",
        ],
    );
    for processes in [1, 2, 4, 8] {
        // A new server has no counts of the row before.
        let server = Server::start();
        let job = job(Where::Server(server.url()), processes);
        let records = Fleet::start(&job, processes).end_after(TIME);
        rows(page, processes, "", &records, 0);
    }
    clocks(page);
    failover(page);
}

#[expect(clippy::cast_precision_loss, reason = "a few")]
fn job(at: Where, processes: usize) -> Job {
    const TASKS: u64 = 16;
    let at_once = TASKS as f64 * processes as f64;
    Job {
        at,
        rules: RULES.map(Into::into).into(),
        load: "leases-".into(),
        keys: 1,
        tasks: TASKS,
        pause: Duration::from_secs_f64(at_once / PER_SECOND),
        burst: 1,
        timeout: PATIENCE,
        replicas: None,
        with_leases_and_cache: true,
    }
}

fn clocks(page: &mut Page) {
    if !Clock::is_available() {
        return;
    }
    let server = Server::start();
    let wrong = |ahead| {
        let clock = Clock::new();
        clock.jump(Duration::from_secs(3_600), ahead);
        clock
    };
    let clocks = [Clock::new(), wrong(true), wrong(false)];
    let job = job(Where::Server(server.url()), clocks.len());
    let records = Fleet::with_clocks(&job, &clocks).end_after(TIME);
    let what = "clocks an hour ahead, an hour behind, and right";
    rows(page, clocks.len(), what, &records, 0);
}

/// The new primary lacks unreplicated charges, so up to the limit is admitted again.
fn failover(page: &mut Page) {
    const PROCESSES: usize = 2;
    let mut group = Group::start(&[]);
    let job = Job {
        timeout: Duration::from_millis(500),
        ..job(Where::Sentinels(group.urls()), PROCESSES)
    };
    let fleet = Fleet::start(&job, PROCESSES);
    sleep(Duration::from_secs(4));
    let primary = group.primary();
    group.servers[primary].kill();
    group.promoted(primary);
    let records = fleet.end_after(TIME);
    let what = "a primary killed after 4 s, another promoted";
    rows(page, PROCESSES, what, &records, 1);
}

/// Adds a row for each rule. The server may have lost the counts `losses` times.
fn rows(page: &mut Page, processes: usize, what: &str, records: &[Record], losses: u64) {
    for (index, text) in RULES.into_iter().enumerate() {
        let of_rule = records.iter().filter(|record| record.rule == index);
        let of_rule: Vec<Record> = of_rule.copied().collect();
        let rule = rule(text);
        let verdict = Verdict::of(&rule, &of_rule);
        let text = format!("`{text}`");
        line(&[
            &processes,
            &what,
            &text,
            &verdict.requests,
            &verdict.admitted,
            &verdict.unanswered,
            &verdict.beyond,
            &verdict.early,
            &format!("{:.2} %", percent(verdict.early, verdict.requests)),
            &verdict.early_for_ms,
        ]);
        let row = format!("{processes} processes {what}, {text}");
        let beyond = losses * rule.limit();
        page.promise(
            verdict.beyond <= beyond,
            format!("{row}: beyond the limit by more than {beyond}"),
        );
        // Far from the limit, every promise would hold.
        page.promise(
            verdict.denied > 0,
            format!("{row}: the limit was not reached"),
        );
        if losses == 0 {
            let step = rule.step();
            let longest = step.min(LONGEST) + step.min(LONGEST) + REPEATED + ROUND_TRIP;
            page.promise(
                verdict.early_for_ms <= ms(longest),
                format!("{row}: denied too early for more than {longest:?}"),
            );
            page.promise(
                verdict.admitted as u64 >= rule.limit(),
                format!("{row}: the limit was not used up"),
            );
        }
    }
}
