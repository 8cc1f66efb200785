//! `--report`: the outcome as one page of HTML, without scripts and without resources from other places.

use std::fmt::{self, Write};

use super::{
    super::{
        error::{Error, Result},
        text::{date, grouped},
    },
    plot::{self, COLOURS, Line, Plot, Size},
    result::{Outcome, PolicyOutcome},
    write::{share, span},
};

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">
<title>sluicegate simulate</title>
<style>
";

/// Returns the page.
pub(super) fn page(outcome: &Outcome) -> Result<String> {
    let mut page = format!(
        "{HEAD}{}</style>\n</head>\n<body>\n",
        include_str!("report.css")
    );
    body(&mut page, outcome)
        .map_err(|error| Error::usage(format_args!("cannot draw the report: {error}")))?;
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

/// Escapes text from a log or a file, which may contain HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

fn body(page: &mut String, outcome: &Outcome) -> Result<(), Box<dyn std::error::Error>> {
    summary(page, outcome)?;
    over_time(page, outcome)?;
    refusals_over_time(page, outcome)?;
    by_rule(page, outcome)?;
    other_limits(page, outcome)?;
    Ok(hardest_hit(page, outcome)?)
}

/// Adds a plot for a wide screen and one for a phone. The style shows one of them.
fn plots(page: &mut String, plot: impl Fn(Size) -> Plot) -> Result<(), Box<dyn std::error::Error>> {
    for (class, size) in [("wide", plot::WIDE), ("narrow", plot::NARROW)] {
        writeln!(page, "<div class=\"{class}\">{}</div>", plot(size)?)?;
    }
    Ok(())
}

fn over_time(page: &mut String, outcome: &Outcome) -> Result<(), Box<dyn std::error::Error>> {
    writeln!(
        page,
        "<h2>Requests over time</h2>\n<p>In spans of {}.\n<span class=\"key requests\"></span>requests \
         <span class=\"key refused\"></span>refused</p>",
        span(outcome.over_time.seconds)
    )?;
    plots(page, |size| plot::requests(&outcome.over_time, size))
}

/// Plots a line for each rule that refused requests, and one for bans.
fn refusals_over_time(
    page: &mut String,
    outcome: &Outcome,
) -> Result<(), Box<dyn std::error::Error>> {
    let spans = &outcome.over_time.spans;
    let rules = outcome.rules().enumerate();
    let refusing = rules.filter(|(_, (policy, rule))| rule.refused > 0 && !policy.shadow);
    let mut lines: Vec<(String, Line)> = Vec::new();
    // If there are more rules than colours, several rules share one.
    for ((place, (policy, rule)), colour) in refusing.zip((0..COLOURS).cycle()) {
        let (policy, rule) = (escaped(&policy.name), escaped(&rule.rule));
        let counts = spans.iter().map(|span| span.by_rule[place]).collect();
        let name = format!("{policy} <code>{rule}</code>");
        lines.push((name, Line { counts, colour }));
    }
    if outcome.banned > 0 {
        let counts = spans.iter().map(|span| span.banned).collect();
        let colour = plot::BANS;
        lines.push(("bans".to_owned(), Line { counts, colour }));
    }
    if lines.is_empty() {
        return Ok(());
    }
    let length = span(outcome.over_time.seconds);
    writeln!(
        page,
        "<h2>Refusals over time</h2>\n<p>In spans of {length}."
    )?;
    for (name, line) in &lines {
        let colour = line.colour;
        writeln!(page, "<span class=\"key k{colour}\"></span>{name}")?;
    }
    writeln!(page, "</p>")?;
    let lines: Vec<Line> = lines.into_iter().map(|(_, line)| line).collect();
    plots(page, |size| plot::lines(&outcome.over_time, size, &lines))
}

fn summary(page: &mut String, outcome: &Outcome) -> fmt::Result {
    writeln!(page, "<h1>What these limits would have refused</h1>")?;
    if let (Some(from), Some(to)) = (&outcome.from, &outcome.to) {
        writeln!(
            page,
            "<p>Requests logged from {} to {}, replayed. All times are UTC.</p>",
            escaped(from),
            escaped(to)
        )?;
    }
    writeln!(page, "<div class=\"figures\">")?;
    let identities = grouped(outcome.identities_refused as u64);
    for (class, figure, what) in [
        ("", grouped(outcome.requests), "requests"),
        ("bad", grouped(outcome.refused), "refused"),
        ("bad", share(outcome.refused, outcome.requests), "of all"),
        ("", grouped(outcome.banned), "by a ban"),
        ("", identities, "identities refused"),
        ("", grouped(outcome.lines.unreadable), "lines unreadable"),
    ] {
        writeln!(
            page,
            "<div class=\"{class}\"><b>{}</b>{what}</div>",
            escaped(&figure)
        )?;
    }
    writeln!(page, "</div>")?;
    if outcome.full {
        writeln!(
            page,
            "<p class=\"warning\">A store was full and may have forgotten counts: give it more --keys.</p>"
        )?;
    }
    Ok(())
}

fn by_rule(page: &mut String, outcome: &Outcome) -> fmt::Result {
    writeln!(
        page,
        "<h2>Refusals by rule</h2>\n<p>Alone: requests that no other rule refused. Min. limit: the lowest limit that \
         refuses no request, if no other rule refuses one either.</p>\n<div class=\"scroll\"><table>\n\
         <tr><th>policy<th>by<th>rule<th class=\"number\">refused<th class=\"bar\"><th class=\"number\">alone\
         <th class=\"number\">min. limit</tr>"
    )?;
    let most = outcome
        .rules()
        .map(|(_, rule)| rule.refused)
        .max()
        .unwrap_or(0);
    // One scale for all bars, so that you can compare rules and bans.
    let most = most.max(outcome.banned);
    for (policy, rule) in outcome.rules() {
        writeln!(
            page,
            "<tr><td>{}{}<td>{}<td><code>{}</code>{}<td class=\"number\">{}<td class=\"number\">{}</tr>",
            escaped(&policy.name),
            mark(policy),
            escaped(&policy.key),
            escaped(&rule.rule),
            refusals(rule.refused, most, kind(policy)),
            grouped(rule.alone),
            escaped(&rule.min_limit()),
        )?;
    }
    if outcome.banned > 0 {
        let banned = refusals(outcome.banned, most, "ban");
        writeln!(page, "<tr><td colspan=\"3\">bans{banned}<td><td></tr>")?;
    }
    writeln!(page, "</table></div>")
}

/// The class of a policy's figures: whether the policy refuses or would refuse.
fn kind(policy: &PolicyOutcome) -> &'static str {
    if policy.shadow { "shadow" } else { "real" }
}

