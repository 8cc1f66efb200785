//! The subject of a cached refusal: a check.

use std::hash::{BuildHasher, Hash, Hasher};

use crate::domain::{charge::Charge, check::Check};

/// Larger checks are not cached, so that memory is bounded.
const MAX_CHARGES: usize = 16;
const MAX_RULES: usize = 32;
const MAX_KEY_BYTES: usize = 1_024;

/// Whether two checks ask for the same: equal charges with equal costs, and both enforce blocks or neither does.
/// Policies are compared with all their rules, so a changed limit makes another subject.
pub(super) fn are_same(one: &Check, other: &Check) -> bool {
    let mut pairs = one.charges().iter().zip(other.charges());
    one.enforces_blocks() == other.enforces_blocks()
        && one.charges().len() == other.charges().len()
        && pairs.all(|(one, other)| are_alike(one, other))
}

/// Contributors are not compared, because they change no decision.
fn are_alike(one: &Charge, other: &Charge) -> bool {
    one.cost() == other.cost() && one.policy().is_same(other.policy()) && one.key() == other.key()
}

/// Whether a refusal of this check may be cached.
///
/// A check without cost asks for the usage, which only the store knows. A check with nothing but shadows is never
/// refused.
pub(super) fn may_be_remembered(check: &Check) -> bool {
    let all = check.all_charges();
    let key_bytes: usize = all.iter().map(|charge| charge.key().value().len()).sum();
    check.charges().iter().any(|charge| charge.cost() > 0)
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
