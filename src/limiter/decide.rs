//! The one path of every decision.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{
    Limiter, Resolution,
    caller::{Answer, Calling, To},
    refusals::{KnownBefore, Question},
    resolution::is_open,
    slots::Unanswered,
};
#[cfg(doc)]
use crate::domain::FailurePolicy;
use crate::{
    domain::{
        charge::Charge,
        check::Check,
        decision::{Decision, Usage},
        error::StoreError,
        late::Late,
    },
    observe::{CallInfo, CallKind, Timing},
    store::{Left, Store, StoreFuture, maybe_ready::MaybeReady},
};

/// The state of the limiter when a call begins.
struct Asked {
    known: KnownBefore,
    /// `None` if the check takes no slots. Boxed, since mostly it takes none.
    slots: Option<Box<Unanswered>>,
    /// `None` if a denial must not be remembered. Boxed, since mostly none is.
    question: Option<Box<Question>>,
    /// Whether another try may follow: see [`is_open`].
    is_try: bool,
}

/// A decision that the store has to be waited for.
struct Deciding {
    limiter: Limiter,
    kind: CallKind,
    check: Check,
    call: Calling<Decision>,
    /// `None` after the answer.
    asked: Option<Asked>,
}

impl Future for Deciding {
    type Output = Resolution;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Resolution> {
        let this = &mut *self;
        let answer = ready!(Pin::new(&mut this.call).poll(cx));
        let Some(asked) = this.asked.take() else {
            panic!("polled after completion");
        };
        // After a timeout, the answer may still come.
        let late = match this.call.leave() {
            Left::Late(answer) if pays(&this.check) && this.kind == CallKind::Check => Some(answer),
            _ => None,
        };
        let (limiter, check) = (&this.limiter, &this.check);
        Poll::Ready(limiter.resolve_call(this.kind, check, answer, asked, late))
    }
}

/// Whether a check has a cost, or takes slots, so that its late answer matters.
fn pays(check: &Check) -> bool {
    check.all_charges().iter().any(|charge| charge.cost() > 0)
}

/// The caller leaves before the answer. It keeps the charge, or nobody would be limited who hangs up, unless its layer
/// refunds that.
impl Drop for Deciding {
    fn drop(&mut self) {
        let Some(Asked { mut slots, .. }) = self.asked.take() else {
            return;
        };
        let answer = match self.call.leave() {
            Left::Late(answer) => answer,
            Left::Unsent => return slots.iter_mut().for_each(|it| it.answered()),
            Left::Answered => return, // an observer or a store has panicked
        };
        let refunds = self.limiter.inner.refunds_left && pays(&self.check);
        if refunds || slots.is_some() {
            let late = self.limiter.keep_late(&self.check, answer, slots);
            if !refunds {
                late.serve();
            }
        }
    }
}

impl Limiter {
    /// Decides these charges together, and charges them if all fit. [Shadows](crate::limiter#trying-a-policy-out) among them
    /// never deny.
    ///
    /// If you drop the future after the check was sent, the charge stays, and slots are returned.
    ///
    /// # Errors
    ///
    /// When the store could not decide within the timeout, unless the failure policy is
    /// [`Local`](FailurePolicy::Local): see [`StoreErrorKind`](crate::error::StoreErrorKind). You then have to apply
    /// the policy, or use [`try_acquire`](Self::try_acquire). If the store admits the check after the error, the limiter
    /// [refunds](crate::limiter#late-answers) the charge.
    pub async fn check(
        &self,
        charges: impl IntoIterator<Item = Charge>,
    ) -> Result<Decision, StoreError> {
        let check = Check::new(charges)?;
        let decision = self.decide(check).await.into_result()?;
        self.count_outcome(&decision);
        Ok(decision)
    }

