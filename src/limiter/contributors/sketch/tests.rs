//! Bounds and reports of a sketch, against exact counts.

use std::collections::HashMap;

use super::*;

/// A store that adds up reports, and keeps 16 labels.
#[derive(Default)]
struct Stored {
    units: HashMap<Arc<Key>, i64>,
    total: i64,
    error: i64,
}

impl Stored {
    fn flush(&mut self, sketch: &mut Sketch) {
        let unsent = sketch.take_unsent();
        self.total += unsent.total;
        self.error += unsent.error;
        for (label, units) in &unsent.units {
            *self.units.entry(label.clone()).or_default() += units;
        }
        let mut all: Vec<_> = self.units.drain().collect();
        all.sort_unstable_by_key(|(label, units)| (-units, label.value().to_vec()));
        all.truncate(16);
        let floor = all.get(15).map_or(0, |(_, units)| units.unsigned_abs());
        self.units.extend(all);
        let kept = unsent.units.iter().map(|(label, _)| self.units(label));
        let kept = Kept::new(kept.collect(), floor);
        let labels = unsent.units.iter().map(|(key, _)| label(key));
        sketch.note(labels, &kept);
    }

    fn units(&self, label: &Arc<Key>) -> u64 {
        let units = self.units.get(label).copied().unwrap_or(0);
        u64::try_from(units).unwrap_or(0)
    }
}

fn key(number: u64) -> Arc<Key> {
    Arc::new(Key::new("user", number.to_string()))
}

fn label(key: &Arc<Key>) -> Label<'_> {
    let text = std::str::from_utf8(key.value()).unwrap();
    Label {
        key,
        hash: text.parse().unwrap(),
    }
}

#[test]
fn few_labels_are_counted_exactly() {
    let (mut sketch, mut stored) = (Sketch::default(), Stored::default());
    for round in 1..=5 {
        for number in 0..16 {
            sketch.add(label(&key(number)), 1 + number.cast_signed());
        }
        stored.flush(&mut sketch);
        for number in 0..16 {
            assert_eq!(stored.units(&key(number)), round * (1 + number));
        }
    }
    assert_eq!((stored.total, stored.error), (5 * 136, 0));
    assert!(sketch.take_unsent().units.is_empty());
}

#[test]
fn what_is_told_is_never_too_high_and_too_low_by_no_more_than_the_error() {
    let mut random = fastrand::Rng::with_seed(7);
    for labels in [10, 30, 60, 1_000] {
        let (mut sketch, mut stored) = (Sketch::default(), Stored::default());
        let mut truth: HashMap<u64, i64> = HashMap::new();
        for step in 0..20_000 {
            // Few labels have most; some units are given back.
            let most = random.u64(0..labels);
            let number = random.u64(0..=most);
            let had = truth.entry(number).or_default();
            let units = if random.u8(..8) == 0 {
                -random.i64(0..=(*had).min(3))
            } else {
                random.i64(1..5)
            };
            *had += units;
            sketch.add(label(&key(number)), units);
            if step % 500 == 0 {
                stored.flush(&mut sketch);
            }
        }
        stored.flush(&mut sketch);
        stored.flush(&mut sketch);
        assert_eq!(stored.total, truth.values().sum::<i64>());
        let floor = sketch.floor.cast_signed();
        for (number, units) in &truth {
            let known = stored.units(&key(*number)).cast_signed();
            // Units that were given back by a label that was not counted any more are not known of.
            let slack = floor + stored.total / 20;
            assert!(known <= units + slack, "{known} of {units}");
            assert!(units - known <= stored.error + slack, "{known} of {units}");
        }
    }
}

#[test]
fn without_giving_back_the_bounds_are_strict() {
    let mut random = fastrand::Rng::with_seed(8);
    for labels in [30, 60, 1_000] {
        let (mut sketch, mut stored) = (Sketch::default(), Stored::default());
        let mut truth: HashMap<u64, u64> = HashMap::new();
        let mut total = 0;
        for step in 0..40_000 {
            let most = random.u64(0..labels);
            let most = random.u64(0..=most);
            let number = random.u64(0..=most);
            *truth.entry(number).or_default() += 1;
            total += 1;
            sketch.add(label(&key(number)), 1);
            if step % 500 == 0 {
                stored.flush(&mut sketch);
            }
        }
        stored.flush(&mut sketch);
        let error = stored.error.unsigned_abs() + sketch.floor;
        for (number, units) in &truth {
            let known = stored.units(&key(*number));
            assert!(
                known <= *units && *units - known <= error,
                "{known} {units}"
            );
        }
        assert!(sketch.lost <= total / 40, "{} of {total}", sketch.lost);
        assert!(sketch.counters.len() <= 40);
    }
}

#[test]
fn a_label_that_comes_late_is_told_as_soon_as_it_is_among_the_greatest() {
    let (mut sketch, mut stored) = (Sketch::default(), Stored::default());
    for number in 0..16 {
        sketch.add(label(&key(number)), 1_000);
    }
    stored.flush(&mut sketch);
    // Two labels, so that the floor has to be passed by each of them.
    for _ in 0..11 {
        sketch.add(label(&key(98)), 100);
        sketch.add(label(&key(99)), 100);
        stored.flush(&mut sketch);
    }
    assert_eq!(stored.units(&key(98)), 1_100);
    assert_eq!(stored.units(&key(99)), 1_100);
}

#[test]
fn what_a_store_has_lost_is_told_again() {
    let (mut sketch, mut stored) = (Sketch::default(), Stored::default());
    sketch.add(label(&key(1)), 100);
    stored.flush(&mut sketch);
    stored = Stored::default();
    sketch.add(label(&key(1)), 1);
    stored.flush(&mut sketch);
    stored.flush(&mut sketch);
    assert_eq!(stored.units(&key(1)), 101);
}

#[test]
fn units_that_are_given_back_do_not_push_others_out() {
    let (mut sketch, mut stored) = (Sketch::default(), Stored::default());
    for number in 0..10_000 {
        // A wrong password counts, a right one is given back.
        sketch.add(label(&key(number)), 1);
        if number != 77 {
            sketch.add(label(&key(number)), -1);
        }
    }
    stored.flush(&mut sketch);
    assert_eq!(
        (stored.units(&key(77)), stored.total, stored.error),
        (1, 1, 0)
    );
}

#[test]
fn what_a_label_gives_back_that_is_not_counted_is_taken_from_the_total_alone() {
    let (mut sketch, mut stored) = (Sketch::default(), Stored::default());
    sketch.add(label(&key(1)), 5);
    sketch.add(label(&key(2)), -3);
    stored.flush(&mut sketch);
    assert_eq!(
        (stored.units(&key(1)), stored.total, stored.error),
        (5, 2, 0)
    );
    assert_eq!(stored.units.get(&key(2)), None);
}

#[test]
fn a_label_that_the_store_would_not_keep_waits_and_is_part_of_the_error() {
    let (mut sketch, mut stored) = (Sketch::default(), Stored::default());
    for number in 0..16 {
        sketch.add(label(&key(number)), 1_000);
    }
    stored.flush(&mut sketch);
    sketch.add(label(&key(99)), 1_000);
    let waiting = sketch.take_unsent();
    assert_eq!((waiting.units.len(), waiting.error), (0, 1_000));
    sketch.add(label(&key(99)), 1);
    let unsent = sketch.take_unsent();
    assert_eq!(
        (&unsent.units[..], unsent.error),
        (&[(key(99), 1_001)][..], -1_000)
    );
}
