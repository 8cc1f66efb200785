//! [`Clock`]: the clock that decides whether a lease is over.

use std::time::Duration;

use crate::clock;
#[cfg(feature = "manual-clock")]
use crate::manual_clock::ManualClock;

#[derive(Clone, Debug)]
pub(super) enum Clock {
    /// Goes on during a suspension.
    System,
    #[cfg(feature = "manual-clock")]
    Test(ManualClock),
}

impl Clock {
    /// The time since some moment.
    pub(super) fn now(&self) -> Duration {
        match self {
            Self::System => clock::now(),
            #[cfg(feature = "manual-clock")]
            Self::Test(clock) => clock.now(),
        }
    }
}
