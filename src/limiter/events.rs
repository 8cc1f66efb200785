//! [`Events`]: reports decisions, failures and other events to the observer.

use std::{panic, sync::Arc, time::Duration};

use crate::{
    domain::{check::Check, decision::Decision, error::StoreError, policy::Policy},
    observe::{CallInfo, CallKind, DecisionView, Event, Observer, RequestOutcome, Timing},
};

/// The observer of a limiter, if it has one.
#[derive(Clone, Default)]
pub(crate) struct Events(pub(super) Option<Arc<dyn Observer>>);

impl Events {
    /// Whether there is an observer.
    pub(crate) const fn is_observed(&self) -> bool {
        self.0.is_some()
    }

    /// Reports an event, which is made only for an observer.
    pub(crate) fn report<'e>(&self, event: impl FnOnce() -> Event<'e>) {
        if let Some(observer) = &self.0 {
            observer.on_event(&event());
        }
    }

    /// Reports, and catches a panic of the observer: slots and callers may be dropped while their thread unwinds, and a
    /// second panic would end the process.
    pub(super) fn report_safely<'e>(&self, event: impl FnOnce() -> Event<'e>) {
        let _ = panic::catch_unwind(panic::AssertUnwindSafe(|| self.report(event)));
    }

    /// Reports the decision of a check, and that of its shadows. Peeks and checks that were blocked or had no charges
    /// are reported as completed.
    pub(super) fn decision(
        &self,
        kind: CallKind,
        decision: &Decision,
        check: &Check,
        timing: Option<Timing>,
    ) {
        let (Some(observer), Some(timing)) = (&self.0, timing) else {
            return;
        };
        let (call, usage) = (CallInfo::new(kind, check), decision.usage());
        let mut local = usage.is_local();
        let is_check = kind == CallKind::Check;
        if is_check && let Decision::Blocked(blocked) = decision {
            let (policy, source) = (None, Some(blocked.block().source()));
            observer.on_event(&Event::Blocked { policy, source });
            // The local memory and the deny cache answer without a call to the store.
            local |= usage.is_cached();
        } else if is_check && !(check.ruled().is_empty() && check.shadow_charges().is_empty()) {
            let report = |call, decision| {
                let decision = DecisionView(decision);
                observer.on_event(&Event::Decision {
                    call,
                    timing,
                    decision,
                });
            };
            let counting = !check.ruled().is_empty();
            if counting {
                report(call, decision);
            }
            if let Some(shadow) = usage.shadow() {
                let mut call = CallInfo::of(kind, check.shadow_charges());
                call.shares_call = counting;
                report(call, shadow);
            }
            return;
        }
        self.completion(call, local, Some(timing));
    }

    /// Reports the answer of a call that decides nothing.
    pub(super) fn completion(&self, call: CallInfo<'_>, local: bool, timing: Option<Timing>) {
        if let Some(timing) = timing {
            self.report(|| Event::Completion {
                call,
                timing,
                local,
            });
        }
    }

    pub(super) fn error(
        &self,
        call: CallInfo<'_>,
        error: &StoreError,
        outcome: RequestOutcome,
        timing: Option<Timing>,
    ) {
        if let Some(timing) = timing {
            self.report(|| Event::Error {
                call,
                timing,
                error,
                outcome,
            });
        }
    }

    /// Reports a check that could not be built.
    pub(crate) fn invalid(&self, policy: Option<&Policy>, shadow: bool, error: &StoreError) {
        let mut call = CallInfo::of(CallKind::Check, &[]);
        (call.unbuilt, call.shadow) = (policy, shadow);
        let timing = self.is_observed().then(Timing::now);
        self.error(call, error, RequestOutcome::of(shadow), timing);
    }

    /// Reports a caller that begins to wait, or has waited.
    pub(super) fn wait(&self, check: &Check, waited: Option<Duration>) {
        let call = CallInfo::of(CallKind::Check, check.ruled());
        self.report_safely(|| Event::Wait { call, waited });
    }
}
