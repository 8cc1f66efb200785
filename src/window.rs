//! The arithmetic of steps and releases: pure, and the Rust twin of the script.
//!
//! A step is named by its *end*, `(s + 1) · P`: the first millisecond after it. Units charged in it count until its end plus
//! the *hold*, which is the window for a sliding rule and nothing for a fixed one.
//!
//! ```text
//!       charged here                                   released here
//!            ▼                                               ▼
//! ──┬────────x─┬──────────┬───  …  ───┬──────────┬───────────┬──▶ t
//!   │  step s  │  s + 1   │           │          │           │
//!   └────── P ─┘◀────────────────── hold ────────────────────┘
//!             end
//! ```

use std::collections::VecDeque;

use crate::{
    decision::Count,
    rule::{MAX_UNITS, Rule, millis},
};

/// How a rule counts time, in ms: what tells one section of a stored value from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    pub(crate) step_ms: u64,
    pub(crate) hold_ms: u64,
}

impl Span {
    pub(crate) fn of(rule: &Rule) -> Self {
        let hold_ms = if rule.is_fixed() {
            0
        } else {
            millis(rule.window())
        };
        Self {
            step_ms: millis(rule.step()),
            hold_ms,
        }
    }

    /// The end of the step that `now_ms` falls into.
    pub(crate) fn step_end(self, now_ms: u64) -> u64 {
        now_ms - now_ms % self.step_ms + self.step_ms
    }

    /// The first millisecond at which the units of a step no longer count.
    pub(crate) fn release(self, end_ms: u64) -> u64 {
        end_ms + self.hold_ms
    }

    /// The end of the last step that is believed: one further ahead was charged while the clock was wrong.
    fn believed(self, now_ms: u64) -> u64 {
        now_ms + 2 * self.step_ms + self.hold_ms.max(self.step_ms)
    }
}

/// The steps of one key under one span, oldest first.
///
/// Each step keeps the total of all units up to its own, so that units which were released are taken off by one
/// subtraction, and whatever has to be found is found by bisection: nothing depends on how much time has passed. A total
/// wraps around after 2^64 units; the difference of two never exceeds [`MAX_UNITS`].
#[derive(Clone, Debug)]
pub(crate) struct Section {
    span: Span,
    /// The total before the oldest step.
    base: u64,
    steps: VecDeque<Step>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    end_ms: u64,
    total: u64,
}

/// Which steps count at some time: those from `first` up to `end`. Older ones have been released, newer ones are not
/// believed.
struct View {
    /// The clock, or the start of the newest step if the clock has stepped back behind it.
    time_ms: u64,
    first: usize,
    end: usize,
}

impl Section {
    pub(crate) const fn new(span: Span) -> Self {
        Self {
            span,
            base: 0,
            steps: VecDeque::new(),
        }
    }

