//! Prints the tables, and checks the promises.

use std::fmt::Display;

use sluicegate::Rule;

use crate::judge::{Answer, Record, Verdict, beyond_aligned, ms};

/// The columns of every table of verdicts.
const FIGURES: [&str; 7] = [
    "requests",
    "admitted",
    "no answer",
    "beyond the limit",
    "denied too early",
    "of requests",
    "opens late by, ms",
];

/// The promise for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// Never more than the limit, and open again less than a step late.
    Intact,
    /// The store has lost data, like replicas and empty servers: never more than the limit once more.
    Forgotten,
    /// The store was away and its clients decided: never more than the limit by the store, and once more by clients.
    Local,
}

#[derive(Default)]
pub(crate) struct Page {
    broken: Vec<String>,
}

impl Page {
    pub(crate) fn promise(&mut self, holds: bool, what: impl Display) {
        if !holds {
            self.broken.push(what.to_string());
        }
    }

    /// Judges the records under one rule, and checks the promise.
    pub(crate) fn row(
        &mut self,
        labels: &[&dyn Display],
        rule: &Rule,
        records: &[Record],
        promise: Promise,
    ) {
        let verdict = Verdict::of(rule, records);
        // A lost answer may have been an admission that the model does not know.
        let knows_all = promise == Promise::Intact && verdict.unanswered == 0;
        let late = match verdict.late_ms {
            Some((least, most)) if knows_all && !rule.is_fixed() => {
                format!("{least} to {most} (< {})", ms(rule.step()))
            }
            _ => "–".into(),
        };
        let share = format!("{:.2} %", percent(verdict.early, verdict.requests));
        let figures: [&dyn Display; 7] = [
            &verdict.requests,
            &verdict.admitted,
            &verdict.unanswered,
            &verdict.beyond,
            &verdict.early,
            &share,
            &late,
        ];
        line(&[labels, &figures].concat());
        let labels: Vec<String> = labels.iter().map(|label| format!("{label}")).collect();
        let row = labels.join(", ");
        self.hold(&row, rule, records, promise);
        if knows_all && !rule.is_fixed() {
            self.hold_denials(&row, rule, &verdict);
        }
    }

    fn hold(&mut self, row: &str, rule: &Rule, records: &[Record], promise: Promise) {
        // Without an admission, every promise would hold.
        let by_store = only(records, Answer::Admitted);
        self.promise(!by_store.is_empty(), format!("{row}: nothing was admitted"));
        match promise {
            Promise::Intact => {
                self.promise(
                    most_beyond(rule, records) == 0,
                    format!("{row}: beyond the limit"),
                );
            }
            Promise::Forgotten => self.promise(
                most_beyond(rule, records) <= rule.limit(),
                format!("{row}: beyond twice the limit"),
            ),
            Promise::Local => {
                let by_clients = only(records, Answer::AdmittedHere);
                self.promise(!by_clients.is_empty(), format!("{row}: no client decided"));
                for admissions in [by_store, by_clients] {
                    self.promise(
                        most_beyond(rule, &admissions) == 0,
                        format!(
                            "{row}: beyond the limit by the store alone, or by the clients alone"
                        ),
                    );
                }
            }
        }
    }

    fn hold_denials(&mut self, row: &str, rule: &Rule, verdict: &Verdict) {
        let step = ms(rule.step()).cast_signed();
        let holds = verdict
            .late_ms
            .is_none_or(|(least, most)| 0 <= least && most < step);
        self.promise(holds, format!("{row}: opens a step late, or before it may"));
        self.promise(
            verdict.baseless == 0,
            format!("{row}: denied before the limit was reached"),
        );
        self.promise(verdict.denied > 0, format!("{row}: nothing was denied"));
    }

    /// Whether all promises were kept. Prints those that were not.
    pub(crate) fn end(self) -> bool {
        println!();
        for what in &self.broken {
            println!("BROKEN {what}");
        }
        if self.broken.is_empty() {
            println!("All promises were kept.");
        }
        self.broken.is_empty()
    }
}

/// Begins a table of [rows](Page::row).
pub(crate) fn table(title: &str, labels: &[&str]) {
    head(title, &[labels, &FIGURES].concat());
}

pub(crate) fn head(title: &str, columns: &[&str]) {
    println!("\n## {title}\n\n| {} |", columns.join(" | "));
    println!("|{}", "---|".repeat(columns.len()));
}

pub(crate) fn line(cells: &[&dyn Display]) {
    let cells: Vec<String> = cells.iter().map(|cell| format!("{cell}")).collect();
    println!("| {} |", cells.join(" | "));
}

/// As the rule counts: a fixed rule promises nothing about windows that are not aligned.
fn most_beyond(rule: &Rule, records: &[Record]) -> u64 {
    if rule.is_fixed() {
        beyond_aligned(rule, records)
    } else {
        Verdict::of(rule, records).beyond
    }
}

fn only(records: &[Record], answer: Answer) -> Vec<Record> {
    records
        .iter()
        .filter(|record| record.answer == answer)
        .copied()
        .collect()
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(crate) fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}
