//! The clock by which this process knows how long it may count on a slot.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

/// The times of both clocks at the first use.
static START: OnceLock<(Instant, Duration)> = OnceLock::new();

/// Ms since some moment. It never steps back, and goes on while the machine is suspended, where the system has such a
/// clock: a store releases slots meanwhile, too.
///
/// In tests it is the time of the runtime, which they can pause.
pub(crate) fn now_ms() -> u64 {
    let (awake, since_boot) = (Instant::now(), since_boot());
    let (awake_start, boot_start) = *START.get_or_init(|| (awake, since_boot));
    let suspended = since_boot
        .saturating_sub(boot_start)
        .saturating_sub(awake.saturating_duration_since(awake_start));
    let runtime = tokio::time::Instant::now().into_std();
    let now = runtime.saturating_duration_since(awake_start) + suspended;
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

/// Elsewhere, `Instant` has to do: on Windows it goes on during suspension, on macOS it does not.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const fn since_boot() -> Duration {
    Duration::ZERO
}