    pub(crate) const fn span(&self) -> Span {
        self.span
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// When the newest step is released, believed or not; 0 when there is none.
    pub(crate) fn release_ms(&self) -> u64 {
        self.steps
            .back()
            .map_or(0, |step| self.span.release(step.end_ms))
    }

    /// What counts now, and when `cost` fits under `limit` if it does not yet.
    pub(crate) fn look(&self, now_ms: u64, limit: u64, cost: u64) -> Count {
        let view = self.view(now_ms);
        let mut count = self.count(&view);
        if let Some(room) = limit.checked_sub(cost).filter(|room| count.used > *room) {
            let surplus = self.total(view.end) - room;
            let last = self
                .steps
                .partition_point(|step| step.total.wrapping_sub(self.base) < surplus);
            count.fits_at_ms = self.span.release(self.steps[last].end_ms);
        }
        count
    }

    /// Adds `cost`, above 0, to the step of the clock, or to the newest if the clock has stepped back; drops what does
    /// not count.
    pub(crate) fn charge(&mut self, now_ms: u64, cost: u64) {
        self.prune(now_ms);
        let newest_ms = self.steps.back().map_or(0, |step| step.end_ms);
        let end_ms = self.span.step_end(now_ms).max(newest_ms);
        self.add(end_ms, cost.cast_signed());
    }

    /// How much of `difference` can be added to a step: none if the step does not count any more, and never so much that it
    /// has less than no unit or all have more than [`MAX_UNITS`].
    pub(crate) fn change(&self, now_ms: u64, end_ms: u64, difference: i64) -> i64 {
        let view = self.view(now_ms);
        let counts =
            end_ms <= self.span.believed(now_ms) && self.span.release(end_ms) > view.time_ms;
        if !counts {
            return 0;
        }
        let room = MAX_UNITS.saturating_sub(self.count(&view).used);
        difference
            .min(room.cast_signed())
            .max(-self.units(end_ms).cast_signed())
    }

    /// Adds what can be added of `difference` to a step, and drops what does not count.
    pub(crate) fn settle(&mut self, now_ms: u64, end_ms: u64, difference: i64) {
        let change = self.change(now_ms, end_ms, difference);
        self.prune(now_ms);
        if change != 0 {
            self.add(end_ms, change);
        }
    }

    /// What is kept: after a write, just what counted when it was made and what it has changed.
    pub(crate) fn kept(&self) -> Count {
        self.count(&View {
            time_ms: 0,
            first: 0,
            end: self.steps.len(),
        })
    }

    fn view(&self, now_ms: u64) -> View {
        let believed_ms = self.span.believed(now_ms);
        let end = self
            .steps
            .partition_point(|step| step.end_ms <= believed_ms);
        let newest_ms = end
            .checked_sub(1)
            .map_or(0, |newest| self.steps[newest].end_ms - self.span.step_ms);
        let time_ms = now_ms.max(newest_ms);
        let first = self
            .steps
            .partition_point(|step| self.span.release(step.end_ms) <= time_ms);
        View {
            time_ms,
            first,
            end,
        }
    }

    fn count(&self, view: &View) -> Count {
        let counts = view.first < view.end;
        Count {
            used: self.total(view.end) - self.total(view.first),
            newest_end_ms: if counts {
                self.steps[view.end - 1].end_ms
            } else {
                0
            },
            fits_at_ms: 0,
        }
    }

    /// The units of the oldest `len` steps together.
    fn total(&self, len: usize) -> u64 {
        len.checked_sub(1)
            .map_or(0, |last| self.steps[last].total.wrapping_sub(self.base))
    }

    /// Where the step is, or belongs.
    fn position(&self, end_ms: u64) -> usize {
        self.steps.partition_point(|step| step.end_ms < end_ms)
    }

    fn holds(&self, index: usize, end_ms: u64) -> bool {
        self.steps
            .get(index)
            .is_some_and(|step| step.end_ms == end_ms)
    }

    fn units(&self, end_ms: u64) -> u64 {
        let index = self.position(end_ms);
        if self.holds(index, end_ms) {
            self.total(index + 1) - self.total(index)
        } else {
            0
        }
    }

    /// Drops the steps that do not count.
    fn prune(&mut self, now_ms: u64) {
        let view = self.view(now_ms);
        self.steps.truncate(view.end);
        if view.first > 0 {
            self.base = self.base.wrapping_add(self.total(view.first));
            self.steps.drain(..view.first);
        }
    }

    /// Adds units to a step that is kept or new; a step without units is dropped.
    fn add(&mut self, end_ms: u64, units: i64) {
        let index = self.position(end_ms);
        if !self.holds(index, end_ms) {
            let total = self.base.wrapping_add(self.total(index));
            self.steps.insert(index, Step { end_ms, total });
        }
        for step in self.steps.range_mut(index..) {
            step.total = step.total.wrapping_add_signed(units);
        }
        if self.total(index + 1) == self.total(index) {
            self.steps.remove(index);
        }
    }
}