    /// Decides these charges together, and charges them if all fit; follows the failure policy if the store cannot
    /// decide.
    ///
    /// Returns whether you may go on. An [invalid](crate::error::StoreErrorKind::InvalidRequest) check is not admitted,
    /// whatever the failure policy.
    ///
    /// Slots of a [concurrency policy](crate::Rule::concurrent) could not be returned: use
    /// [`acquire_slot`](Self::acquire_slot), or [`check`](Self::check) and [`hold`](Self::hold).
    pub async fn try_acquire(&self, charges: impl IntoIterator<Item = Charge>) -> bool {
        let Ok(check) = Check::new(charges) else {
            return false;
        };
        match self.decide(check).await {
            Resolution::Decided(decision) => {
                self.count_outcome(&decision);
                decision.is_allowed()
            }
            Resolution::Open(_, late) => {
                late.iter().for_each(Usage::serve_late);
                true
            }
            Resolution::Closed(_) => false,
        }
    }

    /// Returns the usage under these policies and keys without charging; the costs of the charges are ignored. You find
    /// the usage of shadows in [`Usage::shadow`].
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout, unless the failure policy is
    /// [`Local`](FailurePolicy::Local).
    pub async fn peek(
        &self,
        charges: impl IntoIterator<Item = Charge>,
    ) -> Result<Usage, StoreError> {
        let check = Check::new(charges)?.without_cost();
        let resolution = self.decide_as(CallKind::Peek, check).await;
        Ok(resolution.into_result()?.usage().clone())
    }

    /// Decides a check and charges it.
    pub(crate) fn decide(&self, check: Check) -> MaybeReady<Resolution> {
        self.decide_within_time(check, None)
    }

    /// Decides a check and charges it: alone, or as one of several tries of a request, which has this much time left.
    pub(super) fn decide_within_time(
        &self,
        mut check: Check,
        time_of_try: Option<Duration>,
    ) -> MaybeReady<Resolution> {
        if self.inner.enforces_blocks {
            check = check.enforce_blocks(true);
        }
        self.ask(CallKind::Check, check, time_of_try)
    }

    /// Counts the final outcome of a request; a denial may also be a strike.
    pub(crate) fn count_outcome(&self, decision: &Decision) {
        let jobs = &self.inner.jobs;
        jobs.strikes.count(decision, &self.inner.caller);
        if self.inner.counts_denials {
            jobs.reporter.0.count(decision);
        }
    }

    /// Decides a check by the store, or else by the failure policy. The call starts at once, not when first polled.
    pub(super) fn decide_as(&self, kind: CallKind, check: Check) -> MaybeReady<Resolution> {
        self.ask(kind, check, None)
    }

    /// Like [`decide_as`](Self::decide_as). A try is not reported if [another may follow](is_open).
    pub(super) fn ask(
        &self,
        kind: CallKind,
        check: Check,
        time_of_try: Option<Duration>,
    ) -> MaybeReady<Resolution> {
        // An empty check needs no store call and raises no event.
        if check.is_empty() {
            let result = Decision::new(&check, true, 0, &[]);
            let answer = Answer {
                result,
                timing: None,
            };
            return MaybeReady::ready(self.resolve(kind, &check, answer, None, false, None));
        }
        let inner = &self.inner;
        let refusals = &inner.memory.refusals;
        let mut asked = Asked {
            known: refusals.before_call(),
            slots: None,
            question: None,
            is_try: time_of_try.is_some(),
        };
        let mut repeated = None;
        if inner.caches_denials {
            match refusals.recall(&check, &inner.denial_clock) {
                Ok(denial) => repeated = Some(denial),
                Err(question) => asked.question = question.map(Box::new),
            }
        }
        // From before the call: a slot may be released so long after.
        let takes_slots = check.takes_slots();
        asked.slots = takes_slots.then(|| Box::new(Unanswered::new(self, &check)));
        // Identities that are only looked up for blocks are charged 0 units, in the same store call.
        let charged = check.with_look_ups_charged();
        let begin = |store: &dyn Store| store.check(charged.as_ref().unwrap_or(&check));
        let info = || CallInfo::new(kind, &check);
        let (caller, memory) = (&inner.caller, To::Local(&inner.fallback.local.store));
        let mut call = match repeated {
            Some(denial) => caller.call(memory, info, |_| StoreFuture::ready(Ok(denial))),
            None => caller.call(time_of_try.map_or(To::Store, To::StoreFor), info, begin),
        };
        if let Some(answer) = call.take_ready() {
            return MaybeReady::ready(self.resolve_call(kind, &check, answer, asked, None));
        }
        MaybeReady::pending(Deciding {
            limiter: self.clone(),
            kind,
            check,
            call,
            asked: Some(asked),
        })
    }

