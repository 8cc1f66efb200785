//! The kinds of rules that the script does not know yet: a check or a renewal of them is answered before the script is
//! called. This file goes when the script knows them, with the three calls of [`refuse`] and [`refuse_check`].

use crate::domain::{check::Check, error::StoreError, operation::Operation, rule::Rule};

/// Returns the error of an operation with rules that the script does not know.
pub(super) fn refuse(operation: &Operation) -> Result<(), StoreError> {
    operation.check().map_or(Ok(()), refuse_check)
}

pub(super) fn refuse_check(check: &Check) -> Result<(), StoreError> {
    let charges = check.all_charges().iter();
    let mut rules = charges.flat_map(|charge| charge.policy().rules());
    if rules.any(is_unknown) {
        Err(UNKNOWN)
    } else {
        Ok(())
    }
}

const fn is_unknown(rule: &Rule) -> bool {
    rule.is_concurrency() || rule.in_calendar().is_some()
}

const UNKNOWN: StoreError =
    StoreError::invalid_request("the script knows no concurrency and no calendar rules");
