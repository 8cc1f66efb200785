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
///
/// Where a call begins, `gather` takes its callers from those who wait. It is given a call's *share*: the charges that
/// wait, divided by `most`. So calls grow with the backlog and still overlap, however long a round trip takes.
pub(super) struct Line<T> {
    most: usize,
    state: Mutex<State<T>>,
}

struct State<T> {
    waiting: Waiting<T>,
    /// How often the calls in flight were given up.
    epoch: u64,
    /// Calls of this epoch.
    in_flight: usize,
    /// Calls of this epoch that have ended, and whose places are to be given to the next.
    ended: usize,
    /// When a call was last begun or ended.
    moved: Instant,
}

impl<T> Line<T> {
    pub(super) fn new(most: usize, now: Instant) -> Self {
        let state = State {
            waiting: Waiting::new(),
            epoch: 0,
            in_flight: 0,
            ended: 0,
            moved: now,
        };
        Self {
            most,
            state: Mutex::new(state),
        }
    }

    /// Lets one more wait, with so many charges. Answers a ticket to [leave](Self::leave) with, and the call that is to
    /// be begun now, if any, with its epoch. Calls in flight are given up when nothing has moved for `patience`.
    pub(super) fn enter<C>(
        &self,
        one: T,
        charges: usize,
        now: Instant,
        patience: Duration,
        gather: impl FnOnce(&mut Waiting<T>, usize) -> Option<C>,
    ) -> (u64, Option<(C, u64)>) {
        let mut state = self.lock();
        let ticket = state.waiting.push(one, charges);
        if state.in_flight >= self.most {
            if now.saturating_duration_since(state.moved) < patience {
                return (ticket, None);
            }
            state.epoch += 1;
            state.in_flight = 0;
            state.ended = 0;
        }
        let call = self.next_call(&mut state, gather);
        if call.is_some() {
            state.in_flight += 1;
            state.moved = now;
        }
        (ticket, call.map(|call| (call, state.epoch)))
    }

    /// Notes that a call of this epoch has ended, and begins the next, if anybody waits.
    ///
    /// A call that `begin` cannot begin ends within it, and so comes back here: it is left to the loop of whoever is
    /// in it already, so that a line of any length takes no stack.
    pub(super) fn end<C>(
        &self,
        epoch: u64,
        now: Instant,
        gather: impl Fn(&mut Waiting<T>, usize) -> Option<C>,
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
            match self.next_call(&mut state, &gather) {
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

    fn next_call<C>(
        &self,
        state: &mut State<T>,
        gather: impl FnOnce(&mut Waiting<T>, usize) -> Option<C>,
    ) -> Option<C> {
        let share = state.waiting.charges.div_ceil(self.most);
        gather(&mut state.waiting, share)
    }

    /// Forgets who has this ticket, if a call has not taken it.
    pub(super) fn leave(&self, ticket: u64) {
        // Dropped when the lock is free.
        let _left = self.lock().waiting.remove(ticket);
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those who wait, in the order in which they came, and how many charges that is.
pub(super) struct Waiting<T> {
    /// By ticket. The first has not left, and at most every other one has.
    places: VecDeque<Place<T>>,
    next_ticket: u64,
    charges: usize,
    /// How many of the places are of callers that have left.
    left: usize,
}

struct Place<T> {
    ticket: u64,
    /// With its charges; `None` if it has left.
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
        self.places.push_back(Place { ticket, one });
        ticket
    }

    pub(super) fn first(&self) -> Option<&T> {
        let (first, _) = self.places.front()?.one.as_ref()?;
        Some(first)
    }

    pub(super) fn take_first(&mut self) -> Option<T> {
        self.remove(self.places.front()?.ticket)
    }

    fn remove(&mut self, ticket: u64) -> Option<T> {
        let index = self.places.binary_search_by_key(&ticket, |it| it.ticket);
        let (one, charges) = self.places[index.ok()?].one.take()?;
        self.charges -= charges;
        self.left += 1;
        while self.places.front().is_some_and(|it| it.one.is_none()) {
            self.places.pop_front();
            self.left -= 1;
        }
        // Else those who come and leave behind one that waits would need more and more room.
        if self.left > self.places.len() / 2 {
            self.places.retain(|it| it.one.is_some());
            self.left = 0;
        }
        Some(one)
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
