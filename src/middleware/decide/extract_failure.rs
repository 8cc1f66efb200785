use super::Plan;
use crate::{
    error::{ExtractError, ExtractErrorKind},
    failure::FailurePolicy,
    middleware::Rejection,
    policy::Policy,
};

/// A limit that could not be charged to a request.
pub(super) struct ExtractFailure<'a> {
    pub(super) plan: &'a Plan,
    /// `None` when the policy is not known either.
    pub(super) policy: Option<&'a Policy>,
    /// Whether the policy is a shadow, or whichever it could be is one.
    pub(super) shadow: bool,
}

impl ExtractFailure<'_> {
    /// Notifies the observer, and answers `Ok` where the limit is left out: a shadow, or a limit whose key the service
    /// could not find out and whose failure policy is open. The memory of this process cannot count without a key any
    /// more than the store can.
    pub(super) fn resolve(self, rejection: Rejection) -> Result<(), Rejection> {
        let Self { plan, policy, .. } = self;
        let limiter = &plan.limiter;
        let shadow = plan.shadow || self.shadow;
        let passes = match &rejection {
            Rejection::MissingKey(error) => {
                let passes = shadow || self.is_open(error);
                if error.kind() == ExtractErrorKind::Misconfigured {
                    plan.warnings.misconfigured(policy, error);
                }
                limiter.report_missing_key(policy, shadow, error, passes);
                passes
            }
            Rejection::Undecided(error) => {
                limiter.report_invalid(policy, shadow, error);
                shadow
            }
            // A deny list is no policy, and applies beside shadows, too.
            Rejection::OnDenyList => {
                limiter.report_blocked(policy);
                false
            }
            Rejection::Denied(_) | Rejection::Blocked(_) => false,
        };
        if passes { Ok(()) } else { Err(rejection) }
    }

    /// Not for a mistake in the service, which would otherwise be a limit that nobody has, and nobody notices.
    fn is_open(&self, error: &ExtractError) -> bool {
        let policy = self.plan.limiter.failure_policy_of(self.policy);
        error.kind() == ExtractErrorKind::Unavailable && policy == FailurePolicy::Open
    }
}
