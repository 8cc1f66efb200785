//! [`Usage`]: the usage under each rule of each charge.

use std::{
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

use smallvec::SmallVec;

use super::{
    Count, Decision,
    rule_usage::{RuleUsage, denial_ms},
};
use crate::domain::{
    charge::Charge,
    check::Check,
    error::StoreError,
    late::{Late, LateCost},
    policy::Policy,
};

/// The usage under each rule of each charge, right after the decision; cheap to clone.
///
/// You also need the usage of an admitted check to settle the check: see [`Limiter::settle`](crate::Limiter::settle).
#[derive(Clone, Debug)]
pub struct Usage {
    inner: Arc<UsageCore>,
    /// `None` for most.
    beside: Option<Arc<Beside>>,
}

/// The rare parts of a usage, beside its figures.
#[derive(Clone, Debug, Default)]
struct Beside {
    shadow: Option<Decision>,
    /// Set while the store may still admit the check, although the request goes on without its answer.
    late: Option<Arc<Late>>,
}

#[derive(Clone, Debug)]
struct UsageCore {
    check: Check,
    decided_at_ms: u64,
    rules: RuleUsages,
    facts: Facts,
    rights: Rights,
}

/// The facts about an answer that are known when it is made, beside its figures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) origin: Origin,
    /// When the slots were asked for, by the clock of their holder; `None` if no limiter asked.
    pub(crate) asked_at_ms: Option<NonZeroU64>,
    /// Whether the store did not look up all blocks, because it decided only a part of the check.
    pub(crate) has_unseen_blocks: bool,
    /// Whether other charges were alternatives to these.
    pub(crate) has_alternatives: bool,
}

/// How a decision was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    #[default]
    Store,
    /// This process's memory.
    Local,
    /// A repeated denial.
    Cached,
    /// Only leased units were spent.
    Leased,
    /// The store, when the caller had gone on without the answer.
    Late,
}

/// The rights that an admission gives once, also to clones: bits.
#[derive(Debug)]
struct Rights(AtomicU8);

const SETTLEMENT: u8 = 1;
const SLOTS: u8 = 2;

impl Rights {
    fn take(&self, right: u8) -> bool {
        self.0.fetch_and(!right, Relaxed) & right != 0
    }
}

/// A copy with other facts has the rights.
impl Clone for Rights {
    fn clone(&self) -> Self {
        Self(AtomicU8::new(self.0.swap(0, Relaxed)))
    }
}

/// The usage under each rule. Three rules are stored inline, without another allocation; more would be slow to move.
type RuleUsages = SmallVec<[RuleUsage; 3]>;

impl Usage {
    /// Computes the usage from the counts, one for each rule of each charge. For stores that answer a settlement.
    ///
    /// # Errors
    ///
    /// [`Protocol`](crate::error::StoreErrorKind::Protocol) when the counts do not match this check.
    pub fn settled(check: &Check, now_ms: u64, counts: &[Count]) -> Result<Self, StoreError> {
        let mut usage = Self::new(check, true, now_ms, counts)?;
        usage.edit().rights = Rights(AtomicU8::new(0));
        Ok(usage)
    }

    pub(super) fn new(
        check: &Check,
        admitted: bool,
        now_ms: u64,
        counts: &[Count],
    ) -> Result<Self, StoreError> {
        let other_rules = || StoreError::protocol("the store returned counts for different rules");
        // The rules are put into their place at once, since they are slow to move.
        let mut usage = Self::of(check, now_ms, RuleUsages::new(), admitted);
        let usages = &mut usage.edit().rules;
        usages.reserve(counts.len());
        let mut counts = counts.iter();
        for charge in check.charges() {
            for rule in charge.policy().rules() {
                let count = *counts.next().ok_or_else(other_rules)?;
                let denied_ms = if admitted {
                    None
                } else {
                    denial_ms(rule, charge.cost(), now_ms, count)
                };
                usages.push(RuleUsage::new(*rule, now_ms, count, denied_ms));
            }
        }
        // Too many counts: they would be read under the wrong rules.
        if counts.next().is_some() {
            return Err(other_rules());
        }
        Ok(usage)
    }

    /// Creates the usage of a check under these rules; only that of an admission can be settled.
    pub(crate) fn of(
        check: &Check,
        decided_at_ms: u64,
        rules: impl Into<RuleUsages>,
        is_admitted: bool,
    ) -> Self {
        let rights = if is_admitted { SETTLEMENT | SLOTS } else { 0 };
        Self {
            inner: Arc::new(UsageCore {
                check: check.clone(),
                decided_at_ms,
                rules: rules.into(),
                facts: Facts::default(),
                rights: Rights(AtomicU8::new(rights)),
            }),
            beside: None,
        }
    }

    /// To change a usage that nothing else has yet: clones keep the old facts.
    #[inline]
    fn edit(&mut self) -> &mut UsageCore {
        Arc::make_mut(&mut self.inner)
    }

