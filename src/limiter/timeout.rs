//! How long calls may take.

use std::time::Duration;

use tokio::time::Instant;

/// The timeout of a call that a request waits for, by default.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_millis(100);

/// How long a settlement that no request waits for is tried.
pub(crate) const SETTLING: Duration = Duration::from_secs(60);

/// How long a report to the store may take, before it counts as lost.
pub(super) const REPORTING: Duration = Duration::from_secs(1);

/// A year: longer than any real wait, and far below the limit of `Instant`.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(31_536_000);

/// How late any deadline may be noticed: the runtime and the system both count whole milliseconds, and a store looks at
/// its deadlines every few.
const COARSENESS: Duration = Duration::from_millis(5);

/// Whether this process noticed the end of a timeout so late that an answer may have gone unnoticed as well.
pub(super) fn is_noticed_late(deadline: Instant, timeout: Duration) -> bool {
    deadline.elapsed() > COARSENESS.max(timeout / 4)
}
