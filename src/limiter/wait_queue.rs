//! Callers that wait for room, in a queue for each set of policies and keys.
//!
//! ```text
//! join ──▶ turn ──▶ ask the store ──▶ admitted, or denied for longer than the caller waits
//!                    ▲         │ denied, or no answer
//!                    └─ sleep ◀┘ until there should be room, at most RECHECK, or until something was given back;
//!                                without an answer, for about the interval in which the breaker probes the store
//! ```
//!
//! Only the head of a queue asks the store. Whoever leaves passes the turn on, and with it the store's last denial.
//!
//! A queue is for policies with their rules: a caller under a new limit does not wait behind one that sleeps under the
//! old. Both have the same counts, and so compete, as processes do; the store's limit holds for all of them together.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{DEFAULT_INTERVAL, FOR_EVER, Limiter, Resolution, timeout::within};
use crate::{
    check::Check,
    decision::{Decision, Denial},
    error::StoreErrorKind,
    jitter,
    key::Key,
    observe::{CallKind, Timing},
    policy::Policy,
    settlement::Settlement,
};

/// The least that is slept where the store says that there is room now, and denies again: else the caller would spin.
const MIN_SLEEP: Duration = Duration::from_millis(1);

/// The head of a queue asks at least this often, since it does not hear what other processes give back.
const RECHECK: Duration = Duration::from_secs(2);

/// The queues in which somebody waits, each under every key that it charges; one that charges a key twice stands there
/// twice.
#[derive(Debug, Default)]
pub(super) struct WaitQueues {
    by_key: Mutex<HashMap<Key, Vec<Arc<WaitQueue>>>>,
}

#[derive(Debug)]
struct WaitQueue {
    /// Of the first caller; the others have the same policies and keys in the same order.
    check: Check,
    /// Written under the lock of all queues.
    tickets: AtomicUsize,
    /// Handed on in order of arrival.
    turn: tokio::sync::Mutex<()>,
    last_denial: Mutex<Option<LastDenial>>,
    /// How often something was given back. Written under the lock of the last denial.
    given_back: AtomicUsize,
    /// Notified when something was given back.
    room: Notify,
}

/// What the store said to the head of the queue, when, and until when it holds.
#[derive(Clone, Debug)]
struct LastDenial {
    check: Check,
    denial: Denial,
    at: Instant,
    until: Instant,
}

/// What a caller does where the store cannot decide for now and the failure policy would let it pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhereOpen {
    /// It passes at once: an outage must not make each request slower by the longest wait.
    Pass,
    /// It asks until its time is over, since the failure policy is for it to follow.
    AskAgain,
}

/// A place in a queue, given up when dropped.
struct Ticket<'a> {
    queues: &'a WaitQueues,
    queue: Arc<WaitQueue>,
}

impl Limiter {
    /// Waits until the check is admitted; answers with a denial that lasts longer than `max_wait`.
    ///
    /// Cancellation: the place is given up, and the turn passed on. A check that was sent to the store may have been
    /// charged.
    pub(crate) async fn wait(
        &self,
        check: &Check,
        max_wait: Duration,
        where_open: WhereOpen,
    ) -> Resolution {
        // Shadows deny nothing that could be waited for.
        if check.charges().is_empty() || fits_never(check) {
            return self.decide(check.clone()).await;
        }
        let max_wait = max_wait.min(FOR_EVER);
        let deadline = Instant::now() + max_wait;
        let ticket = self.inner.queues.join(check);
        let queue = &*ticket.queue;
        if let Some(denial) = queue.denial(check).filter(|it| it.until > deadline) {
            return denial.resolve(self, check).await;
        }
        let Some(_turn) = within(max_wait, queue.turn.lock()).await else {
            // Where nothing is known, the queue is long, but moves: there may be room.
            return match queue.denial(check) {
                Some(denial) => denial.resolve(self, check).await,
                None => self.decide(check.clone()).await,
            };
        };
        // Listens from before each question on: what is given back before the answer is here is heard, too.
        let mut room = queue.room.notified();
        let mut known = queue.denial(check);
        loop {
            let denial = match known.take() {
                Some(denial) if denial.until > deadline => {
                    return denial.resolve(self, check).await;
                }
                Some(denial) => denial,
                None => {
                    let given_back = queue.given_back.load(Relaxed); // before the store is asked
                    match self.decide(check.clone()).await {
                        Resolution::Decided(Decision::Denied(denial))
                            if denial.retry_after().is_some() =>
                        {
                            let last = queue.remember(check, &denial, given_back);
                            if last.until > deadline && !queue.was_given_since(given_back) {
                                return Resolution::Decided(Decision::Denied(denial));
                            }
                            last
                        }
                        resolution
                            if may_recover(&resolution, where_open)
                                && Instant::now() < deadline =>
                        {
                            let next = Instant::now() + self.pause_after_failure();
                            let _ = timeout_at(next.min(deadline), room).await;
                            room = queue.room.notified();
                            continue;
                        }
                        resolution => return resolution,
                    }
                }
            };
            let _ = timeout_at(denial.until.min(denial.at + RECHECK), room).await;
            room = queue.room.notified();
        }
    }
}

impl Limiter {
    /// From half to one and a half of the interval in which the breaker probes the store.
    fn pause_after_failure(&self) -> Duration {
        let interval = match self.inner.breaker.interval() {
            Duration::ZERO => DEFAULT_INTERVAL,
            interval => interval.min(FOR_EVER),
        };
        interval / 2 + jitter::up_to(interval)
    }
}

