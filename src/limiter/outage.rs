//! [`Outage`]: when something that fails again and again began to fail, and when it works again.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::lock::lock;

/// How long nothing must fail before an outage counts as over. Limits warnings to one pair in that time.
const RECOVERED_AFTER: Duration = Duration::from_secs(10);

/// Shared by all that may meet the failure. While nothing fails, a success costs one load.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    is_on: AtomicBool,
    failed_at: Mutex<Option<Instant>>,
}

impl Outage {
    /// Notes a failure. Returns whether the outage begins with it.
    pub(crate) fn begins(&self) -> bool {
        let mut failed_at = lock(&self.failed_at);
        self.is_on.store(true, Relaxed);
        failed_at.replace(Instant::now()).is_none()
    }

    /// Whether something failed a while ago.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Notes a success. Returns whether the outage is over.
    pub(crate) fn ends(&self) -> bool {
        self.is_on.load(Relaxed) && self.has_recovered()
    }

    #[cold]
    fn has_recovered(&self) -> bool {
        let mut failed_at = lock(&self.failed_at);
        let is_over = failed_at.is_some_and(|at| at.elapsed() >= RECOVERED_AFTER);
        if is_over {
            *failed_at = None;
            self.is_on.store(false, Relaxed);
        }
        is_over
    }
}
