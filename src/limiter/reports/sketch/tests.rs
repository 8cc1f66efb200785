//! Bounds and reports of a sketch, against exact counts.

use std::{collections::HashMap, sync::Arc};

use super::*;
use crate::domain::key::Key;

/// A store that adds up reports, and keeps 16 labels.
#[derive(Default)]
struct Stored {
    units: HashMap<u64, i64>,
    total: i64,
    error: i64,
}

impl Stored {
    fn flush(&mut self, sketch: &mut Sketch) {
        let unsent = sketch.take_unsent();
        self.total += unsent.total;
        self.error += unsent.error;
        for (label, units) in &unsent.units {
            *self.units.entry(number(label)).or_default() += units;
        }
        let mut all: Vec<_> = self.units.drain().collect();
        all.sort_unstable_by_key(|(number, units)| (-units, *number));
        all.truncate(16);
        let floor = all.get(15).map_or(0, |(_, units)| units.unsigned_abs());
        self.units.extend(all);
        let numbers = || unsent.units.iter().map(|(label, _)| number(label));
        let units = numbers().map(|number| self.units(number)).collect();
        sketch.note(numbers(), &Kept { units, floor });
    }

    fn units(&self, number: u64) -> u64 {
        let units = self.units.get(&number).copied().unwrap_or(0);
        u64::try_from(units).unwrap_or(0)
    }
}

fn sketch() -> Sketch {
    Sketch::new(40)
}

fn add(sketch: &mut Sketch, number: u64, units: i64) {
    let key = || Arc::new(Key::new("user", number.to_string()));
    let label = || Label {
        policy: None,
        key: key(),
    };
    sketch.add(number, units, label);
}

fn number(label: &Label) -> u64 {
    let text = std::str::from_utf8(label.key.value()).unwrap();
    text.parse().unwrap()
}

#[test]
fn few_labels_are_counted_exactly() {
    let (mut sketch, mut stored) = (sketch(), Stored::default());
    for round in 1..=5 {
        for number in 0..16 {
            add(&mut sketch, number, 1 + number.cast_signed());
        }
        stored.flush(&mut sketch);
        for number in 0..16 {
            assert_eq!(stored.units(number), round * (1 + number));
        }
    }
    assert_eq!((stored.total, stored.error), (5 * 136, 0));
    assert!(sketch.take_unsent().units.is_empty());
}

#[test]
fn reported_units_are_never_too_high_and_too_low_by_no_more_than_the_error() {
    let mut random = fastrand::Rng::with_seed(7);
    for labels in [10, 30, 60, 1_000] {
        let (mut sketch, mut stored) = (sketch(), Stored::default());
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
            add(&mut sketch, number, units);
            if step % 500 == 0 {
                stored.flush(&mut sketch);
            }
        }
        stored.flush(&mut sketch);
        stored.flush(&mut sketch);
        assert_eq!(stored.total, truth.values().sum::<i64>());
        let floor = sketch.floor.cast_signed();
        for (number, units) in &truth {
            let known = stored.units(*number).cast_signed();
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
        let (mut sketch, mut stored) = (sketch(), Stored::default());
        let mut truth: HashMap<u64, u64> = HashMap::new();
        let mut total = 0;
        for step in 0..40_000 {
            let most = random.u64(0..labels);
            let most = random.u64(0..=most);
            let number = random.u64(0..=most);
            *truth.entry(number).or_default() += 1;
            total += 1;
            add(&mut sketch, number, 1);
            if step % 500 == 0 {
                stored.flush(&mut sketch);
            }
        }
        stored.flush(&mut sketch);
        let error = stored.error.unsigned_abs() + sketch.floor;
        for (number, units) in &truth {
            let known = stored.units(*number);
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
    let (mut sketch, mut stored) = (sketch(), Stored::default());
    for number in 0..16 {
        add(&mut sketch, number, 1_000);
    }
    stored.flush(&mut sketch);
    // Two labels, so that the floor has to be passed by each of them.
    for _ in 0..11 {
        add(&mut sketch, 98, 100);
        add(&mut sketch, 99, 100);
        stored.flush(&mut sketch);
    }
    assert_eq!(stored.units(98), 1_100);
    assert_eq!(stored.units(99), 1_100);
}

#[test]
fn what_a_store_has_lost_is_told_again() {
    let (mut sketch, mut stored) = (sketch(), Stored::default());
    add(&mut sketch, 1, 100);
    stored.flush(&mut sketch);
    stored = Stored::default();
    add(&mut sketch, 1, 1);
    stored.flush(&mut sketch);
    stored.flush(&mut sketch);
    assert_eq!(stored.units(1), 101);
}

#[test]
fn units_that_are_given_back_do_not_push_others_out() {
    let (mut sketch, mut stored) = (sketch(), Stored::default());
    for number in 0..10_000 {
        // A wrong password counts, a right one is given back.
        add(&mut sketch, number, 1);
        if number != 77 {
            add(&mut sketch, number, -1);
        }
    }
    stored.flush(&mut sketch);
    assert_eq!((stored.units(77), stored.total, stored.error), (1, 1, 0));
}

#[test]
fn what_a_label_gives_back_that_is_not_counted_is_taken_from_the_total_alone() {
    let (mut sketch, mut stored) = (sketch(), Stored::default());
    add(&mut sketch, 1, 5);
    add(&mut sketch, 2, -3);
    stored.flush(&mut sketch);
    assert_eq!((stored.units(1), stored.total, stored.error), (5, 2, 0));
    assert_eq!(stored.units.get(&2), None);
}

#[test]
fn a_label_that_the_store_would_not_keep_waits_and_is_part_of_the_error() {
    let (mut sketch, mut stored) = (sketch(), Stored::default());
    for number in 0..16 {
        add(&mut sketch, number, 1_000);
    }
    stored.flush(&mut sketch);
    add(&mut sketch, 99, 1_000);
    let waiting = sketch.take_unsent();
    assert_eq!((waiting.units.len(), waiting.error), (0, 1_000));
    add(&mut sketch, 99, 1);
    let unsent = sketch.take_unsent();
    let units = unsent
        .units
        .iter()
        .map(|(label, units)| (number(label), *units));
    assert_eq!(units.collect::<Vec<_>>(), [(99, 1_001)]);
    assert_eq!(unsent.error, -1_000);
}
