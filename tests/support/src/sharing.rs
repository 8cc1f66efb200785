//! Helpers to share servers between tests, and to wait.

use std::{
    io::Write as _,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

/// Far more than a busy machine needs, also for a failover.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server that runs now, or a new one. It ends with the last test that uses it, so that no process stays behind.
pub fn shared<T>(running: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Arc<T> {
    let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
    running.upgrade().unwrap_or_else(|| {
        let started = Arc::new(start());
        *running = Arc::downgrade(&started);
        started
    })
}

pub fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let timeout = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < timeout, "gave up waiting until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Says what a test did not try, directly: the test harness hides the output of tests that pass.
pub fn not_tried(why: &str) {
    let _ = writeln!(std::io::stderr(), "\n!!! NOT TRIED: {why}\n");
}
