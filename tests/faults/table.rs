//! The table of the runs.

use std::{collections::BTreeMap, fmt, time::Duration};

pub(crate) struct Row {
    pub(crate) setup: String,
    pub(crate) faults: String,
    pub(crate) requests: u64,
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    pub(crate) local: u64,
    pub(crate) left: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) timeout: Duration,
    pub(crate) worst_wait: Duration,
    pub(crate) worst_lateness: Duration,
    /// `None` without a recovery.
    pub(crate) recovery: Option<Duration>,
    /// The maximum number of units beyond a limit within one window.
    pub(crate) over: u64,
    pub(crate) keys_without_ttl: u64,
    /// In bytes.
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
        let Self {
            setup,
            faults,
            requests,
            admitted,
            denied,
            local,
            left,
            ..
        } = self;
        let errors: Vec<_> = self
            .errors
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        let (wait, late) = (self.worst_wait.as_millis(), self.worst_lateness.as_millis());
        let back = self.recovery.map_or_else(
            || "never".into(),
            |recovery| recovery.as_millis().to_string(),
        );
        let verdict = match (&self.complaints[..], &self.why[..]) {
            ([], []) => "ok".into(),
            ([], why) => format!("ok: {}", why.join("; ")),
            (complaints, _) => format!("**{}**", complaints.join(", ")),
        };
        write!(
            f,
            "| {setup} | {faults} | {requests} | {admitted} | {denied} | {local} | {left} | {} | {wait} ({late}) | {back} ",
            errors.join(", ")
        )?;
        write!(
            f,
            "| {} | {} | {} | {verdict} |",
            self.over,
            self.keys_without_ttl,
            self.grown >> 20
        )
    }
}

/// Prints all rows. Fails if a row has a complaint.
pub(crate) fn judge(rows: &[Row]) {
    println!("\n{HEADER}");
    for row in rows {
        println!("{row}");
    }
    let most = |figure: fn(&Row) -> u128| rows.iter().map(figure).max().unwrap_or(0);
    println!(
        "\n{} runs, {} requests. Worst wait beyond the timeout and the runtime's own lateness: {} ms. Slowest recovery: {} ms.",
        rows.len(),
        rows.iter().map(|row| row.requests).sum::<u64>(),
        most(|row| row
            .worst_wait
            .saturating_sub(row.timeout + row.worst_lateness)
            .as_millis()),
        most(|row| row.recovery.unwrap_or(Duration::MAX).as_millis()),
    );
    let bad: Vec<_> = rows
        .iter()
        .filter(|row| !row.complaints.is_empty())
        .map(Row::to_string)
        .collect();
    assert!(
        bad.is_empty(),
        "{} of {} runs:\n{}",
        bad.len(),
        rows.len(),
        bad.join("\n")
    );
}
