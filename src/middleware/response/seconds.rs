//! Times as headers tell them.

use std::time::Duration;

/// Whole seconds, rounded up: a client that comes back early is denied again.
pub(super) const fn seconds(time: Duration) -> u64 {
    let partial = time.subsec_nanos() > 0;
    time.as_secs().saturating_add(partial as u64)
}
