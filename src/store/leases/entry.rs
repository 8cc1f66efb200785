//! [`HotIdentity`]: a hot identity under one policy, with its lease.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        TryLockError,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::Duration,
};

use super::lease::{LONGEST, Lease, was_behind};
use crate::domain::{
    charge::Charge,
    check::Check,
    decision::{PolicyUsage, Usage},
    key::Key,
    operation::Operation,
    policy::Policy,
    rule::millis,
};

/// This many checks in one span make an identity hot.
pub(super) const HOT: u64 = 8;

/// With fewer checks than this, a lease costs more than deciding them separately.
const FEWEST: u64 = 4;

/// A lease takes at most this fraction of the remaining units. So leases shrink before they could cause a denial, and
/// near the limit there are none.
const PART_OF_ROOM: u64 = 8;

/// If less than this (ms), plus two round trips, remains of the step, do not fetch a lease.
const SHORT_REST_MS: u64 = 2;

/// An identity that is hot under a policy.
#[derive(Debug)]
pub(super) struct HotIdentity {
    policy: Policy,
    key: Key,
    span: Duration,
    /// The requests since `State::since`, decided here or in the store.
    checks: AtomicU64,
    units: AtomicU64,
    /// Whoever spends its units holds the lock, so that it is not closed meanwhile.
    lease: RwLock<Option<Lease>>,
    /// How often units have left the store or this process, or arrived there: odd while some are on their way.
    moves: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    since: Duration,
    known: Option<LastReport>,
    /// A pause in which no lease is fetched, because the last fetch failed.
    pause: Option<(Duration, Duration)>,
    /// How often the leases were ended. A lease that is being fetched meanwhile is returned on arrival.
    generation: u64,
    /// A lease of an older generation is not even returned: its units may have been reset.
    lost_before: u64,
    /// Whether the table has dropped this entry. Checks that still hold it fetch no lease.
    is_dropped: bool,
}

/// The last report of the store about this identity.
#[derive(Clone, Copy, Debug)]
struct LastReport {
    /// The smallest number of remaining units among the rules.
    room: u64,
    decided_at_ms: u64,
    sent: Duration,
    round_trip: Duration,
}

/// The span of a policy's leases: its shortest step, or [`LONGEST`]. `None` if its charges are never leased: the steps
/// of `@exact` rules and buckets are too short, a small limit never leaves enough room, and slots stay in their steps.
pub(super) fn span(policy: &Policy) -> Option<Duration> {
    let mut span = LONGEST;
    for rule in policy.rules() {
        let is_too_fine = rule.step() <= Duration::from_millis(1);
        if rule.limit() < FEWEST * PART_OF_ROOM || is_too_fine || rule.is_concurrency() {
            return None;
        }
        span = span.min(rule.step());
    }
    Some(span)
}

/// Whether a limit never leaves enough room for a lease that pays this charge.
pub(super) fn is_too_large(charge: &Charge) -> bool {
    let few = charge.cost().saturating_mul(FEWEST * PART_OF_ROOM);
    charge
        .policy()
        .rules()
        .iter()
        .any(|rule| rule.limit() < few)
}

impl HotIdentity {
    pub(super) fn new(charge: &Charge, span: Duration, now: Duration) -> Self {
        Self {
            policy: charge.policy().clone(),
            key: charge.key().clone(),
            span,
            // The count that made the identity hot, so that the first sweep does not find the entry cold.
            checks: AtomicU64::new(HOT),
            units: AtomicU64::new(HOT.saturating_mul(charge.cost())),
            lease: RwLock::default(),
            moves: AtomicU64::new(0),
            state: Mutex::new(State {
                since: now,
                known: None,
                pause: None,
                generation: 0,
                lost_before: 0,
                is_dropped: false,
            }),
        }
    }

    /// Rules of the same name with other steps need another lease.
    pub(super) fn is_of(&self, charge: &Charge) -> bool {
        self.is_of_key(charge.key()) && self.policy.is_same(charge.policy())
    }

    pub(super) fn is_of_key(&self, key: &Key) -> bool {
        self.key == *key
    }

    /// Counts a check with this cost, unless it is a look.
    pub(super) fn count(&self, cost: u64) {
        self.checks.fetch_add(cost.min(1), Relaxed);
        self.units.fetch_add(cost, Relaxed);
    }

    /// The lease, held in its place. `None` if there is none, or it is about to change.
    pub(super) fn spendable(&self) -> Option<RwLockReadGuard<'_, Option<Lease>>> {
        // A check holds several, so none must wait for a lock.
        let lease = match self.lease.try_read() {
            Ok(lease) => lease,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        lease.is_some().then_some(lease)
    }

