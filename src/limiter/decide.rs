//! The one path of every decision.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{
    Limiter, Resolution,
    caller::{Answer, Call, Calling, To},
    near_limit,
    refusals::{KnownBefore, Question},
    resolution::is_open,
    slots::Unanswered,
};
#[cfg(doc)]
use crate::domain::FailurePolicy;
use crate::{
    domain::{
        charge::Charge,
        check::{Check, CheckBuilder},
        decision::{Decision, Usage},
        error::StoreError,
        late::Late,
        wanted::{BY_ADMISSIONS, BY_DENIALS, COUNTS, NOTICES, OUTAGE, UNSEEN},
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
    ask: Ask,
}

impl Asked {
    /// Leaves the slots to a late answer. The memory of this process may grant others.
    fn slots_of_late(&mut self) -> Option<Box<Unanswered>> {
        let others = self.slots.as_deref().map(Unanswered::of_others);
        mem::replace(&mut self.slots, others.map(Box::new))
    }
}

/// How a check comes to be asked, which says what may follow.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    /// For the answer.
    Once,
    /// By a caller that may wait: if the store denies, it asks again, or answers in the end.
    Waiting,
    /// As one of the tries of a request, which has this much time left. Another may follow: see [`is_open`].
    Try(Duration),
}

impl Ask {
    const fn to<'a>(self) -> To<'a> {
        match self {
            Self::Try(time) => To::StoreFor(time),
            Self::Once | Self::Waiting => To::Store,
        }
    }

    /// Whether another try follows a decision, so that it is not reported.
    pub(super) fn goes_on(self, decision: &Decision) -> bool {
        matches!(self, Self::Try(_)) && is_open(decision)
    }
}

/// A decision that the store has to be waited for.
struct Deciding {
    limiter: Limiter,
    kind: CallKind,
    check: Check,
    call: Call<Decision>,
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
        Poll::Ready(limiter.resolve(this.kind, check, answer, asked, late))
    }
}

/// Whether a check has a cost, or takes slots, so that its late answer matters.
fn pays(check: &Check) -> bool {
    check.all_charges().iter().any(|charge| charge.cost() > 0)
}

