//! [`Clock`]: the time that the age of a refusal is measured with.

use std::time::Duration;

use tokio::time::Instant;

#[cfg(feature = "manual-clock")]
use crate::manual_clock::ManualClock;

/// This process's clock, which never steps back. It may stand still while the machine sleeps.
#[derive(Clone, Debug)]
pub(super) enum Clock {
    System(Instant),
    #[cfg(feature = "manual-clock")]
    Test(ManualClock),
}

impl Clock {
    pub(super) fn system() -> Self {
        Self::System(Instant::now())
    }

    /// The time since a fixed point.
    pub(super) fn now(&self) -> Duration {
        match self {
            Self::System(start) => start.elapsed(),
            #[cfg(feature = "manual-clock")]
            Self::Test(clock) => Duration::from_millis(clock.now_ms()),
        }
    }
}
