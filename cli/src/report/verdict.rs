//! [`Verdict`]: whether a request passes, and until when some rule denies.

use serde::Serialize;

use crate::block_report::BlockReport;

/// All times are in ms since the Unix epoch.
#[derive(Default, Serialize)]
pub(crate) struct Verdict {
    /// False if the answer is not known.
    pub(crate) passes: bool,
    /// False without limits, if the service publishes or counts other rules, or if no published policy enforces the
    /// block.
    pub(super) is_known: bool,
    /// The time when the request passes, if no other comes first; null if that is now or never, or when a slot is
    /// returned.
    pub(super) passes_ms: Option<u64>,
    /// The rule that denies for longest; null if the request passes. A rule without a free slot comes last: a request
    /// may end at any time.
    pub(super) denied_by: Option<DeniedBy>,
    /// The rules without a free slot.
    pub(super) no_slot: Vec<DeniedBy>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct DeniedBy {
    pub(super) policy: String,
    pub(super) rule: String,
}

/// The denial of a policy.
pub(super) struct Denial {
    /// The greatest number for a rule that never admits.
    pub(super) until_ms: u64,
    pub(super) is_of_slots: bool,
    pub(super) by: DeniedBy,
}

impl Verdict {
    /// The verdict of a block, which the services may not enforce, and of denials. `are_certain` says whether the limits
    /// are those of the service.
    pub(super) fn of(
        (block, is_enforced): (Option<&BlockReport>, bool),
        are_certain: bool,
        denials: impl IntoIterator<Item = Denial>,
    ) -> Self {
        let passes_ms = block.and_then(|block| block.until_ms);
        // A block without an end lasts longest, and a rule that never admits.
        let enforced = block.filter(|_| is_enforced);
        let mut longest = enforced.map_or(0, |it| it.until_ms.unwrap_or(u64::MAX));
        let mut verdict = Self {
            is_known: are_certain && (is_enforced || block.is_none()),
            passes_ms,
            ..Self::default()
        };
        let mut is_denied = false;
        for denial in denials {
            is_denied = true;
            if denial.is_of_slots && denial.until_ms < u64::MAX {
                verdict.no_slot.push(denial.by);
            } else if denial.until_ms > longest {
                longest = denial.until_ms;
                verdict.passes_ms = Some(longest).filter(|until| *until < u64::MAX);
                verdict.denied_by = Some(denial.by);
            }
        }
        // A limit denies even if other rules are unknown. So does an enforced block.
        verdict.is_known |= is_denied;
        verdict.passes = block.is_none() && verdict.is_known && !is_denied;
        if verdict.denied_by.is_none() && block.is_none() {
            verdict.denied_by = verdict.no_slot.first().cloned();
        }
        verdict
    }

    /// Takes back that the identity passes: it may be named otherwise.
    pub(super) const fn doubt(&mut self) {
        self.is_known &= !self.passes;
        self.passes = false;
    }

    /// Whether nothing but slots is missing.
    pub(super) fn waits_for_slot(&self) -> bool {
        let by = self.denied_by.as_ref();
        by.is_some_and(|by| self.no_slot.iter().any(|it| it.policy == by.policy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(policy: &str, until_ms: u64, is_of_slots: bool) -> Denial {
        let (policy, rule) = (policy.to_owned(), "1/1s".to_owned());
        Denial {
            until_ms,
            is_of_slots,
            by: DeniedBy { policy, rule },
        }
    }

    fn denied_by(verdict: &Verdict) -> Option<&str> {
        verdict.denied_by.as_ref().map(|by| &*by.policy)
    }

    #[test]
    fn the_rule_that_denies_for_longest_denies_and_a_slot_only_alone() {
        let denials = || [denial("a", 5, false), denial("b", 7, false)];
        let verdict = Verdict::of((None, true), true, denials());
        assert_eq!(
            (denied_by(&verdict), verdict.passes_ms),
            (Some("b"), Some(7))
        );
        let never = denials().into_iter().chain([denial("c", u64::MAX, false)]);
        let verdict = Verdict::of((None, true), true, never);
        assert_eq!((denied_by(&verdict), verdict.passes_ms), (Some("c"), None));
        let slots = || [denial("s", 9, true)];
        let verdict = Verdict::of((None, true), true, denials().into_iter().chain(slots()));
        assert_eq!(denied_by(&verdict), Some("b"));
        assert!(!verdict.waits_for_slot() && verdict.no_slot.len() == 1);
        let verdict = Verdict::of((None, true), true, slots());
        assert_eq!((denied_by(&verdict), verdict.passes_ms), (Some("s"), None));
        assert!(verdict.waits_for_slot() && !verdict.passes);
    }

    #[test]
    fn a_doubt_takes_back_that_it_passes_and_no_denial() {
        let mut passes = Verdict::of((None, true), true, []);
        passes.doubt();
        assert!(!passes.passes && !passes.is_known);
        let mut denied = Verdict::of((None, true), true, [denial("a", u64::MAX, false)]);
        denied.doubt();
        assert!(!denied.passes && denied.is_known);
    }

    #[test]
    fn a_limit_denies_whatever_else_is_unknown_and_a_block_only_if_it_is_enforced() {
        let passes = Verdict::of((None, true), true, []);
        assert!(passes.passes && passes.is_known);
        let unknown = Verdict::of((None, true), false, []);
        assert!(!unknown.passes && !unknown.is_known);
        let denied = Verdict::of((None, true), false, [denial("a", 5, false)]);
        assert!(!denied.passes && denied.is_known);
        let until_ms = Some(6);
        let block = BlockReport {
            until_ms,
            ..BlockReport::default()
        };
        let blocked = Verdict::of((Some(&block), true), true, [denial("a", 5, false)]);
        assert_eq!((denied_by(&blocked), blocked.passes_ms), (None, Some(6)));
        assert!(!blocked.passes && blocked.is_known);
        let loose = Verdict::of((Some(&block), false), true, []);
        assert!(!loose.passes && !loose.is_known);
        let loose = Verdict::of((Some(&block), false), true, [denial("a", 5, false)]);
        assert_eq!((denied_by(&loose), loose.passes_ms), (Some("a"), Some(5)));
    }
}
