//! What a layer limits, and how a request's head becomes a decision.

use std::{
    borrow::Cow,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::request::Parts;
use pin_project_lite::pin_project;

use super::{
    HeaderStyle, PolicySelector, Rejection,
    decide::{AccessLists, Choice},
    response::Headers,
    settle::Settle,
    shadow::Meant,
};
use crate::{
    charge::Charge,
    check::{Check, CheckBuilder},
    decision::Decision,
    error::ExtractError,
    extract::{AsyncKeyExtractor, KeyExtractor, Keys},
    limiter::{Limiter, Pass, Undecided, WithTimeout},
    policy::Policy,
};

type Cost = dyn Fn(&Parts) -> u64 + Send + Sync;

#[derive(Clone)]
pub(super) struct Plan {
    pub(super) limiter: Limiter,
    pub(super) limits: Vec<(PolicySelector, Arc<dyn KeyExtractor>)>,
    pub(super) look_ups: Vec<(PolicySelector, Arc<dyn AsyncKeyExtractor>)>,
    pub(super) cost: Option<Arc<Cost>>,
    pub(super) access_lists: Arc<AccessLists>,
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
            access_lists: Arc::default(),
            settle: Settle::default(),
            shadow: false,
            wait: None,
        }
    }

    /// Where the policies come from, in the order in which they are charged.
    pub(super) fn sources(&self) -> impl Iterator<Item = &PolicySelector> {
        let limits = self.limits.iter().map(|(source, _)| source);
        limits.chain(self.look_ups.iter().map(|(source, _)| source))
    }

    /// The policies that do not depend on the request, as they are charged.
    pub(super) fn policies(&self) -> impl Iterator<Item = Policy> {
        let fixed = self.sources().filter_map(PolicySelector::fixed).cloned();
        fixed.map(|policy| if self.shadow { policy.shadow() } else { policy })
    }

    /// The headers of a style, with all that is known of the policies.
    pub(super) fn headers(&self, style: HeaderStyle) -> Headers {
        let all_known = self.sources().all(|source| source.fixed().is_some());
        style.prepare(self.policies(), all_known)
    }

    /// Finds out who is asking, and asks the store.
    pub(super) fn decide(&self, head: &Parts) -> Deciding {
        match self.access_lists.skips(head) {
            Err(rejection) => {
                self.limiter.tell_blocked(None, self.shadow);
                return Deciding::known(Err(rejection));
            }
            Ok(true) => return Deciding::known(Ok(None)),
            Ok(false) => {}
        }
        let cost = self.cost.as_ref().map_or(1, |cost| cost(head));
        let mut charges = CheckBuilder::with_capacity(self.limits.len());
        match self.charge(&mut charges, head, cost) {
            Err(rejection) => Deciding::known(Err(rejection)),
            Ok(()) if !self.look_ups.is_empty() => self.look_up(charges, head, cost),
            Ok(()) => match charges.build() {
                check if check.is_empty() => Deciding::known(Ok(None)),
                check => self.ask(check),
            },
        }
    }

    fn charge(&self, charges: &mut CheckBuilder, head: &Parts, cost: u64) -> Result<(), Rejection> {
        for (source, extractor) in &self.limits {
            let keys = self.access_lists.charged(extractor.extract(head));
            let choose = || source.choose(head);
            if let Err(rejection) =
                keys.and_then(|keys| add(charges, choose, keys, cost, self.shadow))
            {
                self.excuse(source, head, rejection)?;
            }
        }
        Ok(())
    }

    /// Apart from what every request runs through, which then stays in the processor's cache; as are others that are cold.
    #[cold]
    fn excuse(
        &self,
        source: &PolicySelector,
        head: &Parts,
        rejection: Rejection,
    ) -> Result<(), Rejection> {
        Meant::new(&source.choose(head), self.shadow).excuse(&self.limiter, rejection, self.shadow)
    }

    /// Asks the store once, or waits for room.
    fn ask(&self, check: Check) -> Deciding {
        if self.wait.is_some() || !self.limiter.is_plain() {
            return self.ask_in_turn(check);
        }
        let (pass, answer) = self.limiter.ask(&check);
        let answer = self.limiter.with_timeout(answer);
        Deciding::Asking {
            check,
            pass,
            answer,
        }
    }

    #[cold]
    fn ask_in_turn(&self, check: Check) -> Deciding {
        let (limiter, most) = (self.limiter.clone(), self.wait);
        Deciding::waiting(async move {
            match most {
                Some(most) => wait(&limiter, &check, most).await,
                None => outcome(limiter.decide(&check).await),
            }
        })
    }

    /// The store has a timeout of its own: a slow look-up must not cost the other limits theirs. What shadows look up has to
    /// wait until the others have decided, and to fit into what is left.
    #[cold]
    fn look_up(&self, mut charges: CheckBuilder, head: &Parts, cost: u64) -> Deciding {
        if let Some(most) = self.wait {
            return self.look_up_and_wait(charges, head, cost, most);
        }
        let (shadows, counting) = self.look_ups(head, cost);
        let (limiter, until) = (self.limiter.clone(), self.limiter.until());
        Deciding::waiting(async move {
            counting.run(&limiter, &mut charges, until).await?;
            // Shadows are excused, whatever happens to them.
            let _ = shadows.run(&limiter, &mut charges, until).await;
            let check = charges.build();
            if check.is_empty() {
                return Ok(None);
            }
            outcome(limiter.decide(&check).await)
        })
    }

    /// One timeout covers the look-ups; then there is time to wait for room.
    fn look_up_and_wait(
        &self,
        mut charges: CheckBuilder,
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
            wait(&limiter, &charges.build(), most).await
        })
    }

    /// What becomes of a request that was decided, or could not be.
    pub(super) fn verdict(&self, outcome: Outcome) -> Verdict {
        match outcome {
            Ok(Some(Decision::Denied(denial))) => Verdict::Refuse(Rejection::Denied(denial)),
            Ok(decision) => Verdict::Pass(decision),
            Err(_) if self.shadow => Verdict::Pass(None),
            Err(rejection) => Verdict::Refuse(rejection),
        }
    }
}