    pub(crate) fn facts(&self) -> Facts {
        self.inner.facts
    }

    /// Says more about the answer, before anything else has it.
    pub(crate) fn note(&mut self, note: impl Fn(&mut Facts)) {
        note(&mut self.edit().facts);
    }

    /// Says how the answer was made, also that about the shadows.
    pub(super) fn note_origin(&mut self, origin: Origin) {
        self.note(|facts| facts.origin = origin);
        let beside = self.beside.as_mut().map(Arc::make_mut);
        if let Some(shadow) = beside.and_then(|it| it.shadow.as_mut()) {
            shadow.usage_mut().note(|facts| facts.origin = origin);
        }
    }

    /// Creates the usage of a check as if nothing had been charged; it cannot be settled.
    pub(crate) fn unused(check: &Check) -> Self {
        let rules = check.rules();
        let usages = rules.map(|(rule, _)| RuleUsage::new(*rule, 0, Count::default(), None));
        Self::of(check, 0, usages.collect::<RuleUsages>(), false)
    }

    /// Returns the usage of the charges at these indexes; it cannot be settled separately.
    #[cfg(feature = "cluster")]
    pub(crate) fn pick(&self, charges: &[usize]) -> Self {
        let policies: Vec<PolicyUsage<'_>> = self.policies().collect();
        let rules = charges.iter().flat_map(|index| policies[*index].rules);
        let rules: RuleUsages = rules.copied().collect();
        Self::of(
            &self.check().pick(charges),
            self.decided_at_ms(),
            rules,
            false,
        )
    }

    /// Returns the usage under each policy, in the order of the charges.
    ///
    /// A policy is listed once for each key that was checked.
    pub fn policies(&self) -> impl Iterator<Item = PolicyUsage<'_>> + Clone {
        let mut rest = &self.inner.rules[..];
        self.inner.check.ruled().iter().map(move |charge| {
            let (rules, others) = rest.split_at(charge.policy().rules().len());
            rest = others;
            PolicyUsage {
                policy: charge.policy(),
                rules,
            }
        })
    }

    /// Returns the charges that do not fit, of a denial.
    pub(crate) fn denying(&self) -> impl Iterator<Item = &Charge> {
        let charges = self.inner.check.ruled().iter().zip(self.policies());
        let denying = charges.filter(|(_, of_policy)| {
            let mut rules = of_policy.rules().iter();
            rules.any(RuleUsage::is_exceeded)
        });
        denying.map(|(charge, _)| charge)
    }

    /// Returns the usage under each rule, in the order of [`policies`](Self::policies).
    pub fn rules(&self) -> impl Iterator<Item = &RuleUsage> {
        self.inner.rules.iter()
    }

    /// Returns the decision about the [shadows](Policy::shadow), which are not among [`policies`](Self::policies).
    ///
    /// `None` when there are no shadows, when they could not be decided, and in a denial, which decides no shadow.
    #[must_use]
    pub fn shadow(&self) -> Option<&Decision> {
        self.beside.as_ref()?.shadow.as_ref()
    }

    /// Returns this usage, and that of the shadows if they were admitted: the parts of a check that are settled.
    pub(crate) fn admitted_parts(&self) -> impl Iterator<Item = &Self> {
        let shadow = match self.shadow() {
            Some(Decision::Allowed(shadow)) => Some(shadow),
            _ => None,
        };
        [Some(self), shadow].into_iter().flatten()
    }

    fn late_answer(&self) -> Option<&Arc<Late>> {
        self.beside.as_ref()?.late.as_ref()
    }

    /// Returns the store's clock at the decision, in ms since the Unix epoch.
    ///
    /// If the keys are on several nodes of a cluster, this is the time of the node that was called first.
    #[must_use]
    pub fn decided_at_ms(&self) -> u64 {
        self.inner.decided_at_ms
    }

    /// Returns whether the memory of this process decided, since the store could not. The rules are then this process's
    /// share of the rules that you checked: see [`limiter`](crate::limiter#when-the-store-cannot-decide).
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.is(Origin::Local)
    }

    /// Returns whether a [deny cache](crate::Limiter::cache_denials) repeated a denial, without another call of the store.
    ///
    /// Times are shorter by the age of the store's answer; the [remaining](RuleUsage::remaining) units are those of
    /// that answer, or the limit if all units have been released since.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.is(Origin::Cached)
    }

    fn is(&self, origin: Origin) -> bool {
        self.inner.facts.origin == origin
    }

    /// Returns whether the store was not called, so that the answer says nothing about the store's health: a denial was
    /// repeated, or leased units were spent.
    pub(crate) fn spares_call(&self) -> bool {
        self.is_cached() || self.is(Origin::Leased)
    }

    /// Returns the usage under the rule at this index.
    pub(super) fn rule(&self, place: usize) -> &RuleUsage {
        &self.inner.rules[place]
    }

    /// Returns this usage, with that of the shadows, as made so.
    pub(crate) fn made_by(mut self, origin: Origin) -> Self {
        self.note_origin(origin);
        self
    }

    fn beside(&mut self) -> &mut Beside {
        Arc::make_mut(self.beside.get_or_insert_default())
    }

    /// Notes that the store may still admit the check. The final costs of this usage are then those of that answer.
    pub(crate) fn with_late(mut self, late: Late) -> Self {
        self.beside().late = Some(Arc::new(late));
        self
    }

    /// Notes that the request is served without the answer.
    pub(crate) fn serve_late(&self) {
        if let Some(late) = self.late_answer() {
            late.serve();
        }
    }

    /// Gives the late answer these final costs, unless none is known.
    pub(crate) fn end_late(&self, cost: impl Fn(&Charge) -> Option<u64>) {
        let Some(late) = self.late_answer() else {
            return;
        };
        let (ruled, shadows) = (self.check().ruled(), self.check().shadow_charges());
        let charges = ruled.iter().chain(shadows);
        let costs: Vec<_> = charges.map(|charge| (charge, cost(charge))).collect();
        if costs.iter().any(|(_, cost)| cost.is_some()) {
            let costs = costs.iter();
            let costs = costs.map(|(charge, cost)| cost.unwrap_or_else(|| charge.cost()));
            late.end(LateCost::Of(costs.collect()));
        }
    }

    pub(crate) fn with_shadow(mut self, decision: Decision) -> Self {
        self.beside().shadow = Some(decision);
        self
    }

    /// Returns the check. For stores.
    #[must_use]
    pub fn check(&self) -> &Check {
        &self.inner.check
    }

    /// Returns whether both came from the same decision, and are not just equal.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns a copy with other figures, so much later and about `check`, whose charges have the same rules; it cannot be
    /// settled.
    pub(super) fn copy(
        &self,
        check: &Check,
        later_ms: u64,
        rule: impl Fn(RuleUsage) -> RuleUsage,
    ) -> Self {
        let rules: RuleUsages = self.rules().map(|it| rule(*it)).collect();
        let decided_at_ms = self.decided_at_ms().saturating_add(later_ms);
        let mut copy = Self::of(check, decided_at_ms, rules, false);
        copy.edit().facts = self.facts();
        copy.beside.clone_from(&self.beside);
        copy
    }

    /// Makes this one of a denial that is repeated.
    pub(super) fn repeat(&mut self) {
        if !self.is_local() {
            self.note(|facts| facts.origin = Origin::Cached);
        }
        self.beside = None;
    }

    /// Returns `true` once for an admission, and `false` afterwards, also for clones.
    pub(crate) fn take_settlement(&self) -> bool {
        self.inner.rights.take(SETTLEMENT)
    }

    /// Allows a settlement again: the one that took the right was not sent.
    pub(crate) fn return_settlement(&self) {
        self.inner.rights.0.fetch_or(SETTLEMENT, Relaxed);
    }

    /// Returns `true` once for an admission, and `false` afterwards, also for clones.
    pub(crate) fn take_slots(&self) -> bool {
        self.inner.rights.take(SLOTS)
    }
}

