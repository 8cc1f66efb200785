//! The earliest time at which a caller can be admitted behind those ahead.
//!
//! The result is a lower bound: it never causes the denial of a caller that would be admitted in time, as long as those
//! ahead stay and nothing is given back. The caller's last unit is number `n` of all waiting units, the caller's
//! included.
//!
//! - **Sliding and fixed rules**, with the limit L: unit `n` is admitted when unit `n − L` is released, at the
//!   earliest. Repeated often enough, that leads to one of the first L units.
//! - **Calendar rules**: the same, with rounds no shorter than the shortest period.
//! - **Concurrency rules**: a slot may be returned at any time, so they promise nothing.
//! - **Buckets**: all units admitted since the denial were in the bucket, or have come back since.

use std::time::Duration;

use crate::domain::{
    check::Check,
    decision::{RuleUsage, Usage},
    rule::{Rule, millis},
};

/// The shortest time from the store's last denial to the admission of a caller.
///
/// `units` are the waiting units for each charge of the check, including the check's own. `denied` is the usage in the
/// denial, and `wait_ms` the time for which that denial also applies to this check; 0 if it does not apply.
pub(super) fn earliest(check: &Check, units: &[u128], denied: &Usage, wait_ms: u64) -> Duration {
    let decided_at_ms = denied.decided_at_ms();
    let usages: Vec<&RuleUsage> = denied.rules().collect();
    let charges = check.charges().iter().zip(units);
    let rules = charges.flat_map(|(charge, units)| {
        let rules = charge.policy().rules().iter();
        rules.map(move |rule| (rule, *units))
    });
    let waits = rules.enumerate().map(|(index, (rule, units))| {
        // A denial may concern only a part of the check.
        let usage = usages.get(index).filter(|usage| usage.rule() == *rule);
        match rule.refill() {
            None if rule.is_concurrency() => 0,
            None => released_ms(rule, decided_at_ms, wait_ms, units),
            Some(refill) => refilled_ms(rule, refill, usage.map(|usage| usage.remaining()), units),
        }
    });
    Duration::from_millis(waits.fold(wait_ms, u64::max))
}

/// Under a sliding or a fixed rule: the earliest admission of the last of `units`, if the first comes after `wait_ms`.
fn released_ms(rule: &Rule, decided_at_ms: u64, wait_ms: u64, units: u128) -> u64 {
    let rounds = units.saturating_sub(1) / u128::from(rule.limit().max(1));
    if rounds == 0 {
        return wait_ms;
    }
    let next_ms = decided_at_ms.saturating_add(wait_ms);
    release_after_rounds_ms(rule, next_ms, narrow(rounds)).saturating_sub(decided_at_ms)
}

/// The release of a unit admitted at `at_ms`, then of the unit admitted at that release, and so on for `rounds`.
fn release_after_rounds_ms(rule: &Rule, at_ms: u64, rounds: u64) -> u64 {
    let first_end_ms = rule.step_end_ms(at_ms);
    // Each further release is the same number of steps later; that of a calendar rule at least the shortest period.
    let round_ms = if let Some(calendar) = rule.in_calendar() {
        millis(calendar.period().shortest())
    } else if rule.is_fixed() {
        rule.step_ms()
    } else {
        (rule.window_ms() / rule.step_ms() + 1).saturating_mul(rule.step_ms())
    };
    let later_ms = (rounds - 1).saturating_mul(round_ms);
    rule.release_ms(first_end_ms.saturating_add(later_ms.min(u64::MAX >> 2)))
}

/// Under a bucket that held `remaining` whole units at the denial; a full bucket if unknown.
fn refilled_ms(rule: &Rule, refill: u64, remaining: Option<u64>, units: u128) -> u64 {
    // The bucket may have held almost one more unit.
    let held = u128::from(remaining.unwrap_or(rule.limit())) + 1;
    let missing = units.saturating_sub(held);
    narrow(missing.saturating_mul(rule.window_ms().into()) / u128::from(refill.max(1)))
}

/// Caps a number so that adding it to a time cannot overflow.
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
