//! [`Delivery`]: whether the reports of one kind arrive in the store.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use tokio::sync::Mutex;

use crate::domain::error::{StoreError, StoreErrorKind};

/// How long one call may take, before its report counts as lost: one interval of the reporter.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);

/// The reporter's task ends after this many intervals without a report.
pub(super) const IDLE: u64 = 10;

/// Whether the reports of one kind arrive.
#[derive(Default)]
pub(super) struct Delivery {
    /// Held during a report. Reports must not overlap: the store's answer is about the newest.
    pub(super) turn: Mutex<()>,
    has_failed: AtomicBool,
}

impl Delivery {
    pub(super) fn succeeded(&self) {
        self.has_failed.store(false, Relaxed);
    }

    /// Whether to warn about this error. An outage has its own warnings; other errors warn once, until a report
    /// succeeds.
    pub(super) fn is_news(&self, error: &StoreError) -> bool {
        let is_outage = matches!(
            error.kind(),
            StoreErrorKind::Unavailable | StoreErrorKind::Timeout
        );
        !is_outage && !self.has_failed.swap(true, Relaxed)
    }
}