    /// Remembers the store's report about this charge.
    pub(super) fn learn(
        &self,
        usage: PolicyUsage<'_>,
        decided_at_ms: u64,
        sent: Duration,
        now: Duration,
    ) {
        let room = usage.rules().iter().map(|rule| rule.remaining()).min();
        let mut state = self.state();
        state.known = Some(LastReport {
            room: room.unwrap_or(0),
            decided_at_ms,
            sent,
            round_trip: now.saturating_sub(sent),
        });
        // With a round trip longer than a span, a lease would be over on arrival.
        if now.saturating_sub(sent) >= self.span {
            state.pause = Some((now, LONGEST));
        }
    }

    pub(super) fn is_paused(&self, now: Duration) -> bool {
        let pause = self.state().pause;
        pause.is_some_and(|(since, time)| now.saturating_sub(since) < time)
    }

    /// Fetches no lease for a span.
    pub(super) fn pause(&self, now: Duration) {
        self.state().pause = Some((now, self.span));
    }

    /// Begins to fetch a lease that is large enough for `cost`. `None` if units are on their way, or a lease is not
    /// worth a call.
    pub(super) fn begin(self: &Arc<Self>, cost: u64, now: Duration) -> Option<Fetch> {
        let state = self.state();
        let units = self.plan(&state, cost, now)?;
        let on_its_way = self.begin_move()?;
        Some(Fetch {
            units,
            sent: now,
            generation: state.generation,
            last: self.place().take().and_then(|lease| lease.close()),
            on_its_way,
        })
    }

    /// `None` while others are on their way.
    fn begin_move(self: &Arc<Self>) -> Option<OnItsWay> {
        let begin = |moves: u64| moves.is_multiple_of(2).then_some(moves + 1);
        self.moves.fetch_update(AcqRel, Acquire, begin).ok()?;
        Some(OnItsWay(Arc::clone(self)))
    }

    /// The units to lease: the rate times the rest of the step, plus a quarter, but at most a fraction of the remaining
    /// units.
    fn plan(&self, state: &State, cost: u64, now: Duration) -> Option<u64> {
        // Another task may have fetched a lease since the caller found too few units.
        let is_enough = |lease: &Lease| !lease.is_over(now) && lease.unspent() >= cost;
        if state.is_dropped || self.lease().as_ref().is_some_and(is_enough) {
            return None;
        }
        let known = state.known?;
        let store_now_ms = known.decided_at_ms + millis(now.saturating_sub(known.sent));
        let ends = self
            .policy
            .rules()
            .iter()
            .map(|rule| rule.step_end_ms(store_now_ms));
        let rest_ms = ends.min()?.saturating_sub(store_now_ms);
        let rest_ms = rest_ms.min(millis(LONGEST));
        if rest_ms <= SHORT_REST_MS + 2 * millis(known.round_trip) {
            return None;
        }
        // A newly hot identity has too little history to trust a high rate.
        let elapsed = now.saturating_sub(state.since).max(self.span / 8);
        let seen = u128::from(self.units.load(Relaxed));
        let wanted = seen * u128::from(rest_ms) * 5 / 4 / u128::from(millis(elapsed).max(1));
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let units = wanted.min(known.room / PART_OF_ROOM);
        (units >= cost.saturating_mul(FEWEST)).then_some(units)
    }

    /// Ends the lease. A lease that is being fetched is returned on arrival. Returns the settlement that gives the
    /// unspent units back.
    pub(super) fn end(self: &Arc<Self>) -> Option<Unspent> {
        let mut state = self.state();
        state.generation += 1;
        self.close(&state)
    }

    /// Ends the lease, and forgets its units and those of a lease that is being fetched, since a reset deletes them. No
    /// other is fetched for a span, because it could be charged before the reset.
    pub(super) fn forget(&self, now: Duration) {
        let mut state = self.state();
        state.generation += 1;
        state.lost_before = state.generation;
        state.pause = Some((now, self.span));
        *self.place() = None;
    }

    /// Closes the lease if it has been over for so long that its successor should have arrived.
    pub(super) fn close_overdue(self: &Arc<Self>, now: Duration) -> Option<Unspent> {
        let state = self.state();
        let is_overdue = |lease: &Lease| lease.is_over_for(now, self.span / 4);
        let is_overdue = self.lease().as_ref().is_some_and(is_overdue);
        is_overdue.then(|| self.close(&state))?
    }

