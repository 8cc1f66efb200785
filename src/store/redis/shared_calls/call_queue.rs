//! [`CallQueue`]: the waiting callers and the number of calls in flight. This file knows neither Redis nor runtimes.

use std::{collections::VecDeque, sync::PoisonError};

use super::sync::{Mutex, MutexGuard};

/// Callers that wait for a call: first come, first served.
///
/// A caller that arrives while fewer than `most` calls are in flight begins a call. A call that ends begins the next
/// one with the callers that wait. One lock guards both, so no caller can begin to wait while the last call ends.
///
/// When a call begins, `gather` takes its callers from those that wait. Its argument is the *share* of the call: the
/// waiting charges, divided by `most`. So calls grow with the backlog and still overlap, whatever the round trip time.
pub(super) struct CallQueue<T, C> {
    most: usize,
    gather: fn(&mut Waiting<T>, usize) -> Option<C>,
    state: Mutex<QueueState<T>>,
}

struct QueueState<T> {
    waiting: Waiting<T>,
    in_flight: usize,
    /// Calls that have ended without a successor so far.
    ended: usize,
}

impl<T, C> CallQueue<T, C> {
    pub(super) fn new(most: usize, gather: fn(&mut Waiting<T>, usize) -> Option<C>) -> Self {
        let state = QueueState {
            waiting: Waiting {
                callers: VecDeque::new(),
                charges: 0,
            },
            in_flight: 0,
            ended: 0,
        };
        Self {
            most,
            gather,
            state: Mutex::new(state),
        }
    }

    /// Adds a caller with this number of charges. Returns the call to begin now, if any.
    pub(super) fn enter(&self, one: T, charges: usize) -> Option<C> {
        let mut state = self.lock();
        state.waiting.charges += charges;
        state.waiting.callers.push_back((one, charges));
        if state.in_flight >= self.most {
            return None;
        }
        let call = self.next_call(&mut state);
        state.in_flight += usize::from(call.is_some());
        call
    }

    /// Records that a call has ended, and begins the next if a caller waits.
    ///
    /// If `begin` fails, the call ends inside of `begin`, and this function is entered again. The inner call only
    /// counts the end and leaves the rest to the loop of the outer one, so a queue of any length needs no more stack.
    pub(super) fn end(&self, begin: impl Fn(C)) {
        let mut state = self.lock();
        state.ended += 1;
        if state.ended > 1 {
            return;
        }
        while state.ended > 0 {
            match self.next_call(&mut state) {
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

    fn next_call(&self, state: &mut QueueState<T>) -> Option<C> {
        let share = state.waiting.charges.div_ceil(self.most);
        (self.gather)(&mut state.waiting, share)
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The waiting callers in order of arrival, each with its charges, and the sum of these. A caller that leaves stays until a
/// call takes it, which is soon: a call of callers that have all left ends at once.
pub(super) struct Waiting<T> {
    callers: VecDeque<(T, usize)>,
    charges: usize,
}

impl<T> Waiting<T> {
    pub(super) fn first(&self) -> Option<&T> {
        self.callers.front().map(|(first, _)| first)
    }

    pub(super) fn take_first(&mut self) -> Option<T> {
        let (first, charges) = self.callers.pop_front()?;
        self.charges -= charges;
        Some(first)
    }
}
