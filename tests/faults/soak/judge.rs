//! The units that were admitted in each window, counted from the decisions alone, and kept no longer than the window.

use std::collections::{BTreeMap, HashMap};

use support::{prelude::*, promise::most_within};

use crate::tally::window_ms;

/// A rule of one key, decided by the server or by this process. Reloads change limits, and neither windows nor steps.
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Counted {
    policy: String,
    key: String,
    window_ms: u64,
    is_local: bool,
}

#[derive(Default)]
struct Window {
    /// The greatest of all reloads.
    limit: u64,
    /// The units of each step, by its end in ms.
    steps: BTreeMap<u64, u64>,
}

impl Window {
    /// The most units that were admitted in one window.
    fn most_within(&self, window_ms: u64) -> u64 {
        let steps: Vec<_> = self
            .steps
            .iter()
            .map(|(&end, &units)| (end, units))
            .collect();
        u64::try_from(most_within(window_ms, &steps)).unwrap()
    }

    /// Forgets the steps that no later step meets in a window.
    fn forget(&mut self, window_ms: u64) {
        let newest = self.steps.last_key_value().map_or(0, |(end, _)| *end);
        // Some answers come late.
        let oldest = newest.saturating_sub(window_ms + 10_000);
        self.steps = self.steps.split_off(&oldest);
    }
}

#[derive(Default)]
pub(super) struct Tally {
    windows: HashMap<Counted, Window>,
    counts: Counts,
    held: HashMap<String, u64>,
    most_held: u64,
    server_decides: bool,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    requests: u64,
    admitted: u64,
    denied: u64,
    local: u64,
    left: u64,
    errors: BTreeMap<String, u64>,
    kinds: BTreeMap<&'static str, u64>,
}

/// The kinds of traffic that must be admitted in each stage.
pub(super) const KINDS: [&str; 6] = ["three", "hot", "settled", "metered", "slots", "streams"];

impl Tally {
    pub(super) fn leaves(&mut self) {
        self.counts.requests += 1;
        self.counts.left += 1;
    }

    pub(super) fn fails(&mut self, error: &StoreError) {
        self.counts.requests += 1;
        let kind = format!("{:?}", error.kind());
        *self.counts.errors.entry(kind).or_default() += 1;
    }

    pub(super) fn denies(&mut self) {
        self.counts.requests += 1;
        self.counts.denied += 1;
    }

    pub(super) fn admits(&mut self, kind: &'static str) {
        self.counts.requests += 1;
        self.counts.admitted += 1;
        *self.counts.kinds.entry(kind).or_default() += 1;
    }

    /// Counts an answer, and so many units of an admission.
    pub(super) fn note(
        &mut self,
        kind: &'static str,
        key: &str,
        units: u64,
        result: &Result<Decision, StoreError>,
    ) {
        match result {
            Ok(Decision::Allowed(usage)) => {
                self.admits(kind);
                self.charge(key, units, usage);
            }
            Ok(_) => self.denies(),
            Err(error) => self.fails(error),
        }
    }

    pub(super) fn charge(&mut self, key: &str, units: u64, usage: &Usage) {
        let is_local = usage.is_local();
        self.counts.local += u64::from(is_local);
        self.server_decides |= !is_local;
        for policy in usage.policies() {
            for it in policy.rules() {
                let counted = Counted {
                    policy: policy.policy().name().to_owned(),
                    key: key.to_owned(),
                    window_ms: window_ms(&it.rule()),
                    is_local,
                };
                let window = self.windows.entry(counted).or_default();
                window.limit = window.limit.max(it.rule().limit());
                *window.steps.entry(it.step_end_ms()).or_default() += units;
            }
        }
    }

    pub(super) fn takes_slot(&mut self, key: &str) {
        let held = self.held.entry(key.to_owned()).or_default();
        *held += 1;
        self.most_held = self.most_held.max(*held);
        self.server_decides = true;
    }

    pub(super) fn returns_slot(&mut self, key: &str) {
        *self.held.get_mut(key).unwrap() -= 1;
    }

    /// Whether the server has decided since the last time.
    pub(super) fn is_decided_by_server(&mut self) -> bool {
        std::mem::take(&mut self.server_decides)
    }

    /// Returns each rule that admitted more than its limit.
    pub(super) fn judge(&mut self) -> Vec<String> {
        let mut over = Vec::new();
        for (counted, window) in &mut self.windows {
            let most = window.most_within(counted.window_ms);
            if most > window.limit {
                over.push(format!("{most} of {}: {counted:?}", window.limit));
            }
            window.forget(counted.window_ms);
        }
        if self.most_held > super::traffic::SLOTS {
            over.push(format!("{} slots held at once", self.most_held));
        }
        over
    }

    pub(super) fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }
}

impl Counts {
    pub(super) fn lacks_a_kind(&self) -> bool {
        KINDS.iter().any(|kind| !self.kinds.contains_key(kind))
    }
}

#[test]
fn the_fullest_window_is_found_and_older_steps_are_forgotten() {
    let mut window = Window {
        limit: 9,
        steps: [(1, 1), (9, 2), (18, 3), (19, 4), (20_011, 5)].into(),
    };
    assert_eq!(window.most_within(10), 9);
    assert_eq!(window.most_within(9), 7);
    window.forget(1);
    assert_eq!(window.steps.len(), 1);
}
