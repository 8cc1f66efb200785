//! `--report`: the outcome as one page of HTML, without scripts and without anything from elsewhere.

use std::fmt::{self, Write};

use super::{
    super::{
        error::{Error, Result},
        text::{date, grouped},
    },
    plot::{self, COLOURS},
    result::Outcome,
    write::{share, span},
};

const HEAD: &str = "<!doctype html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">
<title>sluicegate simulate</title>
<style>
";

/// The page.
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

/// Text of a log or a file, which may try to be HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

/// The rules that refused requests, each with its colour.
fn coloured(outcome: &Outcome) -> Vec<(usize, usize)> {
    let refusing = outcome
        .rules()
        .enumerate()
        .filter(|(_, (policy, rule))| rule.refused > 0 && !policy.shadow);
    refusing
        .enumerate()
        .map(|(index, (rule, _))| (rule, index % COLOURS))
        .collect()
}

fn body(page: &mut String, outcome: &Outcome) -> Result<(), Box<dyn std::error::Error>> {
    summary(page, outcome)?;
    let length = span(outcome.over_time.seconds);
    writeln!(
        page,
        "<h2>Requests over time</h2>\n<p>In spans of {length}."
    )?;
    writeln!(
        page,
        "<span class=\"key requests\"></span>requests <span class=\"key refused\"></span>refused</p>"
    )?;
    writeln!(page, "{}", plot::requests(&outcome.over_time)?)?;
    let coloured = coloured(outcome);
    if !coloured.is_empty() {
        writeln!(
            page,
            "<h2>Refusals by rule over time</h2>\n<p>In spans of {length}."
        )?;
        let all: Vec<_> = outcome.rules().collect();
        for (rule, colour) in &coloured {
            let (policy, rule) = all[*rule];
            write!(
                page,
                "<span class=\"key k{colour}\"></span>{} <code>{}</code> ",
                escaped(&policy.name),
                escaped(&rule.rule)
            )?;
        }
        let refusals = plot::refusals(&outcome.over_time, &coloured)?;
        writeln!(page, "</p>\n{refusals}")?;
    }
    by_rule(page, outcome)?;
    other_limits(page, outcome)?;
    Ok(hardest_hit(page, outcome)?)
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
        "<h2>Refusals by rule</h2>\n<p>Alone: requests that no other rule refused. Nobody at: the limit under which nobody \
         would have been refused, if no other rule refused anybody either.</p>\n<div class=\"scroll\"><table>\n\
         <tr><th>policy<th>by<th>rule<th class=\"number\">refused<th><th class=\"number\">alone<th class=\"number\">nobody at</tr>"
    )?;
    let most = outcome.rules().map(|it| it.1.refused).max().unwrap_or(0);
    for (policy, rule) in outcome.rules() {
        let shadow = if policy.shadow { " (shadow)" } else { "" };
        writeln!(
            page,
            "<tr><td>{}{shadow}<td>{}<td><code>{}</code><td class=\"number\">{}{}<td class=\"number\">{}<td class=\"number\">{}</tr>",
            escaped(&policy.name),
            escaped(&policy.key),
            escaped(&rule.rule),
            grouped(rule.refused),
            bar(rule.refused, most),
            grouped(rule.alone),
            escaped(&rule.nobody_at()),
        )?;
    }
    writeln!(page, "</table></div>")
}

/// A cell with a bar.
fn bar(part: u64, most: u64) -> String {
    let permille = part * 1_000 / most.max(1);
    format!(
        "<td class=\"bar\"><i style=\"width:{}.{}%\"></i>",
        permille / 10,
        permille % 10
    )
}

fn other_limits(page: &mut String, outcome: &Outcome) -> fmt::Result {
    writeln!(
        page,
        "<h2>Tighter and looser limits</h2>\n<p>All refusals if one rule had another limit and all else stayed: each was \
         replayed.</p>\n<div class=\"scroll\"><table>\n\
         <tr><th>policy<th>rule<th class=\"number\">limit<th class=\"number\">refused<th><th class=\"number\">of all</tr>"
    )?;
    let most = outcome
        .rules()
        .flat_map(|it| &it.1.other_limits)
        .map(|it| it.refused)
        .max();
    let most = most.unwrap_or(0).max(outcome.refused);
    for (policy, rule) in outcome.rules() {
        let (now, whole) = outcome.counts_with(policy);
        for (limit, refused) in rule.limits(now) {
            let class = if limit == rule.limit {
                "number now"
            } else {
                "number"
            };
            writeln!(
                page,
                "<tr><td>{}<td><code>{}</code><td class=\"{class}\">{}<td class=\"{class}\">{}{}<td class=\"{class}\">{}</tr>",
                escaped(&policy.name),
                escaped(&rule.rule),
                grouped(limit),
                grouped(refused),
                bar(refused, most),
                escaped(&share(refused, whole)),
            )?;
        }
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
         <tr><th>identity<th class=\"number\">refused<th><th class=\"number\">of all<th>first<th>last</tr>"
    )?;
    let most = outcome
        .hardest_hit
        .iter()
        .map(|it| it.refused)
        .max()
        .unwrap_or(0);
    for it in &outcome.hardest_hit {
        writeln!(
            page,
            "<tr><td class=\"name\"><code>{}</code><td class=\"number\">{}{}<td class=\"number\">{}<td>{}<td>{}</tr>",
            escaped(&it.identity),
            grouped(it.refused),
            bar(it.refused, most),
            escaped(&share(it.refused, outcome.refused)),
            date(it.first_ms),
            date(it.last_ms),
        )?;
    }
    writeln!(page, "</table></div>")
}
