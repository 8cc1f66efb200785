//! How long calls may take.

use std::time::Duration;

/// The timeout of a call that a request waits for, by default.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_millis(100);

/// How long a settlement that no request waits for is tried.
pub(crate) const SETTLING: Duration = Duration::from_secs(60);

/// How long a report to the store may take, before it counts as lost.
pub(super) const REPORTING: Duration = Duration::from_secs(1);

/// A year: longer than any real wait, and far below the limit of `Instant`.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(31_536_000);
