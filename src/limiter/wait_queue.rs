//! Callers that wait for room, in a queue for each set of policies and keys.
//!
//! ```text
//! join ──▶ turn ──▶ ask the store ──▶ admitted, or denied for longer than the caller waits
//!                    ▲         │ denied, or undecided
//!                    └─ sleep ◀┘ until there should be room, at most RECHECK, or until something was given back
//! ```
//!
//! Only callers that have a [turn](turns) ask the store. A caller that leaves passes its turn on, and with it the
//! store's last denial. A caller that cannot be admitted in time, behind those that wait [ahead of it](forecast), is
//! denied at once.
//!
//! A queue is for policies with their rules: a caller under a new limit does not wait behind one that sleeps under the
//! old. Both have the same counts, and so compete, as processes do; the store's limit holds for all of them together.

mod forecast;
mod turns;

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use self::turns::{Turn, Turns};
use super::{DEFAULT_INTERVAL, FOR_EVER, Limiter, Resolution, timeout::LazySleep};
use crate::{
    domain::{
        check::Check,
        decision::{Blocked, Decision, Denial},
        error::{StoreError, StoreErrorKind},
        key::Key,
        policy::Policy,
        rule::millis,
        settlement::Settlement,
    },
    limiter::jitter,
    observe::{CallKind, Timing},
};

/// The least that is slept where the store says that there is room now, and denies again: else the caller would spin.
const MIN_SLEEP: Duration = Duration::from_millis(1);

/// The head of a queue asks at least this often, since it does not hear what other processes give back.
const RECHECK: Duration = Duration::from_secs(2);

/// How a caller behaves while the store cannot decide and the failure policy would let it pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhereOpen {
    /// It passes at once: an outage must not make each request slower by the longest wait.
    Pass,
    /// It asks until its time is over, since the failure policy is for it to follow.
    AskAgain,
}

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
    turns: Turns,
    line: Mutex<Line>,
    /// How often something was given back. Written under the lock of the line.
    given_back: AtomicUsize,
    /// Notified when something was given back.
    room: Notify,
    /// Notified when the store has denied a caller: others may come too late now.
    denied: Notify,
}

/// For each charge.
type Units = SmallVec<[u128; 1]>;

/// The callers that wait, and what the store said last to one of them.
#[derive(Debug, Default)]
struct Line {
    last_denial: Option<LastDenial>,
    /// In order of arrival.
    places: VecDeque<Place>,
    /// The units of all that are not too late.
    waiting: Units,
    arrivals: u64,
}

/// A caller in the line.
#[derive(Debug)]
struct Place {
    number: u64,
    check: Check,
    deadline: Instant,
    /// When it is admitted at the earliest, if that is too late: those behind do not wait for it.
    too_late: Option<Instant>,
}

/// The store's denial of a caller with a turn, when it came, and until when it holds.
#[derive(Clone, Debug)]
struct LastDenial {
    check: Check,
    denial: Denial,
    at: Instant,
    until: Instant,
}

/// A place in a queue, given up when dropped.
struct Ticket<'a> {
    queues: &'a WaitQueues,
    queue: Arc<WaitQueue>,
    check: Check,
    number: u64,
}

