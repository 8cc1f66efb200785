//! [`Turns`]: the callers of a queue that may ask the store at the same time.

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::limiter::timeout::within;

/// As many callers ask at once at most, so that a crowd does not meet a server all at once.
const MOST: u64 = 256;

/// Turns, which callers take in order of arrival.
///
/// The first caller asks alone. What the store then says is left lets as many others ask at the same time, so that the
/// time of a round trip does not limit how many are admitted; a denial leaves one.
///
/// A caller may never give its turn back, since its runtime is parked. So when all turns are overdue, a caller that
/// waits gives them up: there is one new turn, and those that wait go on to wait for it.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Closed when its turns are given up.
    semaphore: Arc<Semaphore>,
    /// Free or taken.
    now: usize,
    wanted: usize,
    /// Every turn is overdue from then on.
    overdue_at: Instant,
}

/// Given back when dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    permit: Option<OwnedSemaphorePermit>,
    patience: Duration,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State::with_one_turn(Instant::now())),
        }
    }

    /// Waits for a turn. It is overdue when its caller is `patience` late with its [work](Turn::works_until).
    pub(super) async fn take(&self, patience: Duration) -> Turn<'_> {
        loop {
            let semaphore = Arc::clone(&self.state().semaphore);
            let mut acquired = pin!(semaphore.acquire_owned());
            let permit = loop {
                let rest = self.state().overdue_at.duration_since(Instant::now());
                match within(rest, acquired.as_mut()).await {
                    Some(permit) => break permit.ok(),
                    None => self.give_up_overdue(patience),
                }
            };
            if permit.is_some() {
                return Turn {
                    turns: self,
                    permit,
                    patience,
                };
            }
        }
    }

    /// Sets how many callers may ask at the same time: at least one.
    pub(super) fn set_number(&self, wanted: u64) {
        let mut state = self.state();
        state.wanted = usize::try_from(wanted.clamp(1, MOST)).unwrap_or(1);
        if let Some(more) = state.wanted.checked_sub(state.now) {
            state.semaphore.add_permits(more);
            state.now = state.wanted;
        }
    }

    fn give_up_overdue(&self, patience: Duration) {
        let mut state = self.state();
        let now = Instant::now();
        if state.overdue_at <= now {
            state.semaphore.close();
            *state = State::with_one_turn(now + patience);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn with_one_turn(overdue_at: Instant) -> Self {
        Self {
            semaphore: Arc::new(Semaphore::new(1)),
            now: 1,
            wanted: 1,
            overdue_at,
        }
    }
}

impl Turn<'_> {
    /// Notes that the caller asks the store then, or wakes. If it does nothing for its patience after that, the turn is
    /// overdue.
    pub(super) fn works_until(&self, then: Instant) {
        let mut state = self.turns.state();
        state.overdue_at = state.overdue_at.max(then + self.patience);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        let is_too_many = state.now > state.wanted;
        if let Some(permit) = self.permit.take()
            && is_too_many
            && Arc::ptr_eq(permit.semaphore(), &state.semaphore)
        {
            permit.forget();
            state.now -= 1;
        }
    }
}
