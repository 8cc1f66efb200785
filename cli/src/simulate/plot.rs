//! Plots over time as SVG. The page's style sheet replaces their colours, for light and for dark backgrounds.

use std::error::Error;

use plotters::{
    coord::combinators::WithKeyPoints,
    coord::types::{RangedCoordu64, RangedCoordusize},
    prelude::*,
};

use super::{
    super::text::{formatted, grouped},
    result::OverTime,
};

/// The size of a plot, and the number of times that fit below it.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pixels: (u32, u32),
    times: u64,
}

pub(super) const WIDE: Size = Size {
    pixels: (1_000, 260),
    times: 10,
};

/// For a phone: the labels stay readable at its width.
pub(super) const NARROW: Size = Size {
    pixels: (400, 240),
    times: 3,
};

/// `report.css` replaces these colours.
const LINE: RGBColor = RGBColor(0x11, 0x11, 0x11);
const REQUESTS: RGBColor = RGBColor(0x22, 0x22, 0x22);
const REFUSED: RGBColor = RGBColor(0x33, 0x33, 0x33);

/// The number of colours for rules.
pub(super) const COLOURS: u8 = 6;

/// The colour of bans follows those of rules.
pub(super) const BANS: u8 = COLOURS;

/// A line: a count for each span, in one colour.
pub(super) struct Line {
    pub(super) counts: Vec<u64>,
    pub(super) colour: u8,
}

pub(super) type Plot = Result<String, Box<dyn Error>>;

/// The requests, and in front of them the refused requests.
pub(super) fn requests(over_time: &OverTime, size: Size) -> Plot {
    draw(over_time, size, over_time.most_requests(), |chart| {
        for (index, span) in over_time.spans.iter().enumerate() {
            for (count, colour) in [(span.requests, REQUESTS), (span.refused, REFUSED)] {
                if count > 0 {
                    let corners = [(index, 0), (index + 1, count)];
                    chart.draw_series([Rectangle::new(corners, colour.filled())])?;
                }
            }
        }
        Ok(())
    })
}

/// Lines that step from span to span.
pub(super) fn lines(over_time: &OverTime, size: Size, lines: &[Line]) -> Plot {
    let counts = lines.iter().flat_map(|line| line.counts.iter().copied());
    draw(over_time, size, counts.max().unwrap_or(0), |chart| {
        for line in lines {
            let steps = line.counts.iter().enumerate();
            let steps = steps.flat_map(|(at, count)| [(at, *count), (at + 1, *count)]);
            let style = RGBColor(0x44, 0, line.colour).stroke_width(2);
            chart.draw_series(LineSeries::new(steps, style))?;
        }
        Ok(())
    })
}

type Chart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<WithKeyPoints<RangedCoordusize>, RangedCoordu64>>;

fn draw(
    over_time: &OverTime,
    size: Size,
    most: u64,
    series: impl FnOnce(&mut Chart<'_, '_>) -> Result<(), Box<dyn Error>>,
) -> Plot {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size.pixels).into_drawing_area();
        // Leave some space above the highest value.
        let top = (most + most / 20).max(1);
        let mut chart = ChartBuilder::on(&area)
            .margin(6)
            .margin_right(40)
            .x_label_area_size(26)
            .y_label_area_size(70)
            .build_cartesian_2d(
                (0..over_time.spans.len()).with_key_points(ticks(over_time, size.times)),
                0..top,
            )?;
        let label = |index: &usize| time(over_time, *index);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(8)
            .y_labels(5)
            .x_label_formatter(&label)
            .y_label_formatter(&|count| grouped(*count))
            .label_style(("sans-serif", 14).into_font().color(&LINE))
            .x_label_style(("sans-serif", 14).into_font().color(&LINE))
            .axis_style(LINE)
            .bold_line_style(LINE)
            .light_line_style(TRANSPARENT)
            .draw()?;
        series(&mut chart)?;
        area.present()?;
    }
    Ok(svg)
}

/// The spans that get a label: those at round times, at most `most`.
fn ticks(over_time: &OverTime, most: u64) -> Vec<usize> {
    let all = over_time.seconds * over_time.spans.len() as u64;
    let between = ROUND
        .iter()
        .find(|seconds| all / **seconds <= most)
        .unwrap_or(&31_536_000);
    let starts = over_time.spans.iter().enumerate();
    let round = starts.filter(|(_, span)| span.from.is_multiple_of(*between));
    round.map(|(index, _)| index).collect()
}

/// Round times between two labels, in s.
const ROUND: [u64; 17] = [
    1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800,
    864_000, 2_592_000,
];

/// The beginning of a span, in the shortest format for the whole plot.
fn time(over_time: &OverTime, index: usize) -> String {
    let Some(first) = over_time.spans.first() else {
        return String::new();
    };
    let seconds = first.from + over_time.seconds * index as u64;
    let whole = over_time.seconds * over_time.spans.len() as u64;
    let format = match (whole, over_time.seconds) {
        (172_800.., 86_400..) => "%Y-%m-%d",
        (172_800.., _) => "%d %b %H:%M",
        (_, 60..) => "%H:%M",
        _ => "%H:%M:%S",
    };
    formatted(seconds * 1_000, format)
}
