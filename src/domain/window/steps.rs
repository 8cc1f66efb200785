//! Steps and their releases.
//!
//! A step is named by its *end*, `(s + 1) · P`: the first millisecond after it. Units charged in a step count until the
//! end plus the *retention*, which is the window for a sliding rule and zero for a fixed one.
//!
//! ```text
//!       charged here                                   released here
//!            ▼                                               ▼
//! ──┬────────x─┬──────────┬───  …  ───┬──────────┬───────────┬──▶ t
//!   │  step s  │  s + 1   │           │          │           │
//!   └────── P ─┘◀──────────────── retention ─────────────────┘
//!             end
//! ```

use std::collections::VecDeque;

use super::Count;
use crate::domain::rule::Rule;

/// How a sliding or a fixed rule counts time, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepSpec {
    pub(crate) step_ms: u64,
    pub(crate) retention_ms: u64,
}

impl StepSpec {
    pub(super) fn of(rule: &Rule) -> Self {
        Self {
            step_ms: rule.step_ms(),
            retention_ms: if rule.is_fixed() { 0 } else { rule.window_ms() },
        }
    }

    /// Returns the end of the step that is charged now: the clock's step, or the newest if the clock has stepped back.
    /// If the newest step has not ended, it is the answer in both cases, which saves a division.
    pub(crate) fn open_step_end(self, now_ms: u64, newest_end_ms: u64) -> u64 {
        if newest_end_ms > now_ms {
            newest_end_ms
        } else {
            now_ms - now_ms % self.step_ms + self.step_ms
        }
    }

    /// Returns the first millisecond at which the units of a step no longer count.
    pub(crate) fn release(self, end_ms: u64) -> u64 {
        end_ms + self.retention_ms
    }

    /// Returns the end of the last believable step: a step further ahead was charged while the clock was wrong.
    fn believed(self, now_ms: u64) -> u64 {
        now_ms + 2 * self.step_ms + self.retention_ms.max(self.step_ms)
    }
}

/// The steps of one key under one spec, oldest first.
///
/// Each step keeps the total of all units up to and including its own. So one subtraction removes released units,
/// bisection finds any step, and no cost depends on how much time has passed. A total wraps around after 2^64 units;
/// the difference of two never exceeds [`MAX_UNITS`](crate::domain::rule::MAX_UNITS).
#[derive(Clone, Debug)]
pub(crate) struct StepQueue {
    spec: StepSpec,
    /// The total before the oldest step.
    base: u64,
    steps: VecDeque<Step>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    end_ms: u64,
    total: u64,
}

/// The steps that count at some time: from `first` up to `end`. Older ones have been released, newer ones are not
/// believed.
struct View {
    first: usize,
    end: usize,
}

impl StepQueue {
    pub(crate) const fn new(spec: StepSpec) -> Self {
        Self {
            spec,
            base: 0,
            steps: VecDeque::new(),
        }
    }

    /// Creates a queue of these steps, oldest first: the end of each, and the units, above 0.
    pub(crate) fn from_steps(spec: StepSpec, steps: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut total: u64 = 0;
        let steps = steps.into_iter().map(|(end_ms, units)| {
            total = total.wrapping_add(units);
            Step { end_ms, total }
        });
        Self {
            steps: steps.collect(),
            ..Self::new(spec)
        }
    }

    /// Returns the steps that count, oldest first: the end of each, and the units.
    #[cfg(feature = "redis")]
    pub(crate) fn counting(&self, now_ms: u64) -> Vec<(u64, u64)> {
        let view = self.view(now_ms);
        self.steps().take(view.end).skip(view.first).collect()
    }

    /// Returns all steps that are kept, oldest first, whether they count or not: the end of each, and the units.
    pub(crate) fn steps(&self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        self.steps.iter().enumerate().map(|(index, step)| {
            let units = self.total(index + 1) - self.total(index);
            (step.end_ms, units)
        })
    }

