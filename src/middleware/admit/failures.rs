//! Follows the failure policy when a limit has no key.

use super::{LayerConfig, PolicySelector};
use crate::{
    domain::{FailurePolicy, error::ExtractErrorKind, policy::Policy},
    middleware::respond::Rejection,
    observe::{Event, RequestOutcome},
};

impl LayerConfig {
    /// Rejects no request if the selector can choose only shadows.
    #[cold]
    pub(super) fn fail_without_policy(
        &self,
        selector: &PolicySelector,
        rejection: Rejection,
    ) -> Result<(), Rejection> {
        let mut known = selector.known().map(|policy| policy.is_shadow());
        let shadow = known.next() == Some(true) && known.all(|is_shadow| is_shadow);
        self.on_limit_failure(None, shadow, rejection)
    }

    #[cold]
    pub(super) fn fail(
        &self,
        policy: Option<&Policy>,
        rejection: Rejection,
    ) -> Result<(), Rejection> {
        let shadow = policy.is_some_and(Policy::is_shadow);
        self.on_limit_failure(policy, shadow, rejection)
    }

    /// Reports a limit that could not be charged, and returns `Ok` to leave the limit out: for a shadow, or if the
    /// service could not determine the key and the failure policy is open. Without a key, `Local` cannot count either.
    ///
    /// `policy` is `None` if unknown; `shadow` says whether every possible policy is a shadow.
    fn on_limit_failure(
        &self,
        policy: Option<&Policy>,
        shadow: bool,
        rejection: Rejection,
    ) -> Result<(), Rejection> {
        let limiter = &self.limiter;
        let shadow = self.shadow || shadow;
        let passes = match &rejection {
            Rejection::MissingKey(error) => {
                // Never open for a misconfigured service: the limit would silently apply to no request.
                let is_open = error.kind() == ExtractErrorKind::Unavailable
                    && limiter.failure_policy_of(policy) == FailurePolicy::Open;
                if error.kind() == ExtractErrorKind::Misconfigured {
                    self.warnings.misconfigured(policy, error);
                }
                if is_open && !shadow {
                    self.warnings.left_out(policy, error);
                }
                let passes = shadow || is_open;
                let outcome = RequestOutcome::of(passes);
                limiter.events().report(|| Event::MissingKey {
                    policy,
                    shadow,
                    error,
                    outcome,
                });
                passes
            }
            Rejection::Undecided(error) => {
                limiter.events().invalid(policy, shadow, error);
                shadow
            }
            // A deny list is no policy, and so also applies to shadows.
            Rejection::OnDenyList => {
                limiter.events().report(|| Event::Blocked {
                    policy,
                    source: None,
                });
                false
            }
            Rejection::Denied(_)
            | Rejection::NoSlot(_)
            | Rejection::Blocked(_)
            | Rejection::Unread(_) => false,
        };
        if passes { Ok(()) } else { Err(rejection) }
    }
}
