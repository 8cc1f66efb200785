//! What tests share.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

/// Far above what a busy machine needs, for a failover too.
const PATIENCE: Duration = Duration::from_secs(60);

/// The one that runs now, or a new one. It ends with the last test that has it, so that no process is left behind.
pub(crate) fn shared<T>(running: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Arc<T> {
    let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
    running.upgrade().unwrap_or_else(|| {
        let started = Arc::new(start());
        *running = Arc::downgrade(&started);
        started
    })
}

/// Waits until this holds.
pub(crate) fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let timeout = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < timeout, "gave up waiting until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
