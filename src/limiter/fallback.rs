//! [`Fallback`]: follows the failure policy when the store cannot decide.

use std::{num::NonZeroU32, sync::Arc};

use super::{decide::Resolution, outage::Outage, refusals::Refusals};
use crate::{
    domain::{
        FailurePolicy,
        check::Check,
        decision::Decision,
        error::{StoreError, StoreErrorKind},
        policy::Policy,
        wanted::OUTAGE,
    },
    observe::{CallKind, RequestOutcome},
    store::{MemoryStore, Store, StoreFuture},
    warning,
};

/// Decides in place of the store.
#[derive(Clone)]
pub(super) struct Fallback {
    /// The failure policy for policies without their own.
    pub(super) policy: FailurePolicy,
    /// Whether undecided checks pass even if the failure policy is closed: for shadow layers.
    pub(super) passes_undecided: bool,
    /// The memory of this process.
    pub(super) local: MemoryStore,
    pub(super) replicas: NonZeroU32,
    /// Checks that the store could not decide.
    pub(super) outage: Arc<Outage>,
}

impl Default for Fallback {
    fn default() -> Self {
        Self {
            policy: FailurePolicy::default(),
            passes_undecided: false,
            local: MemoryStore::new(),
            replicas: NonZeroU32::MIN,
            outage: Arc::default(),
        }
    }
}

impl Fallback {
    /// Applies the failure policy to a check that the store could not decide.
    #[cold]
    pub(super) fn resolve(
        &self,
        kind: CallKind,
        check: &Check,
        error: &StoreError,
        refusals: &Refusals,
    ) -> (Resolution, RequestOutcome) {
        use StoreErrorKind::{Full, InvalidRequest};
        let resolution = match self.by_failure_policy(check, error.clone(), refusals) {
            Resolution::Closed(error) if self.passes_undecided => Resolution::Open(error, None),
            resolution => resolution,
        };
        // `memory_full` warns of a full store.
        let is_outage = !matches!(error.kind(), Full | InvalidRequest);
        if kind == CallKind::Check && is_outage && self.outage.begins() {
            warning::undecided(error);
        }
        let outcome = outcome(kind, &resolution);
        (resolution, outcome)
    }

    /// The bit that says whether a success has to be noted.
    pub(super) fn wanted(&self) -> u8 {
        if self.outage.is_on() { OUTAGE } else { 0 }
    }

    fn by_failure_policy(
        &self,
        check: &Check,
        error: StoreError,
        refusals: &Refusals,
    ) -> Resolution {
        // An invalid request is the caller's mistake, not a failure of the store.
        if error.kind() == StoreErrorKind::InvalidRequest {
            return Resolution::Closed(error);
        }
        if let Some(blocked) = refusals.find(check) {
            return Resolution::Decided(Decision::Blocked(blocked).local());
        }
        match self.policy_for(check) {
            FailurePolicy::Local => match self.check_locally(check).into_ready() {
                Ok(Ok(decision)) if !is_above_share(&decision, check) => {
                    Resolution::Decided(decision.local())
                }
                _ => Resolution::Closed(error),
            },
            // Shadows never deny, whatever fails.
            _ if check.is_of_shadows() => Decision::new(check, true, 0, &[])
                .map_or(Resolution::Open(error, None), Resolution::Decided),
            FailurePolicy::Open => Resolution::Open(error, None),
            FailurePolicy::Closed => Resolution::Closed(error),
        }
    }

    /// Decides under a share of each limit, `1/replicas`. The answer names the policies with the limits that applied.
    ///
    /// The share is rounded down, but a limit above 0 never becomes 0: all processes together admit no more than the limit,
    /// or one unit each if the limit is smaller than the number of processes.
    fn check_locally(&self, check: &Check) -> StoreFuture<Decision> {
        match self.replicas {
            NonZeroU32::MIN => self.local.check(check),
            of => {
                let share = check.with_policies(|policy| policy.share(of));
                self.local.check(&share)
            }
        }
    }

    /// The strictest failure policy of the charges that count; of the shadows if nothing else is checked.
    fn policy_for(&self, check: &Check) -> FailurePolicy {
        let charges = match check.is_of_shadows() {
            true => check.shadow_charges(),
            false => check.ruled(),
        };
        let policies = charges
            .iter()
            .map(|charge| self.policy_of(Some(charge.policy())));
        // The enum declares the strictest last.
        let strictest = policies.max_by_key(|policy| *policy as u8);
        strictest.unwrap_or(self.policy)
    }

    /// The failure policy of one policy, or the default if the policy is unknown or has none.
    pub(super) fn policy_of(&self, policy: Option<&Policy>) -> FailurePolicy {
        let own = policy.and_then(Policy::failure_policy);
        own.unwrap_or(self.policy)
    }
}

/// Whether a cost exceeds this process's share of a limit, but not the limit. The store will admit the cost once back,
/// and a denial that says *never* would outlast the outage.
fn is_above_share(decision: &Decision, check: &Check) -> bool {
    let Decision::Denied(denial) = decision else {
        return false;
    };
    denial.retry_after().is_none() && check.rules().all(|(rule, cost)| cost <= rule.limit())
}

fn outcome(kind: CallKind, resolution: &Resolution) -> RequestOutcome {
    match (kind, resolution) {
        (_, Resolution::Decided(decision)) if decision.usage().is_local() => RequestOutcome::Local,
        (CallKind::Check, Resolution::Decided(_) | Resolution::Open(..)) => RequestOutcome::Passed,
        (CallKind::Check, Resolution::Closed(_)) => RequestOutcome::Rejected,
        _ => RequestOutcome::Failed,
    }
}
