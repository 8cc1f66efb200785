//! [`Turns`]: lets some callers of a queue ask the store at the same time.

use std::sync::Mutex;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::lock::lock;

/// The maximum number of concurrent askers, so that a crowd does not hit a server all at once.
const MOST: usize = 256;

/// Turns, which callers take in order of arrival.
///
/// The first caller asks alone. Its answer says how many units are left, and that many callers may then ask at the same
/// time, so that the round trip does not limit admissions; a denial allows one again.
#[derive(Debug)]
pub(super) struct Turns {
    free: Semaphore,
    number: Mutex<Number>,
}

#[derive(Debug)]
struct Number {
    wanted: usize,
    /// Taken turns and free ones. Those that are too many go when they are given back.
    all: usize,
}

/// A turn, given back when dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    permit: Option<SemaphorePermit<'a>>,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            free: Semaphore::new(1),
            number: Mutex::new(Number { wanted: 1, all: 1 }),
        }
    }

    /// Waits for a turn. A caller that is dropped gives up its place, or passes on its turn.
    pub(super) async fn take(&self) -> Turn<'_> {
        Turn {
            turns: self,
            permit: self.free.acquire().await.ok(), // it is never closed
        }
    }

    /// Sets how many callers may ask at the same time: at least one.
    pub(super) fn set_number(&self, wanted: u64) {
        let wanted = usize::try_from(wanted).unwrap_or(MOST).clamp(1, MOST);
        let mut number = lock(&self.number);
        number.wanted = wanted;
        let too_many = number.all.saturating_sub(wanted);
        number.all -= self.free.forget_permits(too_many);
        let new = wanted.saturating_sub(number.all);
        number.all += new;
        // A waker is foreign code, and may drop a caller that has a turn.
        drop(number);
        self.free.add_permits(new);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut number = lock(&self.turns.number);
        if number.all > number.wanted
            && let Some(permit) = self.permit.take()
        {
            permit.forget();
            number.all -= 1;
        }
        drop(number); // before the turn is passed on, which wakes a caller
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn turns_that_are_too_many_go_when_they_are_given_back() {
        let turns = Turns::new();
        let take = || turns.take().now_or_never();
        turns.set_number(3);
        let mut taken: Vec<_> = (0..3).map(|_| take().unwrap()).collect();
        assert!(take().is_none());
        turns.set_number(1);
        taken.truncate(1);
        assert!(take().is_none(), "one is still taken");
        turns.set_number(2);
        taken.push(take().unwrap());
        assert!(take().is_none());
        turns.set_number(0);
        drop(taken);
        let only = take().unwrap();
        assert!(take().is_none());
        drop(only);
        assert!(take().is_some());
    }
}
