//! Callers that wait for room, in a queue for each set of policies and keys.
//!
//! ```text
//! join ──▶ turn ──▶ ask the store ──▶ admitted, or denied for longer than the caller waits
//!                    ▲         │ denied, or undecided
//!                    └─ sleep ◀┘ until the store should have room, at most RECHECK, or until units are given back
//! ```
//!
//! Only callers with a [turn](turns) ask the store. A caller that leaves passes on its turn and the store's
//! last denial. A caller that this denies for longer than it waits learns so at once, any other at its deadline.
//!
//! [`WaitQueues`] finds the queue of a caller.
//!
//! A queue is for policies with their rules: a caller under a new limit does not wait behind one that sleeps under the
//! old. Both use the same counts and compete like two processes; the store's limit holds for all of them.

mod queues;
mod turns;

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use tokio::time::{Instant, timeout_at};

pub(super) use self::queues::WaitQueues;
use self::{
    queues::{LastDenial, MIN_SLEEP, RECHECK, Ticket},
    turns::Turn,
};
use super::{FOR_EVER, Limiter, Resolution, Shared, decide::Ask, pauses::Opens};
use crate::{
    domain::{
        block::BlockedBy,
        charge::Charge,
        check::Check,
        decision::{Blocked, Decision},
        error::{NO_CREDENTIALS, StoreError, StoreErrorKind},
    },
    observe::{CallKind, Timing},
    timer::LazySleep,
};

/// How a caller behaves while the store cannot decide and the failure policy would let it pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhereOpen {
    /// Passes at once: an outage must not slow down each request by `max_wait`.
    Pass,
    /// Keeps asking until the deadline, since the caller has to apply the failure policy.
    AskAgain,
}

/// A caller that waits.
///
/// Cancellation: a dropped caller gives up its place and passes on its turn. A check already sent may have been
/// charged.
struct Waiter<'a> {
    limiter: &'a Limiter,
    check: &'a Check,
    deadline: Instant,
    where_open: WhereOpen,
    /// With the timeout of each store call, if the check is one of several tries.
    ask: Ask,
}

impl Limiter {
    /// Waits until these charges are admitted, for about `max_wait` at most. Use this to stay within another service's
    /// limits.
    ///
    /// Returns [`Decision::Denied`], with nothing charged, if the wait would be longer than `max_wait` or never end; at
    /// once, if that is known at once. A [blocked](crate::block) identity gets [`Decision::Blocked`] at once, unless
    /// you [wait for blocks](Self::wait_for_blocks) or the block is a [pause](crate::block#pauses). Callers queue, up
    /// to [`max_queue`](Self::max_queue): see
    /// [waiting](crate::limiter#waiting).
    ///
    /// # Errors
    ///
    /// Like [`check`](Self::check); the timeout limits each store call, not the wait. While the store cannot be reached
    /// or does not answer, the limiter keeps asking until `max_wait` is over, and then returns the last error. Under
    /// [`Local`](crate::FailurePolicy::Local), the memory of this process decides at once.
    pub async fn acquire(
        &self,
        charges: impl IntoIterator<Item = Charge>,
        max_wait: Duration,
    ) -> Result<Decision, StoreError> {
        let check = self.begin_check().with(charges)?;
        let decided = self.decide_within(&check, max_wait, WhereOpen::AskAgain);
        decided.await.into_result()
    }

    /// Waits until the check is admitted; returns a denial that lasts longer than `max_wait`.
    pub(crate) async fn decide_within(
        &self,
        check: &Check,
        max_wait: Duration,
        where_open: WhereOpen,
    ) -> Resolution {
        let resolution = self.wait(check, max_wait, where_open, Ask::Waiting).await;
        if let Resolution::Decided(decision) = &resolution {
            self.count_refusal(decision);
        }
        resolution
    }

    /// The same for a check that is asked in this way.
    pub(super) async fn wait(
        &self,
        check: &Check,
        max_wait: Duration,
        where_open: WhereOpen,
        ask: Ask,
    ) -> Resolution {
        let waiter = Waiter {
            limiter: self,
            check,
            deadline: Instant::now() + max_wait.min(FOR_EVER),
            where_open,
            ask,
        };
        waiter.wait().await
    }
}

