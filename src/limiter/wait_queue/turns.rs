//! [`Turns`]: the callers of a queue that may ask the store at the same time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

/// As many callers ask at once at most, so that a crowd does not meet a server all at once.
const MOST: u64 = 256;

/// Turns, which callers take in order of arrival.
///
/// The first caller asks alone. What the store then says is left lets as many others ask at the same time, so that the
/// time of a round trip does not limit how many are admitted; a denial leaves one.
#[derive(Debug)]
pub(super) struct Turns {
    semaphore: Semaphore,
    number: Mutex<Number>,
}

#[derive(Debug)]
struct Number {
    /// Free or taken.
    now: usize,
    wanted: usize,
}

/// Given back when dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    permit: Option<SemaphorePermit<'a>>,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            semaphore: Semaphore::new(1),
            number: Mutex::new(Number { now: 1, wanted: 1 }),
        }
    }

    pub(super) async fn take(&self) -> Turn<'_> {
        Turn {
            turns: self,
            permit: self.semaphore.acquire().await.ok(), // it is never closed
        }
    }

    /// Sets how many callers may ask at the same time: at least one.
    pub(super) fn set_number(&self, wanted: u64) {
        let mut number = self.number();
        number.wanted = usize::try_from(wanted.clamp(1, MOST)).unwrap_or(1);
        if let Some(more) = number.wanted.checked_sub(number.now) {
            self.semaphore.add_permits(more);
            number.now = number.wanted;
        }
    }

    fn number(&self) -> MutexGuard<'_, Number> {
        self.number.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut number = self.turns.number();
        if number.now > number.wanted
            && let Some(permit) = self.permit.take()
        {
            permit.forget();
            number.now -= 1;
        }
    }
}
