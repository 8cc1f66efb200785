//! Writes the outcome as text that fits 80 columns.

use std::io::Write;

use comfy_table::{Cell, CellAlignment, Color};

use super::{
    super::{
        error::Result,
        output::{BAD, BOLD, DIM, GOOD, Output, WARN},
        text::{date, grouped, short_date},
    },
    result::{Outcome, OverTime, PolicyOutcome, Verdict},
};

/// The maximum length of a bar.
const BAR: u64 = 30;

pub(super) fn write(outcome: &Outcome, output: &mut Output) -> Result<()> {
    summary(outcome, output)?;
    if outcome.requests == 0 {
        return Ok(());
    }
    policies(outcome, output)?;
    other_limits(outcome, output)?;
    chart(&outcome.few, output)?;
    hardest_hit(outcome, output)?;
    verdicts(&outcome.verdicts, output)
}

pub(super) fn share(part: u64, whole: u64) -> String {
    #[allow(
        clippy::cast_precision_loss,
        reason = "shown with a tenth of a percent"
    )]
    let percent = part as f64 * 100.0 / whole.max(1) as f64;
    match part {
        0 => "0 %".into(),
        _ if percent < 0.1 => "< 0.1 %".into(),
        _ => format!("{percent:.1} %"),
    }
}

fn summary(outcome: &Outcome, output: &mut Output) -> Result<()> {
    let (requests, refused) = (outcome.requests, outcome.refused);
    let lines = &outcome.lines;
    let style = if refused > 0 { BAD } else { BOLD };
    write!(
        output,
        "{BOLD}{}{BOLD:#} requests, {style}{} refused{style:#}",
        grouped(requests),
        grouped(refused)
    )?;
    writeln!(output, " ({})", share(refused, requests))?;
    if let (Some(from), Some(to)) = (&outcome.from, &outcome.to) {
        writeln!(output, "{DIM}from {from} to {to}{DIM:#}")?;
    }
    for (count, what) in [
        (outcome.banned, "requests refused by a ban"),
        (lines.unreadable, "lines cannot be read"),
        (lines.filtered, "lines left out by --path"),
        (
            lines.late,
            "lines out of order by more than --reorder, replayed later than logged",
        ),
        (outcome.unlimited, "requests have no key for any policy"),
    ] {
        if count > 0 {
            writeln!(output, "{WARN}{} {what}{WARN:#}", grouped(count))?;
        }
    }
    if outcome.full {
        writeln!(
            output,
            "{WARN}a store was full and may have forgotten counts: give it more --keys{WARN:#}"
        )?;
    }
    Ok(())
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn number(number: u64) -> Cell {
    right(grouped(number))
}

/// Red; yellow for a shadow, which refuses nothing.
fn refusals(policy: &PolicyOutcome, count: u64) -> Cell {
    match (count, policy.shadow) {
        (0, _) => number(0),
        (_, true) => number(count).fg(Color::Yellow),
        (_, false) => number(count).fg(Color::Red),
    }
}

fn name(policy: &PolicyOutcome) -> String {
    let shadow = if policy.shadow { "shadow " } else { "" };
    format!("{} ({shadow}by {})", policy.name, policy.key)
}

fn policies(outcome: &Outcome, output: &mut Output) -> Result<()> {
    let mut table = output.table([
        "policy",
        "rule",
        "requests",
        "refused",
        "alone",
        "min. limit",
    ]);
    for policy in &outcome.policies {
        for (index, rule) in policy.rules.iter().enumerate() {
            let (policy_name, requests) = match index {
                0 => (Cell::new(name(policy)), number(policy.requests)),
                _ => (Cell::new(""), Cell::new("")),
            };
            table.add_row([
                policy_name,
                Cell::new(&rule.rule),
                requests,
                refusals(policy, rule.refused),
                number(rule.alone),
                right(rule.min_limit()),
            ]);
        }
    }
    writeln!(
        output,
        "\n{BOLD}Refusals by rule{BOLD:#}; min. limit: the lowest limit that refuses no request"
    )?;
    output.write_table(&table)
}

fn other_limits(outcome: &Outcome, output: &mut Output) -> Result<()> {
    if outcome
        .rules()
        .all(|(_, rule)| rule.other_limits.is_empty())
    {
        return Ok(());
    }
    let mut table = output.table([
        "policy",
        "rule",
        "if its limit were",
        "refused",
        "share",
        "change",
    ]);
    for (policy, rule) in outcome.rules() {
        let (now, requests) = outcome.counts_with(policy);
        for (index, tried) in rule.limits(now).iter().enumerate() {
            let first = |text: &str| Cell::new(if index == 0 { text } else { "" });
            table.add_row([
                first(&policy.name),
                first(&rule.rule),
                number(tried.limit),
                refusals(policy, tried.refused),
                right(share(tried.refused, requests)),
                right(rule.change(tried, now)),
            ]);
        }
    }
    writeln!(
        output,
        "\n{BOLD}Tighter and looser limits{BOLD:#}, each replayed: all refusals then"
    )?;
    output.write_table(&table)
}

fn chart(over_time: &OverTime, output: &mut Output) -> Result<()> {
    let most = over_time.most_requests().max(1);
    writeln!(
        output,
        "\n{BOLD}Over time{BOLD:#}, in spans of {}: requests █, refused ▒",
        span(over_time.seconds)
    )?;
    for span in &over_time.spans {
        // Round up, so that a few requests still show a mark.
        let length = |count: u64| (count * BAR).div_ceil(most);
        let refused = length(span.refused);
        let passed = length(span.requests).saturating_sub(refused);
        let bar = |length: u64, mark: &str| mark.repeat(usize::try_from(length).unwrap_or(0));
        let blanks = bar(BAR.saturating_sub(passed + refused), " ");
        let when = date(span.from * 1_000);
        write!(
            output,
            "{DIM}{when}{DIM:#} {}{BAD}{}{BAD:#}{blanks}",
            bar(passed, "█"),
            bar(refused, "▒")
        )?;
        write!(output, " {:>9}", grouped(span.requests))?;
        if span.refused > 0 {
            write!(output, " {BAD}{:>9}{BAD:#}", grouped(span.refused))?;
        }
        writeln!(output)?;
    }
    Ok(())
}

pub(super) fn span(seconds: u64) -> String {
    match seconds {
        s if s % 86_400 == 0 => format!("{} d", s / 86_400),
        s if s % 3_600 == 0 => format!("{} h", s / 3_600),
        s if s % 60 == 0 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}

fn hardest_hit(outcome: &Outcome, output: &mut Output) -> Result<()> {
    if outcome.hardest_hit.is_empty() {
        return Ok(());
    }
    let mut table = output.table(["identity", "refused", "share", "first", "last"]);
    for hit in &outcome.hardest_hit {
        table.add_row([
            Cell::new(&hit.identity),
            number(hit.refused).fg(Color::Red),
            right(share(hit.refused, outcome.refused)),
            Cell::new(short_date(hit.first_ms)),
            Cell::new(short_date(hit.last_ms)),
        ]);
    }
    let identities = match outcome.identities_refused {
        1 => "1 identity was refused".to_owned(),
        count => format!("{} identities were refused", grouped(count as u64)),
    };
    writeln!(output, "\n{BOLD}Hit hardest{BOLD:#}; {identities}")?;
    output.write_table(&table)
}

/// Writes a line for each bound.
fn verdicts(verdicts: &[Verdict], output: &mut Output) -> Result<()> {
    if !verdicts.is_empty() {
        writeln!(output)?;
    }
    for it in verdicts {
        let (style, word) = if it.kept {
            (GOOD, "kept")
        } else {
            (BAD, "broken")
        };
        writeln!(
            output,
            "{style}{word}{style:#}: --max-refused {}: {} of {} refused ({}); it allows {}",
            it.max_refused,
            grouped(it.refused),
            grouped(it.requests),
            share(it.refused, it.requests),
            grouped(it.most),
        )?;
    }
    Ok(())
}
