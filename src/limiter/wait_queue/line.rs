//! [`Line`]: the callers of a queue in order of arrival, and the store's last denial to one of them, which shows the
//! callers that come too late.

use std::{collections::VecDeque, time::Duration};

use smallvec::SmallVec;
use tokio::time::Instant;

use super::forecast;
use crate::{
    domain::{
        check::Check,
        decision::{Decision, Denial},
        rule::millis,
    },
    limiter::timeout::FOR_EVER,
};

/// The shortest sleep. A store that denies and yet promises room now would otherwise make the caller spin.
pub(super) const MIN_SLEEP: Duration = Duration::from_millis(1);

/// The head of a queue asks at least this often, since other processes give back units without notice.
pub(super) const RECHECK: Duration = Duration::from_secs(2);

/// For each charge.
type Units = SmallVec<[u128; 1]>;

/// The waiting callers, and the store's last denial to one of them.
#[derive(Debug, Default)]
pub(super) struct Line {
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
pub(super) struct LastDenial {
    check: Check,
    denial: Denial,
    at: Instant,
    pub(super) until: Instant,
    /// A slot may be returned sooner than its denial says, and later than this denial surely holds.
    pub(super) ask_again: Instant,
}

impl Line {
    /// Takes the last place, and returns its number.
    pub(super) fn join(&mut self, check: &Check, deadline: Instant) -> u64 {
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

    pub(super) fn leave(&mut self, number: u64) {
        let index = self
            .places
            .binary_search_by_key(&number, |place| place.number);
        if let Some(place) = index.ok().and_then(|index| self.places.remove(index)) {
            place.take_from(&mut self.waiting);
        }
    }

    /// Forgets the last denial, since units were given back.
    pub(super) fn forget_denial(&mut self) {
        self.last_denial = None;
    }

    /// Whether the callers wait for nothing that a rate or a bucket would have to release first.
    pub(super) fn lacks_only_slots(&self) -> bool {
        let last = self.last_denial.as_ref();
        last.is_none_or(|last| last.until <= Instant::now())
    }

    /// The last denial, if still valid and also true of this check.
    pub(super) fn denial(&self, check: &Check) -> Option<LastDenial> {
        let last = self.last_denial.as_ref()?;
        let holds = last.until > Instant::now() && last.holds_for(check);
        holds.then(|| last.clone())
    }

    /// Notes a denial, and finds the callers that come too late because of it. Returns whether the denial is news.
    pub(super) fn learn(&mut self, last: &LastDenial) -> bool {
        if last.denial.is_by_slots() {
            // It forecasts nothing: no caller wakes for it.
            self.last_denial = None;
            return false;
        }
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

    pub(super) fn too_late(&self, number: u64) -> Option<(LastDenial, Instant)> {
        let index = self
            .places
            .binary_search_by_key(&number, |place| place.number);
        let earliest = self.places[index.ok()?].too_late?;
        Some((self.last_denial.clone()?, earliest))
    }

    /// The earliest admission of a caller behind all that wait; `None` while no denial holds.
    pub(super) fn forecast_behind(&self, check: &Check) -> Option<(LastDenial, Instant)> {
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

impl LastDenial {
    /// A denial that the store has just answered.
    pub(super) fn new(check: &Check, denial: &Denial) -> Self {
        let at = Instant::now();
        let after = |wait: Option<Duration>| wait.unwrap_or_default().clamp(MIN_SLEEP, FOR_EVER);
        Self {
            check: check.clone(),
            denial: denial.clone(),
            at,
            until: at + after(denial.retry_after_besides_slots()),
            ask_again: at + after(denial.recheck_after()).min(RECHECK),
        }
    }

    /// The denial of a check that the queue expects to be admitted at `earliest`.
    pub(super) fn decision(&self, check: &Check, earliest: Instant) -> Decision {
        let denied = Decision::Denied(self.denial.clone());
        let about_it = match self.compares(check, |last, asked| last == asked) {
            true => denied.about(check), // whose contributors may be others
            false => denied.repeated(check, 0),
        };
        let longer = earliest.saturating_duration_since(self.until);
        about_it.aged(self.at.elapsed()).later(longer)
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
