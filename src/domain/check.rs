//! [`Check`]: charges that are decided together.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::domain::{
    charge::Charge,
    error::StoreError,
    key::Key,
    policy::Policy,
    rule::Rule,
    slot_id::MOST_SLOTS,
    wanted::{BAN, CONTRIBUTORS, UNSEEN},
};

/// More than one request needs. The limit exists because a check takes longer with each charge.
pub(crate) const MAX_CHARGES: usize = 64;

/// One or more charges that are decided together, all or nothing; cheap to clone.
///
/// Charges with the same policy and key are added up; the [label](Charge::with_contributor) of the first is kept.
///
/// Charges under a [shadow](Policy::shadow) are separate from those that count: the store decides them afterwards, only
/// if the check is allowed, and all or nothing among themselves.
///
/// ```
/// use sluicegate::{Charge, Key, Policy, store::Check};
///
/// let uploads = Policy::parse("uploads", "100/1h")?;
/// let trial = Policy::parse("trial", "10/1h")?.shadow();
/// let alice = |policy, cost| Charge::new(policy, Key::new("user", "alice"), cost);
///
/// // Charges with the same policy and key are added up.
/// let check = Check::new([alice(&uploads, 2), alice(&trial, 1), alice(&uploads, 3)])?;
/// assert_eq!(check.charges(), [alice(&uploads, 5)]);
/// assert_eq!(check.shadow_charges(), [alice(&trial, 1)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Check {
    inner: Arc<CheckCore>,
}

#[derive(Clone, Debug, Default)]
struct CheckCore {
    /// The charges that count, then looks for blocks, then the charges of shadows. Most checks have one, which needs no
    /// other allocation.
    all: SmallVec<[Charge; 1]>,
    /// How many charges count and have rules.
    ruled: usize,
    /// How many charges are those of shadows.
    shadows: usize,
    enforces_blocks: bool,
    /// The bits of [`wanted`](crate::domain::wanted) that the charges set.
    wanted: u8,
    /// The number of the limiter that saw the policies of all charges last; 0 if that is not one.
    seen_by: u64,
}

impl Check {
    /// Creates a check, adding up charges with the same policy and key.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when two different policies of one name charge
    /// the same key, since they would share their counts, or when there are more than 64 charges that count, or more
    /// than 64 of shadows, or when a charge within its limit takes more than 256 slots.
    pub fn new(charges: impl IntoIterator<Item = Charge>) -> Result<Self, StoreError> {
        CheckBuilder::default().with(charges)
    }

    /// Returns the charges that count, in order of first appearance.
    ///
    /// At the end, an identity that is only looked up for blocks has a charge of 0 under a policy without rules.
    #[must_use]
    pub fn charges(&self) -> &[Charge] {
        self.inner.counting()
    }

    /// Returns the charges that count, without the looks for blocks.
    pub(crate) fn ruled(&self) -> &[Charge] {
        &self.inner.all[..self.inner.ruled]
    }

    /// Returns whether no charge counts and no identity is looked up.
    pub(crate) fn is_of_shadows(&self) -> bool {
        self.charges().is_empty()
    }

    /// Returns the charges of shadows, in order of first appearance.
    #[must_use]
    pub fn shadow_charges(&self) -> &[Charge] {
        &self.inner.all[self.charges().len()..]
    }

    /// Returns the charges that count, then those of shadows.
    pub(crate) fn all_charges(&self) -> &[Charge] {
        &self.inner.all
    }

    /// Returns a separate check in which the charges of shadows count; `None` when there are none.
    #[must_use]
    pub fn shadow_check(&self) -> Option<Self> {
        let shadows = self.shadow_charges();
        (!shadows.is_empty()).then(|| Self::counting(shadows.iter().cloned()))
    }

    /// Returns whether a [block](crate::block) of one of the keys denies the check, before the store charges anything.
    #[must_use]
    pub fn enforces_blocks(&self) -> bool {
        self.inner.enforces_blocks
    }

