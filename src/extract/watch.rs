//! [`Watch`]: notes about the first requests, which show how a service is wired.

use std::sync::{
    Mutex, TryLockError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// How many requests are looked at. A service with a health check every five seconds has this number in half a day, so
/// checks before the first client do not use the watch up.
pub(crate) const WATCHED: u32 = 10_000;

/// Notes about the first requests. Each later request costs one atomic load.
#[derive(Debug, Default)]
pub(crate) struct Watch<T> {
    over: AtomicBool,
    /// The notes, and how many requests are in them.
    notes: Mutex<(T, u32)>,
}

impl<T> Watch<T> {
    /// Calls `look` with the notes and the number of this request, 1 to [`WATCHED`], and returns the result; `None` for
    /// later requests.
    pub(crate) fn note<R>(&self, look: impl FnOnce(&mut T, u32) -> Option<R>) -> Option<R> {
        if self.over.load(Relaxed) {
            return None;
        }
        self.note_early(look)
    }

    /// Skips this request if another one holds the notes: no request waits for a warning.
    #[cold]
    fn note_early<R>(&self, look: impl FnOnce(&mut T, u32) -> Option<R>) -> Option<R> {
        let mut notes = match self.notes.try_lock() {
            Ok(notes) => notes,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let (notes, seen) = &mut *notes;
        if *seen == WATCHED {
            return None;
        }
        *seen += 1;
        self.over.store(*seen == WATCHED, Relaxed);
        look(notes, *seen)
    }
}
