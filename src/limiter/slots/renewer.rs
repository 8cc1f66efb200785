//! [`Renewer`]: renews the slots that this process holds, in one task of the back room.

use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{sync::Notify, task::yield_now, time::timeout};

use super::{Holding, State, now_ms};
use crate::{
    background::{BackRoom, Task},
    domain::{
        error::StoreError,
        rule::millis,
        slots::{Renewal, Renewed, Slots},
    },
    limiter::{FOR_EVER, jitter},
    warning,
};

/// The most renewals in one call.
const MAX_RENEWALS: usize = 256;

/// From one warning of a lost slot to the next.
const WARNINGS: Duration = Duration::from_secs(60);

/// The slots that the clones of one limiter hold.
#[derive(Default)]
pub(in crate::limiter) struct Renewer {
    held: Mutex<Held>,
    /// Notified when the first holding has changed.
    changed: Notify,
    next_id: AtomicU64,
    /// When a lost slot was last warned about, plus 1.
    warned_ms: AtomicU64,
    has_warned_of_early_expiry: AtomicBool,
}

#[derive(Default)]
struct Held {
    /// Ordered by the time at which the renewer has to renew them or to report them as lost.
    holdings: BTreeMap<(u64, u64), Arc<Holding>>,
    has_task: bool,
}

/// The next step of the task.
enum Next {
    Renew(Vec<Due>),
    Wait(Duration),
    End,
}

/// When to renew slots: in the last quarter of a third of their window, at a random moment. Otherwise all processes
/// would renew in one moment the slots that were taken together.
pub(super) fn due_ms(since_ms: u64, window_ms: u64, early: Early) -> u64 {
    let third = window_ms / 3;
    since_ms.saturating_add(third - (third / 4).saturating_mul(early.0) / MOST_EARLY)
}

/// A random moment of that quarter. Slots that are renewed together share it, and so stay together.
#[derive(Clone, Copy)]
pub(super) struct Early(u64);

const MOST_EARLY: u64 = 1_000;

impl Early {
    pub(super) fn random() -> Self {
        Self(millis(jitter::random_up_to(Duration::from_millis(
            MOST_EARLY,
        ))))
    }
}

impl Renewer {
    pub(super) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(self: &Arc<Self>, holding: &Arc<Holding>) {
        let Some(due_ms) = holding.due_ms() else {
            return; // returned since
        };
        let key = (due_ms, holding.id);
        let mut held = self.lock();
        held.holdings.insert(key, Arc::clone(holding));
        let is_first = held
            .holdings
            .first_key_value()
            .is_some_and(|(first, _)| *first == key);
        let has_task = mem::replace(&mut held.has_task, true);
        drop(held);
        if !has_task {
            let background = &holding.limiter.inner.jobs.background;
            background.spawn(run(Running::new(self, background)));
        } else if is_first {
            self.changed.notify_one();
        }
    }

    /// Forgets a holding in this state.
    pub(super) fn remove(&self, holding: &Holding, state: &State) {
        if let Some(due_ms) = state.due_ms(holding.window_ms) {
            self.lock().holdings.remove(&(due_ms, holding.id));
        }
    }

    /// Takes the holdings that are due now or soon, as many as fit into a call.
    fn next(&self) -> Next {
        let mut held = self.lock();
        let now_ms = now_ms();
        let Some((&(first_ms, _), _)) = held.holdings.first_key_value() else {
            // A slot that comes now finds no task, and starts one.
            held.has_task = false;
            return Next::End;
        };
        if first_ms > now_ms {
            return Next::Wait(Duration::from_millis(first_ms - now_ms));
        }
        let mut due = Vec::new();
        while due.len() < MAX_RENEWALS
            && let Some(first) = held.holdings.first_entry()
            && (first.key().0 <= now_ms || first.get().is_due_soon(first.key().0 - now_ms))
        {
            due.push(Due::new(first.remove()));
        }
        Next::Renew(due)
    }