    /// Begins the move before it takes the units, so that the entry never looks as if it had none.
    fn close(self: &Arc<Self>, _: &MutexGuard<'_, State>) -> Option<Unspent> {
        // A lease is in its place only while no units are on their way.
        let on_its_way = self.begin_move()?;
        let lease = self.place().take()?;
        Some(Unspent {
            settle: lease.close()?,
            _on_its_way: on_its_way,
        })
    }

    /// Read this before you ask the store.
    pub(super) fn moves(&self) -> u64 {
        self.moves.load(Acquire)
    }

    /// Whether units may make a check fit that the store has denied: units that can be spent here, that are on their
    /// way, or that have arrived since `moves` was read.
    ///
    /// The order matters: units leave the lease after a move has begun, and arrive before it ends.
    pub(super) fn may_have_units(&self, moves: u64) -> bool {
        let has_units = self.lease().as_ref().is_some_and(|it| it.unspent() > 0);
        has_units || moves % 2 == 1 || self.moves() != moves
    }

    /// Whether the entry has no lease and is not worth one. Each span halves the weight of older checks.
    pub(super) fn cool(&self, now: Duration) -> bool {
        let mut state = self.state();
        let elapsed = now.saturating_sub(state.since);
        if elapsed < self.span {
            return false;
        }
        let checks = self.checks.load(Relaxed);
        let per_span = u128::from(checks) * self.span.as_nanos() / elapsed.as_nanos().max(1);
        self.checks.fetch_sub(checks / 2, Relaxed);
        let units = self.units.load(Relaxed);
        self.units.fetch_sub(units / 2, Relaxed);
        state.since += elapsed / 2;
        let is_cold = per_span < u128::from(HOT / 2);
        let lease = self.lease();
        let is_idle = lease.is_none() && self.moves().is_multiple_of(2);
        state.is_dropped = is_cold && is_idle;
        state.is_dropped
    }

    fn lease(&self) -> RwLockReadGuard<'_, Option<Lease>> {
        self.lease.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self) -> RwLockWriteGuard<'_, Option<Lease>> {
        self.lease.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Units of an identity on their way from the store to a lease, or back: one lease at a time.
///
/// Meanwhile units may be charged that cannot be spent. A check that is denied in this time may fit as soon as they
/// arrive, so that denial must not be repeated.
#[derive(Debug)]
struct OnItsWay(Arc<HotIdentity>);

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.0.moves.fetch_add(1, AcqRel);
    }
}

/// The settlement that returns the unspent units of a lease.
#[derive(Debug)]
pub(super) struct Unspent {
    pub(super) settle: Operation,
    _on_its_way: OnItsWay,
}

/// A lease that is being fetched.
#[derive(Debug)]
pub(super) struct Fetch {
    units: u64,
    sent: Duration,
    generation: u64,
    /// Gives the unspent units of the last lease back.
    last: Option<Operation>,
    on_its_way: OnItsWay,
}

impl Fetch {
    pub(super) fn entry(&self) -> &Arc<HotIdentity> {
        &self.on_its_way.0
    }

    /// Returns the units of the last lease, and charges all units of this one. They are never returned twice: if the call
    /// fails, they stay charged.
    pub(super) fn operations(&self) -> Vec<Operation> {
        let entry = self.entry();
        let charge = Charge::new(&entry.policy, entry.key.clone(), self.units);
        // A blocked identity gets no lease.
        let check = Check::counting([charge]).enforce_blocks(true);
        let returned = self.last.iter().cloned();
        returned.chain([Operation::Check(check)]).collect()
    }

    /// Turns the charged units into a lease. Returns a settlement that gives them back if they cannot be spent: the
    /// answer came too late, the store's clock had stepped back, or all leases have been ended in the meantime.
    pub(super) fn install(self, usage: &Usage, now: Duration) -> Option<Unspent> {
        let Self {
            units,
            sent,
            generation,
            on_its_way,
            ..
        } = self;
        let entry = Arc::clone(&on_its_way.0);
        if let Some(of_policy) = usage.policies().next() {
            entry.learn(of_policy, usage.decided_at_ms(), sent, now);
        }
        let lease = Lease::new(usage.clone(), units, sent);
        if was_behind(usage) {
            entry.pause(now);
        }
        let state = entry.state();
        if generation < state.lost_before {
            return None;
        }
        if generation < state.generation || lease.is_over(now) {
            return Some(Unspent {
                settle: lease.close()?,
                _on_its_way: on_its_way,
            });
        }
        *entry.place() = Some(lease);
        // Before the state is unlocked, since the end of the lease is a move.
        drop(on_its_way);
        None
    }
}