/// The usage under one policy for one key.
#[derive(Clone, Copy, Debug)]
pub struct PolicyUsage<'a> {
    policy: &'a Policy,
    rules: &'a [RuleUsage],
}

impl<'a> PolicyUsage<'a> {
    /// Returns the policy.
    #[must_use]
    pub const fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// Returns the usage under each rule, in the policy's order.
    #[must_use]
    pub const fn rules(&self) -> &'a [RuleUsage] {
        self.rules
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::key::Key;

    #[test]
    fn a_decision_whose_times_are_moved_keeps_how_it_was_made() {
        let policy = Policy::parse("api", "1/1m").unwrap();
        let check = Check::new([Charge::new(&policy, Key::new("user", "alice"), 1)]).unwrap();
        let full = Count {
            used: 1,
            newest_end_ms: 1_000,
            fits_at_ms: 61_000,
        };
        let mut denied = Decision::new(&check, false, 0, &[full]).unwrap();
        let moved = |usage: &Decision| {
            let by = Duration::from_secs(1);
            [usage.later(by), usage.aged(&check, by)]
        };
        assert!(moved(&denied).iter().all(|it| it.usage().is(Origin::Store)));
        denied.usage_mut().note_origin(Origin::Leased);
        let is_leased = |it: &Decision| it.usage().is(Origin::Leased);
        assert!(moved(&denied).iter().all(is_leased));
        let repeated = denied.repeated(&check, 5);
        for usage in moved(&repeated).iter().map(Decision::usage) {
            assert!(usage.is_cached() && usage.spares_call() && !usage.is_local());
        }
        for local in moved(&denied.local().repeated(&check, 5)) {
            assert!(local.usage().is_local());
        }
    }
}
