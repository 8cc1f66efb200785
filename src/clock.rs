//! The clock by which this process knows how long it may count on a slot or a lease.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use crate::domain::rule::millis;

/// The time since some moment. It never steps back, follows no date, and goes on while the machine is suspended. On a
/// system without such a clock the time stands still meanwhile, and the store's next answer shows the suspension.
///
/// In tests it is the time of the runtime, which they can pause.
pub(crate) fn now() -> Duration {
    static START: LazyLock<Moment> = LazyLock::new(|| (Instant::now(), since_boot()));
    let start = *START;
    // The other order than at the start: a thread that is stopped between its two looks sees no suspension.
    let since_boot = since_boot();
    let suspended = suspended(start, (Instant::now(), since_boot));
    let runtime = tokio::time::Instant::now().into_std();
    runtime.saturating_duration_since(start.0) + suspended
}

/// The [time](now) in whole ms.
pub(crate) fn now_ms() -> u64 {
    millis(now())
}

/// One moment by two clocks: one that stands still during a suspension, and one that goes on.
type Moment = (Instant, Duration);

/// For how long there was a suspension from one moment to a later one.
fn suspended(start: Moment, end: Moment) -> Duration {
    let all = end.1.saturating_sub(start.1);
    all.saturating_sub(end.0.saturating_duration_since(start.0))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.try_into().unwrap_or_default()
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
        let reading = |awake, since_boot| {
            let since_boot = Duration::from_millis(since_boot);
            (begin + Duration::from_millis(awake), since_boot)
        };
        for (awake, since_boot, expected) in [
            (5_000, 5_007, 0),
            (5_000, 5_006, 0), // stopped for a moment between the two looks
            (1, 7_008, 7_000),
            (2, 7_009, 7_000),
        ] {
            let seen = suspended(reading(0, 7), reading(awake, since_boot));
            assert_eq!(seen, Duration::from_millis(expected));
        }
    }
}
