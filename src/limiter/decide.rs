//! The one path of every decision, and [`Resolution`], the result.

use std::thread;

use super::{
    Limiter,
    refusals::{KnownBefore, Question},
    slots,
    store_call::Answer,
};
use crate::{
    domain::{check::Check, decision::Decision, error::StoreError},
    observe::{CallInfo, CallKind},
    store::{Store, StoreFuture, maybe_ready::MaybeReady},
};

/// The result of a check.
#[derive(Debug)]
pub(crate) enum Resolution {
    /// Decided by the store, or by the memory of this process in its place.
    Decided(Decision),
    /// The store could not decide, and the failure policy lets the request pass.
    Open(StoreError),
    /// The store could not decide, and the request does not pass.
    Closed(StoreError),
}

impl Resolution {
    /// The decision; or the error, if the caller has to follow the failure policy.
    pub(super) fn into_result(self) -> Result<Decision, StoreError> {
        match self {
            Self::Decided(decision) => Ok(decision),
            Self::Open(error) | Self::Closed(error) => Err(error),
        }
    }
}

/// What was known before a call.
#[derive(Clone, Copy)]
struct Asked {
    known: KnownBefore,
    /// When slots were asked for.
    at_ms: Option<u64>,
    /// `None` if a denial must not be remembered.
    question: Option<Question>,
}

impl Limiter {
    /// Decides a check and charges it.
    pub(crate) fn decide(&self, mut check: Check) -> MaybeReady<Resolution> {
        if self.inner.enforces_blocks {
            check = check.enforce_blocks(true);
        }
        self.decide_as(CallKind::Check, check)
    }

    /// Decides a check by the store, or else by the failure policy. The call starts at once, not when first polled.
    pub(super) fn decide_as(&self, kind: CallKind, check: Check) -> MaybeReady<Resolution> {
        // An empty check needs no store call and raises no event.
        if check.is_empty() {
            let result = Decision::new(&check, true, 0, &[]);
            let timing = None;
            return MaybeReady::ready(self.resolve(kind, &check, Answer { result, timing }, None));
        }
        let mut asked = Asked {
            known: self.inner.refusals.before_call(),
            at_ms: None,
            question: None,
        };
        let mut repeated = None;
        if self.inner.caches_denials {
            match self.inner.refusals.recall(&check, &self.inner.denial_clock) {
                Ok(denial) => repeated = Some(denial),
                Err(question) => asked.question = question,
            }
        }
        // From before the call: a slot may be released so long after.
        asked.at_ms = check.takes_slots().then(slots::now_ms);
        // Identities that are only looked up for blocks are charged 0 units, in the same store call.
        let charged = check.with_look_ups_charged();
        let begin = |store: &dyn Store| {
            let answer = store.check(charged.as_ref().unwrap_or(&check));
            match asked.at_ms {
                Some(at_ms) => self.claimed(answer, &check, at_ms),
                None => answer,
            }
        };
        let info = || CallInfo::new(kind, &check);
        let mut call = match repeated {
            Some(denial) => self.call_local(info, |_| StoreFuture::ready(Ok(denial))),
            None => self.call(info, begin),
        };
        if let Some(answer) = call.take_ready() {
            return MaybeReady::ready(self.resolve_call(kind, &check, answer, asked));
        }
        let limiter = self.clone();
        MaybeReady::pending(async move { limiter.resolve_call(kind, &check, call.await, asked) })
    }

    /// Like [`resolve`](Self::resolve), and remembers the blocks in the store's answer, and denials.
    fn resolve_call(
        &self,
        kind: CallKind,
        check: &Check,
        mut answer: Answer<Decision>,
        asked: Asked,
    ) -> Resolution {
        let refusals = &self.inner.refusals;
        if let Ok(decision) = &answer.result {
            refusals.learn(check, decision, asked.known);
        }
        if !check.look_ups().is_empty() {
            answer.result = answer.result.map(|decision| decision.about(check));
        }
        if let (Some(question), Ok(decision)) = (asked.question, &answer.result) {
            refusals.remember_denial(check, decision, question, &self.inner.denial_clock);
        }
        self.resolve(kind, check, answer, asked.at_ms)
    }

    /// Turns the answer of a call into a resolution.
    fn resolve(
        &self,
        kind: CallKind,
        check: &Check,
        answer: Answer<Decision>,
        asked_at_ms: Option<u64>,
    ) -> Resolution {
        let Answer { result, timing } = answer;
        let resolution = match result {
            Ok(decision) => {
                // An answer without the store says nothing about it.
                if !check.is_empty() && !decision.usage().spares_call() {
                    self.decides_again();
                }
                Resolution::Decided(decision)
            }
            Err(error) => self.fall_back(kind, check, &error, timing),
        };
        if let Resolution::Decided(decision) = &resolution {
            // An observer may panic, and then the caller does not get the slots.
            let _unreported = asked_at_ms.map(|ms| Unreported::new(self, decision, ms));
            if check.has_contributors() {
                self.record_contributors(decision, check);
            }
            let reports = &self.inner.reporter.0;
            if self.inner.publishes && reports.policies.note(check, self.inner.failure_policy) {
                reports.ensure_running();
            }
            self.report_decision(kind, decision, check, timing);
            if kind == CallKind::Check {
                self.notice_near_limits(decision);
            }
        }
        resolution
    }
}

/// Returns the slots of a decision if this is dropped by a panic.
struct Unreported<'a> {
    limiter: &'a Limiter,
    decision: &'a Decision,
    /// Whether this thread unwinds for another reason.
    was_panicking: bool,
}

impl<'a> Unreported<'a> {
    fn new(limiter: &'a Limiter, decision: &'a Decision, asked_at_ms: u64) -> Self {
        decision.usage().asked_at(asked_at_ms);
        Self {
            limiter,
            decision,
            was_panicking: thread::panicking(),
        }
    }
}

impl Drop for Unreported<'_> {
    fn drop(&mut self) {
        if thread::panicking() && !self.was_panicking {
            drop(self.limiter.hold(self.decision));
        }
    }
}
