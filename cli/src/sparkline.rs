//! [`sparkline`]: the units of a window as a line of bars.

use std::ops::Range;

/// From few units to many. No units are a dot.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the steps of a span. Each step has a range of times and a number of units. The highest bar is full.
///
/// The middle of a step decides its column. `columns` is at least 1.
pub(crate) fn sparkline(
    steps: impl IntoIterator<Item = (Range<u64>, u64)>,
    span: &Range<u64>,
    columns: usize,
) -> String {
    let mut sums = vec![0_u64; columns];
    let length = u128::from((span.end - span.start).max(1));
    for (step, units) in steps {
        let middle = u64::midpoint(step.start, step.end);
        let behind = u128::from(middle.saturating_sub(span.start));
        let column = behind * columns as u128 / length;
        let column = usize::try_from(column).unwrap_or(usize::MAX);
        // A step outside of the span goes into the first or the last column.
        let column = column.min(sums.len() - 1);
        sums[column] = sums[column].saturating_add(units);
    }
    let most = sums.iter().copied().max().unwrap_or(0);
    let bars = sums.iter().map(|&sum| match sum {
        0 => '·',
        sum => {
            let bar = u128::from(sum) * 8 / u128::from(most);
            BARS[usize::try_from(bar.saturating_sub(1)).unwrap_or(7)]
        }
    });
    bars.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_their_share_of_the_highest() {
        let steps = [(0..10, 1), (10..20, 8), (30..40, 4), (90..100, 8)];
        assert_eq!(sparkline(steps, &(0..100), 10), "▁█·▄·····█");
        assert_eq!(sparkline([], &(0..100), 5), "·····");
        assert_eq!(sparkline([(0..100, u64::MAX)], &(0..100), 3), "·█·");
    }

    #[test]
    fn what_lies_outside_stands_at_an_end() {
        assert_eq!(sparkline([(0..2, 1), (300..302, 1)], &(100..200), 3), "█·█");
    }
}
