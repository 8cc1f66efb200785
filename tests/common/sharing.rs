//! What tests share.

use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The one that runs now, or a new one. It ends with the last test that has it, so that no process is left behind.
pub(crate) fn shared<T>(running: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Arc<T> {
    let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
    running.upgrade().unwrap_or_else(|| {
        let started = Arc::new(start());
        *running = Arc::downgrade(&started);
        started
    })
}
