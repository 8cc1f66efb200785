//! Writes the outcome as text that fits 80 columns.

use super::outcome::Outcome;
use super::sections::{sections, share, span, summary};
use crate::text::{date, grouped};
use crate::{BAD, BOLD, DIM, GOOD, Output, Result, WARN};

/// The maximum number of spans in the chart, and the maximum length of a bar.
const SPANS: u64 = 24;
const BAR: u64 = 30;

pub(super) fn write(outcome: &Outcome, output: &mut Output) -> Result<()> {
    let (first, notes) = summary(outcome);
    output.styled(if outcome.tally.refused > 0 { BAD } else { BOLD }, &first)?;
    for (at, note) in notes.iter().enumerate() {
        let is_plain = at <= outcome.formats.len();
        output.styled(if is_plain { DIM } else { WARN }, note)?;
    }
    if outcome.tally.requests == 0 {
        return Ok(());
    }
    for section in sections(outcome) {
        let (title, note) = (section.title, section.note);
        if title == "Hit hardest" {
            chart(outcome, output)?;
        }
        output.line(format!("\n{BOLD}{title}{BOLD:#}{note}"))?;
        output.table(&section.table)?;
    }
    if outcome.hardest_hit.is_empty() {
        chart(outcome, output)?;
    }
    verdicts(outcome, output)
}

fn chart(outcome: &Outcome, output: &mut Output) -> Result<()> {
    let over_time = outcome.tally.timeline.spans(SPANS);
    let (most, length) = (over_time.most_requests().max(1), span(over_time.seconds));
    let title = format!("\n{BOLD}Over time{BOLD:#}");
    let note = format!(", in spans of {length}: requests █, refused ▒");
    output.line(title + &note)?;
    for span in &over_time.spans {
        // Round up, so that a few requests still show a mark.
        let length = |count: u64| (count * BAR).div_ceil(most);
        let refused = length(span.refused);
        let passed = length(span.requests).saturating_sub(refused);
        let bar = |length: u64, mark: &str| mark.repeat(usize::try_from(length).unwrap_or(0));
        let blanks = bar(BAR.saturating_sub(passed + refused), " ");
        let (when, passed, marks) = (date(span.from * 1_000), bar(passed, "█"), bar(refused, "▒"));
        let requests = grouped(span.requests);
        let refused = match span.refused {
            0 => String::new(),
            refused => format!(" {BAD}{:>9}{BAD:#}", grouped(refused)),
        };
        let bars = format!("{passed}{BAD}{marks}{BAD:#}{blanks}");
        output.line(format!("{DIM}{when}{DIM:#} {bars} {requests:>9}{refused}"))?;
    }
    Ok(())
}

/// Writes a line for each bound.
fn verdicts(outcome: &Outcome, output: &mut Output) -> Result<()> {
    let mut lead = "\n";
    for it in &outcome.verdicts {
        let (style, word) = [(BAD, "broken"), (GOOD, "kept")][usize::from(it.kept)];
        let [refused, requests, most] = [it.refused, it.requests, it.most].map(grouped);
        let share = share(it.refused, it.requests);
        output.line(format!(
            "{lead}{style}{word}{style:#}: --max-refused {}: {refused} of {requests} refused ({share}); it allows {most}",
            it.max_refused
        ))?;
        lead = "";
    }
    Ok(())
}
