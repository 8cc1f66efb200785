//! [`Charge`], [`Check`] and [`Settlement`]: what is asked of a store.
//!
//! ```
//! use sluicegate::{Charge, Check, Key, Policy};
//!
//! let uploads = Policy::parse("uploads", "100/1h")?;
//! let alice = || Key::new("user", "alice");
//!
//! // Charges of one check with the same policy and key are added up first.
//! let check = Check::new([Charge::new(&uploads, alice(), 2), Charge::new(&uploads, alice(), 3)])?;
//! assert_eq!(check.charges(), [Charge::new(&uploads, alice(), 5)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::Arc;

use crate::{
    decision::Usage,
    error::{StoreError, StoreErrorKind},
    key::Key,
    policy::Policy,
    rule::MAX_UNITS,
};

/// More than anybody needs in one request; what a check costs grows with them.
const MAX_CHARGES: usize = 64;

/// One policy, one key, one cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    policy: Policy,
    key: Key,
    cost: u64,
}

impl Charge {
    /// Creates a charge of `cost` units to `key` under every rule of `policy`.
    ///
    /// A cost of 0 looks without charging. A cost above 2^53 − 1 fits no limit and counts as 2^53.
    #[must_use]
    pub fn new(policy: &Policy, key: Key, cost: u64) -> Self {
        Self {
            policy: policy.clone(),
            key,
            cost: cost.min(MAX_UNITS + 1),
        }
    }

    /// The policy whose rules apply.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Who is charged.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// The units charged, at most 2^53.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// The sum of two charges of one policy's name and one key.
    fn plus(&self, other: &Self) -> Result<Self, StoreError> {
        if self.policy.is_same(&other.policy) {
            Ok(self.with_cost(self.cost + other.cost))
        } else {
            Err(misuse(
                "a check names two policies with one name and different rules",
            ))
        }
    }

    fn with_cost(&self, cost: u64) -> Self {
        Self::new(&self.policy, self.key.clone(), cost)
    }
}

/// One or more charges that are decided together, all or nothing; cheap to clone.
#[derive(Clone, Debug)]
pub struct Check {
    charges: Arc<[Charge]>,
}

impl Check {
    /// Creates a check, adding up charges with the same policy and key.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::InvalidRequest`] when two different policies of one name charge the same key, since they would share
    /// their counts, or when more than 64 charges are left; [shadows](Policy::shadow) count apart.
    pub fn new(charges: impl IntoIterator<Item = Charge>) -> Result<Self, StoreError> {
        let mut sum = Charges::default();
        for charge in charges {
            sum.add(charge)?;
        }
        Ok(sum.take())
    }

    /// The charges, in order of first appearance.
    #[must_use]
    pub fn charges(&self) -> &[Charge] {
        &self.charges
    }

    /// The same charges under other policies.
    pub(crate) fn under(&self, policy: impl Fn(&Policy) -> Policy) -> Self {
        let charges = self.charges.iter();
        Self {
            charges: charges
                .map(|it| Charge::new(&policy(&it.policy), it.key.clone(), it.cost))
                .collect(),
        }
    }

    pub(crate) fn has_shadows(&self) -> bool {
        self.charges.iter().any(|it| it.policy.is_shadow())
    }

    /// The charges of shadows, or all others.
    pub(crate) fn only(&self, shadow: bool) -> Self {
        let charges = self.charges.iter();
        Self {
            charges: charges
                .filter(|it| it.policy.is_shadow() == shadow)
                .cloned()
                .collect(),
        }
    }

    /// The charges at these places.
    #[cfg(feature = "cluster")]
    pub(crate) fn pick(&self, charges: &[usize]) -> Self {
        let picked = charges.iter().map(|index| self.charges[*index].clone());
        Self {
            charges: picked.collect(),
        }
    }

    /// The same policies and keys at no cost.
    #[must_use]
    pub fn without_cost(&self) -> Self {
        Self {
            charges: self
                .charges
                .iter()
                .map(|charge| charge.with_cost(0))
                .collect(),
        }
    }
}

/// The charges of a check as they come together, those with the same policy and key added up.
///
/// The first stands apart, since most requests have one: a check of it costs no allocation but its own.
#[derive(Debug, Default)]
pub(crate) struct Charges {
    first: Option<Charge>,
    others: Vec<Charge>,
    /// Whether all of them are shadows, whatever their policies say.
    shadows: bool,
}

impl Charges {
    /// With room for one charge of each limit.
    pub(crate) fn new(limits: usize, shadows: bool) -> Self {
        Self {
            first: None,
            others: Vec::with_capacity(limits.saturating_sub(1)),
            shadows,
        }
    }

