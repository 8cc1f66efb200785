//! [`Line`]: who waits, and how many calls are in flight. It knows nothing of Redis or of runtimes.

use std::{collections::VecDeque, sync::PoisonError, time::Duration};

use tokio::time::Instant;

use super::sync::{Mutex, MutexGuard};

/// Those who wait for a call, first come, first served.
///
/// While somebody waits who has not left, `most` calls are in flight: whoever ends one of them takes with it those who
/// wait. One lock guards all, so nobody can begin to wait while the last call ends.
pub(super) struct Line<T> {
    most: usize,
    state: Mutex<State<T>>,
}

struct State<T> {
    waiting: VecDeque<T>,
    in_flight: usize,
    /// Calls that have ended, and whose places are to be given to the next.
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

    /// Lets one more wait; answers whose call is to be begun now, as `gather` takes them from those who wait.
    ///
    /// A call is begun beyond `most` when none was begun and none has ended for so long as `patience`: those in flight
    /// may never end.
    pub(super) fn enter<C>(
        &self,
        one: T,
        now: Instant,
        patience: Duration,
        gather: impl FnOnce(&mut VecDeque<T>) -> Option<C>,
    ) -> Option<C> {
        let mut state = self.lock();
        state.waiting.push_back(one);
        if state.in_flight >= self.most && now.saturating_duration_since(state.moved) < patience {
            return None;
        }
        let call = gather(&mut state.waiting)?;
        state.in_flight += 1;
        state.moved = now;
        Some(call)
    }

    /// Notes that a call has ended, and begins the next, if anybody waits.
    ///
    /// A call that `begin` cannot begin ends within it, and so comes back here: it is left to the loop of whoever is
    /// in it already, so that a line of any length takes no stack.
    pub(super) fn end<C>(
        &self,
        now: Instant,
        gather: impl Fn(&mut VecDeque<T>) -> Option<C>,
        begin: impl Fn(C),
    ) {
        let mut state = self.lock();
        state.moved = now;
        state.ended += 1;
        if state.ended > 1 {
            return;
        }
        while state.ended > 0 {
            let next = if state.in_flight > self.most {
                None
            } else {
                gather(&mut state.waiting)
            };
            match next {
                Some(call) => {
                    drop(state);
                    begin(call);
                    state = self.lock();
                }
                None => state.in_flight -= 1,
            }
            state.ended -= 1;
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
