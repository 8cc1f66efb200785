//! What a layer limits, and how a request's head becomes a decision.

use std::{
    borrow::Cow,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::request::Parts;
use pin_project_lite::pin_project;

use super::{PolicySource, Rejection, exceptions::Exceptions, settle::Settle, source::Choice};
use crate::{
    charge::{Charge, Charges},
    decision::Decision,
    error::{ExtractError, ExtractErrorKind, StoreErrorKind},
    extract::{AsyncKeyExtractor, KeyExtractor, Keys, LookUp},
    limiter::{FailurePolicy, Limiter, WithinDeadline},
    policy::Policy,
    store::Answer,
};

type Cost = dyn Fn(&Parts) -> u64 + Send + Sync;

#[derive(Clone)]
pub(super) struct Plan {
    pub(super) limiter: Limiter,
    pub(super) limits: Vec<(PolicySource, Arc<dyn KeyExtractor>)>,
    pub(super) look_ups: Vec<(PolicySource, Arc<dyn AsyncKeyExtractor>)>,
    pub(super) cost: Option<Arc<Cost>>,
    pub(super) exceptions: Arc<Exceptions>,
    pub(super) settle: Settle,
}

/// What becomes of a request.
pub(super) enum Verdict {
    /// The inner service is called. Without a decision when no limit applies, or when the failure policy is open.
    Pass(Option<Decision>),
    /// The inner service is not called.
    Refuse(Rejection),
}

impl Plan {
    pub(super) fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            limits: Vec::new(),
            look_ups: Vec::new(),
            cost: None,
            exceptions: Arc::default(),
            settle: Settle::default(),
        }
    }

    /// Where the policies come from, in the order in which they are charged.
    pub(super) fn sources(&self) -> impl Iterator<Item = &PolicySource> {
        let limits = self.limits.iter().map(|(source, _)| source);
        limits.chain(self.look_ups.iter().map(|(source, _)| source))
    }

    /// The policies that do not depend on the request.
    pub(super) fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.sources().filter_map(PolicySource::fixed)
    }

    /// Finds out who is asking, and asks the store.
    pub(super) fn decide(&self, head: &Parts) -> Deciding {
        match self.exceptions.skips(head) {
            Err(rejection) => return Deciding::known(Err(rejection)),
            Ok(true) => return Deciding::known(Ok(None)),
            Ok(false) => {}
        }
        let cost = self.cost.as_ref().map_or(1, |cost| cost(head));
        match self.charges(head, cost) {
            Err(rejection) => Deciding::known(Err(rejection)),
            Ok(charges) if !self.look_ups.is_empty() => self.look_up(charges, head, cost),
            Ok(charges) if charges.is_empty() => Deciding::known(Ok(None)),
            Ok(charges) => Deciding::Asking {
                answer: self.limiter.decide(&charges.into_check()),
            },
        }
    }

    fn charges(&self, head: &Parts, cost: u64) -> Result<Charges, Rejection> {
        let mut charges = Charges::with_capacity(self.limits.len());
        for (source, extractor) in &self.limits {
            let keys = self.exceptions.charged(extractor.extract(head)?)?;
            add(&mut charges, || source.choose(head), keys, cost)?;
        }
        Ok(charges)
    }

    /// One deadline covers the look-ups and the store.
    fn look_up(&self, mut charges: Charges, head: &Parts, cost: u64) -> Deciding {
        let look_ups = self.look_ups.iter();
        let look_ups: Vec<(ChoiceOrNot, LookUp)> = look_ups
            .map(|(source, extractor)| (owned(source.choose(head)), extractor.look_up(head)))
            .collect();
        let (limiter, exceptions) = (self.limiter.clone(), self.exceptions.clone());
        let answer = Answer::pending(async move {
            for (choice, look_up) in look_ups {
                let added = match look_up.await {
                    Ok(keys) => exceptions
                        .charged(keys)
                        .and_then(|keys| add(&mut charges, || choice, keys, cost)),
                    Err(error) => Err(error.into()),
                };
                if let Err(rejection) = added {
                    return Ok(Err(rejection));
                }
            }
            if charges.is_empty() {
                return Ok(Ok(None));
            }
            let decision = limiter.ask(&charges.into_check()).await?;
            Ok(Ok(Some(decision)))
        });
        Deciding::LookingUp {
            answer: self.limiter.within_deadline(answer),
        }
    }

    /// What becomes of a request that was decided, or could not be.
    pub(super) fn verdict(&self, outcome: Outcome) -> Verdict {
        let open = self.limiter.failure_policy() == FailurePolicy::Open;
        match outcome {
            Ok(Some(Decision::Denied(denial))) => Verdict::Refuse(Rejection::Denied(denial)),
            Ok(decision) => Verdict::Pass(decision),
            Err(rejection) if open && is_failure(&rejection) => Verdict::Pass(None),
            Err(rejection) => Verdict::Refuse(rejection),
        }
    }
}

/// Whether the service failed, and not the client or the caller of the store.
fn is_failure(rejection: &Rejection) -> bool {
    match rejection {
        Rejection::Undecided(error) => error.kind() != StoreErrorKind::Misuse,
        Rejection::Unidentified(error) => error.kind() == ExtractErrorKind::Unavailable,
        Rejection::Denied(_) | Rejection::Blocked => false,
    }
}

type ChoiceOrNot = Result<Choice<'static>, ExtractError>;

fn owned(choice: Result<Choice<'_>, ExtractError>) -> ChoiceOrNot {
    choice.map(|it| it.map(|(policy, weight)| (Cow::Owned(policy.into_owned()), weight)))
}

/// Charges keys. Which policy it is, is asked only when there is a key.
fn add<'a>(
    charges: &mut Charges,
    choose: impl FnOnce() -> Result<Choice<'a>, ExtractError>,
    keys: Keys,
    cost: u64,
) -> Result<(), Rejection> {
    if keys.is_empty() {
        return Ok(());
    }
    if let Some((policy, weight)) = choose()? {
        for key in keys {
            charges
                .add(Charge::new(&policy, key, cost.saturating_mul(weight)))
                .map_err(Rejection::Undecided)?;
        }
    }
    Ok(())
}

/// A decision, `None` when no limit applies, or why there is none.
pub(super) type Outcome = Result<Option<Decision>, Rejection>;

pin_project! {
    /// An outcome that is known at once, or to be waited for under the deadline.
    #[project = DecidingProj]
    pub(super) enum Deciding {
        Known { outcome: Option<Outcome> },
        Asking { #[pin] answer: WithinDeadline<Decision> },
        LookingUp { #[pin] answer: WithinDeadline<Outcome> },
    }
}

impl Deciding {
    const fn known(outcome: Outcome) -> Self {
        Self::Known {
            outcome: Some(outcome),
        }
    }
}

impl Future for Deciding {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self.project() {
            DecidingProj::Known { outcome } => match outcome.take() {
                Some(outcome) => Poll::Ready(outcome),
                None => panic!("polled after completion"),
            },
            DecidingProj::Asking { answer } => answer
                .poll(cx)
                .map(|answer| answer.map(Some).map_err(Rejection::Undecided)),
            DecidingProj::LookingUp { answer } => answer
                .poll(cx)
                .map(|answer| answer.unwrap_or_else(|error| Err(Rejection::Undecided(error)))),
        }
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan")
            .field("limiter", &self.limiter)
            .field("policies", &self.sources().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
