//! [`Sketch`]: the labels with the most units in one span, in bounded memory.
//!
//! Space-saving (Metwally et al., 2005): a new label replaces the smallest counter, and inherits its count as a
//! possible error. The count minus that error is certain: the sketch reports this part, so that a store's sum is never
//! too high.

use std::mem;

use crate::domain::{
    denials::DENIED,
    report::{Kept, Label},
};

/// The part not yet reported: see [`Report`](crate::contributors::Report).
#[derive(Default)]
pub(super) struct Unsent {
    pub(super) units: Vec<(Label, i64)>,
    pub(super) total: i64,
    pub(super) error: i64,
}

pub(super) struct Sketch {
    /// How many labels are counted. At most this fraction of all units can be missing from a label.
    most: usize,
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
    label: Label,
    /// Units since the counter began; at least 0.
    units: u64,
    /// Units that the label may have had before.
    error: u64,
    /// How many of these units the store has, at most.
    sent: u64,
    /// The weight of earlier spans.
    weight: u64,
    /// The start of the last one with a denial.
    denied_ms: u64,
}

impl Counter {
    const fn new(label: Label, units: u64, error: u64) -> Self {
        Self {
            label,
            units,
            error,
            sent: 0,
            weight: 0,
            denied_ms: 0,
        }
    }

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
    pub(super) const fn new(most: usize) -> Self {
        Self {
            most,
            hashes: Vec::new(),
            counters: Vec::new(),
            lost: 0,
            total: 0,
            sent: (0, 0),
            floor: 0,
        }
    }

    /// Adds units, at most 2^53, to the label with this hash; negative units are taken back.
    pub(super) fn add(&mut self, hash: u64, units: i64, label: impl FnOnce() -> Label) {
        self.total = self.total.saturating_add(units);
        let added = units.unsigned_abs();
        match self.find(hash) {
            Some(counter) if units < 0 => counter.units = counter.units.saturating_sub(added),
            Some(counter) => counter.units = counter.units.saturating_add(added),
            None if units > 0 => self.enter(hash, added, label()),
            None => {}
        }
    }

    pub(super) fn knows(&self, hash: u64) -> bool {
        self.hashes.contains(&hash)
    }

    /// The hashes of the labels that have a counter.
    pub(super) fn hashes(&self) -> &[u64] {
        &self.hashes
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
                units.push((counter.label.clone(), unsent));
            } else {
                waiting = waiting.max(unsent.unsigned_abs());
            }
        }
        // Only the change since the last report is sent: the store adds up the reports of all processes.
        let error = self.lost.saturating_add(waiting).cast_signed();
        let sent = mem::replace(&mut self.sent, (self.total, error));
        Unsent {
            units,
            total: self.total - sent.0,
            error: error - sent.1,
        }
    }

    /// Notes how many units the store has of the last reported labels. Fewer than reported means that the store has
    /// dropped a label or a report: the next report then repeats the difference.
    pub(super) fn note(&mut self, hashes: impl Iterator<Item = u64>, kept: &Kept) {
        self.floor = kept.floor;
        for (hash, units) in hashes.zip(&kept.units) {
            if let Some(counter) = self.find(hash) {
                counter.sent = counter.sent.min(*units);
            }
        }
    }

    /// Begins another span of denials. A label stays known while its last denial is not older than `oldest_ms`; the
    /// counts of earlier spans protect it from new labels, half as much with each span.
    pub(super) fn go_on(&mut self, ended_ms: u64, oldest_ms: u64) {
        let ended = mem::replace(self, Self::new(self.most));
        for (hash, counter) in ended.hashes.into_iter().zip(ended.counters) {
            let denied_ms = match counter.units >= DENIED {
                true => ended_ms,
                false => counter.denied_ms,
            };
            if denied_ms >= oldest_ms {
                self.hashes.push(hash);
                self.counters.push(Counter {
                    weight: counter.weight.midpoint(counter.count()),
                    denied_ms,
                    ..Counter::new(counter.label, 0, 0)
                });
            }
        }
    }

    /// Forgets all labels.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.most);
    }

    fn find(&mut self, hash: u64) -> Option<&mut Counter> {
        // Two labels with the same keyed hash share a counter for as long as the first has one.
        let place = self.hashes.iter().position(|it| *it == hash)?;
        Some(&mut self.counters[place])
    }

    fn enter(&mut self, hash: u64, units: u64, label: Label) {
        let length = self.counters.len();
        if length < self.most {
            if length == self.counters.capacity() {
                // No more than can be of use.
                let more = length.max(4).min(self.most - length);
                self.hashes.reserve_exact(more);
                self.counters.reserve_exact(more);
            }
            self.hashes.push(hash);
            self.counters.push(Counter::new(label, units, self.lost));
            return;
        }
        let counters = self.counters.iter().enumerate();
        let least = counters.min_by_key(|(_, it)| it.count().saturating_add(it.weight));
        if let Some((place, least)) = least {
            self.lost = self.lost.max(least.count());
            self.hashes[place] = hash;
            self.counters[place] = Counter::new(label, units, self.lost);
        }
    }
}

#[cfg(test)]
mod tests;
