//! [`Sketch`]: the largest contributors to one account in one span, in bounded memory.
//!
//! Space-saving (Metwally et al., 2005): a new label replaces the smallest counter, and inherits its count as a
//! possible error. The count minus that error is certain: the sketch reports this part, so that a store's sum is never
//! too high.

use std::sync::Arc;

use crate::domain::{contributors::Kept, key::Key};

/// How many labels are counted. At most this fraction of all units can be missing from a label.
const COUNTERS: usize = 40;

/// A label, and its hash.
#[derive(Clone, Copy)]
pub(super) struct Label<'a> {
    pub(super) key: &'a Arc<Key>,
    pub(super) hash: u64,
}

/// The part not yet reported: see [`Contribution`](crate::contributors::Contribution).
#[derive(Default)]
pub(super) struct Unsent {
    pub(super) units: Vec<(Arc<Key>, i64)>,
    pub(super) total: i64,
    pub(super) error: i64,
}

#[derive(Default)]
pub(super) struct Sketch {
    /// Apart from the counters, so that the search reads adjacent memory.
    hashes: Vec<u64>,
    counters: Vec<Counter>,
    /// The largest count that a label has lost: an upper bound for any label without a counter.
    lost: u64,
    total: i64,
    /// The reported parts of the total and of the error.
    sent: (i64, i64),
    /// The number of units that the store requires to keep a label.
    floor: u64,
}

struct Counter {
    label: Arc<Key>,
    /// Units since the counter began; at least 0.
    units: u64,
    /// Units that the label may have had before.
    error: u64,
    /// How many of these units the store has, at most.
    sent: u64,
}

impl Counter {
    const fn count(&self) -> u64 {
        self.units.saturating_add(self.error)
    }

    const fn unsent(&self) -> i64 {
        self.units.cast_signed() - self.sent.cast_signed()
    }

    /// Whether the store has kept the label, as far as known.
    const fn is_kept(&self) -> bool {
        self.sent > 0
    }
}

impl Sketch {
    /// Adds units, at most 2^53; negative units are taken back.
    pub(super) fn add(&mut self, label: Label<'_>, units: i64) {
        self.total = self.total.saturating_add(units);
        let added = units.unsigned_abs();
        match self.find(label) {
            Some(counter) if units < 0 => counter.units = counter.units.saturating_sub(added),
            Some(counter) => counter.units = counter.units.saturating_add(added),
            None if units > 0 => self.enter(label, added),
            None => {}
        }
    }

    /// Takes the unreported rest, and marks it as reported. Labels that the store would not keep wait.
    pub(super) fn take_unsent(&mut self) -> Unsent {
        let (floor, mut waiting) = (self.floor, 0);
        let mut units = Vec::new();
        for counter in &mut self.counters {
            let unsent = counter.unsent();
            if unsent == 0 {
                continue;
            }
            if counter.is_kept() || unsent.unsigned_abs() > floor {
                counter.sent = counter.units;
                units.push((Arc::clone(&counter.label), unsent));
            } else {
                waiting = waiting.max(unsent.unsigned_abs());
            }
        }
        // Only the change since the last report is sent: the store adds up the reports of all processes.
        let error = self.lost.saturating_add(waiting).cast_signed();
        let sent = std::mem::replace(&mut self.sent, (self.total, error));
        Unsent {
            units,
            total: self.total - sent.0,
            error: error - sent.1,
        }
    }

    /// Notes how many units the store has of the last reported labels. Fewer than reported means that the store has
    /// dropped a label or a report: the next report then repeats the difference.
    pub(super) fn note<'a>(&mut self, labels: impl Iterator<Item = Label<'a>>, kept: &Kept) {
        self.floor = kept.floor;
        for (label, units) in labels.zip(&kept.units) {
            if let Some(counter) = self.find(label) {
                counter.sent = counter.sent.min(*units);
            }
        }
    }

    fn find(&mut self, label: Label<'_>) -> Option<&mut Counter> {
        // Two labels with the same keyed hash share a counter for as long as the first has one.
        let place = self.hashes.iter().position(|hash| *hash == label.hash)?;
        Some(&mut self.counters[place])
    }

    fn enter(&mut self, label: Label<'_>, units: u64) {
        let mut counter = Counter {
            label: Arc::clone(label.key),
            units,
            error: self.lost,
            sent: 0,
        };
        if self.counters.len() < COUNTERS {
            self.hashes.push(label.hash);
            self.counters.push(counter);
            return;
        }
        let counts = self.counters.iter().map(Counter::count).enumerate();
        if let Some((place, least)) = counts.min_by_key(|(_, count)| *count) {
            self.lost = self.lost.max(least);
            counter.error = self.lost;
            self.hashes[place] = label.hash;
            self.counters[place] = counter;
        }
    }
}

#[cfg(test)]
mod tests;
