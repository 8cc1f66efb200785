//! The clock by which this process knows how long it may count on a slot or a lease.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use crate::domain::rule::millis;

/// The time since some moment. It never steps back, follows no date, and goes on while the machine is suspended. Where
/// the system has no such clock, it stands still meanwhile, and the store's next answer shows the suspension.
///
/// In tests it is the time of the runtime, which they can pause.
pub(crate) fn now() -> Duration {
    static START: LazyLock<Reading> = LazyLock::new(|| Reading {
        awake: Instant::now(),
        since_boot: since_boot(),
    });
    let start = &*START;
    // The other order than at the start: a thread that is stopped between its two looks sees no suspension.
    let reading = Reading {
        since_boot: since_boot(),
        awake: Instant::now(),
    };
    let runtime = tokio::time::Instant::now().into_std();
    runtime.saturating_duration_since(start.awake) + reading.suspended_since(start)
}

/// The [time](now) in whole ms.
pub(crate) fn now_ms() -> u64 {
    millis(now())
}

/// One moment by two clocks.
struct Reading {
    /// Stands still during a suspension.
    awake: Instant,
    /// Goes on during a suspension.
    since_boot: Duration,
}

impl Reading {
    fn suspended_since(&self, start: &Self) -> Duration {
        let awake = self.awake.saturating_duration_since(start.awake);
        let all = self.since_boot.saturating_sub(start.since_boot);
        all.saturating_sub(awake)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

/// Elsewhere no suspension is seen.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const fn since_boot() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_goes_on_while_a_machine_is_not_awake_is_a_suspension() {
        let begin = Instant::now();
        let reading = |awake, since_boot| Reading {
            awake: begin + Duration::from_millis(awake),
            since_boot: Duration::from_millis(since_boot),
        };
        for (awake, since_boot, suspended) in [
            (5_000, 5_007, 0),
            (5_000, 5_006, 0), // stopped for a moment between the two looks
            (1, 7_008, 7_000),
            (2, 7_009, 7_000),
        ] {
            let seen = reading(awake, since_boot).suspended_since(&reading(0, 7));
            assert_eq!(seen, Duration::from_millis(suspended));
        }
    }
}
