//! What a layer limits, and how a request's head becomes a decision.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::request::Parts;
use pin_project_lite::pin_project;

use super::{
    PolicySource, Rejection, exceptions::Exceptions, settle::Settle, shadow::Meant, source::Choice,
};
use crate::{
    charge::{Charge, Charges, Check},
    decision::Decision,
    error::{ExtractError, ExtractErrorKind, StoreErrorKind},
    extract::{AsyncKeyExtractor, KeyExtractor, Keys},
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
    pub(super) shadow: bool,
    pub(super) wait: Option<Duration>,
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
            shadow: false,
            wait: None,
        }
    }

    /// Where the policies come from, in the order in which they are charged.
    pub(super) fn sources(&self) -> impl Iterator<Item = &PolicySource> {
        let limits = self.limits.iter().map(|(source, _)| source);
        limits.chain(self.look_ups.iter().map(|(source, _)| source))
    }

    /// The policies that do not depend on the request, as they are charged.
    pub(super) fn policies(&self) -> impl Iterator<Item = Policy> {
        let fixed = self.sources().filter_map(PolicySource::fixed).cloned();
        fixed.map(|policy| if self.shadow { policy.shadow() } else { policy })
    }

    /// Finds out who is asking, and asks the store.
    pub(super) fn decide(&self, head: &Parts) -> Deciding {
        match self.exceptions.skips(head) {
            Err(rejection) => {
                self.limiter.tell_blocked(None, self.shadow);
                return Deciding::known(Err(rejection));
            }
            Ok(true) => return Deciding::known(Ok(None)),
            Ok(false) => {}
        }
        let cost = self.cost.as_ref().map_or(1, |cost| cost(head));
        let mut charges = Charges::shadows(self.shadow);
        match self.charge(&mut charges, head, cost) {
            Err(rejection) => Deciding::known(Err(rejection)),
            Ok(()) if !self.look_ups.is_empty() => self.look_up(charges, head, cost),
            Ok(()) if charges.is_empty() => Deciding::known(Ok(None)),
            Ok(()) => self.ask(charges.take()),
        }
    }

    fn charge(&self, charges: &mut Charges, head: &Parts, cost: u64) -> Result<(), Rejection> {
        for (source, extractor) in &self.limits {
            let keys = self.exceptions.charged(extractor.extract(head));
            let choose = || source.choose(head);
            if let Err(rejection) = keys.and_then(|keys| add(charges, choose, keys, cost)) {
                self.excuse(source, head, rejection)?;
            }
        }
        Ok(())
    }

    /// Apart from what every request runs through, which then stays in the processor's cache; as are others that are cold.
    #[cold]
    fn excuse(
        &self,
        source: &PolicySource,
        head: &Parts,
        rejection: Rejection,
    ) -> Result<(), Rejection> {
        Meant::new(&source.choose(head), self.shadow).excuse(&self.limiter, rejection, self.shadow)
    }

    /// Asks the store once, or waits for room.
    fn ask(&self, check: Check) -> Deciding {
        if let Some(most) = self.wait {
            return self.ask_and_wait(check, most);
        }
        let answer = self.limiter.decide(&check);
        Deciding::Asking { answer }
    }

    #[cold]
    fn ask_and_wait(&self, check: Check, most: Duration) -> Deciding {
        let limiter = self.limiter.clone();
        Deciding::waiting(async move { wait(&limiter, &check, most).await })
    }

    /// One deadline covers the look-ups and the store. What shadows look up has to wait until the others have decided.
    #[cold]
    fn look_up(&self, mut charges: Charges, head: &Parts, cost: u64) -> Deciding {
        if let Some(most) = self.wait {
            return self.look_up_and_wait(charges, head, cost, most);
        }
        let (shadows, counting) = self.look_ups(head, cost);
        let (limiter, until) = (self.limiter.clone(), self.limiter.until());
        let answer = Answer::pending(async move {
            if let Err(rejection) = counting.run(&limiter, &mut charges, until).await {
                return Ok(Err(rejection));
            }
            let counting = charges.take_counting();
            let shadows = async {
                // Shadows are excused, whatever happens to them.
                let _ = shadows.run(&limiter, &mut charges, until).await;
                charges.take()
            };
            let decision = limiter.clone().in_turn(counting, shadows, until).await?;
            Ok(Ok(known(decision)))
        });
        let answer = self.limiter.within_deadline(answer);
        Deciding::waiting(async {
            answer
                .await
                .unwrap_or_else(|error| Err(Rejection::Undecided(error)))
        })
    }

    /// One deadline covers the look-ups; then there is time to wait for room.
    fn look_up_and_wait(
        &self,
        mut charges: Charges,
        head: &Parts,
        cost: u64,
        most: Duration,
    ) -> Deciding {
        let (shadows, counting) = self.look_ups(head, cost);
        let (limiter, until) = (self.limiter.clone(), self.limiter.until());
        Deciding::waiting(async move {
            counting.run(&limiter, &mut charges, until).await?;
            // Shadows are excused, whatever happens to them.
            let _ = shadows.run(&limiter, &mut charges, until).await;
            wait(&limiter, &charges.take(), most).await
        })
    }

    /// What becomes of a request that was decided, or could not be.
    pub(super) fn verdict(&self, outcome: Outcome) -> Verdict {
        let open = self.limiter.failure_policy() == FailurePolicy::Open;
        match outcome {
            Ok(Some(Decision::Denied(denial))) => Verdict::Refuse(Rejection::Denied(denial)),
            Ok(decision) => Verdict::Pass(decision),
            Err(_) if self.shadow => Verdict::Pass(None),
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

/// Waits for room, if there is anything to be charged.
async fn wait(limiter: &Limiter, check: &Check, most: Duration) -> Outcome {
    if check.charges().is_empty() {
        return Ok(None);
    }
    let decision = limiter.wait_for(check, most).await;
    decision.map(known).map_err(Rejection::Undecided)
}

/// Charges keys. Which policy it is, is asked only when there is a key.
pub(super) fn add<'a>(
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

/// A decision that says something: shadows that could not decide are as if no limit applied.
fn known(decision: Decision) -> Option<Decision> {
    Some(decision).filter(|it| !it.usage().is_empty())
}

/// A decision, `None` when no limit applies, or why there is none.
pub(super) type Outcome = Result<Option<Decision>, Rejection>;

pin_project! {
    /// An outcome that is known at once, or to be waited for under the deadline.
    #[project = DecidingProj]
    pub(super) enum Deciding {
        Known { outcome: Option<Outcome> },
        Asking { #[pin] answer: WithinDeadline<Decision> },
        Waiting { outcome: Pin<Box<dyn Future<Output = Outcome> + Send>> },
    }
}

impl Deciding {
    fn waiting(outcome: impl Future<Output = Outcome> + Send + 'static) -> Self {
        Self::Waiting {
            outcome: Box::pin(outcome),
        }
    }

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
                .map(|answer| answer.map(known).map_err(Rejection::Undecided)),
            DecidingProj::Waiting { outcome } => outcome.as_mut().poll(cx),
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
