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
    stage: Stage<A>,
    /// The task of the caller.
    caller: Option<Waker>,
    /// The task of the call, which ends when all its callers have left.
    call: Option<Waker>,
    /// When the keeper cuts off the wait.
    deadline: Option<Instant>,
}

enum Stage<A> {
    Free,
    Queued,
    Sent,
    /// It was sent, and the deadline has passed. The caller learns of that once.
    Late {
        is_known: bool,
    },
    /// Only the caller holds the seat.
    Answered(A),
    /// Only the caller holds the seat.
    Lost {
        is_unsent: bool,
    },
    /// It is never sent. The call may hold the seat, too.
    TooLate {
        has_call: bool,
    },
    /// Only the call holds the seat.
    Left,
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
            stage: Stage::Queued,
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
        let end = match mem::replace(&mut seat.stage, Stage::Free) {
            Stage::Answered(answer) => End::Answered(answer),
            Stage::Lost { is_unsent } => End::Lost { is_unsent },
            Stage::TooLate { has_call } => {
                if has_call {
                    seat.stage = Stage::Left;
                }
                End::Late { is_unsent: true }
            }
            Stage::Late { is_known: false } => {
                seat.stage = Stage::Late { is_known: true };
                return Poll::Ready(End::Late { is_unsent: false });
            }
            stage => {
                seat.stage = stage;
                _dropped_without_lock = note(&mut seat.caller, caller);
                return Poll::Pending;
            }
        };
        state.free_if_empty(number);
        Poll::Ready(end)
    }

    /// Gives up the caller's hold if the operation was not sent, and returns whether that is so. Otherwise, the caller
    /// waits on without a deadline.
    pub(super) fn is_never_sent(&self, number: usize) -> bool {
        let mut state = self.lock();
        let seat = &mut state.seats[number];
        match seat.stage {
            Stage::Queued | Stage::TooLate { .. } | Stage::Lost { is_unsent: true } => {
                Self::leave_locked(state, number);
                true
            }
            Stage::Sent | Stage::Late { .. } => {
                seat.stage = Stage::Late { is_known: true };
                seat.deadline = None;
                let call = seat.call.take();
                drop(state);
                wake(call);
                false
            }
            _ => false,
        }
    }

    /// Gives up the caller's hold.
    pub(super) fn leave(&self, number: usize) {
        Self::leave_locked(self.lock(), number);
    }

    fn leave_locked(mut state: MutexGuard<'_, SlabState<A>>, number: usize) {
        let seat = &mut state.seats[number];
        let before = mem::replace(&mut seat.stage, Stage::Free);
        let has_call = match before {
            Stage::Queued | Stage::Sent | Stage::Late { .. } => true,
            Stage::TooLate { has_call } => has_call,
            _ => false,
        };
        if has_call {
            seat.stage = Stage::Left;
        }
        let (caller, call) = (seat.caller.take(), seat.call.take());
        state.free_if_empty(number);
        // Without the lock: these may run any code.
        drop(state);
        drop((before, caller));
        wake(call);
    }

    /// Notes that the operation is sent now. Otherwise gives up the hold of the call, since the caller has left.
    pub(super) fn begin(&self, number: usize) -> bool {
        let _dropped_without_lock;
        let mut state = self.lock();
        let seat = &mut state.seats[number];
        let is_wanted = matches!(seat.stage, Stage::Queued);
        if is_wanted {
            seat.stage = Stage::Sent;
        } else {
            _dropped_without_lock = state.release(number);
        }
        is_wanted
    }

    /// Whether no caller waits for the answer in time; if one does, wakes the task of the call then. `Ready` is whether
    /// the caller has left altogether.
    pub(super) fn poll_wait(&self, number: usize, call: &Waker) -> Poll<bool> {
        let _dropped_without_lock;
        let mut state = self.lock();
        let seat = &mut state.seats[number];
        match seat.stage {
            Stage::Queued | Stage::Sent => {
                _dropped_without_lock = note(&mut seat.call, call);
                Poll::Pending
            }
            Stage::Late { .. } => {
                _dropped_without_lock = note(&mut seat.call, call);
                Poll::Ready(false)
            }
            _ => Poll::Ready(true),
        }
    }

    /// Answers the caller, and gives up the hold of the call.
    pub(super) fn answer(&self, number: usize, answer: A) {
        self.end(number, |_| Stage::Answered(answer));
    }

    /// Gives up the hold of the call without an answer.
    pub(super) fn lose(&self, number: usize) {
        self.end(number, |stage| Stage::Lost {
            is_unsent: matches!(stage, Stage::Queued),
        });
    }

    fn end(&self, number: usize, end: impl FnOnce(&Stage<A>) -> Stage<A>) {
        let mut state = self.lock();
        let seat = &mut state.seats[number];
        if !matches!(seat.stage, Stage::Queued | Stage::Sent | Stage::Late { .. }) {
            let call = state.release(number);
            drop(state);
            drop(call); // without the lock, and then the answer: they may run any code
            return;
        }
        seat.stage = end(&seat.stage);
        let (caller, call) = (seat.caller.take(), seat.call.take());
        drop(state);
        drop(call);
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
            let Some(deadline) = seat.deadline.filter(|_| seat.is_awaited()) else {
                continue;
            };
            if deadline > now {
                next = Some(next.map_or(deadline, |next| next.min(deadline)));
                continue;
            }
            seat.stage = match seat.stage {
                Stage::Queued => Stage::TooLate { has_call: true },
                _ => Stage::Late { is_known: false },
            };
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
    const fn is_awaited(&self) -> bool {
        matches!(self.stage, Stage::Queued | Stage::Sent)
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

    /// Gives up the hold of the call on a seat that no caller waits in. Returns the task of the call.
    fn release(&mut self, number: usize) -> Option<Waker> {
        let seat = &mut self.seats[number];
        let call = seat.call.take();
        match &mut seat.stage {
            Stage::TooLate { has_call } => *has_call = false,
            stage => *stage = Stage::Free,
        }
        self.free_if_empty(number);
        call
    }

    fn free_if_empty(&mut self, number: usize) {
        if matches!(self.seats[number].stage, Stage::Free) {
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