    /// Sets whether a [block](crate::block) of one of the keys denies the check. By default, blocks deny only a check
    /// under a policy with a [ban](Policy::ban); a [`Limiter`](crate::Limiter) sets this for all of its checks.
    #[must_use]
    pub fn enforce_blocks(mut self, enforce: bool) -> Self {
        if self.enforces_blocks() != enforce {
            Arc::make_mut(&mut self.inner).enforces_blocks = enforce;
        }
        self
    }

    /// Returns the keys of the charges that count, each once.
    pub fn keys(&self) -> impl Iterator<Item = &Key> + Clone {
        let charges = self.charges();
        let keys = charges.iter().map(Charge::key).enumerate();
        keys.filter(|(place, key)| charges[..*place].iter().all(|it| it.key() != *key))
            .map(|(_, key)| key)
    }

    /// Returns a check with the same policies and keys at no cost, which no block denies.
    #[doc(hidden)] // Of `Limiter::peek`.
    #[must_use]
    pub fn without_cost(&self) -> Self {
        let all = self.ruled().iter().chain(self.shadow_charges());
        Self::of(all.map(|charge| charge.with_cost(0)), self.inner.ruled)
    }

    /// Returns a check with the same keys and costs under other policies.
    pub(crate) fn with_policies(&self, policy: impl Fn(&Policy) -> Policy) -> Self {
        let all = self.all_charges().iter();
        let all = all.map(|charge| charge.with_policy(&policy(charge.policy())));
        Self::of(all, self.charges().len()).enforce_blocks(self.enforces_blocks())
    }

    /// Returns the same check, which takes other slots.
    pub(crate) fn with_new_slots(mut self) -> Self {
        let all = &mut Arc::make_mut(&mut self.inner).all;
        all.iter_mut().for_each(Charge::choose_slots);
        self
    }

    /// Returns a check with the charges that count, without the shadows.
    #[cfg(feature = "redis")]
    pub(crate) fn without_shadows(&self) -> Self {
        if self.shadow_charges().is_empty() {
            self.clone()
        } else {
            self.part(self.charges().iter().cloned())
        }
    }

    /// Returns a check of the charges that count and have rules.
    pub(crate) fn ruled_alone(&self) -> Self {
        match self.inner.ruled == self.inner.all.len() {
            true => self.clone(),
            false => Self::counting(self.ruled().iter().cloned()),
        }
    }

    /// Returns whether both ask for the same decision, so that one batch can decide both.
    #[cfg(feature = "redis")]
    pub(crate) fn is_identical(&self, other: &Self) -> bool {
        let (one, other) = (&*self.inner, &*other.inner);
        one.enforces_blocks == other.enforces_blocks
            && one.shadows == other.shadows
            && one.all == other.all
    }

    /// Returns whether both checks change one of the stored counts.
    #[cfg(feature = "redis")]
    pub(crate) fn shares_counts(&self, other: &Self) -> bool {
        let mut all = self.all_charges().iter();
        all.any(|charge| other.all_charges().iter().any(|it| it.is_twin_of(charge)))
    }

    /// Whether an admission takes slots of a concurrency policy, which may be a shadow.
    pub(crate) fn takes_slots(&self) -> bool {
        self.all_charges().iter().any(Charge::takes_slots)
    }

    /// Returns whether there is nothing to decide.
    pub(crate) fn is_empty(&self) -> bool {
        self.inner.all.is_empty()
    }

    /// Returns whether a charge names a [contributor](Charge::with_contributor).
    pub(crate) fn has_contributors(&self) -> bool {
        self.inner.wanted & CONTRIBUTORS != 0
    }

    /// Returns whether a policy [bans](Policy::bans), so that a denial may be a strike.
    pub(crate) fn bans(&self) -> bool {
        self.inner.wanted & BAN != 0
    }

