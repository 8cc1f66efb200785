use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use super::{
    clock::Moment,
    lease::{LONGEST, Lease, Spent, was_behind},
    transfer::{Transfer, Unspent},
};
use crate::{
    charge::Charge,
    check::Check,
    decision::{PolicyUsage, Usage},
    key::Key,
    policy::Policy,
    rule::millis,
    settlement::Settlement,
    store::give_backs::GiveBacks,
};

/// Who is checked so often in one span is worth a lease.
pub(super) const HOT: u64 = 8;

/// Fewer checks than these cost more to lease than to decide one by one.
const FEWEST: u64 = 4;

/// A lease takes at most this part of what is left: so it becomes small before it could deny anybody, and near the
/// limit there is none.
const PART_OF_ROOM: u64 = 8;

/// What is left of a step, but for two round trips, when it is not worth a call any more, in ms.
const SHORT_REST_MS: u64 = 2;

/// An identity that is hot under a policy.
#[derive(Debug)]
pub(super) struct Entry {
    policy: Policy,
    key: Key,
    span: Duration,
    /// What was asked for since `State::since`, here or in the store.
    checks: AtomicU64,
    units: AtomicU64,
    lease: RwLock<Option<Arc<Lease>>>,
    is_fetching: AtomicBool,
    /// How many [`Transfer`]s there are.
    pub(super) transfers: AtomicU64,
    give_backs: Arc<GiveBacks>,
    slot: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    since: Moment,
    known: Option<Known>,
    /// Until when nothing is leased, since the last lease could not be had.
    pause: Option<(Moment, Duration)>,
    /// What is leased meanwhile is not to be spent, and not to be returned: a reset may have forgotten it.
    is_forgotten: bool,
    /// How often all leases were ended, also those that are being fetched.
    endings: u64,
}

/// What the store told last.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The fewest units that are left under a rule.
    room: u64,
    decided_at_ms: u64,
    sent: Moment,
    round_trip: Duration,
}

/// The span of time that leases of a policy are for: its shortest step, or [`LONGEST`]. `None` if a charge of it is
/// never leased: `@exact` rules and buckets have steps too short for it, a small limit would never leave enough room.
pub(super) fn span(charge: &Charge) -> Option<Duration> {
    let few = charge.cost().saturating_mul(FEWEST * PART_OF_ROOM);
    let mut span = LONGEST;
    for rule in charge.policy().rules() {
        if rule.limit() < few || rule.step() <= Duration::from_millis(1) {
            return None;
        }
        span = span.min(rule.step());
    }
    (charge.cost() > 0).then_some(span)
}

impl Entry {
    /// Notes what it gives back, in this slot.
    pub(super) fn new(
        charge: &Charge,
        span: Duration,
        now: Moment,
        give_backs: &Arc<GiveBacks>,
        slot: usize,
    ) -> Self {
        Self {
            policy: charge.policy().clone(),
            key: charge.key().clone(),
            span,
            checks: AtomicU64::new(HOT),
            units: AtomicU64::new(HOT.saturating_mul(charge.cost())),
            lease: RwLock::default(),
            is_fetching: AtomicBool::new(false),
            transfers: AtomicU64::new(0),
            give_backs: Arc::clone(give_backs),
            slot,
            state: Mutex::new(State {
                since: now,
                known: None,
                pause: None,
                is_forgotten: false,
                endings: 0,
            }),
        }
    }

    /// Under other rules of the same name, other steps are charged.
    pub(super) fn is_of(&self, charge: &Charge) -> bool {
        self.is_of_key(charge.key()) && self.policy.is_same(charge.policy())
    }

    pub(super) fn is_of_key(&self, key: &Key) -> bool {
        self.key == *key
    }

    pub(super) fn is_named(&self, policy: &Policy, key: &Key) -> bool {
        self.policy.name() == policy.name() && self.is_of_key(key)
    }

