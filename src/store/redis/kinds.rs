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

#[cfg(test)]
mod tests {
    use crate::{
        domain::{charge::Charge, check::Check, error::StoreErrorKind, key::Key, policy::Policy},
        store::{Operation, Store, redis::RedisStore},
    };

    #[tokio::test]
    async fn rules_that_the_script_does_not_know_are_an_error_without_a_call() {
        let store = RedisStore::connect_lazy("redis://127.0.0.1:1/").unwrap();
        for rules in [
            "2/30s@concurrent",
            #[cfg(feature = "calendar")]
            "2/month@UTC",
        ] {
            let policy = Policy::parse("p", rules).unwrap();
            let check = Check::new([Charge::new(&policy, Key::new("user", "alice"), 1)]).unwrap();
            let operation = || Operation::Check(check.clone());
            let called = store.call(vec![operation()]).await.unwrap().remove(0);
            for error in [
                store.check(&check).await.unwrap_err(),
                store.execute(operation()).await.unwrap_err(),
                called.unwrap_err(),
            ] {
                assert_eq!(error.kind(), StoreErrorKind::InvalidRequest, "{rules}");
            }
        }
    }
}
