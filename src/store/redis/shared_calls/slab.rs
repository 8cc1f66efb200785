//! [`Slab`]: the seats of the callers that wait for calls. This file knows neither Redis nor runtimes.
//!
//! ```text
//!   enter ──▶ queued ──▶ sent ─────────▶ answered
//!               │ │        │ │  └──────▶ lost: the call was dropped
//!               │ │        │ └─▶ late: the deadline has passed, and the caller may wait on
//!               │ └─▶ too late: it is never sent
//!               └──────────┴───▶ left: the caller was dropped
//! ```
//!
//! A caller and its call hold a seat together, and the last of them frees it for the next caller. So an operation needs
//! no channel of its own; and no timer, since one keeper looks after all deadlines.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::PoisonError,
    task::{Poll, Waker},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::Instant;

use super::sync::{Mutex, MutexGuard};

/// The least time between two looks at the deadlines.
const BETWEEN_LOOKS: Duration = Duration::from_millis(3);

/// When more seats than these are free, and no caller waits, their memory is given back.
const MOST_FREE: usize = 1_024;

/// The seats of one runtime. `A` is an answer.
pub(super) struct Slab<A> {
    state: Mutex<SlabState<A>>,
}

struct SlabState<A> {
    seats: Vec<Seat<A>>,
    free: Vec<usize>,
    keeper: Option<Keeper>,
}

struct Seat<A> {
    /// Who holds the seat.
    has_caller: bool,
    has_call: bool,
    is_sent: bool,
    /// Whether the deadline has passed, and whether the caller is yet to learn of that.
    is_late: bool,
    tells_late: bool,
    answer: Option<A>,
    /// The task of the caller.
    caller: Option<Waker>,
    /// The task of the call, which ends when all its callers have left.
    call: Option<Waker>,
    /// When the keeper cuts off the wait.
    deadline: Option<Instant>,
}

/// The one that looks after the deadlines.
struct Keeper {
    looks_at: Instant,
    task: Option<Waker>,
}

/// How a caller's wait ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End<A> {
    Answered(A),
    /// The call was dropped.
    Lost {
        is_unsent: bool,
    },
    /// The deadline has passed. A caller whose operation was sent keeps its seat, without a deadline.
    Late {
        is_unsent: bool,
    },
}