    /// Returns the holdings whose slots can be returned now; `None` if there are none, and no task can add one.
    pub(super) fn left(&self, background: &BackRoom) -> Option<Vec<Arc<Holding>>> {
        let held = self.lock();
        let left = held
            .holdings
            .values()
            .filter(|holding| holding.may_be_returned());
        let left: Vec<_> = left.cloned().collect();
        // Under the same lock: a renewal counts as a task from the moment it takes its holding until the holding is
        // back.
        (!left.is_empty() || !background.is_idle()).then_some(left)
    }

    pub(super) fn warn_of_early_expiry(&self) {
        if !self.has_warned_of_early_expiry.swap(true, Relaxed) {
            warning::slots_expire_too_early();
        }
    }

    pub(super) fn warn_of_loss(&self) {
        let (now_ms, last) = (now_ms() + 1, self.warned_ms.load(Relaxed));
        let is_recent = last != 0 && now_ms < last + millis(WARNINGS);
        let exchange = |renewer: &Self| {
            let warned = &renewer.warned_ms;
            warned
                .compare_exchange(last, now_ms, Relaxed, Relaxed)
                .is_ok()
        };
        if !is_recent && exchange(self) {
            warning::slot_lost();
        }
    }
}

/// The task, which ends when no slots are held. If its runtime ends first, it goes on in the next.
struct Running {
    renewer: Arc<Renewer>,
    background: Weak<BackRoom>,
    has_ended: bool,
}

impl Running {
    fn new(renewer: &Arc<Renewer>, background: &Arc<BackRoom>) -> Self {
        Self {
            renewer: Arc::clone(renewer),
            background: Arc::downgrade(background),
            has_ended: false,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let room = self.background.upgrade().filter(|_| !self.has_ended);
        if let Some(room) = room {
            let is_kept = room.keep(run(Self::new(&self.renewer, &room)));
            self.renewer.lock().has_task = is_kept;
        }
    }
}

async fn run(mut running: Running) {
    while !running.has_ended {
        match running.renewer.next() {
            Next::Renew(due) => {
                let next = Early::random();
                for due in due {
                    if let Some(room) = running.background.upgrade() {
                        room.spawn(due.renew(next));
                    }
                }
                yield_now().await;
            }
            Next::Wait(wait) => {
                let _ = timeout(wait, running.renewer.changed.notified()).await;
            }
            Next::End => running.has_ended = true,
        }
    }
}

/// A holding that is due. The renewer does not have it any more, so that it counts as a task.
struct Due {
    /// `None` after the answer.
    holding: Option<Arc<Holding>>,
    /// Whether a renewal may have been sent. If this is dropped before the answer, the outcome stays unknown.
    is_sent: bool,
    /// Ends last, when the renewer has the holding again.
    _task: Task,
}

impl Drop for Due {
    fn drop(&mut self) {
        match self.holding.take() {
            Some(holding) if self.is_sent => holding.expire(),
            Some(holding) => holding.limiter.inner.jobs.renewer.add(&holding),
            None => {}
        }
    }
}

impl Due {
    fn new(holding: Arc<Holding>) -> Self {
        let task = holding.limiter.inner.jobs.background.begin();
        Self {
            holding: Some(holding),
            is_sent: false,
            _task: task,
        }
    }

    /// Renews the slots in a task of its own, as an observer or a holder's waker may panic. The task waits for the
    /// answer as long as the slots last: a store that stalls for longer than a request would wait takes no slot.
    async fn renew(mut self, next: Early) {
        let Some(holding) = &self.holding else {
            return;
        };
        let Some((renewal, give_up_after)) = holding.begin_renewal() else {
            self.holding = None;
            return;
        };
        self.is_sent = true;
        let asked_at_ms = now_ms();
        let answer = holding.limiter.renew(&renewal, give_up_after).await;
        if let Some(holding) = self.holding.take() {
            let due_ms = due_ms(asked_at_ms, holding.window_ms, next);
            holding.renewed(renewal, answer, asked_at_ms, due_ms);
        }
    }
}

impl State {
    /// The next time at which the renewer has to act, which is part of the holding's key in [`Held`]; `None` if the
    /// renewer does not have the holding.
    fn due_ms(&self, window_ms: u64) -> Option<u64> {
        match self {
            Self::Held { due_ms, .. } => Some(*due_ms),
            Self::Expiring { since_ms } => Some(since_ms.saturating_add(window_ms)),
            Self::Renewing { .. } | Self::Lost | Self::Returned => None,
        }
    }
}

impl Holding {
    fn due_ms(&self) -> Option<u64> {
        self.lock().due_ms(self.window_ms)
    }

