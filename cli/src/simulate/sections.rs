//! The outcome as sentences and [`Section`]s, which the text and the page of `--report` share.

use super::result::Outcome;
use crate::text::{grouped, rfc3339, short_date};
use crate::{BAD, Cell, PLAIN, Table, WARN};

/// A table with a title.
pub(super) struct Section {
    pub(super) title: &'static str,
    /// Follows the title.
    pub(super) note: String,
    pub(super) table: Table,
}

/// The first sentence, and what to know about the numbers.
pub(super) fn summary(outcome: &Outcome) -> (String, Vec<String>) {
    let (tally, lines) = (&outcome.tally, &outcome.lines);
    let refused = format!(
        "{} refused ({})",
        grouped(tally.refused),
        share(tally.refused, tally.requests)
    );
    let first = format!("{} requests, {refused}", grouped(tally.requests));
    let mut notes = Vec::new();
    if tally.requests > 0 {
        notes.push(format!(
            "from {} to {}",
            rfc3339(tally.first_ms),
            rfc3339(tally.last_ms)
        ));
    }
    for (count, what) in [
        (tally.banned, "requests refused by a ban"),
        (lines.unreadable, "lines cannot be read"),
        (lines.filtered, "lines left out by --path"),
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
        notes
            .push("a store was full and may have forgotten counts: give it more --keys".to_owned());
    }
    (first, notes)
}

/// The tables, without those that are empty.
pub(super) fn sections(outcome: &Outcome) -> Vec<Section> {
    let mut sections = vec![
        by_rule(outcome),
        other_limits(outcome),
        hardest_hit(outcome),
    ];
    sections.retain(|section| !section.table.is_empty());
    sections
}

fn by_rule(outcome: &Outcome) -> Section {
    let mut table = Table::new([
        "policy",
        "rule",
        "requests",
        "refused",
        "alone",
        "min. limit",
    ]);
    let most = outcome
        .rules()
        .map(|(_, rule)| rule.refused)
        .max()
        .unwrap_or(0);
    // One scale for all bars, so that you can compare rules and bans.
    let most = most.max(outcome.tally.banned);
    for policy in &outcome.policies {
        let shadow = if policy.shadow { "shadow " } else { "" };
        let mut name = format!("{} ({shadow}by {})", policy.name, policy.key);
        for rule in &policy.rules {
            let requests = if name.is_empty() {
                "".into()
            } else {
                policy.requests.into()
            };
            table.row([
                std::mem::take(&mut name).into(),
                rule.rule.as_str().into(),
                requests,
                refusals(policy.shadow, rule.refused, most),
                rule.alone.into(),
                Cell::right(rule.min_limit()),
            ]);
        }
    }
    if outcome.tally.banned > 0 {
        let banned = refusals(false, outcome.tally.banned, most);
        table.row([
            "bans".into(),
            "".into(),
            "".into(),
            banned,
            "".into(),
            "".into(),
        ]);
    }
    Section {
        title: "Refusals by rule",
        note: "; min. limit: the lowest limit that refuses no request".to_owned(),
        table,
    }
}

fn other_limits(outcome: &Outcome) -> Section {
    let titles = [
        "policy",
        "rule",
        "if its limit were",
        "refused",
        "share",
        "change",
    ];
    let mut table = Table::new(titles);
    let tally = &outcome.tally;
    let others = outcome.rules().flat_map(|(_, rule)| &rule.other_limits);
    let most = others.map(|other| other.refused).max();
    for (policy, rule) in outcome.rules().filter(|_| most.is_some()) {
        // Another limit of a shadow changes the shadow alone.
        let (now, requests) = match policy.shadow {
            true => (policy.refused, policy.requests),
            false => (tally.refused, tally.requests),
        };
        let mut names = [policy.name.as_str(), &rule.rule];
        for tried in rule.limits(now) {
            let [policy_name, rule_name] = std::mem::take(&mut names);
            table.row([
                policy_name.into(),
                rule_name.into(),
                tried.limit.into(),
                refusals(
                    policy.shadow,
                    tried.refused,
                    most.unwrap_or(0).max(tally.refused),
                ),
                Cell::right(share(tried.refused, requests)),
                Cell::right(rule.change(&tried, now)),
            ]);
        }
    }
    Section {
        title: "Tighter and looser limits",
        note: ", each replayed: all refusals then".to_owned(),
        table,
    }
}

fn hardest_hit(outcome: &Outcome) -> Section {
    let mut table = Table::new(["identity", "refused", "share", "first", "last"]);
    let most = outcome
        .hardest_hit
        .first()
        .map_or(0, |(_, hit)| hit.refused);
    for (identity, hit) in &outcome.hardest_hit {
        table.row([
            identity.as_str().into(),
            refusals(false, hit.refused, most),
            Cell::right(share(hit.refused, outcome.tally.refused)),
            short_date(hit.first_ms).into(),
            short_date(hit.last_ms).into(),
        ]);
    }
    let note = match outcome.tally.hits.len() {
        1 => "; 1 identity was refused".to_owned(),
        count => format!("; {} identities were refused", grouped(count as u64)),
    };
    let title = "Hit hardest";
    Section { title, note, table }
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

/// The length of a span.
pub(super) fn span(seconds: u64) -> String {
    match seconds {
        s if s % 86_400 == 0 => format!("{} d", s / 86_400),
        s if s % 3_600 == 0 => format!("{} h", s / 3_600),
        s if s % 60 == 0 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}
