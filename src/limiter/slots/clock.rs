//! The clock by which this process knows how long it may count on a slot.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::domain::rule::millis;

/// The times of both clocks at the first use.
static START: OnceLock<Reading> = OnceLock::new();

/// For how many ms the machine has surely been suspended since then.
static SUSPENDED_MS: AtomicU64 = AtomicU64::new(0);

/// Ms since some moment. It never steps back, and goes on while the machine is suspended, where the system has such a
/// clock: a store releases slots meanwhile, too.
///
/// In tests it is the time of the runtime, which they can pause.
pub(crate) fn now_ms() -> u64 {
    let reading = Reading::take(since_boot, Instant::now);
    let start = START.get_or_init(|| reading);
    let suspended_ms = millis(reading.suspended_since(start));
    let suspended_ms = SUSPENDED_MS
        .fetch_max(suspended_ms, Relaxed)
        .max(suspended_ms);
    let runtime = tokio::time::Instant::now().into_std();
    millis(runtime.saturating_duration_since(start.awake)).saturating_add(suspended_ms)
}

/// A time of a clock that goes on while the machine is suspended, and then one of a clock that does not.
#[derive(Clone, Copy)]
struct Reading {
    since_boot: Duration,
    awake: Instant,
}

impl Reading {
    /// This process may be stopped from one reading to the next. In this order it then seems that the machine was
    /// suspended for too short a time; in the other, a slot would be asked for in the future and held for too long.
    fn take(since_boot: impl FnOnce() -> Duration, awake: impl FnOnce() -> Instant) -> Self {
        let since_boot = since_boot();
        Self {
            since_boot,
            awake: awake(),
        }
    }

    fn suspended_since(&self, start: &Self) -> Duration {
        let awake = self.awake.saturating_duration_since(start.awake);
        let since_boot = self.since_boot.saturating_sub(start.since_boot);
        since_boot.saturating_sub(awake)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

/// Elsewhere, `Instant` has to do: during suspension, that clock goes on under Windows and stops under macOS.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const fn since_boot() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_process_that_is_stopped_between_two_readings_does_not_see_a_suspended_machine() {
        let (begin, passed) = (Instant::now(), Cell::new(Duration::ZERO));
        let stopped_before = |reading: Duration| passed.set(passed.get() + reading);
        let take = |stopped: Duration| {
            // Stopped before whichever reading comes second.
            let is_first = Cell::new(true);
            let read = || {
                if !is_first.replace(false) {
                    stopped_before(stopped);
                }
                passed.get()
            };
            Reading::take(read, || begin + read())
        };
        let start = take(Duration::ZERO);
        let later = take(Duration::from_secs(5));
        assert_eq!(later.suspended_since(&start), Duration::ZERO);
    }

    #[test]
    fn a_machine_that_was_suspended_is_seen_by_the_clock_that_goes_on() {
        let now = Instant::now();
        let take = |seconds| Reading::take(|| Duration::from_secs(seconds), || now);
        let suspended = take(9).suspended_since(&take(2));
        assert_eq!(suspended, Duration::from_secs(7));
    }
}
