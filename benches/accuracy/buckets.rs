//! Buckets: the units that they admit beyond their burst.

use std::time::Duration;

use sluicegate::Rule;

use crate::{
    fleet::Fleet,
    job::{Job, Where},
    judge::{Answer, Record, by_key, ms},
    page::{Page, head, line},
    rule,
};
use support::redis::Server;

const RULES: [&str; 3] = ["20+20/1s@bucket", "20+10/1s@bucket", "200+20/1s@bucket"];

pub(crate) fn buckets(page: &mut Page) {
    const PROCESSES: usize = 2;
    let server = Server::start();
    let job = |burst| Job::calm(Where::Server(server.url()), &RULES, 5, PROCESSES, burst);
    let loads = [("one by one", 1), ("25 at once", 25)];
    let fleets = loads.map(|(label, burst)| (label, Fleet::start(&job(burst), PROCESSES)));
    std::thread::sleep(Duration::from_secs(30));
    // Both loads run in the same 30 seconds: they use keys of their own.
    let seen = fleets.map(|(label, fleet)| (label, fleet.end_after(Duration::ZERO)));

    head(
        "Buckets, 5 keys under each rule, two processes",
        &[
            "rule",
            "requests come",
            "requests",
            "admitted",
            "most in a full refill",
            "promised at most",
            "beyond the promise in any span",
            "denied too early",
        ],
    );
    for (index, text) in RULES.into_iter().enumerate() {
        for (label, records) in &seen {
            let of_rule = records.iter().filter(|record| record.rule == index);
            let records: Vec<Record> = of_rule.copied().collect();
            row(page, text, label, &records);
        }
    }
}

fn row(page: &mut Page, text: &str, label: &str, records: &[Record]) {
    let bucket = Bucket::of(&rule(text));
    let (mut most, mut beyond, mut early) = (0, 0, 0);
    for history in by_key(records).into_values() {
        most = most.max(bucket.most_in_a_refill(&history));
        beyond = beyond.max(bucket.beyond(&history));
        early += bucket.denied_early(&history);
    }
    let admitted = records
        .iter()
        .filter(|record| record.answer.is_admission())
        .count();
    // In the time of a full refill, a full bucket admits its burst and all that is refilled.
    let (rule_text, promised) = (format!("`{text}`"), 2 * bucket.burst);
    line(&[
        &rule_text,
        &label,
        &records.len(),
        &admitted,
        &most,
        &promised,
        &beyond,
        &early,
    ]);
    page.promise(
        admitted > 0,
        format!("{text}, {label}: nothing was admitted"),
    );
    page.promise(beyond == 0, format!("{text}, {label}: beyond the promise"));
    page.promise(early == 0, format!("{text}, {label}: denied too early"));
    page.promise(
        most <= promised,
        format!("{text}, {label}: beyond twice the burst"),
    );
}

/// A bucket for requests of one unit.
struct Bucket {
    burst: u64,
    refill: u64,
    window_ms: u64,
}

impl Bucket {
    fn of(rule: &Rule) -> Self {
        Self {
            burst: rule.limit(),
            refill: rule.refill().unwrap(),
            window_ms: ms(rule.window()),
        }
    }

    /// The maximum number of admissions within the time of a full refill, both ends included.
    fn most_in_a_refill(&self, history: &[Record]) -> u64 {
        let times = admissions(history);
        let full_ms = self.burst * self.window_ms / self.refill;
        let until = |first: usize| times.partition_point(|at| *at <= times[first] + full_ms);
        let most = (0..times.len()).map(|first| until(first) - first).max();
        most.unwrap_or(0) as u64
    }

    /// The maximum number of admissions in any span, minus the burst and the refill of that span.
    fn beyond(&self, history: &[Record]) -> u64 {
        let times = admissions(history);
        let spans = times.iter().enumerate().flat_map(|(first, from)| {
            let later = times[first..].iter().zip(1_u64..);
            later.map(move |(at, count)| (at - from, count))
        });
        let over = spans.map(|(span_ms, count)| {
            let promised = self.burst * self.window_ms + self.refill * span_ms;
            (count * self.window_ms).saturating_sub(promised)
        });
        over.max().unwrap_or(0).div_ceil(self.window_ms)
    }

    /// The number of denials although there was room.
    fn denied_early(&self, history: &[Record]) -> usize {
        let (mut missing, mut last) = (0_u64, 0);
        let denials = history.iter().filter(|record| {
            missing = missing.saturating_sub(self.refill * (record.at - last));
            last = record.at;
            if record.answer.is_admission() {
                missing += self.window_ms;
            }
            let has_room = missing + self.window_ms <= self.burst * self.window_ms;
            matches!(record.answer, Answer::Denied(_)) && has_room
        });
        denials.count()
    }
}

fn admissions(history: &[Record]) -> Vec<u64> {
    let admissions = history.iter().filter(|record| record.answer.is_admission());
    admissions.map(|record| record.at).collect()
}
