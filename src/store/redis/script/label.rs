//! The label of a section: two numbers of 48 bits, as `lua/README.md` describes it.

use crate::domain::{
    rule::MAX_UNITS,
    window::{BucketSpec, Spec, StepSpec},
};

/// Stands in the first number of a bucket's label, above every window.
const BUCKET: u64 = 1 << 47;

pub(in crate::store::redis) const fn label(spec: Spec) -> [u64; 2] {
    match spec {
        Spec::Steps(spec) => [spec.step_ms, spec.retention_ms],
        Spec::Bucket(spec) => [BUCKET | spec.window_ms, spec.refill],
        // No label: the store answers before it calls the script, see `kinds`.
        Spec::Concurrency(_) | Spec::Calendar(_) => [0, 0],
    }
}

/// The spec of a label; `None` if no rule has it.
pub(in crate::store::redis) const fn labelled([first, second]: [u64; 2]) -> Option<Spec> {
    if first > BUCKET {
        let (window_ms, refill) = (first - BUCKET, second);
        return match window_ms.checked_mul(refill) {
            Some(1..=MAX_UNITS) => Some(Spec::Bucket(BucketSpec { window_ms, refill })),
            _ => None,
        };
    }
    let is_of_steps = first > 0 && first < BUCKET && (second == 0 || second >= first);
    if !is_of_steps {
        return None;
    }
    Some(Spec::Steps(StepSpec {
        step_ms: first,
        retention_ms: second,
    }))
}
