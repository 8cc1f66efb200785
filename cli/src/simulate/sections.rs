//! The outcome as sentences and [`Section`]s, which the text, here, and the page of `--report` share.

use super::Outcome;
use super::tally::{FULL, OtherLimit, PEAK_FACTOR};
use crate::text::{date, grouped, rfc3339, short_date, span};
use crate::{BAD, BOLD, Cell, DIM, GOOD, Output, PLAIN, Result, Table, WARN};

/// A title, words behind, and a table.
pub(super) type Section = (&'static str, String, Table);

/// The first sentence, and what to know about the numbers.
pub(super) fn summary(outcome: &Outcome) -> (String, Vec<String>) {
    let (tally, lines) = (&outcome.tally, &outcome.lines);
    let [requests, refused] = [tally.requests, tally.refused].map(grouped);
    let share = share(tally.refused, tally.requests);
    let first = format!("{requests} requests, {refused} refused ({share})");
    let mut notes = Vec::new();
    if tally.requests > 0 {
        let [from, to] = [tally.first_ms, tally.last_ms].map(rfc3339);
        notes.push(format!("from {from} to {to}"));
    }
    notes.extend(outcome.formats.iter().map(|it| format!("read as {it}")));
    for (count, what) in [
        (tally.banned, "requests refused by a ban"),
        (lines.unreadable, "lines cannot be read"),
        (lines.filtered, "lines left out by --path"),
        (
            lines.left_out,
            "lines left out: of other events, or a second line of a request",
        ),
        (lines.loose, "lines have blanks in the name of a user"),
        (
            lines.late,
            "lines out of order by more than --reorder, replayed later than logged",
        ),
        (tally.unlimited, "requests have no key for any policy"),
    ] {
        if count > 0 {
            notes.push(format!("{} {what}", grouped(count)));
        }
    }
    if tally.full {
        notes.push(FULL.to_owned());
    }
    notes.extend(outcome.notes.iter().cloned());
    (first, notes)
}

/// The tables, without those that are empty.
pub(super) fn sections(outcome: &Outcome) -> Vec<Section> {
    let mut sections = vec![
        by_rule(outcome),
        other_limits(outcome),
        hardest_hit(outcome),
    ];
    sections.retain(|(_, _, table)| !table.rows.is_empty());
    sections
}

fn by_rule(outcome: &Outcome) -> Section {
    let mut table = Table::new("policy|rule|requests|refused|alone|min. limit".split('|'));
    let tally = &outcome.tally;
    // One scale for all bars, so that you can compare rules and bans.
    let most = tally.rules().map(|(_, rule)| rule.refused);
    let most = most.fold(tally.banned, u64::max);
    for policy in &tally.policies {
        let shadow = if policy.shadow { "shadow " } else { "" };
        let name = format!("{} ({shadow}by {})", policy.name, policy.key);
        let mut first = [name.into(), policy.requests.into()];
        for rule in &policy.rules {
            let [name, requests] = std::mem::take(&mut first);
            let refused = refusals(policy.shadow, rule.refused, most);
            let tried = rule.limit.max(1).saturating_mul(PEAK_FACTOR);
            let least = rule.nobody_refused_at.map(grouped);
            let least = Cell::right(least.unwrap_or_else(|| format!("> {}", grouped(tried))));
            let text = rule.rule.as_str().into();
            table.row([name, text, requests, refused, rule.alone.into(), least]);
        }
    }
    if tally.banned > 0 {
        let [a, b, c, d] = <[Cell; 4]>::default();
        let banned = refusals(false, tally.banned, most);
        table.row(["bans".into(), a, b, banned, c, d]);
    }
    let note = "; min. limit: the lowest limit that refuses no request";
    ("Refusals by rule", note.to_owned(), table)
}

fn other_limits(outcome: &Outcome) -> Section {
    let mut table = Table::new("policy|rule|if its limit were|refused|share|change".split('|'));
    let tally = &outcome.tally;
    let others = tally.rules().flat_map(|(_, rule)| &rule.other_limits);
    let most = others.map(|other| other.refused).max();
    for (policy, rule) in tally.rules().filter(|_| most.is_some()) {
        // Another limit of a shadow changes the shadow alone.
        let (now, requests) = match policy.shadow {
            true => (policy.refused, policy.requests),
            false => (tally.refused, tally.requests),
        };
        let (limit, mut limits) = (rule.limit, rule.other_limits.clone());
        limits.push(OtherLimit {
            limit,
            refused: now,
        });
        limits.sort_by_key(|other| other.limit);
        let mut names = [policy.name.as_str(), &rule.rule];
        for tried in limits {
            let [name, text] = std::mem::take(&mut names).map(Cell::from);
            let most = most.unwrap_or(0).max(tally.refused);
            let refused = refusals(policy.shadow, tried.refused, most);
            let change = match tried.refused.checked_sub(now) {
                Some(_) if tried.limit == limit => "now".to_owned(),
                Some(0) => "=".to_owned(),
                Some(more) => format!("+{}", grouped(more)),
                None => format!("−{}", grouped(now - tried.refused)),
            };
            let share = Cell::right(share(tried.refused, requests));
            let change = Cell::right(change);
            table.row([name, text, tried.limit.into(), refused, share, change]);
        }
    }
    let note = ", each replayed: all refusals then".to_owned();
    ("Tighter and looser limits", note, table)
}

fn hardest_hit(outcome: &Outcome) -> Section {
    let mut table = Table::new("identity|refused|share|first|last".split('|'));
    let most = outcome.hardest_hit.first().map_or(0, |it| it.1.refused);
    for (identity, hit) in &outcome.hardest_hit {
        let share = Cell::right(share(hit.refused, outcome.tally.refused));
        let [first, last] = [hit.first_ms, hit.last_ms].map(|ms| Cell::from(short_date(ms)));
        let refused = refusals(false, hit.refused, most);
        table.row([identity.as_str().into(), refused, share, first, last]);
    }
    let note = match outcome.tally.hits.len() {
        1 => "; 1 identity was refused".to_owned(),
        count => format!("; {} identities were refused", grouped(count as u64)),
    };
    ("Hit hardest", note, table)
}

/// Red; yellow for a shadow, which refuses nothing.
fn refusals(is_shadow: bool, count: u64, most: u64) -> Cell {
    let style = match (count, is_shadow) {
        (0, _) => PLAIN,
        (_, true) => WARN,
        (_, false) => BAD,
    };
    Cell::from(count).style(style).bar(count, most)
}

fn share(part: u64, whole: u64) -> String {
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
    for (title, note, table) in sections(outcome) {
        if title == "Hit hardest" {
            chart(outcome, output)?;
        }
        output.line(format!("\n{BOLD}{title}{BOLD:#}{note}"))?;
        output.table(&table)?;
    }
    if outcome.hardest_hit.is_empty() {
        chart(outcome, output)?;
    }
    verdicts(outcome, output)
}

fn chart(outcome: &Outcome, output: &mut Output) -> Result<()> {
    let over_time = outcome.tally.timeline.spans(SPANS);
    let most = over_time.spans.iter().map(|span| span.requests).max();
    let (most, length) = (most.unwrap_or(0).max(1), span(over_time.seconds * 1_000));
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
