//! [`SoleTask`]: at most one task of a process does a job in the background, in a runtime that runs.

use std::{
    mem,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use crate::domain::rule::millis;

/// Which task does a job.
///
/// A runtime that stops drops its task, but one that is parked keeps it: a thread that now and then blocks on a check
/// has such a runtime. A task that has given no sign of life for its allowance therefore counts as none: the next
/// caller begins another, and the older one sees that and ends.
#[derive(Debug, Default)]
pub(crate) struct SoleTask {
    /// Until when the task counts as alive, in ms; 0 without a task. Each sign of life makes it greater, so that a task
    /// whose last value is still here is the current one.
    alive_until_ms: AtomicU64,
}

/// Held by the task, which has ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Alive {
    job: Arc<SoleTask>,
    allowance: Duration,
    /// The last value that this task has written; 0 if it is not the current one.
    until_ms: u64,
}

impl SoleTask {
    /// Whether there is no task. One that is late still is one.
    pub(crate) fn is_absent(&self) -> bool {
        self.alive_until_ms.load(SeqCst) == 0
    }

    /// Whether there is a task that gives no sign of life.
    pub(crate) fn is_late(&self) -> bool {
        let until_ms = self.alive_until_ms.load(SeqCst);
        until_ms > 0 && until_ms < now_ms()
    }

    /// Makes the caller's task the current one, unless there is one that is alive.
    pub(crate) fn begin(self: &Arc<Self>, allowance: Duration) -> Option<Alive> {
        let until_ms = self.alive_until_ms.load(SeqCst);
        if until_ms > 0 && until_ms >= now_ms() {
            return None;
        }
        let mut task = Alive {
            job: Arc::clone(self),
            allowance,
            until_ms,
        };
        task.goes_on().then_some(task)
    }
}

impl Alive {
    /// Gives a sign of life. Returns whether this task is still the current one.
    pub(crate) fn goes_on(&mut self) -> bool {
        let last_ms = mem::take(&mut self.until_ms);
        let until_ms = now_ms().saturating_add(millis(self.allowance));
        let until_ms = until_ms.max(last_ms + 1);
        let is_current = self.replace(last_ms, until_ms);
        if is_current {
            self.until_ms = until_ms;
        }
        is_current
    }

    /// Ends the task. Returns whether it was the current one.
    pub(crate) fn end(&mut self) -> bool {
        let last_ms = mem::take(&mut self.until_ms);
        last_ms > 0 && self.replace(last_ms, 0)
    }

    fn replace(&self, last_ms: u64, until_ms: u64) -> bool {
        let current = &self.job.alive_until_ms;
        current
            .compare_exchange(last_ms, until_ms, SeqCst, SeqCst)
            .is_ok()
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ms of the runtime's clock, which tests can pause, since the first use.
fn now_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    let now = tokio::time::Instant::now().into_std();
    millis(now.saturating_duration_since(start))
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_is_replaced_when_it_is_late_and_then_ends_nothing() {
        let (job, allowance) = (Arc::new(SoleTask::default()), Duration::from_secs(3));
        assert!(job.is_absent() && !job.is_late());
        let mut first = job.begin(allowance).unwrap();
        for _ in 0..3 {
            assert!(job.begin(allowance).is_none());
            assert!(first.goes_on());
            advance(Duration::from_secs(2)).await;
            assert!(!job.is_absent() && !job.is_late());
        }
        advance(Duration::from_secs(2)).await;
        assert!(job.is_late());
        let mut second = job.begin(allowance).unwrap();
        assert!(!job.is_late());
        assert!(!first.goes_on() && !first.end());
        drop(first);
        assert!(second.goes_on());
        drop(second);
        assert!(job.is_absent());
        assert!(job.begin(allowance).is_some());
    }
}