fn mark(policy: &PolicyOutcome) -> &'static str {
    if policy.shadow {
        " <span class=\"mark\">shadow: would refuse</span>"
    } else {
        ""
    }
}

/// A cell with a number, and one with a bar.
fn refusals(part: u64, most: u64, kind: &str) -> String {
    let permille = part * 1_000 / most.max(1);
    format!(
        "<td class=\"number\">{}<td class=\"bar {kind}\"><i style=\"width:{}.{}%\"></i>",
        grouped(part),
        permille / 10,
        permille % 10
    )
}

fn other_limits(page: &mut String, outcome: &Outcome) -> fmt::Result {
    writeln!(
        page,
        "<h2>Tighter and looser limits</h2>\n<p>All refusals if one rule had another limit and all else stayed: each was \
         replayed.</p>\n<div class=\"scroll\"><table class=\"groups\">\n\
         <tr><th class=\"number\">limit<th class=\"number\">refused<th class=\"bar\"><th class=\"number\">of all\
         <th class=\"number\">change</tr>"
    )?;
    let others = outcome.rules().flat_map(|(_, rule)| &rule.other_limits);
    let most = others.map(|other| other.refused).max().unwrap_or(0);
    // One scale for all bars, so that you can compare the rules.
    let most = most.max(outcome.refused);
    for (policy, rule) in outcome.rules() {
        writeln!(
            page,
            "<tbody><tr><th colspan=\"5\">{} <code>{}</code>{}</tr>",
            escaped(&policy.name),
            escaped(&rule.rule),
            mark(policy)
        )?;
        let (now, whole) = outcome.counts_with(policy);
        for tried in rule.limits(now) {
            let class = if tried.limit == rule.limit { "now" } else { "" };
            writeln!(
                page,
                "<tr class=\"{class}\"><td class=\"number\">{}{}<td class=\"number\">{}<td class=\"number\">{}</tr>",
                grouped(tried.limit),
                refusals(tried.refused, most, kind(policy)),
                escaped(&share(tried.refused, whole)),
                rule.change(&tried, now),
            )?;
        }
        writeln!(page, "</tbody>")?;
    }
    writeln!(page, "</table></div>")
}

fn hardest_hit(page: &mut String, outcome: &Outcome) -> fmt::Result {
    if outcome.hardest_hit.is_empty() {
        return Ok(());
    }
    writeln!(
        page,
        "<h2>Hit hardest</h2>\n<div class=\"scroll\"><table>\n\
         <tr><th>identity<th class=\"number\">refused<th class=\"bar\"><th class=\"number\">of all<th>first<th>last</tr>"
    )?;
    let most = outcome
        .hardest_hit
        .iter()
        .map(|hit| hit.refused)
        .max()
        .unwrap_or(0);
    for hit in &outcome.hardest_hit {
        writeln!(
            page,
            "<tr><td class=\"name\"><code>{}</code>{}<td class=\"number\">{}<td class=\"when\">{}<td class=\"when\">{}</tr>",
            escaped(&hit.identity),
            refusals(hit.refused, most, "real"),
            escaped(&share(hit.refused, outcome.refused)),
            date(hit.first_ms),
            date(hit.last_ms),
        )?;
    }
    writeln!(page, "</table></div>")
}