    pub(crate) const fn spec(&self) -> StepSpec {
        self.spec
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns when the newest step is released, believed or not; 0 when there is none.
    pub(crate) fn release_ms(&self) -> u64 {
        self.steps
            .back()
            .map_or(0, |step| self.spec.release(step.end_ms))
    }

    /// Returns the units that count now, and when `cost` fits under `limit` if it does not fit yet.
    pub(crate) fn look(&self, now_ms: u64, limit: u64, cost: u64) -> Count {
        let view = self.view(now_ms);
        let mut count = self.count(&view);
        if let Some(capacity) = limit
            .checked_sub(cost)
            .filter(|capacity| count.used > *capacity)
        {
            let surplus = self.total(view.end) - capacity;
            let last = self
                .steps
                .partition_point(|step| step.total.wrapping_sub(self.base) < surplus);
            count.fits_at_ms = self.spec.release(self.steps[last].end_ms);
        }
        count
    }

    /// Adds `cost`, above 0, to the clock's step, or to the newest if the clock has stepped back. Drops steps that do
    /// not count.
    pub(crate) fn charge(&mut self, now_ms: u64, cost: u64) {
        self.prune(now_ms);
        let newest_ms = self.steps.back().map_or(0, |step| step.end_ms);
        let end_ms = self.spec.open_step_end(now_ms, newest_ms);
        if let Some(newest) = self.steps.back_mut()
            && newest.end_ms == end_ms
        {
            newest.total = newest.total.wrapping_add(cost);
            return;
        }
        if self.steps.is_empty() {
            // Many keys never have a second step, and by default a queue allocates room for four.
            self.steps.reserve_exact(1);
        }
        let total = self.base.wrapping_add(self.total(self.steps.len()) + cost);
        self.steps.push_back(Step { end_ms, total });
    }

    /// Takes units that a step [has](Self::counting_units), and drops steps that do not count, or have no units.
    pub(crate) fn take(&mut self, now_ms: u64, end_ms: u64, units: u64) {
        self.prune(now_ms);
        let index = self.position(end_ms);
        if self.holds(index, end_ms) {
            for step in self.steps.range_mut(index..) {
                step.total = step.total.wrapping_sub(units);
            }
            if self.total(index + 1) == self.total(index) {
                self.steps.remove(index);
            }
        }
    }

    /// Returns all that is kept: after a write, the units that counted at the time of the write, and the change.
    pub(crate) fn kept(&self) -> Count {
        self.count(&View {
            first: 0,
            end: self.steps.len(),
        })
    }

    /// Returns how many units of a step count now.
    pub(super) fn counting_units(&self, now_ms: u64, end_ms: u64) -> u64 {
        let (view, index) = (self.view(now_ms), self.position(end_ms));
        if (view.first..view.end).contains(&index) && self.holds(index, end_ms) {
            self.total(index + 1) - self.total(index)
        } else {
            0
        }
    }

    #[inline]
    fn view(&self, now_ms: u64) -> View {
        // Mostly all count.
        if let (Some(oldest), Some(newest)) = (self.steps.front(), self.steps.back())
            && newest.end_ms <= self.spec.believed(now_ms)
            && self.spec.release(oldest.end_ms) > self.time_ms(now_ms, newest)
        {
            let end = self.steps.len();
            return View { first: 0, end };
        }
        self.view_of_some(now_ms)
    }

    #[inline(never)]
    fn view_of_some(&self, now_ms: u64) -> View {
        let believed_ms = self.spec.believed(now_ms);
        let end = self.steps.partition_point(|it| it.end_ms <= believed_ms);
        let newest = end.checked_sub(1).map(|newest| &self.steps[newest]);
        let time_ms = newest.map_or(now_ms, |newest| self.time_ms(now_ms, newest));
        let is_released = |it: &Step| self.spec.release(it.end_ms) <= time_ms;
        let first = self.steps.partition_point(is_released);
        View { first, end }
    }

    /// The clock's time, or the start of the newest step if the clock has stepped back before that.
    fn time_ms(&self, now_ms: u64, newest: &Step) -> u64 {
        now_ms.max(newest.end_ms - self.spec.step_ms)
    }

    fn count(&self, view: &View) -> Count {
        let used = self.total(view.end) - self.total(view.first);
        match view.first < view.end {
            true => Count::of(used, self.steps[view.end - 1].end_ms),
            false => Count::of(used, 0),
        }
    }

    /// Returns the units of the oldest `len` steps together.
    fn total(&self, len: usize) -> u64 {
        len.checked_sub(1)
            .map_or(0, |last| self.steps[last].total.wrapping_sub(self.base))
    }

    /// Returns the index of the step, or of the first later one.
    fn position(&self, end_ms: u64) -> usize {
        self.steps.partition_point(|step| step.end_ms < end_ms)
    }

    fn holds(&self, index: usize, end_ms: u64) -> bool {
        self.steps
            .get(index)
            .is_some_and(|step| step.end_ms == end_ms)
    }

    /// Drops the steps that do not count: released, or not believed.
    pub(crate) fn prune(&mut self, now_ms: u64) {
        let view = self.view(now_ms);
        self.steps.truncate(view.end);
        if view.first > 0 {
            self.base = self.base.wrapping_add(self.total(view.first));
            self.steps.drain(..view.first);
            // After a burst, return the memory.
            if self.steps.capacity() > 4 * self.steps.len().max(4) {
                self.steps.shrink_to(2 * self.steps.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// The same without totals and bisection: every question goes through all steps.
    #[derive(Debug)]
    struct Plain {
        spec: StepSpec,
        /// End and units.
        steps: Vec<(u64, u64)>,
    }

    impl Plain {
        fn believes(&self, now: u64, end: u64) -> bool {
            let StepSpec {
                step_ms,
                retention_ms,
            } = self.spec;
            end - step_ms <= now + retention_ms.max(step_ms) + step_ms
        }

        fn time(&self, now: u64) -> u64 {
            let believed = self.steps.iter().filter(|step| self.believes(now, step.0));
            let starts = believed.map(|step| step.0 - self.spec.step_ms);
            starts.max().unwrap_or(0).max(now)
        }

        fn counts(&self, now: u64, end: u64) -> bool {
            self.believes(now, end) && end + self.spec.retention_ms > self.time(now)
        }

        fn counting(&self, now: u64) -> Vec<(u64, u64)> {
            let steps = self.steps.iter().copied();
            steps.filter(|step| self.counts(now, step.0)).collect()
        }

        fn look(&self, now: u64, limit: u64, cost: u64) -> Count {
            let counting = self.counting(now);
            let mut count = sum(&counting);
            let mut left = count.used;
            for (end, units) in counting {
                if left + cost > limit && cost <= limit {
                    left -= units;
                    count.fits_at_ms = end + self.spec.retention_ms;
                }
            }
            count
        }

        fn charge(&mut self, now: u64, cost: u64) {
            let counting = self.counting(now);
            let own = (now / self.spec.step_ms + 1) * self.spec.step_ms;
            let end = counting
                .iter()
                .map(|step| step.0)
                .max()
                .unwrap_or(0)
                .max(own);
            self.put(counting, end, |units| units + cost);
        }

        fn units(&self, now: u64, end: u64) -> u64 {
            let counting = self.counting(now).into_iter();
            counting.filter(|step| step.0 == end).map(|it| it.1).sum()
        }

        fn take(&mut self, now: u64, end: u64, taken: u64) {
            self.put(self.counting(now), end, |units| units - taken);
        }

        fn put(&mut self, mut steps: Vec<(u64, u64)>, end: u64, change: impl Fn(u64) -> u64) {
            let before = steps
                .iter()
                .find(|step| step.0 == end)
                .map_or(0, |step| step.1);
            steps.retain(|step| step.0 != end);
            steps.push((end, change(before)));
            steps.retain(|step| step.1 > 0);
            steps.sort_unstable();
            self.steps = steps;
        }
    }

    fn sum(steps: &[(u64, u64)]) -> Count {
        Count {
            used: steps.iter().map(|step| step.1).sum(),
            newest_end_ms: steps.last().map_or(0, |step| step.0),
            fits_at_ms: 0,
        }
    }

    #[derive(Clone, Debug)]
    enum Act {
        Look { limit: u64, cost: u64 },
        Charge(u64),
        Take { behind: u64, units: u64 },
    }

    fn acts() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => (0..20_u64, 0..12_u64).prop_map(|(limit, cost)| Act::Look { limit, cost }),
            3 => (1..6_u64).prop_map(Act::Charge),
            2 => (0..12_u64, 1..6_u64).prop_map(|(behind, units)| Act::Take { behind, units }),
        ]
    }

    fn specs() -> impl Strategy<Value = StepSpec> {
        (1..12_u64, 0..40_u64).prop_map(|(step_ms, more)| StepSpec {
            step_ms,
            retention_ms: if more < 10 { 0 } else { step_ms + more - 10 },
        })
    }

    const MILLISECONDS: StepSpec = StepSpec {
        step_ms: 1,
        retention_ms: 1_000,
    };

    #[test]
    fn a_queue_of_one_step_has_room_for_no_more() {
        let mut queue = StepQueue::new(MILLISECONDS);
        for ms in [0, 5_000] {
            queue.charge(ms, 1);
            assert_eq!(queue.steps.capacity(), 1);
        }
    }

    #[test]
    fn what_a_burst_needed_is_given_back_when_it_is_released() {
        let mut queue = StepQueue::new(MILLISECONDS);
        (0..1_000).for_each(|ms| queue.charge(ms, 1));
        let burst = queue.steps.capacity();
        // A quarter of the memory is left, since it may soon be needed again.
        queue.charge(1_001 + 999 - u64::try_from(burst / 4).unwrap(), 1);
        assert_eq!(queue.steps.capacity(), burst);
        queue.charge(1_001 + 950, 1);
        let len = queue.steps.len();
        assert!(
            (2 * (len - 1)..4 * len).contains(&queue.steps.capacity()),
            "{len}"
        );
    }

    proptest! {
        #[test]
        fn bisection_finds_what_a_plain_search_finds(
            spec in specs(),
            // Times of a narrow range in any order: the clock often steps back.
            acts in vec((1_000..1_150_u64, acts()), 1..60),
        ) {
            let (mut queue, mut plain) = (StepQueue::new(spec), Plain { spec, steps: Vec::new() });
            for (now, act) in acts {
                match act {
                    Act::Look { limit, cost } => {
                        prop_assert_eq!(queue.look(now, limit, cost), plain.look(now, limit, cost));
                    }
                    Act::Charge(cost) => {
                        queue.charge(now, cost);
                        plain.charge(now, cost);
                    }
                    Act::Take { behind, units } => {
                        let end = (1_100 / spec.step_ms + behind) * spec.step_ms;
                        let own = plain.units(now, end);
                        prop_assert_eq!(queue.counting_units(now, end), own);
                        queue.take(now, end, units.min(own));
                        plain.take(now, end, units.min(own));
                    }
                }
                prop_assert_eq!(queue.kept(), sum(&plain.steps));
                prop_assert_eq!(queue.is_empty(), plain.steps.is_empty());
                let newest = plain.steps.last().map(|step| step.0 + spec.retention_ms);
                prop_assert_eq!(queue.release_ms(), newest.unwrap_or(0));
            }
        }
    }
}