    /// Counts a check of so many units.
    pub(super) fn count(&self, cost: u64) {
        self.checks.fetch_add(1, Relaxed);
        self.units.fetch_add(cost, Relaxed);
    }

    /// Spends units of the lease, if there are so many.
    pub(super) fn spend(&self, cost: u64, now: impl FnOnce() -> Moment) -> Option<Spent> {
        let lease = self.lease();
        Lease::spend(lease.as_ref()?, cost, now())
    }

    /// Notes what the store told about this charge.
    pub(super) fn learn(
        &self,
        usage: PolicyUsage<'_>,
        decided_at_ms: u64,
        sent: Moment,
        now: Moment,
    ) {
        let room = usage.rules().iter().map(|it| it.remaining()).min();
        let mut state = self.state();
        state.known = Some(Known {
            room: room.unwrap_or(0),
            decided_at_ms,
            sent,
            round_trip: now.since(sent),
        });
        // A lease would be over before it is there.
        if now.since(sent) >= self.span {
            state.pause = Some((now, LONGEST));
        }
    }

    /// Leases nothing for a span.
    pub(super) fn pause(&self, now: Moment) {
        self.state().pause = Some((now, self.span));
    }

    /// Begins to fetch a lease, from which `cost` could be spent: how many units, and what is left of the lease before.
    /// `None` if another is being fetched, or none is worth it.
    pub(super) fn begin(self: &Arc<Self>, cost: u64, now: Moment) -> Option<Fetch> {
        let units = self.plan(cost, now)?;
        if self.is_fetching.swap(true, AcqRel) {
            return None;
        }
        let fetch = Fetch {
            transfer: Transfer::begin(self),
            units,
            sent: now,
            endings: self.state().endings,
        };
        // Another may have been fetched since the caller found too little.
        let too_little = |it: &Arc<Lease>| it.is_over(now) || it.left() < cost;
        let is_needed = self.lease().as_ref().is_none_or(too_little);
        is_needed.then_some(fetch)
    }

    /// The rate times the rest of the step, and a quarter more; but at most a part of what is left.
    fn plan(&self, cost: u64, now: Moment) -> Option<u64> {
        let state = self.state();
        let paused = |(since, time): (Moment, Duration)| now.since(since) < time;
        if state.is_forgotten || state.pause.is_some_and(paused) {
            return None;
        }
        let known = state.known?;
        let store_now_ms = known.decided_at_ms + millis(now.since(known.sent));
        let ends = self
            .policy
            .rules()
            .iter()
            .map(|it| it.step_end_ms(store_now_ms));
        let rest_ms = (ends.min()? - store_now_ms).min(millis(LONGEST));
        if rest_ms <= SHORT_REST_MS + 2 * millis(known.round_trip) {
            return None;
        }
        // Of who has just become hot too little is known to believe in a high rate.
        let elapsed = now.since(state.since).max(self.span / 8);
        drop(state);
        let seen = u128::from(self.units.load(Relaxed));
        let wanted = seen * u128::from(rest_ms) * 5 / 4 / u128::from(millis(elapsed).max(1));
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let units = wanted.min(known.room / PART_OF_ROOM);
        (units >= cost.saturating_mul(FEWEST)).then_some(units)
    }

    /// Ends the lease and what is being fetched, which is returned when it comes. Answers the settlement that returns
    /// what is unspent.
    pub(super) fn end(self: &Arc<Self>) -> Option<Unspent> {
        self.state().endings += 1;
        self.close()
    }

    /// Ends the lease, and answers the settlement that returns what is unspent.
    pub(super) fn close(self: &Arc<Self>) -> Option<Unspent> {
        let transfer = Transfer::begin(self);
        let mut lease = self.lease.write().unwrap_or_else(PoisonError::into_inner);
        match lease.take().and_then(|it| it.close()) {
            Some(settlement) => Some(Unspent {
                settlement,
                _transfer: transfer,
            }),
            None => {
                transfer.gives_nothing_back();
                None
            }
        }
    }

