//! The mark of a value.

use super::VERSION;

/// An even number of 48 bits, never 0, for values that have sections with these labels and no others: the script compares it
/// instead of the labels. Values with wide entries have the next number.
pub(super) fn mark(labels: &[[u64; 2]]) -> u64 {
    // The golden ratio, as in Fibonacci hashing: all bits of a label reach the highest ones.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut mark = u64::from(VERSION);
    for number in labels.as_flattened() {
        mark = (mark ^ mark >> 29 ^ number).wrapping_mul(FACTOR);
    }
    ((mark ^ mark >> 29).wrapping_mul(FACTOR) >> 16 & !1).max(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_names_one_sequence_of_labels() {
        let labels = [[17, 1_000], [1_000, 60_000], [1_000, 17], [0, 0]];
        let mut marks: Vec<u64> = (0..labels.len())
            .flat_map(|first| (first..=labels.len()).map(move |end| mark(&labels[first..end])))
            .collect();
        marks.push(mark(&[labels[1], labels[0]]));
        marks.sort_unstable();
        assert!(
            marks
                .iter()
                .all(|mark| (1..1 << 48).contains(mark) && mark % 2 == 0)
        );
        let count = marks.len();
        marks.dedup();
        assert_eq!(
            marks.len(),
            count - 3,
            "the empty sequence was there four times"
        );
    }
}