    /// Whether to renew the slots so much earlier, together with others: by half of the quarter over which renewals are
    /// spread. After a few windows, a process renews all slots that it keeps in a few calls.
    fn is_due_soon(&self, early_ms: u64) -> bool {
        early_ms <= self.window_ms / 24 && self.may_be_returned()
    }

    /// The renewal of slots that are due, and for how long they last; `None` if they are lost, or need none.
    fn begin_renewal(self: &Arc<Self>) -> Option<(Renewal, Duration)> {
        let mut state = self.lock();
        match mem::replace(&mut *state, State::Lost) {
            State::Held {
                slots, since_ms, ..
            } if self.left_since(since_ms) > 0 => {
                *state = State::Renewing {
                    since_ms,
                    returned: false,
                };
                let give_up_after = Duration::from_millis(self.left_since(since_ms));
                Some((slots.renew(), give_up_after.min(FOR_EVER)))
            }
            // This process was stopped. If the store still has the slots, others may have them at once.
            State::Held { slots, .. } => {
                drop(state);
                self.lose();
                self.give_back(slots);
                None
            }
            State::Expiring { .. } => {
                drop(state);
                self.lose();
                None
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Takes the answer to a renewal that was sent after `asked_at_ms`. The next is due at `due_ms`.
    fn renewed(
        self: &Arc<Self>,
        renewal: Renewal,
        answer: Result<Renewed, StoreError>,
        asked_at_ms: u64,
        due_ms: u64,
    ) {
        match answer {
            Ok(renewed) => match renewed.slots().filter(|_| renewed.is_renewed()) {
                Some(slots) => self.holds(slots, asked_at_ms, due_ms),
                None => self.refused(),
            },
            Err(error) if error.is_unsent() => self.put_off(renewal),
            Err(_) => self.expire(),
        }
    }

    /// Tries again soon, since the renewal was not sent or has changed nothing.
    fn put_off(self: &Arc<Self>, renewal: Renewal) {
        let State::Renewing { since_ms, .. } = *self.lock() else {
            return;
        };
        let pause_ms = millis(self.limiter.inner.caller.retry_pause())
            .min(self.window_ms / 12)
            .max(1);
        let due_ms = now_ms().saturating_add(pause_ms);
        self.holds(renewal.not_sent(), since_ms, due_ms);
    }

    /// The slots are held again, or returned: by their holder, or because the answer comes after the time of which the
    /// holder was sure. By then the holder may have seen that they are lost, and slots that are lost stay lost.
    fn holds(self: &Arc<Self>, slots: Slots, since_ms: u64, due_ms: u64) {
        let mut state = self.lock();
        match *state {
            State::Renewing { returned: true, .. } => {
                *state = State::Returned;
                drop(state);
                self.give_back(slots);
            }
            State::Renewing { since_ms, .. } if self.left_since(since_ms) == 0 => {
                drop(state);
                self.lose();
                self.give_back(slots);
            }
            _ => {
                *state = State::Held {
                    slots,
                    since_ms,
                    due_ms,
                };
                drop(state);
                self.limiter.inner.jobs.renewer.add(self);
            }
        }
    }

    /// The store has released the slots. They are not returned: others may have taken slots in their step since.
    fn refused(&self) {
        let is_returned = matches!(*self.lock(), State::Renewing { returned: true, .. });
        if is_returned {
            *self.lock() = State::Returned;
        } else {
            self.lose();
        }
    }

    /// The outcome of the renewal stays unknown.
    fn expire(self: &Arc<Self>) {
        let mut state = self.lock();
        let State::Renewing { since_ms, returned } = *state else {
            return;
        };
        if returned {
            *state = State::Returned;
            return;
        }
        *state = State::Expiring { since_ms };
        drop(state);
        self.limiter.inner.jobs.renewer.add(self);
    }
}

#[cfg(test)]
mod tests;