    /// Returns the bits of the charges that say what is [wanted](crate::domain::wanted) of the decision, by the limiter of
    /// this number.
    pub(crate) fn wanted_by(&self, limiter: u64) -> u8 {
        let has_policies = || self.inner.ruled > 0 || !self.shadow_charges().is_empty();
        let is_seen = self.inner.seen_by == limiter || !has_policies();
        self.inner.wanted | if is_seen { 0 } else { UNSEEN }
    }

    /// Returns a check of the counting charges at these indexes, without shadows.
    #[cfg(feature = "cluster")]
    pub(crate) fn pick(&self, places: &[usize]) -> Self {
        self.part(places.iter().map(|place| self.charges()[*place].clone()))
    }

    /// Returns the rules of the charges that count, each with the cost.
    pub(crate) fn rules(&self) -> impl Iterator<Item = (&Rule, u64)> {
        self.charges().iter().flat_map(|charge| {
            let rules = charge.policy().rules().iter();
            rules.map(|rule| (rule, charge.cost()))
        })
    }

    /// Returns the number of rules of all charges that count.
    pub(crate) fn rule_count(&self) -> usize {
        let charges = self.charges().iter();
        charges.map(|charge| charge.policy().rules().len()).sum()
    }

    /// Returns a check of some charges, which all count; blocks are enforced as in this check.
    #[cfg(feature = "redis")]
    fn part(&self, charges: impl Iterator<Item = Charge>) -> Self {
        Self::counting(charges).enforce_blocks(self.enforces_blocks())
    }

    /// Returns a check of these charges, which all count, and are known to go together.
    pub(crate) fn counting(charges: impl IntoIterator<Item = Charge>) -> Self {
        Self::of(charges, usize::MAX)
    }

    /// Returns a check of charges in their order, the first of which count, which enforces no blocks.
    fn of(all: impl IntoIterator<Item = Charge>, counting: usize) -> Self {
        let mut inner = CheckCore::default();
        all.into_iter().for_each(|charge| inner.push(charge));
        let counting = counting.min(inner.all.len());
        inner.ruled = inner.all[..counting].partition_point(|charge| !charge.is_look());
        inner.shadows = inner.all.len() - counting;
        Self {
            inner: Arc::new(inner),
        }
    }
}

/// A check that is being built, where it stays.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckBuilder {
    /// With charges in the order in which they were added. `None` while there is nothing to decide.
    check: Option<Arc<CheckCore>>,
    enforces_blocks: bool,
}

impl CheckBuilder {
    /// Creates a builder of a check that blocks deny, or else only if a policy bans or an identity is looked up.
    pub(crate) fn enforcing(enforces_blocks: bool) -> Self {
        Self {
            enforces_blocks,
            check: None,
        }
    }

    fn check(&mut self) -> &mut CheckCore {
        let enforces_blocks = self.enforces_blocks;
        let check = self.check.get_or_insert_with(|| {
            Arc::new(CheckCore {
                enforces_blocks,
                ..CheckCore::default()
            })
        });
        Arc::make_mut(check)
    }

    /// Returns the check with these charges. Fails as [`Check::new`] does.
    pub(crate) fn with(
        mut self,
        charges: impl IntoIterator<Item = Charge>,
    ) -> Result<Check, StoreError> {
        for charge in charges {
            self.add(charge)?;
        }
        Ok(self.build().unwrap_or_else(|| Check::counting([])))
    }

    /// Adds a charge. Fails as [`Check::new`] does.
    pub(crate) fn add(&mut self, charge: Charge) -> Result<(), StoreError> {
        let check = self.check();
        check.note(&charge);
        // A store counts a key under a policy once, so equal charges must be one charge.
        if let Some(twin) = check.all.iter_mut().find(|it| it.is_twin_of(&charge)) {
            if !twin.policy().is_same(charge.policy()) {
                return Err(StoreError::invalid_request(
                    "a check names two policies of one name that differ",
                ));
            }
            *twin = twin.with_cost(twin.cost() + charge.cost());
            return slots_are_few(twin);
        }
        let count = match charge.policy().is_shadow() {
            true => &mut check.shadows,
            false => &mut check.ruled,
        };
        if *count >= MAX_CHARGES {
            return Err(StoreError::invalid_request(
                "a check has more than 64 charges",
            ));
        }
        slots_are_few(&charge)?;
        *count += 1;
        check.enforces_blocks |= charge.policy().bans();
        check.all.push(charge);
        Ok(())
    }