impl Waiter<'_> {
    /// Waits until the check is admitted; returns a denial that lasts until after the deadline.
    async fn wait(&self) -> Resolution {
        // A check that is larger than a limit never fits. Shadows never deny, so a check of shadows alone has nothing to wait for.
        let mut rules = self.check.rules();
        if self.check.is_of_shadows() || rules.any(|(rule, cost)| cost > rule.limit()) {
            return self.decide().await;
        }
        // A caller without the time is denied now, and not when those ahead have had their turns.
        if self.shared().pauses.outlast(self.check, self.deadline) {
            return self.decide_last().await;
        }
        let most = self.limiter.inner.max_queue;
        let ticket = self.shared().queues.join(self.check, most);
        let denied = match &ticket {
            Ok(ticket) => match self.take_turn(ticket).await {
                Ok(_turn) => {
                    let resolution = self.ask_until(ticket).await;
                    let turns = match self.shared().pauses.are_known(self.check) {
                        true => 1,
                        false => turns_after(&resolution, self.where_open),
                    };
                    ticket.queue.turns.set_number(turns);
                    return resolution;
                }
                Err(denied) => denied,
            },
            Err(full) => full.valid_denial(),
        };
        match denied {
            Some(last) => self.deny(last.decision(self.check)),
            None => self.decide_last().await,
        }
    }

    fn shared(&self) -> &Shared {
        &self.limiter.inner.shared
    }

    async fn decide(&self) -> Resolution {
        let (limiter, check) = (self.limiter, self.check.clone());
        limiter.ask(CallKind::Check, check, self.ask).await
    }

    /// Decides the check of a caller that cannot wait any longer.
    async fn decide_last(&self) -> Resolution {
        match self.begin(Instant::now(), None) {
            Ok(_) => self.decide().await,
            Err(blocked) => self.deny(Decision::Blocked(blocked).local()),
        }
    }

    /// Denies the check without asking the store.
    fn deny(&self, decision: Decision) -> Resolution {
        if !matches!(self.ask, Ask::Try(_)) {
            let (events, timing) = (self.limiter.events(), Some(Timing::now()));
            events.decision(CallKind::Check, &decision, self.check, timing);
        }
        Resolution::Decided(decision)
    }

    /// Waits for a turn until the deadline, and only while the caller can still be admitted in time. An error is the denial
    /// that applies, if one is known.
    async fn take_turn<'t>(&self, ticket: &'t Ticket<'_>) -> Result<Turn<'t>, Option<LastDenial>> {
        let (queue, deadline) = (&*ticket.queue, self.deadline);
        let mut turn = pin!(queue.turns.take());
        let rest = deadline.saturating_duration_since(Instant::now());
        let mut end = pin!(LazySleep::new(rest));
        loop {
            let mut denied = pin!(queue.denied.notified()); // listens from before the look at the denial on
            let mut paused = pin!(self.shared().pauses.changed.notified()); // the same
            let known = queue.denial(self.check);
            if let Some(last) = known.filter(|last| last.until > deadline) {
                return Err(Some(last));
            }
            if self.shared().pauses.outlast(self.check, deadline) {
                return Err(None);
            }
            let wait = poll_fn(|cx| {
                if let Poll::Ready(turn) = turn.as_mut().poll(cx) {
                    return Poll::Ready(Some(Ok(turn)));
                }
                let is_denied = denied.as_mut().poll(cx).is_ready();
                if is_denied || paused.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                if end.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Some(Err(queue.denial(self.check))));
                }
                self.begin_wait(ticket);
                Poll::Pending
            });
            if let Some(wait) = wait.await {
                return wait;
            }
        }
    }

    /// Asks the store until the caller, which holds a turn, is admitted or comes too late.
    async fn ask_until(&self, ticket: &Ticket<'_>) -> Resolution {
        let (queue, deadline) = (&*ticket.queue, self.deadline);
        // Listen before each question, so as not to miss units given back before the answer arrives.
        let mut room = queue.room.notified();
        let mut known = queue.denial(self.check);
        loop {
            let wake_at = match known.take() {
                Some(denial) if denial.until > deadline => {
                    return self.deny(denial.decision(self.check));
                }
                Some(denial) => denial.ask_again.min(deadline),
                None => {
                    if let Err(blocked) = self.wait_for_pauses(ticket).await {
                        return self.deny(Decision::Blocked(blocked).local());
                    }
                    let (given_back, asked) = (queue.given_back(), Instant::now());
                    let resolution = self.decide().await;
                    match self.next_question(ticket, &resolution, given_back, asked) {
                        Some(wake_at) => wake_at,
                        None => return resolution,
                    }
                }
            };
            self.begin_wait(ticket);
            let _ = timeout_at(wake_at, room).await;
            room = queue.room.notified();
        }
    }

    /// Waits for the caller's turn after a pause; an error if it would come too late.
    async fn wait_for_pauses(&self, ticket: &Ticket<'_>) -> Result<(), Blocked> {
        let mut turn = None;
        loop {
            let changed = self.shared().pauses.changed.notified(); // listens from before the look on
            let Some(opens) = self.begin(self.deadline, turn)? else {
                return Ok(());
            };
            turn = opens.is_turn.then_some(opens.at);
            self.begin_wait(ticket);
            if timeout_at(opens.at, changed).await.is_err() && opens.is_turn {
                return Ok(());
            }
        }
    }

    fn begin(&self, deadline: Instant, turn: Option<Instant>) -> Result<Option<Opens>, Blocked> {
        let Shared { queues, pauses, .. } = self.shared();
        pauses.begin(self.check, deadline, turn, |key| queues.waiting(key))
    }

    /// Reports to an observer, once, that a caller has to wait. Its ticket reports the end.
    fn begin_wait(&self, ticket: &Ticket<'_>) {
        let (events, now) = (self.limiter.events(), Instant::now());
        // A try without time to wait does not wait, though it may have to ask twice.
        if ticket.waits.get().is_none() && events.is_observed() && now < self.deadline {
            let _ = ticket.waits.set((events.clone(), now));
            events.wait(self.check, None);
        }
    }

    /// When to ask again; `None` if the answer is the last.
    fn next_question(
        &self,
        ticket: &Ticket<'_>,
        resolution: &Resolution,
        given_back: usize,
        asked: Instant,
    ) -> Option<Instant> {
        let (queue, check, deadline) = (&*ticket.queue, self.check, self.deadline);
        let now = Instant::now();
        match resolution {
            Resolution::Decided(Decision::Denied(denial)) => {
                denial.retry_after()?;
                queue.turns.set_number(1);
                let last = queue.remember(check, denial, given_back);
                // Units given back during the call make this denial out of date: ask again even if it ends after the
                // deadline.
                let in_time = last.until <= deadline || queue.given_back() != given_back;
                in_time.then(|| last.ask_again.min(deadline))
            }
            Resolution::Decided(Decision::Blocked(blocked)) => {
                let rest = waits_for(self.limiter, blocked)?;
                let end = match blocked.is_by(BlockedBy::Pause) {
                    true => {
                        // Afterwards, callers leave one after the other, in order.
                        queue.turns.set_number(1);
                        self.shared().pauses.see(blocked)
                    }
                    false => now + rest.clamp(MIN_SLEEP, FOR_EVER),
                };
                (end <= deadline).then(|| end.min(now + RECHECK))
            }
            Resolution::Decided(Decision::Allowed(_)) => {
                self.shared().pauses.see_admitted(check, asked);
                None
            }
            Resolution::Open(..) if self.where_open == WhereOpen::Pass => None,
            Resolution::Open(error, _) | Resolution::Closed(error) => {
                let goes_on = is_passing(error) && now < deadline;
                goes_on
                    .then(|| deadline.min(now + self.limiter.inner.guarded.breaker.retry_pause()))
            }
        }
    }
}

