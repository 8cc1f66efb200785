//! [`Validity`]: how long a refusal may be repeated, and what is told then.
//!
//! ```text
//!   asked        decided by the store, for d ms            first admission
//!     ├────────────────┼──────────┬───────────────────────────┼──────▶ this process's clock
//!     │                       answered                        │
//!     ├── repeated here, at most MAX_AGE ──▶ asked + d − 1 ms │
//!                                 ├── told: answered + d, rounded up ──▶
//! ```
//!
//! The store decided at some time between the question and the answer, and reads its clock in whole milliseconds: the
//! first admission is later than `asked + d - 1 ms`, and not later than `answered + d`.

use std::time::Duration;

/// No refusal is repeated for longer: so late is seen what ends it early, unless that is done through the same cache.
pub(super) const MAX_AGE: Duration = Duration::from_secs(1);

const TICK: Duration = Duration::from_millis(1);

/// Times are of this process's clock, since any fixed time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validity {
    asked: Duration,
    answered: Duration,
    until: Duration,
}

impl Validity {
    /// Of a refusal for so long, or for ever.
    pub(super) fn new(asked: Duration, answered: Duration, refused_for: Option<Duration>) -> Self {
        let span = refused_for.unwrap_or(Duration::MAX).saturating_sub(TICK);
        Self {
            asked,
            answered,
            until: asked + span.min(MAX_AGE),
        }
    }

    /// Whether it can be repeated at this time. Before it was asked for, a clock of tests has stepped back.
    pub(super) fn holds(&self, now: Duration) -> bool {
        self.asked <= now && now < self.until
    }

    /// What has passed since the answer, in whole milliseconds: so much less is told, and so never too little.
    pub(super) fn age_ms(&self, now: Duration) -> u64 {
        let age = now.saturating_sub(self.answered).as_millis();
        u64::try_from(age).unwrap_or(u64::MAX)
    }

    pub(super) const fn until(&self) -> Duration {
        self.until
    }
}
