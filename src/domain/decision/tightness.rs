//! [`Tightness`]: the order of rules by how little they leave to a client.

use std::cmp::{Ordering, Reverse};

use super::RuleUsage;

/// The greatest is the tightest: the denying rule with the longest wait, or else the one with the smallest share left.
///
/// The first part is how long the rule denies, in ms.
pub(crate) type Tightness = (Option<u64>, Reverse<Share>);

/// The share of a limit that is left, compared without a division. A limit of 0 leaves nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) left: u64,
    pub(crate) limit: u64,
}

impl RuleUsage {
    pub(crate) const fn share(&self) -> Share {
        Share {
            left: self.remaining(),
            limit: self.rule().limit(),
        }
    }

    pub(crate) const fn tightness(&self) -> Tightness {
        (self.denied_ms(), Reverse(self.share()))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> Ordering {
        let of = |one: &Self, limit: u64| u128::from(one.left) * u128::from(limit.max(1));
        of(self, other.limit).cmp(&of(other, self.limit))
    }
}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Share {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Share {}

#[cfg(test)]
mod tests {
    use crate::domain::{
        charge::Charge,
        check::Check,
        decision::{Count, Decision},
        key::Key,
        policy::Policy,
    };

    #[test]
    fn the_tightest_rule_denies_longest_or_else_leaves_the_smallest_share() {
        let policy = Policy::parse("api", "1/1s,2/1m,10/1h,0/1d").unwrap();
        let count = |used, fits_at_ms| Count {
            used,
            newest_end_ms: 2_000,
            fits_at_ms,
        };
        let usage = |admitted, cost, counts: &[Count]| {
            let check =
                Check::new([Charge::new(&policy, Key::new("user", "alice"), cost)]).unwrap();
            let decision = Decision::new(&check, admitted, 1_000, counts).unwrap();
            let rules: Vec<_> = decision.usage().rules().copied().collect();
            let mut order: Vec<usize> = (0..rules.len()).collect();
            order.sort_by_key(|place| rules[*place].tightness());
            order
        };
        // A cost of 1 never fits the last rule; the first two wait, the second one longer.
        let counts = [count(1, 2_000), count(2, 60_000), count(9, 0), count(0, 0)];
        assert_eq!(usage(false, 1, &counts), [2, 0, 1, 3]);
        // Nothing of one, a half, a tenth, and nothing of nothing.
        let counts = [count(0, 0), count(1, 0), count(9, 0), count(0, 0)];
        assert_eq!(usage(true, 0, &counts), [0, 1, 2, 3]);
    }
}
