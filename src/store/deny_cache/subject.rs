//! [`Subject`]: what a remembered refusal is about.

use std::hash::{BuildHasher, Hash, Hasher};

use crate::{charge::Charge, check::Check, key::Key};

/// More is not remembered: what is remembered takes bounded room.
const MAX_CHARGES: usize = 16;
const MAX_RULES: usize = 32;
const MAX_KEY_BYTES: usize = 1_024;

/// Compared in full, policies with all their rules: a limit that was changed is another subject.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// The charges that count, their costs, and whether blocks are enforced.
    Check(Check),
    /// Every check with this charge, where it enforces blocks or where not.
    Charge(Charge, bool),
    /// Every check that enforces blocks and has this key.
    Identity(Key),
}

impl Subject {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match other {
            Self::Check(check) => self.is_check(check),
            Self::Charge(charge, enforces_blocks) => self.is_charge(charge, *enforces_blocks),
            Self::Identity(key) => self.is_identity(key),
        }
    }

    pub(super) fn is_check(&self, check: &Check) -> bool {
        let Self::Check(own) = self else { return false };
        let (own_charges, charges) = (own.charges(), check.charges());
        let mut pairs = own_charges.iter().zip(charges);
        own.enforces_blocks() == check.enforces_blocks()
            && own_charges.len() == charges.len()
            && pairs.all(|(own, other)| are_alike(own, other))
    }

    pub(super) fn is_charge(&self, charge: &Charge, enforces_blocks: bool) -> bool {
        matches!(self, Self::Charge(own, enforces) if are_alike(own, charge) && *enforces == enforces_blocks)
    }

    pub(super) fn is_identity(&self, key: &Key) -> bool {
        matches!(self, Self::Identity(own) if own == key)
    }
}

/// Whoever contributes: that changes no decision.
fn are_alike(one: &Charge, other: &Charge) -> bool {
    one.cost() == other.cost() && one.policy().is_same(other.policy()) && one.key() == other.key()
}

/// Whether a refusal of this check may be remembered.
///
/// A check at no cost is a look at what is left, and is answered by the store. Shadows alone are never refused.
pub(super) fn may_be_remembered(check: &Check) -> bool {
    let all = check.all_charges();
    let key_bytes: usize = all.iter().map(|it| it.key().value().len()).sum();
    check.charges().iter().any(|it| it.cost() > 0)
        && key_bytes <= MAX_KEY_BYTES
        && all.len() <= MAX_CHARGES
        && check.rule_count() <= MAX_RULES
}

pub(super) fn hash_of_check(hasher: &impl BuildHasher, check: &Check) -> u64 {
    let mut state = hasher.build_hasher();
    for charge in check.charges() {
        charge.policy().name().hash(&mut state);
        charge.key().hash(&mut state);
        charge.cost().hash(&mut state);
    }
    state.finish()
}

pub(super) fn hash_of_charge(hasher: &impl BuildHasher, charge: &Charge) -> u64 {
    hasher.hash_one((charge.policy().name(), charge.key(), charge.cost()))
}

pub(super) fn hash_of_identity(hasher: &impl BuildHasher, key: &Key) -> u64 {
    hasher.hash_one(key)
}
