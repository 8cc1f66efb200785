//! [`Clock`]: the store's clock.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::domain::rule::millis;
#[cfg(feature = "manual-clock")]
use crate::manual_clock::ManualClock;

/// The time in ms since the Unix epoch.
#[derive(Clone, Debug)]
pub(super) enum Clock {
    /// Reads the system's date once, and then adds the time that has passed. It never steps back or follows
    /// corrections.
    System { anchor: Instant, anchor_ms: u64 },
    #[cfg(feature = "manual-clock")]
    Test(ManualClock),
}

impl Clock {
    pub(super) fn system() -> Self {
        // A date before 1970 only shifts the fixed windows.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        Self::System {
            anchor: Instant::now(),
            anchor_ms: since_epoch.map_or(0, millis),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        match self {
            Self::System { anchor, anchor_ms } => anchor_ms + millis(anchor.elapsed()),
            #[cfg(feature = "manual-clock")]
            Self::Test(clock) => clock.now_ms(),
        }
    }
}