/// Whether the store could not decide and may be able to later.
fn may_recover(resolution: &Resolution, where_open: WhereOpen) -> bool {
    use StoreErrorKind::{CircuitOpen, Timeout, Unavailable};
    let error = match resolution {
        Resolution::Closed(error) => error,
        Resolution::Open(error) if where_open == WhereOpen::AskAgain => error,
        _ => return false,
    };
    matches!(error.kind(), Timeout | Unavailable | CircuitOpen)
}

/// Whether there will never be room.
fn fits_never(check: &Check) -> bool {
    check.rules().any(|(rule, cost)| cost > rule.limit())
}

impl WaitQueues {
    fn join(&self, check: &Check) -> Ticket<'_> {
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let known = by_key.get(check.charges()[0].key());
        let known = known.and_then(|queues| queues.iter().find(|it| it.is_for(check)));
        let queue = known.cloned().unwrap_or_else(|| {
            let queue = Arc::new(WaitQueue::new(check));
            for charge in check.charges() {
                let queues = by_key.entry(charge.key().clone()).or_default();
                queues.push(Arc::clone(&queue));
            }
            queue
        });
        queue.tickets.fetch_add(1, Relaxed);
        Ticket {
            queues: self,
            queue,
        }
    }

    /// Lets those ask again who wait for a key that something was given back to, under a policy of this name.
    pub(super) fn wake(&self, policy: &Policy, key: &Key) {
        let by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in by_key.get(key).into_iter().flatten() {
            let mut charges = queue.check.charges().iter();
            if charges.any(|it| it.policy().name() == policy.name() && it.key() == key) {
                let mut last = queue.last_denial();
                *last = None;
                queue.given_back.fetch_add(1, Relaxed);
                drop(last);
                queue.room.notify_waiters();
            }
        }
    }

    /// The same for all that a settlement gives back.
    pub(super) fn wake_settled(&self, settlement: &Settlement) {
        let charges = settlement.check().charges().iter();
        for (charge, cost) in charges.zip(settlement.costs()) {
            if *cost < charge.cost() {
                self.wake(charge.policy(), charge.key());
            }
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let Self { queues, queue } = self;
        let mut by_key = queues.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.tickets.fetch_sub(1, Relaxed) > 1 {
            return;
        }
        for charge in queue.check.charges() {
            if let Some(queues) = by_key.get_mut(charge.key()) {
                queues.retain(|it| !Arc::ptr_eq(it, queue));
                if queues.is_empty() {
                    by_key.remove(charge.key());
                }
            }
        }
    }
}

impl WaitQueue {
    fn new(check: &Check) -> Self {
        Self {
            check: check.clone(),
            tickets: AtomicUsize::new(0),
            turn: tokio::sync::Mutex::default(),
            last_denial: Mutex::default(),
            given_back: AtomicUsize::new(0),
            room: Notify::new(),
        }
    }

    fn is_for(&self, check: &Check) -> bool {
        parts(&self.check).eq(parts(check))
    }

    /// What is known to deny this check, too.
    fn denial(&self, check: &Check) -> Option<LastDenial> {
        let last = self.last_denial();
        let last = last.as_ref()?;
        let holds =
            last.until > Instant::now() && last.compares(check, |last, asked| last <= asked);
        holds.then(|| last.clone())
    }

    fn was_given_since(&self, given_back: usize) -> bool {
        self.given_back.load(Relaxed) != given_back
    }

    /// A denial says nothing to others if something was given back while it was on its way.
    fn remember(&self, check: &Check, denial: &Denial, given_back: usize) -> LastDenial {
        let wait = denial.retry_after().unwrap_or_default();
        let at = Instant::now();
        let last = LastDenial {
            check: check.clone(),
            denial: denial.clone(),
            at,
            until: at + wait.clamp(MIN_SLEEP, FOR_EVER),
        };
        let mut known = self.last_denial();
        if !self.was_given_since(given_back) {
            *known = Some(last.clone());
        }
        drop(known);
        last
    }

    fn last_denial(&self) -> std::sync::MutexGuard<'_, Option<LastDenial>> {
        self.last_denial
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn parts(check: &Check) -> impl Iterator<Item = (&Policy, &Key)> {
    let charges = check.charges().iter();
    charges.map(|it| (it.policy(), it.key()))
}

impl LastDenial {
    /// What the store would say to this check: what it said to another one like it, or, where that was cheaper, what it
    /// says.
    async fn resolve(&self, limiter: &Limiter, check: &Check) -> Resolution {
        if !self.compares(check, |last, asked| last == asked) {
            return limiter.decide(check.clone()).await;
        }
        let decision = Decision::Denied(self.denial.clone()).aged(self.at.elapsed());
        limiter.report_decision(CallKind::Check, &decision, check, Some(Timing::now()));
        Resolution::Decided(decision)
    }

    /// Whether all costs compare so; policies and keys are those of the queue.
    fn compares(&self, check: &Check, costs: impl Fn(u64, u64) -> bool) -> bool {
        let mut pairs = self.check.charges().iter().zip(check.charges());
        pairs.all(|(last, asked)| costs(last.cost(), asked.cost()))
    }
}

#[cfg(test)]
mod tests;
