//! [`Events`]: reports decisions, failures and other events to the observer.

use std::{panic, sync::Arc, time::Duration};

use crate::{
    domain::{
        check::Check,
        decision::{Decision, PolicyUsage, RuleUsage, Usage},
        error::StoreError,
        policy::Policy,
        rule::millis,
    },
    observe::{CallInfo, CallKind, DecisionView, Event, Observer, RequestOutcome, Timing},
};

/// The share of a limit, in percent, of which an observer gets a notice by default.
pub(super) const NOTICE_PERCENT: u8 = 80;

/// From this share on, there are no notices.
pub(super) const NO_PERCENT: u8 = 100;

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

    /// Gives notice of the policies of an admission or a settlement, and of its shadows, of which this share is used.
    pub(super) fn near_limit(&self, usage: &Usage, percent: u8) {
        // This process's memory has counted a part of the requests only.
        for part in usage.admitted_parts().filter(|part| !part.is_local()) {
            let now_ms = part.decided_at_ms();
            for of_policy in part.policies() {
                let Some(rule) = nearest(of_policy, percent) else {
                    continue;
                };
                let until_ms = now_ms.saturating_add(millis(rule.reset_after()));
                let policy = of_policy.policy();
                if policy.marks().is_first_notice(now_ms, until_ms) {
                    self.report(|| Event::NearLimit { policy, rule });
                }
            }
        }
    }
}

/// The rule of which this share is used, and of several the one with the longest to go.
fn nearest(usage: PolicyUsage<'_>, percent: u8) -> Option<&RuleUsage> {
    let near = usage.rules().iter().filter(|it| {
        let limit = it.rule().limit();
        let used = limit.saturating_sub(it.remaining());
        // Slots are taken and returned all the time.
        !it.rule().is_concurrency() && used > 0 && used * 100 >= limit * u64::from(percent)
    });
    near.max_by_key(|it| it.reset_after())
}
