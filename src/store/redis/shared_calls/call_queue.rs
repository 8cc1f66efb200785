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
            waiting: Waiting::new(),
            in_flight: 0,
            ended: 0,
        };
        Self {
            most,
            gather,
            state: Mutex::new(state),
        }
    }

    /// Adds a caller with this number of charges. Returns a ticket for [`leave`](Self::leave), and the call to begin
    /// now, if any.
    pub(super) fn enter(&self, one: T, charges: usize) -> (u64, Option<C>) {
        let mut state = self.lock();
        let ticket = state.waiting.push(one, charges);
        if state.in_flight >= self.most {
            return (ticket, None);
        }
        let call = self.next_call(&mut state);
        state.in_flight += usize::from(call.is_some());
        (ticket, call)
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

    /// Removes the caller with this ticket, unless a call has already taken it.
    pub(super) fn leave(&self, ticket: u64) {
        let left = self.lock().waiting.remove(ticket);
        // Drop the caller after the lock is free: its destructor may run any code.
        drop(left);
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The waiting callers in order of arrival, and the sum of their charges.
pub(super) struct Waiting<T> {
    /// Sorted by ticket. The first has not left, and at most half of them have.
    places: VecDeque<InLine<T>>,
    next_ticket: u64,
    charges: usize,
    /// How many of the callers have left.
    left: usize,
}

struct InLine<T> {
    ticket: u64,
    /// The caller and its charges; `None` if it has left.
    one: Option<(T, usize)>,
}

impl<T> Waiting<T> {
    const fn new() -> Self {
        Self {
            places: VecDeque::new(),
            next_ticket: 0,
            charges: 0,
            left: 0,
        }
    }

    fn push(&mut self, one: T, charges: usize) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.charges += charges;
        let one = Some((one, charges));
        self.places.push_back(InLine { ticket, one });
        ticket
    }

    pub(super) fn first(&self) -> Option<&T> {
        let (first, _) = self.places.front()?.one.as_ref()?;
        Some(first)
    }

    pub(super) fn take_first(&mut self) -> Option<T> {
        let (one, charges) = self.places.pop_front()?.one?;
        self.charges -= charges;
        self.skip_left();
        Some(one)
    }

    fn remove(&mut self, ticket: u64) -> Option<T> {
        let index = self
            .places
            .binary_search_by_key(&ticket, |place| place.ticket);
        let (one, charges) = self.places[index.ok()?].one.take()?;
        self.charges -= charges;
        self.left += 1;
        self.skip_left();
        // Without this, callers that come and leave behind one that waits would take ever more memory.
        if self.left > self.places.len() / 2 {
            self.places.retain(|place| place.one.is_some());
            self.left = 0;
        }
        Some(one)
    }

    fn skip_left(&mut self) {
        while self.places.front().is_some_and(|place| place.one.is_none()) {
            self.places.pop_front();
            self.left -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Waiting;

    #[test]
    fn those_who_leave_behind_one_that_waits_take_no_room() {
        let mut waiting = Waiting::new();
        waiting.push("waits", 1);
        for _ in 0..1_000 {
            let ticket = waiting.push("leaves", 1);
            assert_eq!(waiting.remove(ticket), Some("leaves"));
            assert_eq!(waiting.remove(ticket), None);
        }
        assert!(waiting.places.len() <= 2, "{}", waiting.places.len());
        assert_eq!(waiting.take_first(), Some("waits"));
        assert_eq!(waiting.take_first(), None);
    }
}