    /// Adds an identity whose block denies the check: a charge of 0 under a policy without rules. Fails if there are more
    /// than 64.
    pub(crate) fn look_up(&mut self, key: Key) -> Result<(), StoreError> {
        let (check, look) = (self.check(), Charge::look(key));
        check.enforces_blocks = true;
        if check.all.iter().any(|it| it.is_twin_of(&look)) {
            return Ok(());
        }
        if check.counting().len() - check.ruled >= MAX_CHARGES {
            return Err(StoreError::invalid_request(
                "a check looks up blocks of more than 64 identities",
            ));
        }
        check.all.push(look);
        Ok(())
    }

    /// Returns all charges so far, those of shadows among them.
    pub(crate) fn charges(&self) -> &[Charge] {
        self.check.as_ref().map_or(&[], |check| &check.all)
    }

    /// Returns the check; `None` if there is nothing to decide.
    pub(crate) fn build(self) -> Option<Check> {
        let mut inner = self.check?;
        if inner.ruled < inner.all.len() {
            Arc::make_mut(&mut inner).put_in_order();
        }
        let check = Check { inner };
        Some(
            match check.all_charges().iter().any(Charge::chooses_slots) {
                true => check.with_new_slots(),
                false => check,
            },
        )
    }
}

impl CheckCore {
    /// Notes what is wanted of a charge that is about to be added.
    fn note(&mut self, charge: &Charge) {
        let (seen_by, is_first) = (charge.seen_by(), self.all.iter().all(Charge::is_look));
        self.seen_by = match is_first || self.seen_by == seen_by {
            true => seen_by,
            false => 0,
        };
        self.wanted |= charge.wanted();
    }

    fn push(&mut self, charge: Charge) {
        self.note(&charge);
        self.all.push(charge);
    }

    /// The charges that count, looks for blocks among them.
    fn counting(&self) -> &[Charge] {
        &self.all[..self.all.len() - self.shadows]
    }

    /// Puts looks behind the charges that count, and shadows behind both. The store looks up the blocks of an identity that
    /// is charged together with the charge.
    fn put_in_order(&mut self) {
        let place = |it: &Charge| (it.policy().is_shadow(), it.is_look());
        self.all.sort_by_key(place);
        let charged = self.all[..self.ruled].iter().map(|it| it.key().clone());
        let charged: SmallVec<[Key; 2]> = charged.collect();
        self.all
            .retain(|it| !it.is_look() || !charged.contains(it.key()));
    }
}

fn slots_are_few(charge: &Charge) -> Result<(), StoreError> {
    if charge.cost() > MOST_SLOTS as u64 && charge.chooses_slots() {
        return Err(StoreError::invalid_request(
            "a charge takes more than 256 slots",
        ));
    }
    Ok(())
}

/// Checks that differ in nothing but the ids of the slots that they take.
#[derive(Clone, Debug)]
pub struct CheckBatch {
    pub(crate) check: Check,
    pub(crate) count: u16,
    /// The checks behind the first, if they take slots.
    pub(crate) others: Vec<Check>,
}

impl CheckBatch {
    /// Creates a batch of `count` checks like this one, each with slots of its own. With 0 a store does nothing.
    #[must_use]
    #[doc(hidden)]
    pub fn new(check: Check, count: u16) -> Self {
        let others = match check.takes_slots() {
            true => (1..count).map(|_| check.clone().with_new_slots()).collect(),
            false => Vec::new(),
        };
        Self {
            check,
            count,
            others,
        }
    }

    /// Returns the first check.
    #[must_use]
    pub const fn check(&self) -> &Check {
        &self.check
    }