    /// The same where the lease has been over for long enough that the next should have come.
    pub(super) fn close_overdue(self: &Arc<Self>, now: Moment) -> Option<Unspent> {
        let is_overdue = |it: &Arc<Lease>| it.is_over_for(now, self.span / 4);
        let is_overdue = self.lease().as_ref().is_some_and(is_overdue);
        is_overdue.then(|| self.close()).flatten()
    }

    /// Ends the lease without returning anything, and all that are being fetched.
    pub(super) fn forget(self: &Arc<Self>) {
        self.state().is_forgotten = true;
        drop(self.close());
    }

    /// Notes that units can be spent or charged again that could not be so far.
    pub(super) fn note_give_back(&self) {
        self.give_backs.note(self.slot);
    }

    /// Whether units that were charged may be spent here or returned.
    ///
    /// In this order: units leave the lease after a transfer has begun, and come there before it ends.
    pub(super) fn has_units(&self) -> bool {
        let is_spendable = self.lease().as_ref().is_some_and(|it| it.left() > 0);
        is_spendable || self.transfers.load(Acquire) > 0
    }

    /// Whether it is not worth a lease any more, and has none. Older checks count half at every span.
    pub(super) fn cool(&self, now: Moment) -> bool {
        let mut state = self.state();
        let elapsed = now.since(state.since);
        if elapsed < self.span {
            return false;
        }
        let checks = self.checks.load(Relaxed);
        let per_span = u128::from(checks) * self.span.as_nanos() / elapsed.as_nanos().max(1);
        self.checks.fetch_sub(checks / 2, Relaxed);
        let units = self.units.load(Relaxed);
        self.units.fetch_sub(units / 2, Relaxed);
        state.since.monotonic += elapsed / 2;
        let is_cold = per_span < u128::from(HOT / 2);
        let lease = self.lease();
        // Whoever still holds the entry leases nothing that nobody would find.
        state.is_forgotten = is_cold && lease.is_none() && self.transfers.load(Acquire) == 0;
        state.is_forgotten
    }

    fn lease(&self) -> RwLockReadGuard<'_, Option<Arc<Lease>>> {
        self.lease.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lease that is being fetched: one at a time for an entry.
#[derive(Debug)]
pub(super) struct Fetch {
    transfer: Transfer,
    units: u64,
    sent: Moment,
    /// Those before it.
    endings: u64,
}

impl Fetch {
    pub(super) fn entry(&self) -> &Arc<Entry> {
        self.transfer.entry()
    }

    /// What is charged: all units at once.
    pub(super) fn check(&self) -> Check {
        let entry = self.entry();
        let charge = Charge::new(&entry.policy, entry.key.clone(), self.units);
        // Who is blocked gets no lease.
        Check::of_one(charge).enforce_blocks(true)
    }

    /// Makes the units that were charged a lease to be spent from. Answers the settlement that returns them where none
    /// can be spent: the answer came too late, the store's clock had stepped back, or all leases were ended meanwhile.
    pub(super) fn install(&self, usage: &Usage, now: Moment) -> Option<Settlement> {
        let entry = self.entry();
        if let Some(of_policy) = usage.policies().next() {
            entry.learn(of_policy, usage.decided_at_ms(), self.sent, now);
        }
        let lease = Lease::new(usage.clone(), self.units, self.sent);
        if was_behind(usage) {
            entry.pause(now);
        }
        if lease.is_over(now) {
            return lease.close();
        }
        let state = entry.state();
        if state.is_forgotten {
            return None;
        }
        if state.endings != self.endings {
            return lease.close();
        }
        let mut place = entry.lease.write().unwrap_or_else(PoisonError::into_inner);
        *place = Some(Arc::new(lease));
        None
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.entry().is_fetching.store(false, Release);
    }
}
