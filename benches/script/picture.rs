//! Draws the cost of a decision beside simple scripts and the hash layout.

use std::io;

use crate::chart::{Bar, Chart, Group};

/// Each case, and the label in the picture.
type Labels = [(&'static str, &'static str)];

const BASELINES: &Labels = &[
    ("an empty script", "empty script"),
    ("one GET, one SET PX", "one GET and one SET"),
];

const OURS: &Labels = &[
    ("1 rule", "1 rule"),
    ("1 rule, denied", "1 rule, denied"),
    ("1 rule, 16 a call", "1 rule, 16 checks in a call"),
    ("3 rules, coarse", "3 rules, finest step 1 s"),
    ("3 rules", "3 rules, finest step 17 ms"),
    ("3 rules, denied", "the same, denied"),
    ("3 rules, 16 a call", "the same, 16 checks in a call"),
    ("a batch of 16", "the same, 16 checks of one key in a call"),
];

const HASH_LAYOUT: &Labels = &[
    ("hash layout, 1 rule", "1 rule"),
    ("hash layout, 3 rules", "3 rules, finest step 1 s"),
    ("hash layout, 3 rules, 17 ms", "3 rules, finest step 17 ms"),
];

/// Draws the microseconds of these cases; `how` describes the measurement.
pub(crate) fn draw(micros: impl Fn(&str) -> f64, how: &str) -> io::Result<()> {
    let bar = |is_ours, case: &str, label: &str| {
        let value = micros(case);
        Bar {
            label: label.into(),
            value,
            figure: format!("{value:.1} µs"),
            is_ours,
        }
    };
    let group = |heading: &str, is_ours, labels: &Labels| Group {
        heading: heading.into(),
        bars: labels
            .iter()
            .map(|(case, label)| bar(is_ours, case, label))
            .collect(),
    };
    let chart = Chart {
        title: "Cost of a decision".into(),
        notes: vec![
            format!("Microseconds of server time for each decision: {how}."),
            "Take the ratios: the times differ from machine to machine.".into(),
        ],
        groups: vec![
            group(
                "For comparison: scripts that limit nothing",
                false,
                BASELINES,
            ),
            group("sluicegate", true, OURS),
            group(
                "Hash layout: a field for each sub-bucket",
                false,
                HASH_LAYOUT,
            ),
        ],
    };
    chart.save("cost")
}
