//! Limits that cannot be charged to a request, and do not refuse it for that.

use super::{Rejection, decide::Choice};
use crate::{
    error::{ExtractError, ExtractErrorKind},
    failure::FailurePolicy,
    limiter::Limiter,
    policy::Policy,
};

/// Under which policy a request was to be charged, as far as that is known.
pub(super) struct Meant {
    policy: Option<Policy>,
    shadow: bool,
}

impl Meant {
    /// `shadow` when the whole layer is one.
    pub(super) fn new(choice: &Result<Choice<'_>, ExtractError>, shadow: bool) -> Self {
        let chosen = choice.as_ref().ok().and_then(Option::as_ref);
        let policy = chosen.map(|(policy, _)| Policy::clone(policy));
        Self {
            shadow: shadow || policy.as_ref().is_some_and(Policy::is_shadow),
            policy,
        }
    }

    pub(super) const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Tells the observer why nothing was charged, and forgets it if it is a shadow that cannot charge, or if the service itself could not
    /// find out who is asking and the failure policy is open. Memory cannot count without a key any more than the store can.
    ///
    /// A deny list is no policy, and refuses all the same; `unblocked` where that comes to nothing.
    pub(super) fn excuse(
        &self,
        limiter: &Limiter,
        rejection: Rejection,
        unblocked: bool,
    ) -> Result<(), Rejection> {
        let policy = self.policy.as_ref();
        let open = limiter.failure_policy_of(policy) == FailurePolicy::Open;
        let passes = match &rejection {
            Rejection::MissingKey(error) => {
                let failed = error.kind() == ExtractErrorKind::Unavailable;
                let passes = self.shadow || failed && open;
                limiter.tell_missing_key(policy, self.shadow, error, passes);
                passes
            }
            Rejection::Undecided(error) => {
                limiter.tell_undecided(policy, self.shadow, error);
                self.shadow
            }
            Rejection::Blocked => {
                limiter.tell_blocked(policy, unblocked);
                false
            }
            Rejection::Denied(_) => false,
        };
        if passes { Ok(()) } else { Err(rejection) }
    }
}
