//! [`Charge`]: one policy, one key, one cost. A check has one or more charges, and is admitted or denied as a whole.

use std::sync::Arc;

use crate::domain::{
    contributors::label,
    key::Key,
    marks::LOOKED_AT,
    policies::CurrentPolicy,
    policy::Policy,
    rule::MAX_UNITS,
    slot_id::{FirstSlot, SlotId},
    wanted::{BAN, CONTRIBUTORS},
};

/// One policy, one key, one cost.
///
/// ```
/// use sluicegate::{Charge, Key, Policy};
///
/// let uploads = Policy::parse("uploads", "100/1h")?;
/// let charge = Charge::new(&uploads, Key::new("user", "alice"), 3);
/// assert_eq!(charge.cost(), 3);
/// # Ok::<(), sluicegate::error::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Charge {
    policy: Policy,
    key: Key,
    cost: u64,
    label: Option<Arc<Key>>,
    /// The first id of the slots that a check with this charge takes; `None` if the charge takes none.
    slots: Option<FirstSlot>,
}

/// The ids of slots make no difference.
impl PartialEq for Charge {
    fn eq(&self, other: &Self) -> bool {
        self.cost == other.cost
            && self.policy == other.policy
            && self.key == other.key
            && self.label == other.label
    }
}

impl Eq for Charge {}

impl Charge {
    /// Creates a charge of `cost` units to `key` under every rule of `policy`: a [`Policy`], or a
    /// [`PolicyHandle`](crate::policies::PolicyHandle), which is read now.
    ///
    /// A cost of 0 reads the usage without charging. A cost above 2^53 − 1 fits no limit and counts as 2^53.
    #[must_use]
    pub fn new(policy: &(impl CurrentPolicy + ?Sized), key: Key, cost: u64) -> Self {
        Self::of(policy.current(), key, cost, None)
    }

    /// Creates a charge of 0 under a policy without rules: blocks of the key deny its check.
    pub(crate) fn look(key: Key) -> Self {
        Self::of(Policy::of_look_ups().clone(), key, 0, None)
    }

    /// Returns whether the charge only looks for blocks.
    pub(crate) fn is_look(&self) -> bool {
        self.policy.rules().is_empty()
    }

    /// Creates a charge with a label whose length is already bounded.
    pub(crate) fn of(policy: Policy, key: Key, cost: u64, label: Option<Arc<Key>>) -> Self {
        Self {
            policy,
            key,
            cost: cost.min(MAX_UNITS + 1),
            label,
            slots: None,
        }
    }

    /// Names the contributor, so that you can find out [which contributors used the limit](crate::contributors). The
    /// decision stays the same.
    ///
    /// If a value is longer than 48 bytes, the beginning and a hash are kept.
    #[must_use]
    pub fn with_contributor(mut self, contributor: Key) -> Self {
        self.label = Some(label::bounded(contributor));
        self
    }

    /// Returns the policy whose rules apply.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the key that is charged.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the units charged, at most 2^53.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns the contributor, with a value of at most 48 bytes.
    #[must_use]
    pub fn contributor(&self) -> Option<&Key> {
        self.label.as_deref()
    }

    /// Sets this label, if the charge has none.
    pub(crate) fn or_label(mut self, label: impl FnOnce() -> Option<Arc<Key>>) -> Self {
        self.label = self.label.or_else(label);
        self
    }

    pub(crate) const fn label(&self) -> Option<&Arc<Key>> {
        self.label.as_ref()
    }

    /// Returns the bits that say what is [wanted](crate::domain::wanted) of a decision about this charge.
    pub(crate) fn wanted(&self) -> u8 {
        let ban = if self.policy.bans() { BAN } else { 0 };
        let contributors = self.label.as_ref().map_or(0, |_| CONTRIBUTORS);
        ban | contributors
    }

    /// Returns the number of the limiter that saw the policy last, as far as this charge needs it.
    pub(crate) fn seen_by(&self) -> u64 {
        let seen_by = self.policy.seen_by();
        seen_by & if self.cost == 0 { !LOOKED_AT } else { u64::MAX }
    }

    pub(crate) fn with_cost(&self, cost: u64) -> Self {
        Self::of(
            self.policy.clone(),
            self.key.clone(),
            cost,
            self.label.clone(),
        )
    }

    pub(crate) fn with_policy(&self, policy: &Policy) -> Self {
        Self {
            policy: policy.clone(),
            ..self.clone()
        }
    }

    /// Whether the charge, which is one of a check, takes slots of a concurrency policy. Above the limit it never does.
    pub(crate) const fn takes_slots(&self) -> bool {
        self.slots.is_some()
    }

    /// Whether the charge, as one of a check, has to choose slots.
    pub(crate) fn chooses_slots(&self) -> bool {
        let mut rules = self.policy.rules().iter();
        self.cost > 0 && rules.any(|rule| rule.is_concurrency() && self.cost <= rule.limit())
    }

    /// Chooses new ids for the slots that it takes.
    pub(crate) fn choose_slots(&mut self) {
        let chooses = self.chooses_slots();
        self.slots = chooses.then(|| FirstSlot::next(self.cost));
    }

    /// Returns the ids of the slots that the charge takes when a check with it is admitted.
    pub fn slots(&self) -> impl Iterator<Item = SlotId> + Clone + use<> {
        let count = self.slots.map_or(0, |_| self.cost);
        let first = self.slots;
        (0..count).filter_map(move |place| first.map(|first| first.id(place)))
    }

    /// Returns whether both charge the same stored count: policies of one name, and the same key.
    pub(crate) fn is_twin_of(&self, other: &Self) -> bool {
        self.policy.name() == other.policy.name() && self.key == other.key
    }
}
