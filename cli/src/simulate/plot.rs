//! Plots over time as SVG. The page's style sheet has their colours, for light and for dark backgrounds.

use super::timeline::OverTime;
use crate::text::{formatted, grouped};

const WIDTH: u64 = 1_000;
const HEIGHT: u64 = 260;

/// The place of the axes.
const LEFT: u64 = 80;
const BOTTOM: u64 = 230;

/// The number of labels below a plot, at most.
const TIMES: u64 = 10;

/// The number of colours for rules. The colour of bans follows those of rules.
pub(super) const COLOURS: u8 = 6;

/// A line: a count for each span, in one colour.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) counts: Vec<u64>,
    pub(super) colour: u8,
}

/// The requests, and in front of them the refused requests.
pub(super) fn requests(over_time: &OverTime) -> String {
    let plot = Plot::new(over_time, over_time.most_requests());
    let mut shapes = String::new();
    let (mut requests, mut refused) = (String::new(), String::new());
    for (at, span) in (0..).zip(&over_time.spans) {
        for (path, count) in [(&mut requests, span.requests), (&mut refused, span.refused)] {
            let (from, to, y) = (plot.x(at), plot.x(at + 1), plot.y(count));
            *path += &format!("M{from} {BOTTOM}V{y}H{to}V{BOTTOM}");
        }
    }
    for (class, path) in [("requests", requests), ("refused", refused)] {
        shapes += &format!("<path class=\"{class}\" d=\"{path}\"/>\n");
    }
    plot.svg(&shapes)
}

/// Lines that step from span to span.
pub(super) fn lines(over_time: &OverTime, lines: &[Line]) -> String {
    let counts = lines.iter().flat_map(|line| line.counts.iter().copied());
    let plot = Plot::new(over_time, counts.max().unwrap_or(0));
    let mut shapes = String::new();
    for Line { counts, colour, .. } in lines {
        let mut path = format!("M{LEFT} {BOTTOM}");
        for (at, count) in (0..).zip(counts) {
            path += &format!("V{}H{}", plot.y(*count), plot.x(at + 1));
        }
        shapes += &format!("<path class=\"line k{colour}\" d=\"{path}\"/>\n");
    }
    plot.svg(&shapes)
}

struct Plot<'a> {
    over_time: &'a OverTime,
    most: u64,
}

impl<'a> Plot<'a> {
    fn new(over_time: &'a OverTime, most: u64) -> Self {
        let most = most.max(1);
        Self { over_time, most }
    }

    fn x(&self, at: u64) -> u64 {
        LEFT + at * (WIDTH - LEFT - 20) / (self.over_time.spans.len() as u64).max(1)
    }

    fn y(&self, count: u64) -> u64 {
        BOTTOM - count * (BOTTOM - 16) / self.most
    }

    /// The shapes with axes. Labels are at round times and at four counts.
    fn svg(&self, shapes: &str) -> String {
        let mut svg = format!(
            "<div class=\"scroll\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n{shapes}"
        );
        let step = self.most.div_ceil(4);
        let counts = (0..=4).map(|it| it * step);
        for count in counts.filter(|count| *count <= self.most) {
            let (y, count) = (self.y(count), grouped(count));
            svg += &format!("<path class=\"axis\" d=\"M{LEFT} {y}H{WIDTH}\"/>");
            let (x, y) = (LEFT - 6, y + 5);
            svg += &format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{count}</text>\n");
        }
        let OverTime { seconds, spans } = self.over_time;
        let whole = seconds * spans.len() as u64;
        let mut between = ROUND.iter().filter(|it| whole / **it <= TIMES);
        let between = between.next().unwrap_or(&31_536_000);
        let format = match (whole, seconds) {
            (172_800.., 86_400..) => "%Y-%m-%d",
            (172_800.., _) => "%d %b %H:%M",
            (_, 60..) => "%H:%M",
            _ => "%H:%M:%S",
        };
        let labelled = (0..).zip(spans);
        for (at, span) in labelled.filter(|(_, it)| it.from.is_multiple_of(*between)) {
            let (x, time) = (self.x(at), formatted(span.from * 1_000, format));
            let y = BOTTOM + 20;
            svg += &format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{time}</text>\n");
        }
        svg + "</svg></div>\n"
    }
}

/// Round times between two labels, in s.
const ROUND: [u64; 17] = [
    1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800,
    864_000, 2_592_000,
];
