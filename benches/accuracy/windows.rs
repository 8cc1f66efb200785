//! Windows and precisions, beside other algorithms.

use std::time::Duration;

use sluicegate::Rule;

use crate::{
    chart::{Bar, Chart, Group},
    fleet::Fleet,
    job::{Job, Where},
    judge::{Answer, Record, Verdict},
    others::Algorithm,
    page::{Page, Promise, head, line, percent, table},
    rule,
};
use support::redis::Server;

/// All rules have the same rate.
const RULES: [&str; 8] = [
    "20/1s",
    "20/1s@exact",
    "20/1s@250ms",
    "20/1s@fixed",
    "200/10s",
    "200/10s@exact",
    "200/10s@1s",
    "200/10s@fixed",
];

pub(crate) fn windows(page: &mut Page) {
    const PROCESSES: usize = 2;
    const BURST: u64 = 25;
    let server = Server::start();
    let job = |burst| Job::calm(Where::Server(server.url()), &RULES, 5, PROCESSES, burst);
    let loads = [("one by one", 1), ("25 at once", BURST)];
    let fleets = loads.map(|(label, burst)| (label, Fleet::start(&job(burst), PROCESSES)));
    std::thread::sleep(Duration::from_secs(30));
    // Both loads run in the same 30 seconds: they use keys of their own.
    let seen = fleets.map(|(label, fleet)| (label, fleet.end_after(Duration::ZERO)));

    table(
        "Windows and precision, 5 keys under each rule, requests for twice the limit",
        &["rule", "requests come"],
    );
    for (index, text) in RULES.into_iter().enumerate() {
        for (label, records) in &seen {
            let text = format!("`{text}`");
            page.row(
                &[&text, label],
                &rule(RULES[index]),
                &of(records, index),
                Promise::Intact,
            );
        }
    }
    compare(&seen);
}

fn of(records: &[Record], rule: usize) -> Vec<Record> {
    records
        .iter()
        .filter(|record| record.rule == rule)
        .copied()
        .collect()
}

/// Feeds the same arrivals to other algorithms, and draws the admissions of each beyond the limit.
fn compare(seen: &[(&str, Vec<Record>)]) {
    head(
        "The same requests, decided by other algorithms",
        &[
            "rule",
            "requests come",
            "algorithm",
            "admitted",
            "beyond the limit",
            "denied too early",
            "of requests",
            "at worst by, ms",
        ],
    );
    let mut groups = Vec::new();
    // The other algorithms have no precision, so one rule of each window is enough.
    for index in [0, 4] {
        for (label, records) in seen {
            let (text, records) = (RULES[index], of(records, index));
            let rule = rule(text);
            let mut group = Group {
                heading: format!("{text}, requests come {label}"),
                bars: Vec::new(),
            };
            let beyond = compare_one(text, label, OURS, &records);
            group.bars.push(bar(&rule, OURS, beyond));
            for (algorithm, name) in Algorithm::ALL {
                let beyond = compare_one(text, label, name, &algorithm.decide(&rule, &records));
                group.bars.push(bar(&rule, name, beyond));
            }
            groups.push(group);
        }
    }
    draw(groups);
}

const OURS: &str = "sluicegate";

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn bar(rule: &Rule, algorithm: &str, beyond: u64) -> Bar {
    let value = (1_000.0 * beyond as f64 / rule.limit() as f64).round() / 10.0;
    let figure = match beyond {
        0 => "0".into(),
        _ => format!("+{beyond} ({value} %)"),
    };
    Bar {
        label: algorithm.into(),
        value,
        figure,
        is_ours: algorithm == OURS,
    }
}

fn draw(groups: Vec<Group>) {
    let chart = Chart {
        title: "Admitted beyond the limit".into(),
        notes: vec![
            "The most units that a key was admitted in any span of the window, less its limit, in % of the limit.".into(),
            "All algorithms were given the same requests: more than the limit allows.".into(),
        ],
        groups,
    };
    chart.save("accuracy").unwrap();
}

/// Prints a row. Returns the admissions beyond the limit.
fn compare_one(text: &str, load: &str, algorithm: &str, records: &[Record]) -> u64 {
    let mut records = records.to_vec();
    for record in &mut records {
        if let Answer::Denied(wait) = &mut record.answer {
            // Counts only the delay of requests that came, not the possible delay of others.
            *wait = Duration::ZERO;
        }
    }
    let verdict = Verdict::of(&rule(text), &records);
    let worst = verdict.late_ms.map_or(0, |(_, most)| (most + 1).max(0));
    let worst = if verdict.baseless > 0 {
        "no limit was reached".into()
    } else {
        worst.to_string()
    };
    let share = format!("{:.2} %", percent(verdict.early, verdict.requests));
    let text = format!("`{text}`");
    line(&[
        &text,
        &load,
        &algorithm,
        &verdict.admitted,
        &verdict.beyond,
        &verdict.early,
        &share,
        &worst,
    ]);
    verdict.beyond
}