/// The rest of a pause, or of another block if callers wait for blocks.
fn waits_for(limiter: &Limiter, blocked: &Blocked) -> Option<Duration> {
    let waits = blocked.is_by(BlockedBy::Pause) || limiter.inner.waits_for_blocks;
    blocked.retry_after().filter(|_| waits)
}

/// Whether a caller with this much time left waits after such an answer.
pub(super) fn waits_after(limiter: &Limiter, resolution: &Resolution, rest: Duration) -> bool {
    let is_in_time = |wait: Option<Duration>| wait.is_some_and(|wait| wait <= rest);
    match resolution {
        Resolution::Decided(Decision::Allowed(_)) | Resolution::Open(..) => false,
        // A slot may be returned at any time.
        Resolution::Decided(Decision::Denied(denial)) => {
            is_in_time(denial.retry_after_besides_slots())
        }
        Resolution::Decided(Decision::Blocked(blocked)) => is_in_time(waits_for(limiter, blocked)),
        Resolution::Closed(error) => is_passing(error),
    }
}

/// Whether the store may decide the same check later.
fn is_passing(error: &StoreError) -> bool {
    use StoreErrorKind::{CircuitOpen, Refused, Timeout, Unavailable};
    let is_outage = matches!(error.kind(), Timeout | Unavailable | Refused | CircuitOpen);
    is_outage || error.code() == Some(NO_CREDENTIALS)
}

/// How many callers may ask at the same time after this answer: as many as the rest would admit, or all if a store that
/// does not answer lets all pass.
fn turns_after(resolution: &Resolution, where_open: WhereOpen) -> u64 {
    let usage = match resolution {
        Resolution::Decided(Decision::Allowed(usage)) => usage,
        Resolution::Open(..) if where_open == WhereOpen::Pass => return u64::MAX,
        _ => return 1,
    };
    let rules = usage.check().rules().zip(usage.rules());
    let fitting = rules.map(|((_, cost), usage)| usage.remaining() / cost.max(1));
    // Without rules, only blocks are looked up.
    fitting.min().unwrap_or(u64::MAX)
}
