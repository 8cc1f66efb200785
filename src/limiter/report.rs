//! Reports decisions, failures and other events to the observer.

use std::{panic, time::Duration};

use super::Limiter;
use crate::{
    domain::{
        check::Check,
        decision::Decision,
        error::{ExtractError, StoreError},
        policy::Policy,
    },
    observe::{
        BlockEvent, CallInfo, CallKind, CompletionEvent, DecisionEvent, ErrorEvent,
        MissingKeyEvent, Observer, RequestOutcome, Timing,
    },
};

impl Limiter {
    /// Reports the decision of a check, and that of its shadows. Peeks and checks that were blocked or had no charges
    /// are reported as completed.
    pub(super) fn report_decision(
        &self,
        kind: CallKind,
        decision: &Decision,
        check: &Check,
        timing: Option<Timing>,
    ) {
        let Some((observer, timing)) = self.observed(timing) else {
            return;
        };
        let call = CallInfo::new(kind, check);
        if kind != CallKind::Check {
            let local = decision.usage().is_local();
            return self.report_completion(call, local, Some(timing));
        }
        if let Decision::Blocked(blocked) = decision {
            let (policy, by) = (None, Some(blocked.block().source()));
            observer.on_blocked(&BlockEvent { policy, by });
            // The local memory and the deny cache answer without a call to the store.
            let usage = decision.usage();
            let without_call = usage.is_cached() || usage.is_local();
            return self.report_completion(call, without_call, Some(timing));
        }
        if check.all_charges().is_empty() {
            let local = decision.usage().is_local();
            return self.report_completion(call, local, Some(timing));
        }
        let counting = !check.charges().is_empty();
        if counting {
            observer.on_decision(&DecisionEvent {
                call,
                timing,
                decision,
            });
        }
        if let Some(shadow) = decision.usage().shadow() {
            observer.on_decision(&DecisionEvent {
                call: CallInfo::of(kind, check.shadow_charges()).shared(counting),
                timing,
                decision: shadow,
            });
        }
    }

    /// Reports the answer of a call that decides nothing.
    pub(super) fn report_completion(
        &self,
        call: CallInfo<'_>,
        local: bool,
        timing: Option<Timing>,
    ) {
        if let Some((observer, timing)) = self.observed(timing) {
            observer.on_completion(&CompletionEvent {
                call,
                timing,
                local,
            });
        }
    }

    pub(super) fn report_error(
        &self,
        call: CallInfo<'_>,
        error: &StoreError,
        outcome: RequestOutcome,
        timing: Option<Timing>,
    ) {
        if let Some((observer, timing)) = self.observed(timing) {
            observer.on_error(&ErrorEvent {
                call,
                timing,
                error,
                outcome,
            });
        }
    }

    /// Reports a limit that found no key.
    pub(crate) fn report_missing_key(
        &self,
        policy: Option<&Policy>,
        shadow: bool,
        error: &ExtractError,
        passes: bool,
    ) {
        if let Some(observer) = &self.inner.observer {
            observer.on_missing_key(&MissingKeyEvent {
                policy,
                shadow,
                error,
                outcome: RequestOutcome::of(passes),
            });
        }
    }

    /// Whether there is an observer.
    pub(crate) fn is_observed(&self) -> bool {
        self.inner.observer.is_some()
    }

    /// Reports a policy that a layer uses.
    pub(crate) fn report_policy(&self, policy: &Policy) {
        if let Some(observer) = &self.inner.observer {
            observer.on_policy(policy);
        }
    }

    /// Reports a request on a deny list.
    pub(crate) fn report_blocked(&self, policy: Option<&Policy>) {
        if let Some(observer) = &self.inner.observer {
            observer.on_blocked(&BlockEvent { policy, by: None });
        }
    }

    /// Reports a caller that begins to wait, or has waited.
    pub(super) fn report_wait(&self, check: &Check, waited: Option<Duration>) {
        let call = CallInfo::of(CallKind::Check, check.charges());
        self.report_safely(|it| it.on_wait(&call, waited));
    }

    /// Reports, and catches a panic of the observer: slots and callers may be dropped while their thread unwinds, and a
    /// second panic would end the process.
    pub(super) fn report_safely(&self, report: impl FnOnce(&dyn Observer)) {
        if let Some(observer) = &self.inner.observer {
            let _ = panic::catch_unwind(panic::AssertUnwindSafe(|| report(&**observer)));
        }
    }

    /// Reports a check that could not be built.
    pub(crate) fn report_invalid(&self, policy: Option<&Policy>, shadow: bool, error: &StoreError) {
        let call = CallInfo::never_sent(policy, shadow);
        self.report_error(call, error, RequestOutcome::of(shadow), Some(Timing::now()));
    }

    /// The observer and the timing, if there is an observer.
    fn observed(&self, timing: Option<Timing>) -> Option<(&dyn Observer, Timing)> {
        self.inner.observer.as_deref().zip(timing)
    }
}
