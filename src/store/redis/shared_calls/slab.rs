//! [`Slab`]: the seats of the callers that wait for calls. This file knows neither Redis nor runtimes.
//!
//! ```text
//!   enter ──▶ queued ──▶ sent ──▶ answered
//!               │ │        │ └──▶ lost: the call was dropped
//!               │ └────────┴────▶ late: the deadline has passed
//!               └──────────┴────▶ left: the caller was dropped
//! ```
//!
//! A caller and its call hold a seat together, and the last of them frees it for the next caller. So an operation needs
//! no channel of its own; and no timer, since one keeper looks after all deadlines.

use std::{
    fmt, mem,
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

/// `A` is an answer; an `R` names the runtime that the keeper runs in.
pub(super) struct Slab<A, R> {
    state: Mutex<State<A, R>>,
}

struct State<A, R> {
    seats: Vec<Seat<A>>,
    free: Vec<usize>,
    keeper: Option<Keeper<R>>,
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
    /// Only the caller holds the seat.
    Answered(A),
    /// Only the caller holds the seat.
    Lost {
        is_unsent: bool,
    },
    /// The call may hold the seat, too.
    Late {
        is_unsent: bool,
        has_call: bool,
    },
    /// Only the call holds the seat.
    Left,
}

/// The one that looks after the deadlines.
struct Keeper<R> {
    runtime: R,
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
    /// The deadline has passed.
    Late {
        is_unsent: bool,
    },
}

/// Whether a keeper looks after a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// No: there is none, or the keeper runs in another runtime, which may not be driven.
    No,
    Kept,
    /// The caller has to start the keeper.
    Begin,
}

impl<A, R> fmt::Debug for Slab<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slab")
    }
}

impl<A, R: PartialEq> Slab<A, R> {
    pub(super) fn new() -> Self {
        let state = State {
            seats: Vec::new(),
            free: Vec::new(),
            keeper: None,
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Gives a caller a seat, which its call holds as well. `timed` is the deadline, and the runtime of the caller.
    pub(super) fn enter(&self, caller: Waker, timed: Option<(Instant, R)>) -> (usize, Watch) {
        let mut state = self.lock();
        let deadline = timed.as_ref().map(|(deadline, _)| *deadline);
        let (watch, hurried) = timed.map_or((Watch::No, None), |it| state.watch(it));
        let seat = Seat {
            stage: Stage::Queued,
            caller: Some(caller),
            call: None,
            deadline: deadline.filter(|_| watch != Watch::No),
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
        (number, watch)
    }

    /// Returns the end of the wait, which gives up the caller's hold. Until then, `Pending` is whether a keeper looks
    /// after the deadline.
    pub(super) fn poll(&self, number: usize, caller: &Waker) -> Result<End<A>, bool> {
        let _dropped_without_lock;
        let mut state = self.lock();
        let seat = &mut state.seats[number];
        let end = match mem::replace(&mut seat.stage, Stage::Free) {
            Stage::Answered(answer) => End::Answered(answer),
            Stage::Lost { is_unsent } => End::Lost { is_unsent },
            Stage::Late {
                is_unsent,
                has_call,
            } => {
                if has_call {
                    seat.stage = Stage::Left;
                }
                End::Late { is_unsent }
            }
            stage => {
                seat.stage = stage;
                _dropped_without_lock = note(&mut seat.caller, caller);
                return Err(seat.deadline.is_some());
            }
        };
        state.free_if_empty(number);
        Ok(end)
    }

    /// Gives up the caller's hold. Returns whether the operation is never sent.
    pub(super) fn leave(&self, number: usize) -> bool {
        let mut state = self.lock();
        let seat = &mut state.seats[number];
        let before = mem::replace(&mut seat.stage, Stage::Free);
        let mut call = None;
        let is_unsent = match before {
            Stage::Queued => {
                seat.stage = Stage::Left;
                true
            }
            Stage::Sent => {
                seat.stage = Stage::Left;
                call = seat.call.take();
                false
            }
            Stage::Late {
                is_unsent,
                has_call,
            } => {
                if has_call {
                    seat.stage = Stage::Left;
                }
                is_unsent
            }
            Stage::Lost { is_unsent } => is_unsent,
            _ => false,
        };
        let caller = seat.caller.take();
        state.free_if_empty(number);
        // Without the lock: these may run any code.
        drop(state);
        drop((before, caller));
        wake(call);
        is_unsent
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

    /// Whether the caller has left; if not, wakes the task of the call then.
    pub(super) fn poll_left(&self, number: usize, call: &Waker) -> Poll<()> {
        let _dropped_without_lock;
        let mut state = self.lock();
        let seat = &mut state.seats[number];
        if !matches!(seat.stage, Stage::Queued | Stage::Sent) {
            return Poll::Ready(());
        }
        _dropped_without_lock = note(&mut seat.call, call);
        Poll::Pending
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
        if !matches!(seat.stage, Stage::Queued | Stage::Sent) {
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
        let State { seats, keeper, .. } = &mut *state;
        let (mut wakers, mut next) = (Wakers::new(), None::<Instant>);
        for seat in seats {
            let Some(deadline) = seat.deadline.filter(|_| seat.is_awaited()) else {
                continue;
            };
            if deadline > now {
                next = Some(next.map_or(deadline, |next| next.min(deadline)));
                continue;
            }
            seat.stage = Stage::Late {
                is_unsent: matches!(seat.stage, Stage::Queued),
                has_call: true,
            };
            wakers.extend([seat.caller.take(), seat.call.take()].into_iter().flatten());
        }
        match (next, &mut *keeper) {
            (Some(next), Some(keeper)) => keeper.looks_at = next.max(now + BETWEEN_LOOKS),
            _ => *keeper = None,
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        next.is_some()
    }

    /// Notes that the keeper's runtime has ended. Its callers see it, and need timers of their own.
    pub(super) fn end_looks(&self) {
        let mut state = self.lock();
        state.keeper = None;
        let waits = state.seats.iter_mut().filter(|seat| seat.is_awaited());
        let waits = waits.filter_map(|seat| seat.deadline.take().and(seat.caller.take()));
        let wakers: Wakers = waits.collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State<A, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Wakers = SmallVec<[Waker; 8]>;

impl<A> Seat<A> {
    const fn is_awaited(&self) -> bool {
        matches!(self.stage, Stage::Queued | Stage::Sent)
    }
}

impl<A, R> State<A, R> {
    /// Whether a keeper looks after this deadline, and its task if that has to look earlier.
    fn watch(&mut self, (at, runtime): (Instant, R)) -> (Watch, Option<Waker>)
    where
        R: PartialEq,
    {
        match &mut self.keeper {
            None => {
                let (looks_at, task) = (at, None);
                self.keeper = Some(Keeper {
                    runtime,
                    looks_at,
                    task,
                });
                (Watch::Begin, None)
            }
            Some(keeper) if keeper.runtime != runtime => (Watch::No, None),
            Some(keeper) if at < keeper.looks_at => {
                keeper.looks_at = at;
                (Watch::Kept, keeper.task.take())
            }
            Some(_) => (Watch::Kept, None),
        }
    }

    /// Gives up the hold of the call on a seat that no caller waits in. Returns the task of the call.
    fn release(&mut self, number: usize) -> Option<Waker> {
        let seat = &mut self.seats[number];
        let call = seat.call.take();
        match &mut seat.stage {
            Stage::Late { has_call, .. } => *has_call = false,
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
impl<A, R> Drop for State<A, R> {
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

fn wake(task: Option<Waker>) {
    if let Some(task) = task {
        task.wake();
    }
}
