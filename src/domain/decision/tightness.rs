//! [`Tightness`]: the order of rules by how little they leave to a client.

use std::cmp::Reverse;

use super::RuleUsage;

/// The greatest is the tightest: the denying rule with the longest wait, or else the one with the smallest share left.
///
/// The first part is how long the rule denies, in ms.
pub(crate) type Tightness = (Option<u64>, Reverse<Share>);

/// The share of a limit that is left: the bits of a number that is not below 0 have its order, and equal shares are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share(u64);

impl Share {
    /// A limit of 0 leaves nothing.
    #[allow(clippy::cast_precision_loss, reason = "limits are at most 2^53")]
    pub(crate) fn of(left: u64, limit: u64) -> Self {
        Self((left as f64 / limit.max(1) as f64).to_bits())
    }
}

impl RuleUsage {
    pub(crate) fn share(&self) -> Share {
        Share::of(self.remaining(), self.rule().limit())
    }

    pub(crate) fn tightness(&self) -> Tightness {
        (self.denied_ms(), Reverse(self.share()))
    }
}

#[cfg(test)]
mod tests {
    use super::Share;
    use crate::domain::{
        charge::Charge,
        check::Check,
        decision::{Count, Decision},
        key::Key,
        policy::Policy,
        rule::MAX_UNITS,
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

    #[test]
    fn equal_shares_of_large_limits_are_equal_and_others_are_in_order() {
        let third = Share::of(MAX_UNITS / 3, MAX_UNITS / 3 * 3);
        assert_eq!(third, Share::of(1, 3));
        assert!(Share::of(1, MAX_UNITS) < Share::of(2, MAX_UNITS));
        assert!(Share::of(MAX_UNITS - 1, MAX_UNITS) < Share::of(MAX_UNITS, MAX_UNITS));
        assert!(Share::of(0, 0) < Share::of(1, MAX_UNITS));
    }
}
