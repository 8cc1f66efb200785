//! [`Clock`]: the two clocks that decide whether a lease is over.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[cfg(feature = "manual-clock")]
use crate::manual_clock::ManualClock;

/// The clocks of this process.
#[derive(Clone, Debug)]
pub(super) enum Clock {
    System {
        anchor: Instant,
    },
    #[cfg(feature = "manual-clock")]
    Test(ManualClock),
}

/// A reading of this process's clocks: one that never steps back, and the date.
///
/// Only differences have a meaning. The first clock stands still while a virtual machine is suspended, and the date may
/// be corrected. So the greater of both differences is an upper limit for the time that has passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) monotonic: Duration,
    pub(super) date: Duration,
}

impl Clock {
    pub(super) fn system() -> Self {
        Self::System {
            anchor: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Moment {
        match self {
            Self::System { anchor } => Moment {
                monotonic: anchor.elapsed(),
                date: SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default(),
            },
            #[cfg(feature = "manual-clock")]
            Self::Test(clock) => Moment {
                monotonic: clock.now(),
                date: clock.now(),
            },
        }
    }
}

impl Moment {
    /// The time since then, by the clock that never steps back.
    pub(super) const fn since(self, then: Self) -> Duration {
        self.monotonic.saturating_sub(then.monotonic)
    }

    /// Whether more than `time` may have passed since then, or the two clocks have moved apart by more than `apart`.
    pub(super) fn is_past(self, then: Self, time: Duration, apart: Duration) -> bool {
        let by_date = self.date.saturating_sub(then.date);
        let elapsed = self.since(then);
        // `abs_diff` also finds a date that stepped back.
        let expected = then.date + elapsed;
        elapsed > time || by_date > time || self.date.abs_diff(expected) > apart
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn moment(monotonic_ms: u64, date_ms: u64) -> Moment {
        Moment {
            monotonic: Duration::from_millis(monotonic_ms),
            date: Duration::from_millis(date_ms),
        }
    }

    fn is_past(now: Moment) -> bool {
        let (time, apart) = (Duration::from_millis(50), Duration::from_millis(100));
        now.is_past(moment(1_000, 9_000), time, apart)
    }

    #[test]
    fn the_faster_clock_counts() {
        assert!(!is_past(moment(1_050, 9_050)));
        assert!(is_past(moment(1_051, 9_050)));
        assert!(is_past(moment(1_050, 9_051)));
    }

    #[test]
    fn a_machine_that_was_suspended_is_noticed_by_the_date() {
        assert!(is_past(moment(1_001, 3_609_000)));
    }

    #[test]
    fn a_date_that_stepped_far_back_is_not_trusted() {
        assert!(!is_past(moment(1_010, 8_910)));
        assert!(is_past(moment(1_010, 8_909)));
    }
}