/// Waits for room, if there is anything to be charged.
async fn wait(limiter: &Limiter, check: &Check, most: Duration) -> Outcome {
    if check.is_empty() {
        return Ok(None);
    }
    outcome(limiter.wait_for(check, most).await)
}

fn outcome(result: Result<Decision, Undecided>) -> Outcome {
    match result {
        Ok(decision) => Ok(Some(decision)),
        Err(undecided) if undecided.passes => Ok(None),
        Err(undecided) => Err(Rejection::Undecided(undecided.error)),
    }
}

/// Charges keys. Which policy it is, is asked only when there is a key.
pub(super) fn add<'a>(
    charges: &mut CheckBuilder,
    choose: impl FnOnce() -> Result<Choice<'a>, ExtractError>,
    keys: Keys,
    cost: u64,
    shadow: bool,
) -> Result<(), Rejection> {
    if keys.is_empty() {
        return Ok(());
    }
    if let Some((policy, weight)) = choose()? {
        let policy = if shadow {
            Cow::Owned(policy.into_owned().shadow())
        } else {
            policy
        };
        for key in keys {
            charges
                .add(Charge::new(&policy, key, cost.saturating_mul(weight)))
                .map_err(Rejection::Undecided)?;
        }
    }
    Ok(())
}

/// A decision, `None` when the request passes without one, or why it does not.
pub(super) type Outcome = Result<Option<Decision>, Rejection>;

pin_project! {
    /// An outcome that is known at once, or to be waited for under the timeout.
    #[project = DecidingProj]
    pub(super) enum Deciding {
        Known { outcome: Option<Outcome> },
        Asking { check: Check, pass: Option<Pass>, #[pin] answer: WithTimeout<Decision> },
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

    /// The outcome by the plan that this came from, which is not kept here: it would be cloned for each request.
    pub(super) fn poll(self: Pin<&mut Self>, plan: &Plan, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self.project() {
            DecidingProj::Known { outcome } => match outcome.take() {
                Some(outcome) => Poll::Ready(outcome),
                None => panic!("polled after completion"),
            },
            DecidingProj::Asking {
                check,
                pass,
                answer,
            } => answer
                .poll(cx)
                .map(|result| outcome(plan.limiter.conclude(check, *pass, result))),
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