    /// Returns the number of checks.
    #[must_use]
    pub const fn count(&self) -> u16 {
        self.count
    }

    /// Returns the check at this index.
    #[must_use]
    #[doc(hidden)]
    pub fn nth(&self, place: u16) -> &Check {
        let other = usize::from(place).checked_sub(1);
        other
            .and_then(|other| self.others.get(other))
            .unwrap_or(&self.check)
    }

    /// Returns the shadows of the first `count` checks; `None` if there are none.
    pub(crate) fn shadows(&self, count: u16) -> Option<Self> {
        let others = self.others.iter().take(count.saturating_sub(1).into());
        Some(Self {
            check: self.check.shadow_check()?,
            count,
            others: others.filter_map(Check::shadow_check).collect(),
        })
    }
}

impl From<&Check> for CheckBatch {
    fn from(check: &Check) -> Self {
        Self::new(check.clone(), 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{error::StoreErrorKind, key::Key, rule::MAX_UNITS};

    fn policy(rules: &str) -> Policy {
        Policy::parse("p", rules).unwrap()
    }

    fn charge(policy: &Policy, key: &str) -> Charge {
        Charge::new(policy, Key::new("user", key), 1)
    }

    fn kind(charges: Vec<Charge>) -> StoreErrorKind {
        Check::new(charges).unwrap_err().kind()
    }

    #[test]
    fn huge_costs_add_up_without_overflow() {
        let charge = Charge::new(&policy("1/1s"), Key::new("user", "a"), u64::MAX);
        let check = Check::new([charge.clone(), charge]).unwrap();
        assert_eq!(check.charges()[0].cost(), MAX_UNITS + 1);
    }

    #[test]
    fn two_policies_of_one_name_cannot_charge_one_key() {
        let (one, two) = (policy("1/1s"), policy("2/1s"));
        let same_key = vec![charge(&one, "a"), charge(&two, "a")];
        assert_eq!(kind(same_key), StoreErrorKind::InvalidRequest);
        let shadow = vec![charge(&one, "a"), charge(&two.clone().shadow(), "a")];
        assert_eq!(kind(shadow), StoreErrorKind::InvalidRequest);
        let check = Check::new([charge(&one, "a"), charge(&two, "b")]).unwrap();
        assert_eq!(check.charges().len(), 2);
        let check = Check::new([charge(&one, "a"), charge(&one, "a")]).unwrap();
        assert_eq!(check.charges().len(), 1);
    }

    #[test]
    fn shadows_stand_behind_the_charges_that_count_in_order_of_appearance() {
        let (counting, shadow) = (policy("1/1s"), Policy::parse("s", "1/1s").unwrap().shadow());
        let charges = [
            charge(&shadow, "a"),
            charge(&counting, "b"),
            charge(&shadow, "c"),
            charge(&counting, "d"),
        ];
        let check = Check::new(charges).unwrap();
        assert_eq!(
            check.charges(),
            [charge(&counting, "b"), charge(&counting, "d")]
        );
        assert_eq!(
            check.shadow_charges(),
            [charge(&shadow, "a"), charge(&shadow, "c")]
        );
        let shadows = check.shadow_check().unwrap();
        assert_eq!(shadows.charges(), check.shadow_charges());
        assert!(shadows.shadow_check().is_none());
    }

    #[test]
    fn the_number_of_charges_is_bounded_and_shadows_count_apart() {
        let (counting, shadow) = (policy("1/1s"), Policy::parse("s", "1/1s").unwrap().shadow());
        let charges = |policy: &Policy, n: u32| -> Vec<Charge> {
            (0..n).map(|i| charge(policy, &i.to_string())).collect()
        };
        let both = [charges(&counting, 64), charges(&shadow, 64)].concat();
        assert!(Check::new(both).is_ok());
        for policy in [&counting, &shadow] {
            assert_eq!(kind(charges(policy, 65)), StoreErrorKind::InvalidRequest);
        }
    }
}
