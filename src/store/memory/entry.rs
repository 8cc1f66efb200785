use smallvec::SmallVec;

use crate::{
    charge::Charge,
    decision::{Count, PolicyUsage, RuleUsage},
    policy::Policy,
    window::{StepQueue, StepSpec},
};

/// What is kept for one policy's name and one key: a queue for each spec that somebody's rules have.
#[derive(Debug)]
pub(in crate::store) struct Entry {
    /// A single one is in the map itself: each further place in memory has to be waited for.
    queues: SmallVec<[StepQueue; 1]>,
}

#[cfg(feature = "bb8")]
impl Entry {
    /// An entry of these queues, each of another spec.
    pub(in crate::store) fn of(queues: Vec<StepQueue>) -> Self {
        Self {
            queues: queues.into(),
        }
    }

    pub(in crate::store) fn queues(&self) -> &[StepQueue] {
        &self.queues
    }
}

impl Entry {
    pub(in crate::store) const fn new() -> Self {
        Self {
            queues: SmallVec::new_const(),
        }
    }

    /// Counts under each rule of a charge, and answers how often its cost fits all.
    pub(in crate::store) fn look(&self, charge: &Charge, now_ms: u64, counts: &mut [Count]) -> u16 {
        let cost = charge.cost();
        let mut fitting = u64::MAX;
        for (rule, count) in charge.policy().rules().iter().zip(counts) {
            *count = self.with_queue(StepSpec::of(rule), |queue| {
                queue.look(now_ms, rule.limit(), cost)
            });
            let fits = match rule.limit().checked_sub(count.used) {
                // What costs nothing fits any number of times, but not above the limit.
                Some(left) => left.checked_div(cost).unwrap_or(u64::MAX),
                None => 0,
            };
            fitting = fitting.min(fits);
        }
        u16::try_from(fitting).unwrap_or(u16::MAX)
    }

    /// Adds units, more than 0, under each rule, and counts again.
    pub(in crate::store) fn charge(
        &mut self,
        policy: &Policy,
        units: u64,
        now_ms: u64,
        counts: &mut [Count],
    ) {
        for (rule, count) in policy.rules().iter().zip(counts) {
            let queue = self.queue_mut(StepSpec::of(rule));
            queue.charge(now_ms, units);
            *count = queue.kept();
        }
        // The policy's own hold what was just charged: only those of others may have to go.
        if self.queues.len() > policy.rules().len() {
            self.tidy(policy, now_ms);
        }
    }

    /// Whether adding `difference` to the steps that were charged would change anything.
    pub(in crate::store) fn would_settle(
        &self,
        usage: PolicyUsage<'_>,
        now_ms: u64,
        difference: i64,
    ) -> bool {
        usage.rules().iter().any(|rule| {
            self.with_queue(spec(rule), |queue| {
                queue.change(now_ms, rule.step_end_ms(), difference) != 0
            })
        })
    }

    /// Adds `difference` to the steps that were charged, and counts.
    pub(in crate::store) fn settle(
        &mut self,
        usage: PolicyUsage<'_>,
        now_ms: u64,
        difference: i64,
        counts: &mut [Count],
    ) {
        for (rule, count) in usage.rules().iter().zip(counts) {
            let queue = self.queue_mut(spec(rule));
            queue.settle(now_ms, rule.step_end_ms(), difference);
            *count = queue.kept();
        }
        self.tidy(usage.policy(), now_ms);
    }

    /// When the last unit of all is released; 0 when there is none.
    pub(in crate::store) fn release_ms(&self) -> u64 {
        let releases = self.queues.iter().map(StepQueue::release_ms);
        releases.max().unwrap_or(0)
    }

    /// Calls `read` with the queue of this spec, an empty one if there is none.
    fn with_queue<T>(&self, spec: StepSpec, read: impl FnOnce(&StepQueue) -> T) -> T {
        let known = self.queues.iter().find(|queue| queue.spec() == spec);
        match known {
            Some(queue) => read(queue),
            None => read(&StepQueue::new(spec)),
        }
    }

    fn queue_mut(&mut self, spec: StepSpec) -> &mut StepQueue {
        let known = self.queues.iter().position(|queue| queue.spec() == spec);
        let index = known.unwrap_or_else(|| {
            self.queues.push(StepQueue::new(spec));
            self.queues.len() - 1
        });
        &mut self.queues[index]
    }

    /// Drops the queues that hold nothing. Of those that `policy` does not know, drops the steps that are not believed,
    /// and the queues that count no more.
    fn tidy(&mut self, policy: &Policy, now_ms: u64) {
        self.queues.retain_mut(|queue| {
            let mut rules = policy.rules().iter();
            if rules.any(|rule| StepSpec::of(rule) == queue.spec()) {
                return !queue.is_empty();
            }
            queue.drop_unbelieved(now_ms);
            !queue.is_empty() && queue.release_ms() > now_ms
        });
    }
}

fn spec(usage: &RuleUsage) -> StepSpec {
    StepSpec::of(&usage.rule())
}
