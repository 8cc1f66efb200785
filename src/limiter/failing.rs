//! What a limiter does when the store cannot decide: the failure policy, and the breaker's news.

use super::{
    FailurePolicy, Limiter,
    breaker::{Pass, Switch},
};
use crate::{
    check::Check,
    decision::Decision,
    error::{StoreError, StoreErrorKind},
    observe::Switched,
    policy::Policy,
    store::Store,
};

/// Why there is no decision, and whether the request passes without one.
#[derive(Debug)]
pub(crate) struct Undecided {
    pub(crate) error: StoreError,
    pub(crate) passes: bool,
}

impl Limiter {
    /// The decision of a plain check, once its answer is there.
    pub(crate) fn conclude(
        &self,
        check: &Check,
        pass: Option<Pass>,
        result: Result<Decision, StoreError>,
    ) -> Result<Decision, Undecided> {
        self.note(pass, result.as_ref().err());
        result.or_else(|error| self.instead(check, error))
    }

    /// Lets the breaker know how the store has answered, and the observer what the breaker makes of it.
    pub(super) fn note(&self, pass: Option<Pass>, error: Option<&StoreError>) {
        let kind = error.map(StoreError::kind);
        let switch = pass.and_then(|pass| self.breaker.note(pass, kind, &self.observer));
        match switch {
            Some(Switch::Opened(Some(observer))) => observer.switched(&Switched::new(error)),
            Some(Switch::Closed(Some(observer))) => observer.switched(&Switched::new(None)),
            _ => {}
        }
    }

    /// What the failure policy makes of a check that the store could not decide.
    #[cold]
    pub(super) fn instead(&self, check: &Check, error: StoreError) -> Result<Decision, Undecided> {
        // The caller's mistake is no failure of the store.
        if error.kind() == StoreErrorKind::InvalidRequest {
            return lost(error);
        }
        let policies = check.charges().iter().map(|it| Some(it.policy()));
        let policies = policies.map(|policy| self.failure_policy_of(policy));
        match policies.reduce(FailurePolicy::or_stricter) {
            Some(FailurePolicy::Local) => match self.local.check(check).known() {
                Some(Ok(decision)) => Ok(decision.local()),
                _ => lost(error),
            },
            policy => Err(Undecided {
                error,
                passes: policy == Some(FailurePolicy::Open),
            }),
        }
    }

    /// The failure policy of one policy, or of one that is not known.
    pub(crate) fn failure_policy_of(&self, policy: Option<&Policy>) -> FailurePolicy {
        let own = policy.and_then(Policy::failure_policy);
        own.unwrap_or(self.failure_policy)
    }
}

/// What becomes of a call that nothing can stand in for.
pub(super) const fn lost<T>(error: StoreError) -> Result<T, Undecided> {
    Err(Undecided {
        error,
        passes: false,
    })
}

pub(super) const fn circuit_open() -> StoreError {
    StoreError::new(
        StoreErrorKind::CircuitOpen,
        "the store was not asked, since it has failed several times in a row",
    )
}

impl From<Undecided> for StoreError {
    fn from(undecided: Undecided) -> Self {
        undecided.error
    }
}
