//! `--report`: the outcome as one page of HTML, without scripts and without resources from other places.

use super::plot;
use super::plot::{COLOURS, Line};
use super::result::Outcome;
use super::sections::{sections, span, summary};
use crate::table::escaped;

const HEAD: &str = include_str!("report.html");

/// Returns the page.
pub(super) fn page(outcome: &Outcome) -> String {
    let mut page = format!(
        "{HEAD}{}</style>\n</head>\n<body>\n",
        include_str!("report.css")
    );
    let (first, notes) = summary(outcome);
    page += &format!("<h1>{first}</h1>\n");
    for note in notes {
        page += &format!("<p>{}</p>\n", escaped(&note));
    }
    let length = span(outcome.over_time.seconds);
    page += &format!(
        "<h2>Requests over time</h2>\n<p>In spans of {length}.\n<span class=\"key requests\"></span>requests \
         <span class=\"key refused\"></span>refused</p>\n{}",
        plot::requests(&outcome.over_time)
    );
    let lines = lines(outcome);
    if !lines.is_empty() {
        page += &format!("<h2>Refusals over time</h2>\n<p>In spans of {length}.\n");
        for Line { name, colour, .. } in &lines {
            page += &format!("<span class=\"key k{colour}\"></span>{name}\n");
        }
        page += &format!("</p>\n{}", plot::lines(&outcome.over_time, &lines));
    }
    for section in sections(outcome) {
        let note = section.note.trim_start_matches([';', ',', ' ']);
        let title = section.title;
        page += &format!("<h2>{title}</h2>\n<p>{note}</p>\n{}", section.table.html());
    }
    page + "</body>\n</html>\n"
}

/// A line for each rule that refused requests, and one for bans. If there are more rules than colours, several rules
/// share one.
fn lines(outcome: &Outcome) -> Vec<Line> {
    let spans = &outcome.over_time.spans;
    let rules = outcome.rules().enumerate();
    let refusing = rules.filter(|(_, (policy, rule))| rule.refused > 0 && !policy.shadow);
    let lines = refusing
        .zip((0..COLOURS).cycle())
        .map(|((place, (policy, rule)), colour)| Line {
            name: format!("{} {}", escaped(&policy.name), escaped(&rule.rule)),
            counts: spans.iter().map(|span| span.by_rule[place]).collect(),
            colour,
        });
    let bans = (outcome.tally.banned > 0).then(|| Line {
        name: "bans".to_owned(),
        counts: spans.iter().map(|span| span.banned).collect(),
        colour: COLOURS,
    });
    lines.chain(bans).collect()
}
