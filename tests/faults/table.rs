//! The table of the runs.

use std::{fmt, time::Duration};

use super::tally::Tally;

pub(crate) struct Row {
    pub(crate) setup: String,
    pub(crate) faults: String,
    pub(crate) tally: Tally,
    pub(crate) timeout: Duration,
    /// `None` without a recovery.
    pub(crate) recovery: Option<Duration>,
    /// The maximum number of units beyond a limit within one window.
    pub(crate) over: u64,
    pub(crate) keys_without_ttl: u64,
    pub(crate) grown: u64,
    pub(crate) complaints: Vec<String>,
    /// The promises that allow figures above 0.
    pub(crate) why: Vec<&'static str>,
}

const HEADER: &str = "\
| connection | fault | requests | admitted | denied | local | left | errors | worst wait (late) ms | back after ms | over | no TTL | grown MB | verdict |
|---|---|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|---|";

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setup, faults, .. } = self;
        let it = &self.tally;
        let errors = it
            .errors
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"));
        let errors = errors.collect::<Vec<_>>().join(", ");
        let (wait, late) = (it.worst_wait.as_millis(), it.worst_lateness.as_millis());
        let back = self
            .recovery
            .map(|recovery| recovery.as_millis().to_string());
        let verdict = match (&self.complaints[..], &self.why[..]) {
            ([], []) => "ok".into(),
            ([], why) => format!("ok: {}", why.join("; ")),
            (complaints, _) => format!("**{}**", complaints.join(", ")),
        };
        let cells = [
            format!(
                "{setup} | {faults} | {} | {} | {}",
                it.requests, it.admitted, it.denied
            ),
            format!("{} | {} | {errors} | {wait} ({late})", it.local, it.left),
            format!("{} | {}", back.unwrap_or("never".into()), self.over),
            format!(
                "{} | {} | {verdict}",
                self.keys_without_ttl,
                self.grown >> 20
            ),
        ];
        write!(f, "| {} |", cells.join(" | "))
    }
}

/// Prints all rows. Fails if a row has a complaint.
pub(crate) fn judge(rows: &[Row]) {
    println!("\n{HEADER}");
    for row in rows {
        println!("{row}");
    }
    let beyond = |row: &Row| {
        row.tally
            .worst_wait
            .saturating_sub(row.timeout + row.tally.worst_lateness)
    };
    println!(
        "\n{} runs, {} requests. Worst wait beyond the timeout and the runtime's own lateness: {} ms. Slowest recovery: {} ms.",
        rows.len(),
        rows.iter().map(|row| row.tally.requests).sum::<u64>(),
        rows.iter()
            .map(beyond)
            .max()
            .unwrap_or_default()
            .as_millis(),
        rows.iter()
            .map(|row| row.recovery.unwrap_or(Duration::MAX))
            .max()
            .unwrap_or_default()
            .as_millis(),
    );
    let bad = rows.iter().filter(|row| !row.complaints.is_empty());
    let bad: Vec<_> = bad.map(Row::to_string).collect();
    let (count, all) = (bad.len(), rows.len());
    assert!(bad.is_empty(), "{count} of {all} runs:\n{}", bad.join("\n"));
}