/// The caller leaves before the answer. It keeps the charge unless its layer refunds that: otherwise clients would pass
/// the limit by hanging up.
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
            let late = self.limiter.keep_late(answer, slots);
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
        let check = self.begin_check().with(charges)?;
        self.decide(check).await.into_result()
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
        let Ok(check) = self.begin_check().with(charges) else {
            return false;
        };
        match self.decide(check).await {
            Resolution::Decided(decision) => decision.is_allowed(),
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
        let resolution = self.ask(CallKind::Peek, check, Ask::Once).await;
        Ok(resolution.into_result()?.usage().clone())
    }

    /// Begins a check, which blocks deny if this limiter enforces them.
    pub(crate) fn begin_check(&self) -> CheckBuilder {
        CheckBuilder::enforcing(self.inner.enforces_blocks)
    }

    /// Decides a check and charges it.
    pub(crate) fn decide(&self, check: Check) -> MaybeReady<Resolution> {
        self.ask(CallKind::Check, check, Ask::Once)
    }

    /// Decides a check by the store, or else by the failure policy. The call starts at once, not when first polled.
    pub(super) fn ask(&self, kind: CallKind, check: Check, ask: Ask) -> MaybeReady<Resolution> {
        // An empty check needs no store call and raises no event.
        if check.is_empty() {
            let admitted = Decision::new(&check, true, 0, &[]);
            let resolution = admitted.map_or_else(Resolution::Closed, Resolution::Decided);
            return MaybeReady::ready(resolution);
        }
        let inner = &self.inner;
        let refusals = &inner.memory.refusals;
        let mut asked = Asked {
            known: refusals.before_call(),
            slots: None,
            question: None,
            ask,
        };
        // From before the call: a slot may be released so long after.
        if check.takes_slots() {
            asked.slots = Some(Box::new(Unanswered::new(self, &check)));
        }
        let info = || CallInfo::new(kind, &check);
        let call = match self.repeat(kind, &check, &mut asked) {
            Some(answer) => Calling::Ready(answer),
            None => inner
                .caller
                .call(ask.to(), info, |store| store.check(&check)),
        };
        match call {
            Calling::Ready(answer) => {
                MaybeReady::ready(self.resolve(kind, &check, answer, asked, None))
            }
            Calling::Waits(call) => MaybeReady::pending(Deciding {
                limiter: self.clone(),
                kind,
                check,
                call,
                asked: Some(asked),
            }),
        }
    }

    /// Answers with a remembered denial.
    fn repeat(&self, kind: CallKind, check: &Check, asked: &mut Asked) -> Option<Answer<Decision>> {
        let (inner, info) = (&self.inner, || CallInfo::new(kind, check));
        if !inner.caches_denials {
            return None;
        }
        match inner.memory.refusals.recall(check, &inner.denial_clock) {
            Ok(denial) => {
                let memory = To::Local(&inner.fallback.local);
                let answer = |_: &dyn Store| StoreFuture::ready(Ok(denial));
                inner.caller.call(memory, info, answer).ready()
            }
            Err(question) => {
                asked.question = question.map(Box::new);
                None
            }
        }
    }

    /// Turns the answer of a call into a resolution. `late` is the rest of a wait whose answer may still come.
    fn resolve(
        &self,
        kind: CallKind,
        check: &Check,
        Answer { result, timing }: Answer<Decision>,
        mut asked: Asked,
        late: Option<StoreFuture<Decision>>,
    ) -> Resolution {
        let mut resolution = match result {
            Ok(decision) => {
                self.learn(check, &decision, &mut asked);
                Resolution::Decided(decision)
            }
            Err(error) => {
                let late = late.map(|answer| self.keep_late(answer, asked.slots_of_late()));
                if let Some(slots) = &mut asked.slots {
                    slots.see(Err(&error));
                }
                self.undecided(kind, check, &error, timing, late)
            }
        };
        if let Resolution::Decided(decision) = &mut resolution {
            if let Some(slots) = &mut asked.slots {
                slots.note(decision, check);
            }
            let wanted = self.wanted(check, decision);
            if wanted != 0 {
                self.attend(wanted, kind, decision, check, asked.ask, timing);
            }
        }
        // Not earlier: an observer may panic, and then the caller does not get the slots.
        if let Some(slots) = &mut asked.slots {
            slots.answered();
        }
        resolution
    }

    /// Remembers the blocks in the store's answer, and denials.
    fn learn(&self, check: &Check, decision: &Decision, asked: &mut Asked) {
        let refusals = &self.inner.memory.refusals;
        refusals.learn(check, decision, asked.known);
        if let Some(question) = asked.question.take() {
            refusals.remember_denial(check, decision, *question, &self.inner.denial_clock);
        }
        if let Some(slots) = &mut asked.slots {
            slots.see(Ok(decision));
        }
    }

    /// Follows the failure policy.
    #[cold]
    fn undecided(
        &self,
        kind: CallKind,
        check: &Check,
        error: &StoreError,
        timing: Option<Timing>,
        late: Option<Late>,
    ) -> Resolution {
        let (fallback, refusals) = (&self.inner.fallback, &self.inner.memory.refusals);
        let (resolution, outcome) = fallback.resolve(kind, check, error, refusals);
        let call = CallInfo::new(kind, check);
        self.events().error(call, error, outcome, timing);
        match late {
            Some(late) => resolution.with_late(check, late),
            None => resolution,
        }
    }

    /// One word, which says whether anything is wanted of a decision: mostly nothing is.
    fn wanted(&self, check: &Check, decision: &Decision) -> u8 {
        let inner = &self.inner;
        let number = inner.jobs.reports.policies.number(inner.publishes);
        let mask = match decision {
            Decision::Allowed(_) => BY_ADMISSIONS,
            Decision::Denied(_) | Decision::Blocked(_) => BY_DENIALS,
        };
        (inner.wanted | inner.fallback.wanted() | check.wanted_by(number)) & mask
    }

    /// Does what is wanted of a decision.
    #[cold]
    fn attend(
        &self,
        wanted: u8,
        kind: CallKind,
        decision: &Decision,
        check: &Check,
        ask: Ask,
        timing: Option<Timing>,
    ) {
        let inner = &self.inner;
        // An answer without the store says nothing about it.
        let usage = decision.usage();
        if wanted & OUTAGE != 0 && !usage.is_local() && !usage.spares_call() {
            inner.fallback.decides_again();
        }
        if wanted & UNSEEN != 0 {
            let (reports, failure) = (&inner.jobs.reports, inner.fallback.policy);
            if reports.policies.note(check, failure, inner.publishes) {
                reports.ensure_running();
            }
        }
        if !ask.goes_on(decision) {
            self.report_decision(kind, decision, check, timing);
        }
        if matches!(ask, Ask::Once) && kind == CallKind::Check {
            self.count_refusal(decision);
        }
    }

    /// Reports the final decision of a check.
    pub(super) fn report_decision(
        &self,
        kind: CallKind,
        decision: &Decision,
        check: &Check,
        timing: Option<Timing>,
    ) {
        let admitted = match decision {
            Decision::Allowed(usage) => Some(usage),
            _ => None,
        };
        if let Some(usage) = admitted.filter(|_| check.has_contributors()) {
            self.inner.jobs.reports.contribute(usage);
        }
        self.events().decision(kind, decision, check, timing);
        let is_noticed = kind == CallKind::Check && self.inner.wanted & NOTICES != 0;
        if let Some(usage) = admitted.filter(|_| is_noticed) {
            near_limit::notice(usage, self.inner.notice_percent, self.events());
        }
    }

    /// Decides by several asks, of which the last answer alone is one to the request.
    pub(super) async fn ask_often(&self, asks: impl Future<Output = Resolution>) -> Resolution {
        let resolution = asks.await;
        if let Resolution::Decided(decision) = &resolution {
            self.count_refusal(decision);
        }
        resolution
    }

    /// Counts the denial that ends a request, which may also be a strike.
    fn count_refusal(&self, decision: &Decision) {
        let inner = &self.inner;
        if decision.usage().check().bans() {
            inner.jobs.strikes.count(decision, &inner.caller);
        }
        if inner.wanted & COUNTS != 0 {
            inner.jobs.reports.count(decision);
        }
    }
}
