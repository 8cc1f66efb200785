//! The cost of a decision beside simple scripts and the hash layout, as a picture.

use std::io;

use crate::chart::{Bar, Chart, Group};

/// Groups of cases: the heading, whether it is ours, and what the picture calls each case.
const GROUPS: [(&str, bool, &[(&str, &str)]); 3] = [
    (
        "For comparison: scripts that limit nothing",
        false,
        &[
            ("an empty script", "empty script"),
            ("one GET, one SET PX", "one GET and one SET"),
        ],
    ),
    (
        "sluicegate",
        true,
        &[
            ("1 rule", "1 rule"),
            ("1 rule, denied", "1 rule, denied"),
            ("1 rule, 16 a call", "1 rule, 16 checks in a call"),
            ("3 rules, coarse", "3 rules, finest step 1 s"),
            ("3 rules", "3 rules, finest step 17 ms"),
            ("3 rules, denied", "the same, denied"),
            ("3 rules, 16 a call", "the same, 16 checks in a call"),
            ("a fill of 16", "the same, 16 units of one key in a call"),
        ],
    ),
    (
        "Hash layout: one field for each sub-bucket, summed by a script",
        false,
        &[
            ("hash layout, 1 rule", "1 rule"),
            ("hash layout, 3 rules", "3 rules, finest step 1 s"),
            ("hash layout, 3 rules, 17 ms", "3 rules, finest step 17 ms"),
        ],
    ),
];

/// Draws the microseconds of these cases; `how` says where they come from.
pub(crate) fn draw(micros: impl Fn(&str) -> f64, how: &str) -> io::Result<()> {
    let bar = |case: &str, label: &str, is_ours| {
        let value = micros(case);
        Bar {
            label: label.into(),
            value,
            figure: format!("{value:.1} µs"),
            is_ours,
        }
    };
    let groups = GROUPS.map(|(heading, is_ours, cases)| Group {
        heading: heading.into(),
        bars: cases
            .iter()
            .map(|(case, label)| bar(case, label, is_ours))
            .collect(),
    });
    let chart = Chart {
        title: "Cost of a decision".into(),
        notes: vec![
            format!("Microseconds of server time for each decision: {how}."),
            "Take the ratios: the times differ from machine to machine.".into(),
        ],
        groups: groups.into(),
    };
    chart.save("cost")
}
