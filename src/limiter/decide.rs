//! The one path of every decision.

use std::{
    num::NonZeroU64,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{
    Limiter,
    guarded_store::{Answer, Call, Calling, To},
    late::Unserved,
    refusals::Question,
};
#[cfg(doc)]
use crate::domain::FailurePolicy;
use crate::{
    clock,
    domain::{
        charge::Charge,
        check::{Check, CheckBuilder},
        decision::{Decision, Usage},
        error::StoreError,
        late::Late,
        wanted::{BLOCKS, BY_ADMISSIONS, BY_DENIALS, COUNTS, NOTICES, OUTAGE, UNSEEN},
    },
    observe::{CallInfo, CallKind, Timing},
    store::{Left, Store, StoreFuture, maybe_ready::MaybeReady},
    warning,
};

/// The result of a check.
#[derive(Debug)]
pub(crate) enum Resolution {
    /// Decided by the store, or by the memory of this process in its place.
    Decided(Decision),
    /// The store could not decide, and the failure policy lets the request pass. The usage is one to be settled, if the
    /// store may still admit the check: at no cost unless the request [is served](Usage::serve_late).
    Open(StoreError, Option<Usage>),
    /// The store could not decide, and the request does not pass.
    Closed(StoreError),
}

impl Resolution {
    /// The same, of a check that the store may still admit. A request that does not pass costs nothing.
    #[cold]
    fn with_late(self, check: &Check, late: Late) -> Self {
        match self {
            Self::Open(error, _) => {
                let usage = Usage::unused(check).with_late(late);
                Self::Open(error, Some(usage))
            }
            Self::Decided(Decision::Allowed(usage)) => {
                let usage = usage.with_late(late);
                usage.serve_late();
                Self::Decided(Decision::Allowed(usage))
            }
            refused => refused,
        }
    }

    /// The decision; or the error, if the caller has to follow the failure policy.
    pub(super) fn into_result(self) -> Result<Decision, StoreError> {
        match self {
            Self::Decided(decision) => Ok(decision),
            Self::Open(error, _) | Self::Closed(error) => Err(error),
        }
    }
}

/// The state of the limiter when a call begins.
#[derive(Clone, Copy)]
struct Asked {
    kind: CallKind,
    /// How many blocks were known.
    known: u64,
    /// `None` if the check takes no slots.
    slots_at_ms: Option<NonZeroU64>,
    /// `None` if a denial must not be remembered.
    question: Option<Question>,
    ask: Ask,
}

impl Asked {
    /// Notes in a decision when its slots were asked for.
    fn note(&self, decision: &mut Decision) {
        if self.slots_at_ms.is_some() {
            let usage = decision.usage_mut();
            usage.note(|facts| facts.asked_at_ms = self.slots_at_ms);
        }
    }
}

/// How a check comes to be asked, which says what may follow.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    /// For the answer.
    Once,
    /// By a caller that may wait: if the store denies, it asks again, or answers in the end.
    Waiting,
    /// As one of the tries of a request, which has this much time left. The request reports the decision in the end.
    Try(Duration),
}

