//! The label of a section: two numbers of 48 bits, as `lua/README.md` describes it.

use super::{BucketSpec, Spec, StepSpec};
use crate::domain::{calendar::Calendar, rule::MAX_UNITS};

/// The number of a kind times this is added to the first number of a label.
const KIND: u64 = 1 << 44;

const STEPS: u64 = 0;
const CONCURRENCY: u64 = 1;
const CALENDAR: u64 = 2;
const BUCKET: u64 = 8;

/// Cuts a calendar's label of 61 bits in two: the second number is the lowest 48 bits.
const SECOND: u64 = 1 << 48;

pub(crate) fn label(spec: Spec) -> [u64; 2] {
    match spec {
        Spec::Steps(spec) => [spec.step_ms, spec.retention_ms],
        Spec::Bucket(spec) => [BUCKET * KIND + spec.window_ms, spec.refill],
        Spec::Concurrency(window_ms) => [CONCURRENCY * KIND, window_ms],
        Spec::Calendar(calendar) => {
            let label = calendar.label();
            [CALENDAR * KIND + label / SECOND, label % SECOND]
        }
    }
}

/// The spec of a label; `None` if no rule has it.
pub(crate) fn labelled([first, second]: [u64; 2]) -> Option<Spec> {
    let number = first % KIND;
    let steps = StepSpec {
        step_ms: number,
        retention_ms: second,
    };
    let are_steps = number > 0 && (second == 0 || second >= number);
    match first / KIND {
        STEPS => are_steps.then_some(Spec::Steps(steps)),
        CONCURRENCY => (number == 0 && second > 0).then_some(Spec::Concurrency(second)),
        CALENDAR => calendar(number, second).map(Spec::Calendar),
        BUCKET => bucket(number, second).map(Spec::Bucket),
        _ => None,
    }
}

/// Whether a label is of rules that this process cannot have: of a kind that a later version has added, or in a time zone
/// that it does not know.
pub(crate) fn is_unknown([first, second]: [u64; 2]) -> bool {
    match first / KIND {
        STEPS | CONCURRENCY | BUCKET => false,
        CALENDAR => calendar(first % KIND, second).is_none(),
        _ => true,
    }
}

fn calendar(first: u64, second: u64) -> Option<Calendar> {
    Calendar::labelled(first.checked_mul(SECOND)? + second)
}

fn bucket(window_ms: u64, refill: u64) -> Option<BucketSpec> {
    let is_bucket = matches!(window_ms.checked_mul(refill), Some(1..=MAX_UNITS));
    is_bucket.then_some(BucketSpec { window_ms, refill })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::rule::Rule;

    #[test]
    fn a_label_names_one_kind_of_rule() {
        let rules = [
            "10/1s",
            "10/1s@fixed",
            "20+10/1s@bucket",
            "2/1s@concurrent",
            #[cfg(feature = "calendar")]
            "5/month:15@Europe/Berlin",
        ];
        let specs = rules.map(|rule| Spec::of(&rule.parse::<Rule>().unwrap()));
        for (place, spec) in specs.iter().enumerate() {
            assert_eq!(labelled(label(*spec)), Some(*spec));
            for other in &specs[place + 1..] {
                assert_ne!(label(*spec), label(*other));
            }
        }
    }

    #[test]
    fn a_kind_or_a_time_zone_that_is_not_known_is_unknown() {
        let in_no_zone = [CALENDAR * KIND + (1 << 13) - 1, SECOND - 1];
        for label in [in_no_zone, [3 * KIND + 1_000, 1_000]] {
            assert!(is_unknown(label) && labelled(label).is_none(), "{label:?}");
        }
        for label in [[1_000, 0], [CONCURRENCY * KIND, 1], [BUCKET * KIND + 1, 0]] {
            assert!(!is_unknown(label), "{label:?}");
        }
        #[cfg(feature = "calendar")]
        {
            let rule: Rule = "5/month:15@Europe/Berlin".parse().unwrap();
            assert!(!is_unknown(label(Spec::of(&rule))));
        }
    }

    #[test]
    fn a_label_that_no_rule_has_is_none() {
        for label in [
            [0, 1_000],
            [1_000, 999],
            [BUCKET * KIND, 1],
            [BUCKET * KIND + 1, 0],
            [CONCURRENCY * KIND, 0],
            [CONCURRENCY * KIND + 1_000, 1_000],
            [3 * KIND + 1_000, 1_000],
            [CALENDAR * KIND + (1 << 16), 0],
        ] {
            assert_eq!(labelled(label), None, "{label:?}");
        }
    }
}
