//! How sections keep their totals, and the mark of a value.

use std::num::NonZeroU64;

use super::VERSION;
use crate::domain::window::StepSpec;

/// How a section keeps the totals at the ends of the steps before the newest.
pub(in crate::store::redis) enum Places {
    /// A fixed rule has no earlier steps.
    None,
    /// A place for each step that can count: the step with this number has the place `number % places`.
    Ring(NonZeroU64),
    /// An entry for each step that was charged.
    Queue,
}

impl Places {
    const MOST: u64 = 256;

    pub(in crate::store::redis) fn of(spec: StepSpec) -> Self {
        let places = spec.retention_ms.div_ceil(spec.step_ms);
        match NonZeroU64::new(places) {
            None => Self::None,
            Some(places) if places.get() <= Self::MOST => Self::Ring(places),
            Some(_) => Self::Queue,
        }
    }

    /// The numbers of the steps in a ring of so many places, in their order.
    pub(in crate::store::redis) fn steps(
        places: NonZeroU64,
        newest: u64,
    ) -> impl Iterator<Item = u64> {
        let places = places.get();
        (0..places)
            .map(move |place| newest.saturating_sub(1 + (newest + places - 1 - place) % places))
    }
}

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
