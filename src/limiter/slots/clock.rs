//! The clock by which this process knows how long it may count on a slot.

use std::{sync::OnceLock, time::Instant};

/// The times of both clocks at the first use.
static START: OnceLock<(Instant, u64)> = OnceLock::new();

/// Ms since some moment. It never steps back, and goes on while the machine is suspended, where the system has such a
/// clock: a store releases slots meanwhile, too.
///
/// A paused runtime's time counts as well, so that tests can move it.
pub(crate) fn now_ms() -> u64 {
    let now = tokio::time::Instant::now().into_std();
    let (start, boot_start_ms) = *START.get_or_init(|| (now, since_boot_ms()));
    let awake_ms = now.saturating_duration_since(start).as_millis();
    let boot_ms = since_boot_ms().saturating_sub(boot_start_ms);
    u64::try_from(awake_ms).unwrap_or(u64::MAX).max(boot_ms)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_boot_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let ms = u64::try_from(time.tv_nsec / 1_000_000).unwrap_or(0);
    seconds.saturating_mul(1_000).saturating_add(ms)
}

/// Elsewhere, `Instant` has to do: on Windows it goes on during suspension, on macOS it does not.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const fn since_boot_ms() -> u64 {
    0
}
