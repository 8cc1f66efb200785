//! [`Line`]: who waits, and how many calls are in flight. It knows nothing of Redis or of runtimes.

use std::{collections::VecDeque, sync::PoisonError, time::Duration};

use tokio::time::Instant;

use super::sync::{Mutex, MutexGuard};

/// Those who wait for a call, first come, first served.
///
/// Whoever comes while fewer than `most` calls are in flight begins one, and whoever ends one begins the next with
/// those who wait. One lock guards all, so nobody can begin to wait while the last call ends.
///
/// A call may never end: its runtime may be parked. So when none was begun and none has ended for a while, all in
/// flight are given up and their number is counted anew. Each call is of an *epoch*, and ends nothing in a later one.
pub(super) struct Line<T> {
    most: usize,
    state: Mutex<State<T>>,
}

struct State<T> {
    waiting: VecDeque<T>,
    /// How often the calls in flight were given up.
    epoch: u64,
    /// Calls of this epoch.
    in_flight: usize,
    /// Calls of this epoch that have ended, and whose places are to be given to the next.
    ended: usize,
    /// At least how many of those who wait have left.
    left: usize,
    /// When a call was last begun or ended.
    moved: Instant,
}

impl<T> Line<T> {
    pub(super) fn new(most: usize, now: Instant) -> Self {
        let state = State {
            waiting: VecDeque::new(),
            epoch: 0,
            in_flight: 0,
            ended: 0,
            left: 0,
            moved: now,
        };
        Self {
            most,
            state: Mutex::new(state),
        }
    }

    /// Lets one more wait; answers whose call is to be begun now, as `gather` takes them from those who wait, and the
    /// call's epoch. Calls in flight are given up when nothing has moved for `patience`.
    pub(super) fn enter<C>(
        &self,
        one: T,
        now: Instant,
        patience: Duration,
        gather: impl FnOnce(&mut VecDeque<T>) -> Option<C>,
    ) -> Option<(C, u64)> {
        let mut state = self.lock();
        state.waiting.push_back(one);
        if state.in_flight >= self.most {
            if now.saturating_duration_since(state.moved) < patience {
                return None;
            }
            state.epoch += 1;
            state.in_flight = 0;
            state.ended = 0;
        }
        let call = gather(&mut state.waiting)?;
        state.in_flight += 1;
        state.moved = now;
        Some((call, state.epoch))
    }

    /// Notes that a call of this epoch has ended, and begins the next, if anybody waits.
    ///
    /// A call that `begin` cannot begin ends within it, and so comes back here: it is left to the loop of whoever is
    /// in it already, so that a line of any length takes no stack.
    pub(super) fn end<C>(
        &self,
        epoch: u64,
        now: Instant,
        gather: impl Fn(&mut VecDeque<T>) -> Option<C>,
        begin: impl Fn(C),
    ) {
        let mut state = self.lock();
        if state.epoch != epoch {
            return;
        }
        state.moved = now;
        state.ended += 1;
        if state.ended > 1 {
            return;
        }
        // While a call is begun the lock is free, and the epoch may end.
        while state.epoch == epoch && state.ended > 0 {
            match gather(&mut state.waiting) {
                Some(call) => {
                    drop(state);
                    begin(call);
                    state = self.lock();
                }
                None => state.in_flight -= 1,
            }
            if state.epoch == epoch {
                state.ended -= 1;
            }
        }
    }

    /// Notes that one who waited has left, and forgets those who have as soon as they may be the half of all.
    pub(super) fn leave(&self, has_left: impl Fn(&T) -> bool) {
        let mut state = self.lock();
        state.left += 1;
        if 2 * state.left > state.waiting.len() {
            state.waiting.retain(|one| !has_left(one));
            state.left = 0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