impl<A> Slab<A> {
    pub(super) fn new() -> Self {
        let state = SlabState {
            seats: Vec::new(),
            free: Vec::new(),
            keeper: None,
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Gives a caller a seat, which its call holds as well. Returns whether the caller has to start the keeper.
    pub(super) fn enter(&self, caller: Waker, deadline: Option<Instant>) -> (usize, bool) {
        let mut state = self.lock();
        let (begins, hurried) = deadline.map_or((false, None), |at| state.watch(at));
        let seat = Seat {
            has_caller: true,
            has_call: true,
            is_sent: false,
            is_late: false,
            tells_late: false,
            answer: None,
            caller: Some(caller),
            call: None,
            deadline,
        };
        let number = match state.free.pop() {
            Some(number) => {
                state.seats[number] = seat;
                number
            }
            None => {
                state.seats.push(seat);
                state.seats.len() - 1
            }
        };
        drop(state);
        wake(hurried);
        (number, begins)
    }

    /// Returns the end of the wait, which gives up the caller's hold, unless the operation was sent and is late.
    pub(super) fn poll(&self, number: usize, caller: &Waker) -> Poll<End<A>> {
        let _dropped_without_lock;
        let mut state = self.lock();
        let seat = &mut state.seats[number];
        let end = if let Some(answer) = seat.answer.take() {
            End::Answered(answer)
        } else if seat.is_over() {
            End::Late { is_unsent: true }
        } else if !seat.has_call {
            let is_unsent = !seat.is_sent;
            End::Lost { is_unsent }
        } else if mem::take(&mut seat.tells_late) {
            return Poll::Ready(End::Late { is_unsent: false });
        } else {
            _dropped_without_lock = note(&mut seat.caller, caller);
            return Poll::Pending;
        };
        seat.has_caller = false;
        state.free_if_empty(number);
        Poll::Ready(end)
    }

    /// Gives up the caller's hold if the operation was not sent, and returns whether that is so. Otherwise, the caller
    /// waits on without a deadline.
    pub(super) fn is_never_sent(&self, number: usize) -> bool {
        let mut state = self.lock();
        let seat = &mut state.seats[number];
        let is_unsent = !seat.is_sent && seat.answer.is_none();
        if is_unsent {
            Self::leave_locked(state, number);
        } else {
            (seat.is_late, seat.tells_late, seat.deadline) = (true, false, None);
            let call = seat.call.take();
            drop(state);
            wake(call);
        }
        is_unsent
    }

    /// Gives up the caller's hold.
    pub(super) fn leave(&self, number: usize) {
        Self::leave_locked(self.lock(), number);
    }

    fn leave_locked(mut state: MutexGuard<'_, SlabState<A>>, number: usize) {
        let seat = &mut state.seats[number];
        seat.has_caller = false;
        let (answer, caller, call) = (seat.answer.take(), seat.caller.take(), seat.call.take());
        state.free_if_empty(number);
        // Without the lock: these may run any code.
        drop(state);
        drop((answer, caller));
        wake(call);
    }

    /// Notes that the operation is sent now. Otherwise gives up the hold of the call, since the caller has left.
    pub(super) fn begin(&self, number: usize) -> bool {
        let _dropped_without_lock;
        let mut state = self.lock();
        let seat = &mut state.seats[number];
        seat.is_sent = !seat.is_over();
        seat.has_call = seat.is_sent;
        let is_sent = seat.is_sent;
        if !is_sent {
            _dropped_without_lock = seat.call.take();
            state.free_if_empty(number);
        }
        is_sent
    }

    /// Whether no caller waits for the answer in time; if one does, wakes the task of the call then. `Ready` is whether
    /// the caller has left altogether.
    pub(super) fn poll_wait(&self, number: usize, call: &Waker) -> Poll<bool> {
        let _dropped_without_lock;
        let mut state = self.lock();
        let seat = &mut state.seats[number];
        if seat.is_over() {
            return Poll::Ready(true);
        }
        _dropped_without_lock = note(&mut seat.call, call);
        match seat.is_late {
            true => Poll::Ready(false),
            false => Poll::Pending,
        }
    }

    /// Gives up the hold of the call, with an answer to the caller or without one.
    pub(super) fn end(&self, number: usize, mut answer: Option<A>) {
        let mut state = self.lock();
        let seat = &mut state.seats[number];
        seat.has_call = false;
        let (mut caller, call) = (None, seat.call.take());
        if !seat.is_over() {
            seat.answer = answer.take();
            caller = seat.caller.take();
        }
        state.free_if_empty(number);
        // Without the lock: these may run any code.
        drop(state);
        drop((answer, call));
        wake(caller);
    }

    /// When the keeper looks next; wakes its task when that becomes earlier. `None` without a keeper.
    pub(super) fn next_look(&self, keeper: &Waker) -> Option<Instant> {
        let _dropped_without_lock;
        let mut state = self.lock();
        let kept = state.keeper.as_mut()?;
        _dropped_without_lock = note(&mut kept.task, keeper);
        Some(kept.looks_at)
    }

    /// Ends the waits whose deadlines have passed. Returns whether there are others; if not, the keeper has ended.
    pub(super) fn look(&self, now: Instant) -> bool {
        let mut state = self.lock();
        let SlabState { seats, keeper, .. } = &mut *state;
        let (mut wakers, mut next) = (Wakers::new(), None::<Instant>);
        for seat in seats {
            let is_awaited = seat.has_caller && seat.has_call && !seat.is_late;
            let Some(deadline) = seat.deadline.filter(|_| is_awaited) else {
                continue;
            };
            if deadline > now {
                next = Some(next.map_or(deadline, |next| next.min(deadline)));
                continue;
            }
            (seat.is_late, seat.tells_late) = (true, true);
            wakers.extend([seat.caller.take(), seat.call.take()].into_iter().flatten());
        }
        match (next, &mut *keeper) {
            (Some(next), Some(keeper)) => keeper.looks_at = next.max(now + BETWEEN_LOOKS),
            _ => *keeper = None,
        }
        drop(state);
        wakers.into_iter().map(Some).for_each(wake);
        next.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, SlabState<A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Wakers = SmallVec<[Waker; 8]>;

impl<A> Seat<A> {
    /// Whether the caller takes no answer: it has left, or came too late to be sent.
    const fn is_over(&self) -> bool {
        !self.has_caller || self.is_late && !self.is_sent
    }
}

impl<A> SlabState<A> {
    /// Lets the keeper look at this deadline. Returns whether there is none yet, and its task if it has to look earlier.
    fn watch(&mut self, at: Instant) -> (bool, Option<Waker>) {
        match &mut self.keeper {
            None => {
                let (looks_at, task) = (at, None);
                self.keeper = Some(Keeper { looks_at, task });
                (true, None)
            }
            Some(keeper) if at < keeper.looks_at => {
                keeper.looks_at = at;
                (false, keeper.task.take())
            }
            Some(_) => (false, None),
        }
    }

    fn free_if_empty(&mut self, number: usize) {
        if !self.seats[number].has_caller && !self.seats[number].has_call {
            self.free.push(number);
            if self.free.len() == self.seats.len() && self.seats.len() > MOST_FREE {
                (self.seats, self.free) = (Vec::new(), Vec::new());
            }
        }
    }
}

/// The keeper's task ends with the slab.
impl<A> Drop for SlabState<A> {
    fn drop(&mut self) {
        wake(self.keeper.take().and_then(|keeper| keeper.task));
    }
}

/// Notes a task, and returns the one that was noted before.
fn note(known: &mut Option<Waker>, task: &Waker) -> Option<Waker> {
    match known {
        Some(known) if known.will_wake(task) => None,
        known => known.replace(task.clone()),
    }
}

/// A waker is foreign code. One that panics must not keep the others from being woken.
fn wake(task: Option<Waker>) {
    if let Some(task) = task {
        let _ = catch_unwind(AssertUnwindSafe(|| task.wake()));
    }
}