    /// Fails as [`Check::new`] does.
    pub(crate) fn add(&mut self, mut charge: Charge) -> Result<(), StoreError> {
        if self.shadows {
            charge.policy = charge.policy.shadow();
        }
        if self.first.is_none() {
            self.first = Some(charge);
            return Ok(());
        }
        let full = self.is_full(charge.policy.is_shadow());
        let twin = self
            .first
            .iter_mut()
            .chain(&mut self.others)
            .find(|twin| twin.policy.name() == charge.policy.name() && twin.key == charge.key);
        match twin {
            Some(twin) => *twin = twin.plus(&charge)?,
            None if full => return Err(misuse("a check has more than 64 charges")),
            None => self.others.push(charge),
        }
        Ok(())
    }

    /// Shadows leave as much room to others as if they were not there.
    fn is_full(&self, shadow: bool) -> bool {
        let charges = self.first.iter().chain(&self.others);
        self.others.len() + 1 >= MAX_CHARGES
            && charges.filter(|it| it.policy.is_shadow() == shadow).count() >= MAX_CHARGES
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Takes the charges that are not shadows.
    pub(crate) fn take_counting(&mut self) -> Check {
        let charges = self.first.take().into_iter().chain(self.others.drain(..));
        let (shadows, counting): (Vec<_>, Vec<_>) = charges.partition(|it| it.policy.is_shadow());
        let mut shadows = shadows.into_iter();
        self.first = shadows.next();
        self.others = shadows.collect();
        Check {
            charges: counting.into(),
        }
    }

    /// Takes all charges.
    pub(crate) fn take(&mut self) -> Check {
        let charges: Arc<[Charge]> = match self.first.take() {
            Some(charge) if self.others.is_empty() => Arc::new([charge]),
            first => first.into_iter().chain(self.others.drain(..)).collect(),
        };
        Check { charges }
    }
}

/// The final cost of each charge of an admitted check.
#[derive(Clone, Debug)]
pub struct Settlement {
    usage: Usage,
    costs: Box<[u64]>,
}

impl Settlement {
    /// Creates the settlement of the check that `usage` came from: one final cost for each of its charges, in the order
    /// of [`Usage::policies`]. A cost above 2^53 − 1 counts as 2^53 − 1.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::InvalidRequest`] when the number of costs is wrong, or when the check was refused or has been settled:
    /// a second settlement would count its difference twice.
    pub fn new(usage: &Usage, costs: impl IntoIterator<Item = u64>) -> Result<Self, StoreError> {
        let costs: Box<[u64]> = costs
            .into_iter()
            .take(MAX_CHARGES + 1)
            .map(|cost| cost.min(MAX_UNITS))
            .collect();
        if costs.len() != usage.check().charges().len() {
            return Err(misuse(
                "a settlement must name one cost for each charge of its check",
            ));
        }
        if !usage.take_settlement() {
            return Err(misuse(
                "a check can be settled once, and only if it was admitted",
            ));
        }
        Ok(Self {
            usage: usage.clone(),
            costs,
        })
    }

    /// What was charged, and into which steps.
    #[must_use]
    pub const fn usage(&self) -> &Usage {
        &self.usage
    }

    /// The check that is settled.
    #[must_use]
    pub fn check(&self) -> &Check {
        self.usage.check()
    }

    /// The settlement of the charges at these places.
    #[cfg(feature = "cluster")]
    pub(crate) fn pick(&self, charges: &[usize]) -> Self {
        Self {
            usage: self.usage.pick(charges),
            costs: charges.iter().map(|index| self.costs[*index]).collect(),
        }
    }

    /// The final cost of each charge.
    #[must_use]
    pub const fn costs(&self) -> &[u64] {
        &self.costs
    }
}

fn misuse(message: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::InvalidRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(rules: &str) -> Policy {
        Policy::parse("p", rules).unwrap()
    }

    #[test]
    fn huge_costs_add_up_without_overflow() {
        let charge = Charge::new(&policy("1/1s"), Key::new("user", "a"), u64::MAX);
        let check = Check::new([charge.clone(), charge]).unwrap();
        assert_eq!(check.charges()[0].cost(), MAX_UNITS + 1);
    }

    #[test]
    fn two_policies_of_one_name_cannot_charge_one_key() {
        let charge = |rules, key| Charge::new(&policy(rules), Key::new("user", key), 1);
        assert_eq!(
            Check::new([charge("1/1s", "a"), charge("2/1s", "a")])
                .unwrap_err()
                .kind(),
            StoreErrorKind::InvalidRequest
        );
        assert_eq!(
            Check::new([charge("1/1s", "a"), charge("2/1s", "b")])
                .unwrap()
                .charges()
                .len(),
            2
        );
        assert_eq!(
            Check::new([charge("1/1s", "a"), charge("1/1s", "a")])
                .unwrap()
                .charges()
                .len(),
            1
        );
    }

    #[test]
    fn the_number_of_charges_is_bounded() {
        let charges = |n: u32| {
            (0..n).map(|i| Charge::new(&policy("1/1s"), Key::new("user", i.to_string()), 1))
        };
        assert!(Check::new(charges(64)).is_ok());
        assert_eq!(
            Check::new(charges(65)).unwrap_err().kind(),
            StoreErrorKind::InvalidRequest
        );
    }
}
