use super::Plan;
use crate::{
    domain::{FailurePolicy, error::ExtractErrorKind, policy::Policy},
    middleware::Rejection,
};

impl Plan {
    /// Notifies the observer of a limit that could not be charged, and answers `Ok` where it is left out: a shadow, or
    /// a limit whose key the service could not find out and whose failure policy is open. The memory of this process
    /// cannot count without a key any more than the store can.
    ///
    /// `policy` is `None` when it is not known either; `shadow` says whether whichever it could be is a shadow.
    pub(super) fn leave_out(
        &self,
        policy: Option<&Policy>,
        shadow: bool,
        rejection: Rejection,
    ) -> Result<(), Rejection> {
        let limiter = &self.limiter;
        let shadow = self.shadow || shadow;
        let passes = match &rejection {
            Rejection::MissingKey(error) => {
                // Not for a mistake in the service: the limit would apply to no request, and no operator would notice.
                let is_open = error.kind() == ExtractErrorKind::Unavailable
                    && limiter.failure_policy_of(policy) == FailurePolicy::Open;
                if error.kind() == ExtractErrorKind::Misconfigured {
                    self.warnings.misconfigured(policy, error);
                }
                if is_open && !shadow {
                    self.warnings.left_out(policy, error);
                }
                let passes = shadow || is_open;
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
}
