//! A chart of horizontal bars as SVG, readable on light and dark backgrounds, without scripts or fonts.

use std::{
    fmt::{Display, Write as _},
    fs, io,
    path::Path,
};

/// The width of the picture; all lengths are in px.
const WIDTH: u32 = 800;
const MARGIN: u32 = 12;
const ROW: u32 = 24;
const BAR: u32 = 14;
/// The distance from the middle of a line to the baseline of the text.
const BASELINE: u32 = 5;

/// An upper bound of the width of a character, since the font of the viewer is not known.
const CHARACTER: u32 = 8;

const STYLE: &str = "<style>
text { font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328; }
.title { font-size: 16px; font-weight: 600; }
.heading { font-weight: 600; }
.note { fill: #59636e; }
.ours { fill: #0969da; font-weight: 600; }
rect.other { fill: #818b98; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; }
.note { fill: #9198a1; }
.ours { fill: #4493f8; }
rect.other { fill: #7d8590; }
}
</style>
";

pub(crate) struct Chart {
    pub(crate) title: String,
    /// Lines about the measured value, the method, and the unit.
    pub(crate) notes: Vec<String>,
    pub(crate) groups: Vec<Group>,
}

pub(crate) struct Group {
    pub(crate) heading: String,
    pub(crate) bars: Vec<Bar>,
}

pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// The value as text, with the unit.
    pub(crate) figure: String,
    /// Whether the bar has the highlight colour.
    pub(crate) is_ours: bool,
}

impl Chart {
    /// Writes `figures/{name}.svg` in cargo's target folder.
    pub(crate) fn save(&self, name: &str) -> io::Result<()> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("figures");
        fs::create_dir_all(&folder)?;
        let file = folder.join(name).with_extension("svg");
        fs::write(&file, self.svg())?;
        eprintln!("drawn: {}", file.display());
        Ok(())
    }

    /// # Panics
    ///
    /// Panics on a value that is negative or not finite, and on text that leaves no room for the bars.
    pub(crate) fn svg(&self) -> String {
        let mut drawing = Drawing::new(self);
        drawing.text(MARGIN, "title", &self.title);
        for note in &self.notes {
            drawing.next_row();
            drawing.text(MARGIN, "note", note);
        }
        for group in &self.groups {
            drawing.next_row();
            drawing.y += ROW / 2;
            drawing.text(MARGIN, "heading", &group.heading);
            let top = drawing.y + ROW / 2;
            for bar in &group.bars {
                drawing.next_row();
                drawing.bar(bar);
            }
            drawing.axis(top);
        }
        // Known only now: notes and labels decide how many rows there are.
        let height = drawing.y + ROW / 2 + MARGIN;
        let (title, desc) = (escaped(&self.title), escaped(self.described()));
        let body = drawing.svg;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"title desc\">\n\
             <title id=\"title\">{title}</title>\n<desc id=\"desc\">{desc}</desc>\n{STYLE}{body}</svg>\n"
        )
    }

    /// The content as text, for readers that do not see the picture.
    fn described(&self) -> String {
        let mut text = self.notes.join(" ");
        for group in &self.groups {
            let bars = group
                .bars
                .iter()
                .map(|bar| format!("{}: {}", bar.label, bar.figure));
            let bars = bars.collect::<Vec<_>>().join("; ");
            write!(text, "\n{}. {bars}.", group.heading).unwrap();
        }
        text
    }

    fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.groups.iter().flat_map(|group| &group.bars)
    }
}

struct Drawing {
    svg: String,
    /// The middle of the line that is being drawn.
    y: u32,
    /// The left end of all bars.
    left: u32,
    /// The length of the longest bar, and its value.
    longest: u32,
    most: f64,
}

impl Drawing {
    fn new(chart: &Chart) -> Self {
        for Bar { label, value, .. } in chart.bars() {
            assert!(value.is_finite() && *value >= 0.0, "{label}: {value}");
        }
        let widest = |text: fn(&Bar) -> &str| chart.bars().map(|bar| width(text(bar))).max();
        let labels = widest(|bar| &bar.label).unwrap_or(0);
        let figures = widest(|bar| &bar.figure).unwrap_or(0);
        let left = 2 * MARGIN + labels;
        Self {
            svg: String::new(),
            y: MARGIN + ROW / 2,
            left,
            longest: WIDTH
                .checked_sub(left + figures + 2 * MARGIN)
                .expect("the labels leave no room for the bars"),
            // All bars may have the length 0.
            most: chart
                .bars()
                .map(|bar| bar.value)
                .fold(f64::EPSILON, f64::max),
        }
    }

    fn next_row(&mut self) {
        self.y += ROW;
    }

    fn text(&mut self, x: impl Display, class: &str, text: &str) {
        let (y, text) = (self.y + BASELINE, escaped(text));
        writeln!(
            self.svg,
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>"
        )
        .unwrap();
    }

    fn bar(&mut self, bar: &Bar) {
        let length = f64::from(self.longest) * bar.value / self.most;
        let class = if bar.is_ours { "ours" } else { "other" };
        let (left, top) = (self.left, self.y - BAR / 2);
        self.text(MARGIN, class, &bar.label);
        writeln!(
            self.svg,
            "<rect class=\"{class}\" x=\"{left}\" y=\"{top}\" width=\"{length:.1}\" height=\"{BAR}\"/>"
        )
        .unwrap();
        let end = f64::from(left) + length + f64::from(MARGIN / 2);
        self.text(format_args!("{end:.1}"), class, &bar.figure);
    }

    /// The line at the left end of the bars, so that you see a bar of length 0.
    fn axis(&mut self, top: u32) {
        let (x, height) = (self.left - 1, self.y + ROW / 2 - top);
        writeln!(
            self.svg,
            "<rect class=\"other\" x=\"{x}\" y=\"{top}\" width=\"1\" height=\"{height}\"/>"
        )
        .unwrap();
    }
}

fn width(text: &str) -> u32 {
    u32::try_from(text.chars().count()).unwrap() * CHARACTER
}

fn escaped(text: impl AsRef<str>) -> String {
    let text = text.as_ref().replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}
