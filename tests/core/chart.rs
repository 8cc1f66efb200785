//! The charts that the benches draw.

#[path = "../../benches/common/chart.rs"]
#[allow(dead_code, reason = "a test saves no picture")]
mod drawing;

use drawing::{Bar, Chart, Group};

fn chart(bars: &[(&str, f64, &str)]) -> Chart {
    let bars = bars.iter().map(|&(label, value, figure)| Bar {
        label: label.into(),
        value,
        figure: figure.into(),
        is_ours: false,
    });
    Chart {
        title: "Cost".into(),
        notes: vec!["in µs".into()],
        groups: vec![Group {
            heading: "All".into(),
            bars: bars.collect(),
        }],
    }
}

/// The values of this attribute in all elements of this name.
fn attributes(svg: &str, element: &str, attribute: &str) -> Vec<f64> {
    let element = format!("<{element} ");
    let attribute = format!(" {attribute}=\"");
    svg.split(&element)
        .skip(1)
        .map(|element| {
            let value = element.split(&attribute).nth(1).unwrap();
            value.split('"').next().unwrap().parse().unwrap()
        })
        .collect()
}

#[test]
fn text_is_escaped() {
    let mut chart = chart(&[("a <b> & c", 1.0, "<1 & 2>")]);
    chart.title = "</title><script>".into();
    chart.notes = vec!["x < y".into()];
    chart.groups[0].heading = "R&D".into();
    let svg = chart.svg();
    for text in [
        "a &lt;b&gt; &amp; c",
        "&lt;1 &amp; 2&gt;",
        "<title id=\"title\">&lt;/title&gt;&lt;script&gt;</title>",
        "x &lt; y",
        "R&amp;D",
    ] {
        assert!(svg.contains(text), "{text} is not in {svg}");
    }
    assert!(!svg.contains("<script"), "{svg}");
}

#[test]
fn bars_are_as_long_as_their_values_and_end_within_the_picture() {
    let label = "a label that takes some of the room";
    let svg = chart(&[
        (label, 50.0, "50 µs"),
        ("b", 12.5, "12.5 µs"),
        ("c", 0.0, "0 µs"),
    ])
    .svg();
    let picture = attributes(&svg, "svg", "width")[0];
    let widths = attributes(&svg, "rect", "width");
    let [longest, quarter, nothing, _axis] = widths[..] else {
        panic!("{svg}")
    };
    assert!((longest / quarter - 4.0).abs() < 0.01, "{svg}");
    assert!(nothing.abs() < 0.01, "{svg}");
    let begin = attributes(&svg, "rect", "x")[0];
    assert!(
        begin > 35.0 * 6.5,
        "the longest label is behind its bar: {svg}"
    );
    assert!(
        begin + longest + 7.0 * 6.5 < picture,
        "a figure is cut off: {svg}"
    );
    let height = attributes(&svg, "svg", "height")[0];
    for y in attributes(&svg, "text", "y") {
        assert!(0.0 < y && y < height, "{svg}");
    }
}

#[test]
fn those_who_do_not_see_it_are_told_every_figure() {
    let svg = chart(&[("a", 2.0, "2 µs"), ("b", 1.0, "1 µs")]).svg();
    assert!(svg.contains("role=\"img\""), "{svg}");
    assert!(
        svg.contains("in µs\nAll. a: 2 µs; b: 1 µs.</desc>"),
        "{svg}"
    );
}

#[test]
fn it_may_be_that_all_values_are_0() {
    let svg = chart(&[("a", 0.0, "0"), ("b", 0.0, "0")]).svg();
    assert!(!svg.contains("NaN"), "{svg}");
}

#[test]
#[should_panic(expected = "a: NaN")]
fn what_was_not_measured_is_not_drawn() {
    chart(&[("a", f64::NAN, "?")]).svg();
}
