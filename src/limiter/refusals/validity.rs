//! [`Validity`]: how long to repeat a refusal, and with which delay.
//!
//! ```text
//!   asked        decided by the store, for d ms            first admission
//!     ├────────────────┼──────────┬───────────────────────────┼──────▶ this process's clock
//!     │                       answered                        │
//!     ├── repeated here, at most MAX_AGE ──▶ asked + d − 1 ms │
//!                                 ├── says: answered + d, rounded up ──▶
//! ```
//!
//! The store decided at some time between the question and the answer, and its clock counts whole milliseconds. So the
//! first admission is later than `asked + d - 1 ms`, and not later than `answered + d`.

use std::time::Duration;

/// The maximum age of a repeated refusal. This is also how late you notice an early end through another limiter.
pub(super) const MAX_AGE: Duration = Duration::from_secs(1);

const TICK: Duration = Duration::from_millis(1);

/// Times of this process's clock, since a fixed point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validity {
    asked: Duration,
    answered: Duration,
    pub(super) until: Duration,
}

impl Validity {
    /// `refused_for` is the delay in the store's answer, or `None` if the check never passes.
    pub(super) fn new(asked: Duration, answered: Duration, refused_for: Option<Duration>) -> Self {
        let span = refused_for.unwrap_or(Duration::MAX).saturating_sub(TICK);
        Self {
            asked,
            answered,
            until: asked + span.min(MAX_AGE),
        }
    }

    /// Whether you may repeat the refusal at this time. A time before the question means that a test's clock stepped
    /// back.
    pub(super) fn holds(&self, now: Duration) -> bool {
        self.asked <= now && now < self.until
    }

    /// The whole milliseconds since the answer. The delay shrinks by this amount, so it is never too short.
    pub(super) fn age_ms(&self, now: Duration) -> u64 {
        let age = now.saturating_sub(self.answered).as_millis();
        u64::try_from(age).unwrap_or(u64::MAX)
    }
}