/// A decision that the store has to be waited for.
struct Deciding {
    limiter: Limiter,
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
            Left::Late(answer) if pays(&this.check) && asked.kind == CallKind::Check => {
                Some(answer)
            }
            _ => None,
        };
        let (limiter, check) = (&this.limiter, &this.check);
        Poll::Ready(limiter.resolve(check, answer, asked, late))
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
        if self.asked.take().is_none() {
            return;
        }
        let (limiter, check) = (&self.limiter, &self.check);
        let answer = match self.call.leave() {
            Left::Late(answer) => answer,
            Left::Unsent => return,
            Left::Answered => return limiter.return_unheld(check), // an observer or a store has panicked
        };
        let refunds = limiter.inner.refunds_left && pays(check);
        if refunds || check.takes_slots() {
            let late = limiter.keep_late(answer, check);
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
        Ok(self.peek_at(check).await?.usage().clone())
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
        let refusals = &inner.shared.refusals;
        let mut asked = Asked {
            kind,
            known: refusals.known(),
            slots_at_ms: None,
            question: None,
            ask,
        };
        // From before the call: a slot may be released so long after.
        if check.takes_slots() {
            asked.slots_at_ms = NonZeroU64::new(clock::now_ms().max(1));
        }
        if inner.caches_denials {
            match refusals.recall(&check, &inner.denial_clock) {
                Ok(denial) => {
                    let answer = inner.guarded.uncalled(Ok(denial));
                    return MaybeReady::ready(self.resolve(&check, answer, asked, None));
                }
                Err(question) => asked.question = question,
            }
        }
        let time = match ask {
            Ask::Try(time) => time,
            Ask::Once | Ask::Waiting => inner.guarded.timeout,
        };
        let info = || CallInfo::new(kind, &check);
        let begin = |store: &dyn Store| store.check(&check);
        match inner.guarded.call(To::Store(time), info, begin) {
            Calling::Ready(answer) => MaybeReady::ready(self.resolve(&check, answer, asked, None)),
            Calling::Waits(call) => MaybeReady::pending(Deciding {
                limiter: self.clone(),
                check,
                call,
                asked: Some(asked),
            }),
        }
    }

    /// Turns the answer of a call into a resolution. `late` is the rest of a wait whose answer may still come.
    fn resolve(
        &self,
        check: &Check,
        Answer { result, timing }: Answer<Decision>,
        asked: Asked,
        late: Option<StoreFuture<Decision>>,
    ) -> Resolution {
        let mut decision = match result {
            Ok(decision) => {
                if let Some(question) = asked.question {
                    let (inner, refusals) = (&self.inner, &self.inner.shared.refusals);
                    refusals.remember_denial(check, &decision, question, &inner.denial_clock);
                }
                decision
            }
            Err(error) => match self.undecided(check, &error, timing, asked, late) {
                Resolution::Decided(decision) => decision,
                undecided => return undecided,
            },
        };
        asked.note(&mut decision);
        let wanted = self.wanted(check, &decision, asked.known);
        if wanted != 0 {
            self.attend(wanted, &decision, check, asked, timing);
        }
        Resolution::Decided(decision)
    }

    /// Follows the failure policy.
    #[cold]
    fn undecided(
        &self,
        check: &Check,
        error: &StoreError,
        timing: Option<Timing>,
        asked: Asked,
        late: Option<StoreFuture<Decision>>,
    ) -> Resolution {
        let late = late.map(|answer| self.keep_late(answer, check));
        if late.is_none() && !error.is_unsent() {
            self.return_unheld(check);
        }
        let (fallback, refusals) = (&self.inner.fallback, &self.inner.shared.refusals);
        let (mut resolution, outcome) = fallback.resolve(asked.kind, check, error, refusals);
        let mut granted = None;
        if let Resolution::Decided(decision) = &mut resolution {
            asked.note(decision);
            granted = Some(Unserved::new(self, decision));
        }
        let call = CallInfo::new(asked.kind, check);
        self.events().error(call, error, outcome, timing);
        granted.into_iter().for_each(Unserved::answered);
        match late {
            Some(late) => resolution.with_late(check, late),
            None => resolution,
        }
    }

    /// One word, which says whether anything is wanted of a decision: mostly nothing is.
    fn wanted(&self, check: &Check, decision: &Decision, known: u64) -> u8 {
        let (inner, blocks) = (&self.inner, if known > 0 { BLOCKS } else { 0 });
        let of_limiter = inner.wanted | inner.fallback.wanted() | blocks;
        let wanted = of_limiter | check.wanted_by(inner.shared.reports.policies.number());
        match decision {
            Decision::Allowed(_) => wanted & BY_ADMISSIONS,
            Decision::Denied(_) => wanted & BY_DENIALS,
            Decision::Blocked(_) => wanted & BY_DENIALS | BLOCKS,
        }
    }

    /// Does the work that follows some decisions: one step for each bit of `wanted`.
    #[cold]
    fn attend(
        &self,
        wanted: u8,
        decision: &Decision,
        check: &Check,
        asked: Asked,
        timing: Option<Timing>,
    ) {
        let (inner, usage) = (&self.inner, decision.usage());
        // An observer may panic, and then the caller does not get the slots.
        let slots = asked.slots_at_ms.map(|_| Unserved::new(self, decision));
        // An answer without the store says nothing about it.
        let is_of_store = !usage.is_local() && !usage.spares_call();
        if wanted & BLOCKS != 0 && is_of_store {
            inner.shared.refusals.learn(check, decision, asked.known);
        }
        if wanted & OUTAGE != 0 && is_of_store && inner.fallback.outage.ends() {
            warning::decides_again();
        }
        if wanted & UNSEEN != 0 {
            let reports = &inner.shared.reports;
            if reports.policies.note(check, inner.fallback.policy) {
                reports.ensure_running();
            }
        }
        if !matches!(asked.ask, Ask::Try(_)) {
            self.report_decision(asked.kind, decision, check, timing);
        }
        if matches!(asked.ask, Ask::Once) && asked.kind == CallKind::Check {
            self.count_refusal(decision);
        }
        slots.into_iter().for_each(Unserved::answered);
    }

    /// Reports the final decision of a check.
    pub(super) fn report_decision(
        &self,
        kind: CallKind,
        decision: &Decision,
        check: &Check,
        timing: Option<Timing>,
    ) {
        if let Decision::Allowed(usage) = decision
            && check.has_contributors()
        {
            self.inner.shared.reports.contribute(usage);
        }
        self.events().decision(kind, decision, check, timing);
        if let Decision::Allowed(usage) = decision
            && kind == CallKind::Check
        {
            self.notice(usage);
        }
    }

    /// Gives notice of a share of a limit that is used, if that is asked for.
    pub(super) fn notice(&self, usage: &Usage) {
        if self.inner.wanted & NOTICES != 0 {
            self.events().near_limit(usage, self.inner.notice_percent);
        }
    }

    /// Counts the denial that ends a request, which may also be a strike.
    pub(super) fn count_refusal(&self, decision: &Decision) {
        let inner = &self.inner;
        if decision.usage().check().bans() {
            self.count_strikes(decision);
        }
        if inner.wanted & COUNTS != 0 {
            inner.shared.reports.count(decision);
        }
    }
}
