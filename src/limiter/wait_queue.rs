//! Callers that wait for room, in a queue for each set of policies and keys.
//!
//! ```text
//! join ──▶ turn ──▶ ask the store ──▶ admitted, or denied for longer than the caller waits
//!                    ▲         │ denied, or undecided
//!                    └─ sleep ◀┘ until the store should have room, at most RECHECK, or until units are given back
//! ```
//!
//! Only callers with a [turn](turns) ask the store. A caller that leaves passes on its turn and the store's last
//! denial. A caller that cannot be admitted in time, behind those [ahead](forecast), is denied at once.
//!
//! A queue is for policies with their rules: a caller under a new limit does not wait behind one that sleeps under the
//! old. Both use the same counts and compete like two processes; the store's limit holds for all of them.

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
use super::{DEFAULT_INTERVAL, FOR_EVER, Limiter, Resolution, pauses::Entry, timeout::LazySleep};
use crate::{
    domain::{
        block::BlockedBy,
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

/// The shortest sleep. A store that denies and yet promises room now would otherwise make the caller spin.
const MIN_SLEEP: Duration = Duration::from_millis(1);

/// The head of a queue asks at least this often, since other processes give back units without notice.
const RECHECK: Duration = Duration::from_secs(2);

/// The head of a queue for a slot asks this often: other processes may return one at any time.
const SLOT_RECHECK: Duration = Duration::from_millis(100);

/// How a caller behaves while the store cannot decide and the failure policy would let it pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhereOpen {
    /// Passes at once: an outage must not slow down each request by `max_wait`.
    Pass,
    /// Keeps asking until the deadline, since the caller has to apply the failure policy.
    AskAgain,
}

/// The queues with waiting callers, each listed once under every key that it charges or looks up.
#[derive(Debug, Default)]
pub(super) struct WaitQueues {
    by_key: Mutex<HashMap<Key, Vec<Arc<WaitQueue>>>>,
}

#[derive(Debug)]
struct WaitQueue {
    /// The check of the first caller; the others have the same policies and keys in the same order.
    check: Check,
    /// Written under the lock of all queues.
    tickets: AtomicUsize,
    turns: Turns,
    line: Mutex<Line>,
    /// How often units were given back. Written under the lock of the line.
    given_back: AtomicUsize,
    /// Notified when units are given back.
    room: Notify,
    /// Notified when the store denies a caller: the denial may show that others come too late.
    denied: Notify,
}

/// For each charge.
type Units = SmallVec<[u128; 1]>;

/// The waiting callers, and the store's last denial to one of them.
#[derive(Debug, Default)]
struct Line {
    last_denial: Option<LastDenial>,
    /// In order of arrival.
    places: VecDeque<Place>,
    /// The units of all callers that can be admitted in time.
    waiting: Units,
    arrivals: u64,
}

/// A caller in the line.
#[derive(Debug)]
struct Place {
    number: u64,
    check: Check,
    deadline: Instant,
    /// The earliest admission, if after the deadline: later callers then do not count this one.
    too_late: Option<Instant>,
}

/// The store's denial of a caller with a turn, the time of the denial, and how long the denial surely holds.
#[derive(Clone, Debug)]
struct LastDenial {
    check: Check,
    denial: Denial,
    at: Instant,
    until: Instant,
    /// A slot may be returned sooner than its denial says, and later than this denial surely holds.
    ask_again: Instant,
}

/// A place in a queue, given up when dropped.
struct Ticket<'a> {
    queues: &'a WaitQueues,
    queue: Arc<WaitQueue>,
    check: Check,
    number: u64,
}

/// The result of waiting for a turn.
enum Wait<'a> {
    Turn(Turn<'a>),
    /// The turn would come too late: the earliest admission is at this time.
    TooLate(LastDenial, Instant),
    /// The caller's time is up, or will be before a pause ends, and no known denial applies.
    TimedOut,
}

impl Limiter {
    /// Waits until the check is admitted; returns a denial that lasts longer than `max_wait`.
    ///
    /// Cancellation: a dropped caller gives up its place and passes on its turn. A check already sent may have been
    /// charged.
    pub(crate) async fn wait(
        &self,
        check: &Check,
        max_wait: Duration,
        where_open: WhereOpen,
    ) -> Resolution {
        // Shadows never deny, so a check of shadows alone has nothing to wait for.
        if check.deniable_keys().next().is_none() || fits_never(check) {
            return self.decide(check.clone()).await;
        }
        let deadline = Instant::now() + max_wait.min(FOR_EVER);
        // A caller without the time is denied now, and not when those ahead have had their turns.
        if self.inner.pauses.outlast(check, deadline) {
            return self.decide_last(check).await;
        }
        let most = self.inner.max_queue;
        let ticket = match self.inner.queues.join(check, deadline, most) {
            Ok(ticket) => ticket,
            Err(queue) => return self.deny_behind(&queue, check).await,
        };
        match ticket.take_turn(self, deadline).await {
            Wait::Turn(turn) => {
                let resolution = self.ask_until(&ticket, &turn, deadline, where_open).await;
                let turns = match self.inner.pauses.is_recovering(check) {
                    true => 1,
                    false => turns_after(&resolution),
                };
                ticket.queue.turns.set_number(turns);
                resolution
            }
            Wait::TooLate(last, earliest) => last.resolve(self, check, earliest),
            Wait::TimedOut => self.decide_last(check).await,
        }
    }

