//! The clock by which this process knows how long it may count on a slot or a lease.

use std::{
    sync::{
        OnceLock,
        atomic::{
            AtomicI64, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::domain::rule::millis;

/// From how many ms on two clocks that moved apart show a suspension. Small corrections of the date add up to that.
const LEAST_MS: i64 = 50;

static CLOCK: Clock = Clock::new();

/// The time since some moment. It never steps back, and goes on while the process, the machine or the virtual machine
/// is suspended, as that of a store does: if another clock has moved ahead of the one that stands still meanwhile. So a
/// date that is set ahead counts as a suspension, and slots or leases may seem to end too early.
///
/// In tests it is the time of the runtime, which they can pause.
pub(crate) fn now() -> Duration {
    let reading = Reading::take();
    let suspended = Duration::from_millis(CLOCK.suspended_ms(&reading));
    let start = *CLOCK.start.get_or_init(|| reading.awake);
    let runtime = tokio::time::Instant::now().into_std();
    runtime.saturating_duration_since(start) + suspended
}

/// The [time](now) in whole ms.
pub(crate) fn now_ms() -> u64 {
    millis(now())
}

/// One moment by three clocks.
#[derive(Clone, Copy)]
struct Reading {
    /// Stands still during a suspension.
    awake: Instant,
    /// Goes on during a suspension of the machine, but not of a virtual one.
    since_boot: Duration,
    /// Goes on in any case, and can be set.
    date: Duration,
}

impl Reading {
    fn take() -> Self {
        loop {
            let awake = Instant::now();
            let since_boot = since_boot();
            let date = SystemTime::now().duration_since(UNIX_EPOCH);
            // Otherwise the process was stopped between two clocks, which looks like a suspension.
            if awake.elapsed() < Duration::from_millis(5) {
                return Self {
                    awake,
                    since_boot,
                    date: date.unwrap_or_default(),
                };
            }
        }
    }
}

/// How far the other clocks are ahead of the one that stands still.
struct Clock {
    start: OnceLock<Instant>,
    ahead: [AtomicI64; 2],
    suspended_ms: AtomicU64,
}

const UNKNOWN: i64 = i64::MIN;

impl Clock {
    const fn new() -> Self {
        Self {
            start: OnceLock::new(),
            ahead: [const { AtomicI64::new(UNKNOWN) }; 2],
            suspended_ms: AtomicU64::new(0),
        }
    }

    /// For how long there was a suspension since the first reading, up to this one.
    fn suspended_ms(&self, reading: &Reading) -> u64 {
        let start = *self.start.get_or_init(|| reading.awake);
        let awake_ms = signed(reading.awake.saturating_duration_since(start));
        let clocks = self.ahead.iter().zip([reading.since_boot, reading.date]);
        let moved = clocks.map(|(ahead, time)| moved_ms(ahead, signed(time) - awake_ms));
        let longest = moved.max().unwrap_or(0);
        self.suspended_ms.fetch_add(longest, Relaxed) + longest
    }
}

/// Notes how far a clock is ahead. Returns for how long it has moved ahead since.
fn moved_ms(ahead: &AtomicI64, now_ahead: i64) -> u64 {
    let before = ahead.load(Acquire);
    let moved = now_ahead.saturating_sub(before);
    if before != UNKNOWN && moved.abs() < LEAST_MS {
        return 0;
    }
    // Only one thread counts it.
    let is_noted = ahead.compare_exchange(before, now_ahead, AcqRel, Relaxed);
    match is_noted {
        Ok(_) if before != UNKNOWN => u64::try_from(moved).unwrap_or(0),
        _ => 0,
    }
}

fn signed(time: Duration) -> i64 {
    i64::try_from(millis(time)).unwrap_or(i64::MAX)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

/// Elsewhere, the date has to do.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const fn since_boot() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock, and readings of it: ms awake, since boot, and of the date.
    fn suspended(readings: &[(u64, u64, u64)]) -> u64 {
        let (clock, begin) = (Clock::new(), Instant::now());
        let of = |(awake, since_boot, date)| Reading {
            awake: begin + Duration::from_millis(awake),
            since_boot: Duration::from_millis(since_boot),
            date: Duration::from_millis(date),
        };
        let seen = readings.iter().map(|it| clock.suspended_ms(&of(*it)));
        seen.last().unwrap()
    }

    #[test]
    fn a_machine_that_is_awake_is_not_suspended() {
        assert_eq!(suspended(&[(0, 7, 9_000), (5_000, 5_007, 14_000)]), 0);
    }

    #[test]
    fn a_machine_that_was_suspended_is_seen_once_although_two_clocks_show_it() {
        let readings = [(0, 0, 9_000), (1, 7_001, 16_001), (2, 7_002, 16_002)];
        assert_eq!(suspended(&readings), 7_000);
    }

    #[test]
    fn a_virtual_machine_that_was_paused_is_seen_by_the_date_alone() {
        assert_eq!(suspended(&[(0, 0, 9_000), (1, 1, 16_001)]), 7_000);
    }

    #[test]
    fn a_date_that_is_set_back_changes_nothing_and_hides_no_later_suspension() {
        let readings = [(0, 0, 9_000), (1, 1, 2_001), (2, 2, 5_002)];
        assert_eq!(suspended(&readings), 3_000);
    }

    #[test]
    fn small_corrections_of_the_date_add_up() {
        let readings = [(0, 0, 9_000), (100, 100, 9_130), (200, 200, 9_260)];
        assert_eq!(suspended(&readings), 60);
    }
}