/// How the wait for a turn has ended.
enum Wait<'a> {
    Turn(Turn<'a>),
    /// It would come too late: the caller is admitted at this time at the earliest.
    TooLate(LastDenial, Instant),
    /// The caller waits no longer, and nothing is known that denies it.
    TimedOut,
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
        let deadline = Instant::now() + max_wait.min(FOR_EVER);
        let most = self.inner.max_queue;
        let ticket = match self.inner.queues.join(check, deadline, most) {
            Ok(ticket) => ticket,
            Err(queue) => return self.deny_behind(&queue, check).await,
        };
        match ticket.take_turn(deadline, self.turn_patience()).await {
            Wait::Turn(turn) => {
                let resolution = self.ask_until(&ticket, &turn, deadline, where_open).await;
                ticket.queue.turns.set_number(turns_after(&resolution));
                resolution
            }
            Wait::TooLate(last, earliest) => last.resolve(self, check, earliest),
            Wait::TimedOut => self.decide(check.clone()).await,
        }
    }

    /// Answers a caller for which there is no place in the queue.
    async fn deny_behind(&self, queue: &WaitQueue, check: &Check) -> Resolution {
        let forecast = queue.line().forecast_behind(check);
        match forecast {
            Some((last, earliest)) => last.resolve(self, check, earliest),
            // Nothing denies it yet.
            None => self.decide(check.clone()).await,
        }
    }

    /// Asks the store until it admits the caller, which has a turn, or until that will be too late.
    async fn ask_until(
        &self,
        ticket: &Ticket<'_>,
        turn: &Turn<'_>,
        deadline: Instant,
        where_open: WhereOpen,
    ) -> Resolution {
        let (queue, check) = (&*ticket.queue, &ticket.check);
        // Listens from before each question on: what is given back before the answer is here is heard, too.
        let mut room = queue.room.notified();
        let mut known = queue.denial(check);
        loop {
            let wake_at = match known.take() {
                Some(denial) if denial.until > deadline => {
                    return denial.resolve(self, check, denial.until);
                }
                Some(denial) => denial.wake_at(),
                None => {
                    turn.works_until(Instant::now());
                    let given_back = queue.given_back.load(Relaxed); // before the store is asked
                    let resolution = self.decide(check.clone()).await;
                    match self.next_question(ticket, &resolution, given_back, deadline, where_open)
                    {
                        Some(wake_at) => wake_at,
                        None => return resolution,
                    }
                }
            };
            turn.works_until(wake_at);
            let _ = timeout_at(wake_at, room).await;
            room = queue.room.notified();
        }
    }

    /// When to ask again; `None` if the answer is the last.
    fn next_question(
        &self,
        ticket: &Ticket<'_>,
        resolution: &Resolution,
        given_back: usize,
        deadline: Instant,
        where_open: WhereOpen,
    ) -> Option<Instant> {
        let (queue, check) = (&*ticket.queue, &ticket.check);
        let now = Instant::now();
        match resolution {
            Resolution::Decided(Decision::Denied(denial)) => {
                denial.retry_after()?;
                queue.turns.set_number(1);
                let last = queue.remember(check, denial, given_back);
                let in_time = last.until <= deadline || queue.was_given_since(given_back);
                in_time.then(|| last.wake_at())
            }
            Resolution::Decided(Decision::Blocked(blocked)) => {
                let end = now + self.waits_for(blocked)?;
                (end <= deadline).then(|| end.min(now + RECHECK))
            }
            Resolution::Decided(Decision::Allowed(_)) => None,
            Resolution::Open(_) if where_open == WhereOpen::Pass => None,
            Resolution::Open(error) | Resolution::Closed(error) => {
                let goes_on = is_passing(error) && now < deadline;
                goes_on.then(|| deadline.min(now + self.retry_pause()))
            }
        }
    }

    /// The time until a block ends, if callers wait for it.
    fn waits_for(&self, blocked: &Blocked) -> Option<Duration> {
        let rest = blocked
            .retry_after()
            .filter(|_| self.inner.waits_for_blocks)?;
        Some(rest.clamp(MIN_SLEEP, FOR_EVER))
    }

    /// How late a caller with a turn may be with its question or its waking before its runtime counts as parked.
    fn turn_patience(&self) -> Duration {
        self.inner.timeout.saturating_mul(2).min(FOR_EVER)
    }

    /// From half to one and a half of the breaker's interval, at random: callers of several processes do not come back
    /// to a store together.
    fn retry_pause(&self) -> Duration {
        let interval = match self.retry_interval() {
            Duration::ZERO => DEFAULT_INTERVAL,
            interval => interval,
        };
        interval / 2 + jitter::up_to(interval)
    }
}

/// Whether the store may decide the same check later.
const fn is_passing(error: &StoreError) -> bool {
    use StoreErrorKind::{CircuitOpen, Timeout, Unavailable};
    matches!(error.kind(), Timeout | Unavailable | CircuitOpen)
}

/// How many callers may ask at the same time after this answer: as many as the store has room for.
fn turns_after(resolution: &Resolution) -> u64 {
    let Resolution::Decided(Decision::Allowed(usage)) = resolution else {
        return 1;
    };
    let rules = usage.check().rules().zip(usage.rules());
    let fitting = rules.map(|((_, cost), usage)| usage.remaining() / cost.max(1));
    fitting.min().unwrap_or(1)
}

/// Whether there will never be room.
fn fits_never(check: &Check) -> bool {
    check.rules().any(|(rule, cost)| cost > rule.limit())
}