    /// Decides the check of a caller that cannot wait any longer.
    async fn decide_last(&self, check: &Check) -> Resolution {
        match self.inner.pauses.enter(check, self.turn_patience()) {
            Entry::Free => self.decide(check.clone()).await,
            Entry::Counted(place) => {
                let resolution = self.decide(check.clone()).await;
                place.answered(&resolution);
                resolution
            }
            Entry::Hold(hold) => self.deny_held(check, hold),
        }
    }

    /// Answers a caller that found the queue full.
    async fn deny_behind(&self, queue: &WaitQueue, check: &Check) -> Resolution {
        let forecast = queue.line().forecast_behind(check);
        match forecast {
            Some((last, earliest)) => last.resolve(self, check, earliest),
            // No denial holds yet.
            None => self.decide_last(check).await,
        }
    }

    /// Asks the store until the caller, which has a turn, is admitted or comes too late.
    async fn ask_until(
        &self,
        ticket: &Ticket<'_>,
        turn: &Turn<'_>,
        deadline: Instant,
        where_open: WhereOpen,
    ) -> Resolution {
        let (queue, check) = (&*ticket.queue, &ticket.check);
        // Listen before each question, so as not to miss units given back before the answer arrives.
        let mut room = queue.room.notified();
        let mut known = queue.denial(check);
        loop {
            let wake_at = match known.take() {
                Some(denial) if denial.until > deadline => {
                    return denial.resolve(self, check, denial.until);
                }
                Some(denial) => denial.ask_again.min(deadline),
                None => {
                    let entry = self.inner.pauses.enter(check, self.turn_patience());
                    let place = match entry {
                        Entry::Free => None,
                        Entry::Counted(place) => Some(place),
                        Entry::Hold(hold) if Instant::now() < deadline => {
                            let until = hold.until.min(deadline);
                            turn.works_until(until);
                            let _ = timeout_at(until, hold.changed).await;
                            continue;
                        }
                        Entry::Hold(hold) => return self.deny_held(check, hold),
                    };
                    turn.works_until(Instant::now());
                    let given_back = queue.given_back.load(Relaxed); // before the store is asked
                    let resolution = self.decide(check.clone()).await;
                    if let Some(place) = place {
                        place.answered(&resolution);
                    }
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
                // Units given back during the call make this denial out of date: ask again even if it ends after the
                // deadline.
                let in_time = last.until <= deadline || queue.was_given_since(given_back);
                in_time.then(|| last.ask_again.min(deadline))
            }
            Resolution::Decided(Decision::Blocked(blocked)) => {
                let end = match blocked.is_by(BlockedBy::Pause) {
                    true => {
                        // Afterwards, callers leave one after the other, in order.
                        queue.turns.set_number(1);
                        self.inner.pauses.see(blocked)
                    }
                    false => now + self.waits_for(blocked)?,
                };
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

    /// The rest of an operator's block or a ban, if callers wait for blocks.
    fn waits_for(&self, blocked: &Blocked) -> Option<Duration> {
        let rest = blocked
            .retry_after()
            .filter(|_| self.inner.waits_for_blocks)?;
        Some(rest.clamp(MIN_SLEEP, FOR_EVER))
    }

    /// How late a caller with a turn may ask or wake before its runtime counts as parked.
    fn turn_patience(&self) -> Duration {
        self.inner.timeout.saturating_mul(2).min(FOR_EVER)
    }

    /// From half to one and a half of the breaker's interval, at random, so that the callers of several processes do
    /// not return to a store together.
    pub(super) fn retry_pause(&self) -> Duration {
        let interval = match self.retry_interval() {
            Duration::ZERO => DEFAULT_INTERVAL,
            interval => interval,
        };
        let interval = interval.min(FOR_EVER);
        interval / 2 + jitter::up_to(interval)
    }
}

/// Whether the store may decide the same check later.
const fn is_passing(error: &StoreError) -> bool {
    use StoreErrorKind::{CircuitOpen, Timeout, Unavailable};
    matches!(error.kind(), Timeout | Unavailable | CircuitOpen)
}

/// How many callers may ask at the same time after this answer: as many as the rest would admit.
fn turns_after(resolution: &Resolution) -> u64 {
    let Resolution::Decided(Decision::Allowed(usage)) = resolution else {
        return 1;
    };
    let rules = usage.check().rules().zip(usage.rules());
    let fitting = rules.map(|((_, cost), usage)| usage.remaining() / cost.max(1));
    // Without rules, only blocks are looked up.
    fitting.min().unwrap_or(u64::MAX)
}

/// Whether the check is larger than a limit, and so never fits.
fn fits_never(check: &Check) -> bool {
    check.rules().any(|(rule, cost)| cost > rule.limit())
}

impl WaitQueues {
    /// Takes the last place in the queue of the check; returns the queue if it is full.
    fn join(
        &self,
        check: &Check,
        deadline: Instant,
        max_queue: usize,
    ) -> Result<Ticket<'_>, Arc<WaitQueue>> {
        let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keys = check.deniable_keys();
        let known = keys.next().and_then(|key| by_key.get(key));
        let known = known.and_then(|queues| queues.iter().find(|queue| queue.is_for(check)));
        let queue = known.cloned().unwrap_or_else(|| {
            let queue = Arc::new(WaitQueue::new(check));
            for key in check.deniable_keys() {
                let queues = by_key.entry(key.clone()).or_default();
                queues.push(Arc::clone(&queue));
            }
            queue
        });
        // The first caller waits for no other, so admit one even if `max_queue` is 0.
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

    /// Wakes the callers that wait for this key under a policy of this name, after units were given back.
    pub(super) fn wake(&self, policy: &Policy, key: &Key) {
        self.wake_queues(key, |queue| {
            let mut charges = queue.check.charges().iter();
            charges.any(|charge| charge.policy().name() == policy.name() && charge.key() == key)
        });
    }

    /// Wakes the callers that wait for a key, under any policy.
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

    /// Wakes the callers that wait for any charge that the settlement reduces.
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
    /// Waits for a turn until the deadline, and only while the caller can still be admitted in time.
    async fn take_turn<'t>(&'t self, limiter: &Limiter, deadline: Instant) -> Wait<'t> {
        let queue = &*self.queue;
        let mut turn = pin!(queue.turns.take(limiter.turn_patience()));
        let rest = deadline.saturating_duration_since(Instant::now());
        let mut end = pin!(LazySleep::new(rest));
        loop {
            let mut denied = pin!(queue.denied.notified()); // listens from before the look at the line on
            let mut paused = pin!(limiter.inner.pauses.next_pause()); // the same
            let too_late = queue.line().too_late(self.number);
            if let Some((last, earliest)) = too_late {
                return Wait::TooLate(last, earliest);
            }
            if limiter.inner.pauses.outlast(&self.check, deadline) {
                return Wait::TimedOut;
            }
            let wait = poll_fn(|cx| {
                if let Poll::Ready(turn) = turn.as_mut().poll(cx) {
                    return Poll::Ready(Some(Wait::Turn(turn)));
                }
                let is_denied = denied.as_mut().poll(cx).is_ready();
                if is_denied || paused.as_mut().poll(cx).is_ready() {
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
        for key in queue.check.deniable_keys() {
            if let Some(queues) = by_key.get_mut(key) {
                queues.retain(|it| !Arc::ptr_eq(it, queue));
                if queues.is_empty() {
                    by_key.remove(key);
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
        parts(&self.check).eq(parts(check)) && self.check.look_ups() == check.look_ups()
    }

    /// The last denial, if still valid and also true of this check.
    fn denial(&self, check: &Check) -> Option<LastDenial> {
        let line = self.line();
        let last = line.last_denial.as_ref()?;
        let holds = last.until > Instant::now() && last.holds_for(check);
        holds.then(|| last.clone())
    }

    fn was_given_since(&self, given_back: usize) -> bool {
        self.given_back.load(Relaxed) != given_back
    }

    /// Stores a denial, unless units were given back during the call: then the denial is out of date for other callers.
    fn remember(&self, check: &Check, denial: &Denial, given_back: usize) -> LastDenial {
        let wait = |slot_wait| {
            let by_slots = denial.with_slot_wait(slot_wait);
            let wait = by_slots.as_ref().unwrap_or(denial).retry_after();
            wait.unwrap_or_default().clamp(MIN_SLEEP, FOR_EVER)
        };
        let at = Instant::now();
        let last = LastDenial {
            check: check.clone(),
            denial: denial.clone(),
            at,
            until: at + wait(Duration::ZERO),
            ask_again: at + wait(SLOT_RECHECK).min(RECHECK),
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
    /// Takes the last place, and returns its number.
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

    /// Notes a denial, and finds the callers that come too late because of it. Returns whether the denial is news.
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

    /// The earliest admission of a caller behind all that wait; `None` while no denial holds.
    fn forecast_behind(&self, check: &Check) -> Option<(LastDenial, Instant)> {
        let last = self.last_denial.as_ref()?;
        let holds = last.until > Instant::now();
        holds.then(|| (last.clone(), last.earliest(check, &self.waiting)))
    }
}

impl Place {
    /// Adds the units of this place, unless too late.
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
    /// The denial of a check that the queue expects to be admitted at `earliest`.
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

    /// The earliest admission of a check behind callers with these units.
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

    /// Whether the other denial was for the same costs, and ends at about the same millisecond.
    fn says_the_same_as(&self, other: &Self) -> bool {
        let apart = self.until.max(other.until) - self.until.min(other.until);
        apart <= MIN_SLEEP && self.compares(&other.check, |one, another| one == another)
    }

    /// Whether the store denies this check as well: one that costs at least as much.
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
