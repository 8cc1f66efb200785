//! [`lock`]: takes a mutex, also after a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a mutex. One under which a thread has panicked is used on: nothing here leaves a value half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
