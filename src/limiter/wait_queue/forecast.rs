//! The earliest time at which a caller can be admitted behind those that wait ahead of it.
//!
//! It is a lower bound: no caller that would be admitted in time is denied for it, as long as those ahead stay and
//! nothing is given back. The caller's last unit is number `n` of those that wait, its own among them.
//!
//! - **Sliding and fixed rules**, with the limit L: unit `n` is admitted when unit `n − L` is released, at the earliest.
//!   Applied as often as it goes, that leads to one of the first L units.
//! - **Buckets**: all that is admitted from the denial on was in the bucket, or has come back since.

use std::time::Duration;

use crate::domain::{
    check::Check,
    decision::{RuleUsage, Usage},
    rule::{Rule, millis},
};

/// How long after the store's last denial a caller is admitted at the earliest.
///
/// `units` are those that wait, for each charge of the check, with the check's own. `denied` is what the store said
/// with the denial, and `wait_ms` the time for which it also denies this check; 0 if it does not.
pub(super) fn earliest(check: &Check, units: &[u128], denied: &Usage, wait_ms: u64) -> Duration {
    let decided_at_ms = denied.decided_at_ms();
    let usages: Vec<&RuleUsage> = denied.rules().collect();
    let charges = check.charges().iter().zip(units);
    let rules = charges.flat_map(|(charge, units)| {
        let rules = charge.policy().rules().iter();
        rules.map(move |rule| (rule, *units))
    });
    let waits = rules.enumerate().map(|(index, (rule, units))| {
        // A denial may be about a part of the check only.
        let usage = usages.get(index).filter(|usage| usage.rule() == *rule);
        match rule.refill() {
            None => released_ms(rule, decided_at_ms, wait_ms, units),
            Some(refill) => refilled_ms(rule, refill, usage.map(|usage| usage.remaining()), units),
        }
    });
    Duration::from_millis(waits.fold(wait_ms, u64::max))
}

/// Under a sliding or a fixed rule, when the next unit is admitted after `wait_ms` at the earliest.
fn released_ms(rule: &Rule, decided_at_ms: u64, wait_ms: u64, units: u128) -> u64 {
    let rounds = units.saturating_sub(1) / u128::from(rule.limit().max(1));
    if rounds == 0 {
        return wait_ms;
    }
    let next_ms = decided_at_ms.saturating_add(wait_ms);
    release_after_rounds_ms(rule, next_ms, narrow(rounds)).saturating_sub(decided_at_ms)
}

/// When a unit that is admitted at this time is released, and the one that is admitted then, and so on.
fn release_after_rounds_ms(rule: &Rule, at_ms: u64, rounds: u64) -> u64 {
    let first_end_ms = rule.step_end_ms(at_ms);
    let step_ms = millis(rule.step());
    // From one release to the next, it is the same number of steps each time.
    let steps = if rule.is_fixed() {
        1
    } else {
        millis(rule.window()) / step_ms + 1
    };
    let later_ms = (rounds - 1).saturating_mul(steps).saturating_mul(step_ms);
    rule.release_ms(first_end_ms.saturating_add(later_ms.min(u64::MAX >> 2)))
}

/// Under a bucket that held `remaining` whole units at the denial; a full one if that is not known.
fn refilled_ms(rule: &Rule, refill: u64, remaining: Option<u64>, units: u128) -> u64 {
    // It may have held almost one unit more.
    let held = u128::from(remaining.unwrap_or(rule.limit())) + 1;
    let missing = units.saturating_sub(held);
    narrow(missing.saturating_mul(millis(rule.window()).into()) / u128::from(refill.max(1)))
}

/// Far below what overflows when it is added to a time.
fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX).min(u64::MAX >> 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_releases_are_what_one_release_after_the_other_is() {
        for text in [
            "1/1s",
            "3/10s@7s",
            "2/1s@exact",
            "5/1m@fixed",
            "1/1ms",
            "1/7ms@3ms",
        ] {
            let rule: Rule = text.parse().unwrap();
            for start_ms in (0..200).chain(1_700_000_000_000..1_700_000_000_050) {
                let mut at_ms = start_ms;
                for rounds in 1..9 {
                    at_ms = rule.release_ms(rule.step_end_ms(at_ms));
                    let closed = release_after_rounds_ms(&rule, start_ms, rounds);
                    assert_eq!(closed, at_ms, "{text}, {rounds}");
                }
            }
        }
    }

    #[test]
    fn the_greatest_numbers_do_not_overflow() {
        let units = u128::from(crate::domain::rule::MAX_UNITS) << 64;
        for text in ["1/36525d", "1/36525d@fixed", "1+1/1d@bucket"] {
            let rule: Rule = text.parse().unwrap();
            let ms = match rule.refill() {
                None => released_ms(&rule, u64::MAX >> 2, 1, units),
                Some(refill) => refilled_ms(&rule, refill, None, units),
            };
            assert!(ms > 86_400_000 * 300, "{text}: {ms}");
        }
    }
}
