use crate::{
    error::ExtractErrorKind, failure::FailurePolicy, limiter::Limiter, middleware::Rejection,
    policy::Policy,
};

/// A limit that could not be charged to a request.
pub(super) struct ExtractFailure<'a> {
    /// `None` when the policy is not known either.
    pub(super) policy: Option<&'a Policy>,
    /// Whether the whole layer is a shadow.
    pub(super) shadow_layer: bool,
}

impl ExtractFailure<'_> {
    /// Notifies the observer, and answers `Ok` where the limit is left out: a shadow, or a limit whose key the service
    /// could not find out and whose failure policy is open. The memory of this process cannot count without a key any
    /// more than the store can.
    pub(super) fn resolve(self, limiter: &Limiter, rejection: Rejection) -> Result<(), Rejection> {
        let Self {
            policy,
            shadow_layer,
        } = self;
        let shadow = shadow_layer || policy.is_some_and(Policy::is_shadow);
        let passes = match &rejection {
            Rejection::MissingKey(error) => {
                let unavailable = error.kind() == ExtractErrorKind::Unavailable;
                let open = limiter.failure_policy_of(policy) == FailurePolicy::Open;
                let passes = shadow || unavailable && open;
                limiter.report_missing_key(policy, shadow, error, passes);
                passes
            }
            Rejection::Undecided(error) => {
                limiter.report_invalid(policy, shadow, error);
                shadow
            }
            // A deny list is no policy, and applies beside shadows, too.
            Rejection::Blocked => {
                limiter.report_blocked(policy, shadow_layer);
                false
            }
            Rejection::Denied(_) => false,
        };
        if passes { Ok(()) } else { Err(rejection) }
    }
}
