//! `--report`: the outcome as one page of HTML, without scripts and without resources from other places. The style sheet
//! has the colours of its plots, for light and for dark backgrounds.

use super::Outcome;
use super::sections::{sections, summary};
use super::timeline::{LENGTHS, OverTime, Span};
use crate::table::escaped;
use crate::text::{self, formatted, grouped};

const HEAD: &str = include_str!("report.html");
const STYLE: &str = include_str!("report.css");

/// The number of colours for rules. The colour of bans follows those of rules.
const COLOURS: u8 = 6;

const WIDTH: u64 = 1_000;
const HEIGHT: u64 = 260;
/// The place of the axes.
const LEFT: u64 = 80;
const BOTTOM: u64 = 230;
/// The number of labels below a plot, at most.
const TIMES: u64 = 10;

/// A line of a plot: a name, a class of the style sheet, and a count for each span.
type PlotLine = (String, String, Vec<u64>);

fn line(name: &str, class: &str, over_time: &OverTime, count: impl Fn(&Span) -> u64) -> PlotLine {
    let counts = over_time.spans.iter().map(count);
    (escaped(name), class.to_owned(), counts.collect())
}

/// Returns the page.
pub(super) fn page(outcome: &Outcome) -> String {
    let (first, notes) = summary(outcome);
    let mut page = format!("{HEAD}{STYLE}</style>\n</head>\n<body>\n<h1>{first}</h1>\n");
    for note in notes {
        page += &format!("<p>{}</p>\n", escaped(&note));
    }
    let over_time = &outcome.over_time;
    let all = [
        line("requests", "requests", over_time, |it| it.requests),
        line("refused", "refused", over_time, |it| it.refused),
    ];
    page += &plot("Requests over time", over_time, &all);
    page += &plot("Refusals over time", over_time, &refusing(outcome));
    for (title, note, table) in sections(outcome) {
        let note = note.trim_start_matches([';', ',', ' ']);
        page += &format!("<h2>{title}</h2>\n<p>{note}</p>\n{}", table.html());
    }
    page + "</body>\n</html>\n"
}

/// A line for each rule that refused requests, and one for bans. If there are more rules than colours, several rules
/// share one.
fn refusing(outcome: &Outcome) -> Vec<PlotLine> {
    let (tally, over_time) = (&outcome.tally, &outcome.over_time);
    let rules = tally.rules().enumerate();
    let refusing = rules.filter(|(_, (policy, rule))| rule.refused > 0 && !policy.shadow);
    let colours = (0..COLOURS).cycle().map(|it| format!("k{it}"));
    let lines = refusing.zip(colours).map(|((at, (policy, rule)), class)| {
        let name = format!("{} {}", policy.name, rule.rule);
        line(&name, &class, over_time, |span| span.by_rule[at])
    });
    let class = format!("k{COLOURS}");
    let bans = (tally.banned > 0).then(|| line("bans", &class, over_time, |span| span.banned));
    lines.chain(bans).collect()
}

/// Lines that step from span to span, with their names above, and as SVG with axes. Labels are at round times and at four
/// counts. Empty without lines.
fn plot(title: &str, over_time: &OverTime, lines: &[PlotLine]) -> String {
    let OverTime { seconds, spans } = over_time;
    let length = text::span(seconds * 1_000);
    let mut html = format!("<h2>{title}</h2>\n<p>In spans of {length}.\n");
    if lines.is_empty() {
        return String::new();
    }
    for (name, class, _) in lines {
        html += &format!("<span class=\"key {class}\"></span>{name}\n");
    }
    html += &format!(
        "</p>\n<div class=\"scroll\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n"
    );
    let most = lines.iter().flat_map(|(_, _, counts)| counts).max();
    let most = most.map_or(1, |most| *most.max(&1)); // never 0, which `y` divides by
    let x = |at: u64| LEFT + at * (WIDTH - LEFT - 20) / (spans.len() as u64).max(1);
    let y = |count: u64| BOTTOM - count * (BOTTOM - 16) / most;
    for (_, class, counts) in lines {
        let steps = (1..).zip(counts);
        let steps = steps.map(|(at, count)| format!("V{}H{}", y(*count), x(at)));
        let steps: String = steps.collect();
        html += &format!("<path class=\"line {class}\" d=\"M{LEFT} {BOTTOM}{steps}V{BOTTOM}\"/>\n");
    }
    let counts = (0..=4).map(|it| it * most.div_ceil(4));
    for count in counts.filter(|count| *count <= most) {
        let (y, count) = (y(count), grouped(count));
        html += &format!("<path class=\"axis\" d=\"M{LEFT} {y}H{WIDTH}\"/>");
        let (x, y) = (LEFT - 6, y + 5);
        html += &format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{count}</text>\n");
    }
    // Times stand at round moments, as many as there is room for.
    let whole = seconds * spans.len() as u64;
    let mut between = LENGTHS.iter().filter(|it| whole / **it <= TIMES);
    let between = between.next().unwrap_or(seconds);
    let format = match (whole, seconds) {
        (172_800.., 86_400..) => "%Y-%m-%d",
        (172_800.., _) => "%d %b %H:%M",
        (_, 60..) => "%H:%M",
        _ => "%H:%M:%S",
    };
    let labelled = (0..).zip(spans);
    for (at, span) in labelled.filter(|(_, it)| it.from.is_multiple_of(*between)) {
        let (x, y, time) = (x(at), BOTTOM + 20, formatted(span.from * 1_000, format));
        html += &format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{time}</text>\n");
    }
    html + "</svg></div>\n"
}