    /// Like [`resolve`](Self::resolve), and remembers the blocks in the store's answer, and denials.
    fn resolve_call(
        &self,
        kind: CallKind,
        check: &Check,
        mut answer: Answer<Decision>,
        mut asked: Asked,
        late: Option<StoreFuture<Decision>>,
    ) -> Resolution {
        let refusals = &self.inner.memory.refusals;
        if let Ok(decision) = &answer.result {
            refusals.learn(check, decision, asked.known);
        }
        if !check.look_ups().is_empty() {
            answer.result = answer.result.map(|decision| decision.about(check));
        }
        if let (Some(question), Ok(decision)) = (asked.question, &answer.result) {
            refusals.remember_denial(check, decision, *question, &self.inner.denial_clock);
        }
        let late = late.map(|answer| {
            // The memory of this process may grant others.
            let others = asked.slots.as_deref().map(Unanswered::of_others);
            let slots = mem::replace(&mut asked.slots, others.map(Box::new));
            self.keep_late(check, answer, slots)
        });
        self.resolve(kind, check, answer, asked.slots, asked.is_try, late)
    }

    /// Turns the answer of a call into a resolution.
    fn resolve(
        &self,
        kind: CallKind,
        check: &Check,
        answer: Answer<Decision>,
        mut slots: Option<Box<Unanswered>>,
        is_try: bool,
        late: Option<Late>,
    ) -> Resolution {
        let Answer { result, timing } = answer;
        if let Some(slots) = &mut slots {
            slots.see(&result);
        }
        let resolution = match result {
            Ok(decision) => {
                // An answer without the store says nothing about it.
                if !check.is_empty() && !decision.usage().spares_call() {
                    self.inner.fallback.decides_again();
                }
                Resolution::Decided(decision)
            }
            Err(error) => {
                let resolution = self.fall_back(kind, check, &error, timing);
                match late {
                    Some(late) => resolution.with_late(check, late),
                    None => resolution,
                }
            }
        };
        if let Resolution::Decided(decision) = &resolution {
            if let Some(slots) = &mut slots {
                slots.note(decision, check);
            }
            let reports = &self.inner.jobs.reporter.0;
            let (publishes, failure) = (self.inner.publishes, self.inner.fallback.policy);
            if reports.policies.note(check, failure, publishes) && publishes {
                reports.ensure_running();
            }
            if !(is_try && is_open(decision)) {
                self.report_decision(kind, decision, check, timing);
            }
        }
        // Not earlier: an observer may panic, and then the caller does not get the slots.
        if let Some(slots) = &mut slots {
            slots.answered();
        }
        resolution
    }

    /// Follows the failure policy.
    fn fall_back(
        &self,
        kind: CallKind,
        check: &Check,
        error: &StoreError,
        timing: Option<Timing>,
    ) -> Resolution {
        let (fallback, refusals) = (&self.inner.fallback, &self.inner.memory.refusals);
        let (resolution, outcome) = fallback.resolve(kind, check, error, refusals);
        let call = CallInfo::new(kind, check);
        self.events().error(call, error, outcome, timing);
        resolution
    }

    /// Reports the final decision of a check.
    pub(super) fn report_decision(
        &self,
        kind: CallKind,
        decision: &Decision,
        check: &Check,
        timing: Option<Timing>,
    ) {
        if check.has_contributors() {
            self.inner.jobs.reporter.0.contribute(decision, check);
        }
        self.events().decision(kind, decision, check, timing);
        if kind == CallKind::Check {
            self.inner.notices.notice_check(decision, self.events());
        }
    }
}
