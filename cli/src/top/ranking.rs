//! [`Ranking`]: the identities that use most, in bounded memory for any number of identities.

use sluicegate::store::redis::inspect::{Section, StoredName, StoredValue};
use sluicegate::{Policy, Rule};

use crate::holders::Holder;
use crate::text::without_limit;

/// The first of all offered identities.
pub(super) struct Ranking {
    size: usize,
    /// Sorted, the greatest first.
    pub(super) first: Vec<Ranked>,
    /// The number of offered identities.
    pub(super) seen: u64,
    /// The number of these at a limit, where one more unit did not fit.
    pub(super) full: u64,
}

/// The usage of one identity under one policy: its fullest rule, or without limits the rule with the most units.
pub(super) struct Ranked {
    pub(super) name: StoredName,
    /// The rule as text; without a limit if that is not known: `?/1m`.
    pub(super) rule: String,
    pub(super) limit: Option<u64>,
    pub(super) is_of_slots: bool,
    pub(super) used: u64,
    pub(super) steps: usize,
    /// The time when one more unit fits; `None` if that is now or never, or if the limit is not known.
    pub(super) fits_ms: Option<u64>,
    pub(super) full: bool,
    rank: (u128, u64),
    /// The processes that hold the slots.
    pub(super) holders: Vec<Holder>,
}

impl Ranking {
    pub(super) const fn new(size: usize) -> Self {
        Self {
            size,
            first: Vec::new(),
            seen: 0,
            full: 0,
        }
    }

    /// Inserts a usage that is among the first. Replaces an earlier one of the same name.
    pub(super) fn offer(&mut self, ranked: Ranked) {
        self.seen += 1;
        self.full += u64::from(ranked.full);
        if let Some(last) = self.first.get(self.size.saturating_sub(1))
            && last.rank >= ranked.rank
        {
            return;
        }
        self.first.retain(|other| other.name != ranked.name);
        let is_before = |other: &Ranked| other.rank >= ranked.rank;
        let place = self.first.partition_point(is_before);
        self.first.insert(place, ranked);
        self.first.truncate(self.size);
    }
}

impl Ranked {
    /// `None` if no units count. If plans share the name, the plan that leaves most decides: no other identity is known
    /// to be full.
    pub(super) fn of(
        name: &StoredName,
        value: &StoredValue,
        policies: &[Policy],
        now_ms: u64,
    ) -> Option<Self> {
        if policies.is_empty() {
            return Self::of_units(name, value, now_ms);
        }
        let plans = policies.iter();
        let plans = plans.filter_map(|policy| Self::of_limits(name, value, policy, now_ms));
        plans.min_by_key(|ranked| ranked.rank)
    }

    fn of_limits(
        name: &StoredName,
        value: &StoredValue,
        policy: &Policy,
        now_ms: u64,
    ) -> Option<Self> {
        let rules = policy.rules().iter().filter_map(|rule| {
            let section = value.section(rule)?;
            let fits_ms = section.fits_at_ms(now_ms, rule.limit(), 1);
            let mut ranked = Self::new(name, section, rule, now_ms);
            ranked.rule = rule.to_string();
            ranked.limit = Some(rule.limit());
            ranked.full = ranked.used >= rule.limit();
            ranked.fits_ms = Some(fits_ms).filter(|ms| ranked.full && *ms > 0);
            let share = (u128::from(ranked.used) << 64) / u128::from(rule.limit().max(1));
            // Among full rules, the longest wait comes first.
            ranked.rank = (share, fits_ms);
            Some(ranked).filter(|ranked| ranked.used > 0)
        });
        rules.max_by_key(|ranked| ranked.rank)
    }

    fn of_units(name: &StoredName, value: &StoredValue, now_ms: u64) -> Option<Self> {
        let sections = value.sections().iter();
        let ranked = sections.map(|it| Self::new(name, it, &it.rule(0), now_ms));
        let most = ranked.max_by_key(|ranked| ranked.used);
        most.filter(|ranked| ranked.used > 0)
    }

    fn new(name: &StoredName, section: &Section, rule: &Rule, now_ms: u64) -> Self {
        let used = section.used(now_ms);
        Self {
            name: name.clone(),
            rule: without_limit(rule),
            limit: None,
            is_of_slots: rule.is_concurrency(),
            used,
            steps: section.steps(now_ms).len(),
            fits_ms: None,
            full: false,
            rank: (0, used),
            holders: Vec::new(),
        }
    }
}