impl WaitQueues {
    /// The last place in the queue of the check; the queue, if it has no place left.
    fn join(
        &self,
        check: &Check,
        deadline: Instant,
        max_queue: usize,
    ) -> Result<Ticket<'_>, Arc<WaitQueue>> {
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let known = by_key.get(check.charges()[0].key());
        let known = known.and_then(|queues| queues.iter().find(|queue| queue.is_for(check)));
        let queue = known.cloned().unwrap_or_else(|| {
            let queue = Arc::new(WaitQueue::new(check));
            for charge in check.charges() {
                let queues = by_key.entry(charge.key().clone()).or_default();
                queues.push(Arc::clone(&queue));
            }
            queue
        });
        // The first caller waits for no other.
        if queue.tickets.load(Relaxed) >= max_queue.max(1) {
            return Err(queue);
        }
        queue.tickets.fetch_add(1, Relaxed);
        let number = queue.line().join(check, deadline);
        Ok(Ticket {
            queues: self,
            queue,
            check: check.clone(),
            number,
        })
    }

    /// Lets callers ask again that wait for a key which something was given back to, under a policy of this name.
    pub(super) fn wake(&self, policy: &Policy, key: &Key) {
        self.wake_queues(key, |queue| {
            let mut charges = queue.check.charges().iter();
            charges.any(|charge| charge.policy().name() == policy.name() && charge.key() == key)
        });
    }

    /// Lets callers ask again that wait for a key, under whatever policy.
    pub(super) fn wake_all(&self, key: &Key) {
        self.wake_queues(key, |_| true);
    }

    fn wake_queues(&self, key: &Key, is_meant: impl Fn(&WaitQueue) -> bool) {
        let by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let queues = by_key.get(key).into_iter().flatten();
        for queue in queues.filter(|queue| is_meant(queue)) {
            let mut line = queue.line();
            line.last_denial = None;
            queue.given_back.fetch_add(1, Relaxed);
            drop(line);
            queue.room.notify_waiters();
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

impl Ticket<'_> {
    /// Waits for a turn, at most until the deadline, and only as long as the caller may still be admitted by then.
    async fn take_turn(&self, deadline: Instant, patience: Duration) -> Wait<'_> {
        let queue = &*self.queue;
        let mut turn = pin!(queue.turns.take(patience));
        let rest = deadline.saturating_duration_since(Instant::now());
        let mut end = pin!(LazySleep::new(rest));
        loop {
            let mut denied = pin!(queue.denied.notified()); // listens from before the look at the line on
            let too_late = queue.line().too_late(self.number);
            if let Some((last, earliest)) = too_late {
                return Wait::TooLate(last, earliest);
            }
            let wait = poll_fn(|cx| {
                if let Poll::Ready(turn) = turn.as_mut().poll(cx) {
                    return Poll::Ready(Some(Wait::Turn(turn)));
                }
                if denied.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                end.as_mut().poll(cx).map(|()| Some(Wait::TimedOut))
            });
            if let Some(wait) = wait.await {
                return wait;
            }
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.queue.line().leave(self.number);
        let Self { queues, queue, .. } = self;
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
            turns: Turns::new(),
            line: Mutex::default(),
            given_back: AtomicUsize::new(0),
            room: Notify::new(),
            denied: Notify::new(),
        }
    }

    fn is_for(&self, check: &Check) -> bool {
        parts(&self.check).eq(parts(check))
    }

    /// The last denial, if it holds for this check, too.
    fn denial(&self, check: &Check) -> Option<LastDenial> {
        let line = self.line();
        let last = line.last_denial.as_ref()?;
        let holds = last.until > Instant::now() && last.holds_for(check);
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
        let mut line = self.line();
        let is_news = !self.was_given_since(given_back) && line.learn(&last);
        drop(line);
        if is_news {
            self.denied.notify_waiters();
        }
        last
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Takes the last place, and answers its number.
    fn join(&mut self, check: &Check, deadline: Instant) -> u64 {
        let forecast = self.forecast_behind(check);
        let too_late = forecast.map(|(_, earliest)| earliest);
        self.arrivals += 1;
        let place = Place {
            number: self.arrivals,
            check: check.clone(),
            deadline,
            too_late: too_late.filter(|earliest| *earliest > deadline),
        };
        place.add_to(&mut self.waiting);
        self.places.push_back(place);
        self.arrivals
    }

    fn leave(&mut self, number: u64) {
        let index = self
            .places
            .binary_search_by_key(&number, |place| place.number);
        if let Some(place) = index.ok().and_then(|index| self.places.remove(index)) {
            place.take_from(&mut self.waiting);
        }
    }

    /// Notes a denial, and finds the callers that come too late by it. Whether it says anything new.
    fn learn(&mut self, last: &LastDenial) -> bool {
        let known = self.last_denial.replace(last.clone());
        if known.is_some_and(|known| known.says_the_same_as(last)) {
            return false;
        }
        let mut waiting = Units::new();
        for place in &mut self.places {
            let earliest = last.earliest(&place.check, &waiting);
            place.too_late = (earliest > place.deadline).then_some(earliest);
            place.add_to(&mut waiting);
        }
        self.waiting = waiting;
        true
    }

    fn too_late(&self, number: u64) -> Option<(LastDenial, Instant)> {
        let index = self
            .places
            .binary_search_by_key(&number, |place| place.number);
        let earliest = self.places[index.ok()?].too_late?;
        Some((self.last_denial.clone()?, earliest))
    }

    /// When a caller is admitted behind all that wait, at the earliest; `None` while no denial holds.
    fn forecast_behind(&self, check: &Check) -> Option<(LastDenial, Instant)> {
        let last = self.last_denial.as_ref()?;
        let holds = last.until > Instant::now();
        holds.then(|| (last.clone(), last.earliest(check, &self.waiting)))
    }
}

impl Place {
    /// Adds the units of its charges, unless it is too late.
    fn add_to(&self, waiting: &mut Units) {
        waiting.resize(self.check.charges().len(), 0);
        self.change(waiting, |units, cost| units + cost);
    }

    fn take_from(&self, waiting: &mut Units) {
        self.change(waiting, |units, cost| units - cost);
    }

    fn change(&self, waiting: &mut Units, change: impl Fn(u128, u128) -> u128) {
        if self.too_late.is_none() {
            for (units, charge) in waiting.iter_mut().zip(self.check.charges()) {
                *units = change(*units, charge.cost().into());
            }
        }
    }
}

fn parts(check: &Check) -> impl Iterator<Item = (&Policy, &Key)> {
    let charges = check.charges().iter();
    charges.map(|it| (it.policy(), it.key()))
}

impl LastDenial {
    /// The denial of a check that is admitted at `earliest`, as the queue knows it.
    fn resolve(&self, limiter: &Limiter, check: &Check, earliest: Instant) -> Resolution {
        let denied = Decision::Denied(self.denial.clone());
        let about_it = match self.compares(check, |last, asked| last == asked) {
            true => denied,
            false => denied.repeated(check, 0),
        };
        let longer = earliest.saturating_duration_since(self.until);
        let decision = about_it.aged(self.at.elapsed()).later(longer);
        limiter.report_decision(CallKind::Check, &decision, check, Some(Timing::now()));
        Resolution::Decided(decision)
    }

    /// When a check is admitted behind callers with these units, at the earliest.
    fn earliest(&self, check: &Check, ahead: &Units) -> Instant {
        let charges = check.charges().iter().enumerate();
        let units = charges.map(|(index, charge)| {
            ahead.get(index).copied().unwrap_or(0) + u128::from(charge.cost())
        });
        let wait_ms = match self.holds_for(check) {
            true => millis(self.until.saturating_duration_since(self.at)),
            false => 0,
        };
        let units: Units = units.collect();
        let after = forecast::earliest(check, &units, self.denial.usage(), wait_ms);
        self.at + after.min(FOR_EVER)
    }

    /// Whether the other was for the same costs, and ends in the same millisecond or so.
    fn says_the_same_as(&self, other: &Self) -> bool {
        let apart = self.until.max(other.until) - self.until.min(other.until);
        apart <= MIN_SLEEP && self.compares(&other.check, |one, another| one == another)
    }

    /// When to ask again.
    fn wake_at(&self) -> Instant {
        self.until.min(self.at + RECHECK)
    }

    /// Whether the store denies this check, too.
    fn holds_for(&self, check: &Check) -> bool {
        self.compares(check, |last, asked| last <= asked)
    }

    /// Whether all costs compare so; policies and keys are those of the queue.
    fn compares(&self, check: &Check, costs: impl Fn(u64, u64) -> bool) -> bool {
        let mut pairs = self.check.charges().iter().zip(check.charges());
        pairs.all(|(last, asked)| costs(last.cost(), asked.cost()))
    }
}

#[cfg(test)]
mod tests;
