use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::request::Parts;
use pin_project_lite::pin_project;

use super::{
    look_ups::LookUps,
    plan::{Draft, Plan},
};
use crate::{
    check::Check,
    decision::Decision,
    limiter::{DecisionFuture, Resolution},
    middleware::Rejection,
};

/// Whether a request is served: with the decision that admitted it, or without one, where no limit applies or the
/// failure policy lets it pass.
pub(in crate::middleware) type Admission = Result<Option<Decision>, Rejection>;

pin_project! {
    /// How far the decision about a request is.
    ///
    /// ```text
    /// Known ◀── begin ──▶ LookingUp ──▶ Deciding, or Waiting in the queue ──▶ admission
    /// ```
    #[project = StepProj]
    pub(in crate::middleware) enum Step {
        Known {
            admission: Option<Admission>,
        },
        LookingUp {
            look_ups: Pin<Box<LookUps>>,
            draft: Draft,
        },
        Waiting {
            resolution: Pin<Box<dyn Future<Output = Resolution> + Send>>,
        },
        Deciding {
            #[pin]
            resolution: DecisionFuture,
        },
    }
}

impl Step {
    /// The first step: all that the head alone tells.
    pub(in crate::middleware) fn begin(plan: &Plan, head: &Parts) -> Self {
        match plan.skips(head) {
            Ok(false) => {}
            Ok(true) => return Self::known(Ok(None)),
            Err(rejection) => return Self::reject(plan, rejection),
        }
        match plan.charges(head) {
            Err(rejection) => Self::reject(plan, rejection),
            Ok(draft) if !plan.looks_up() => Self::submit(plan, draft.build()),
            Ok(draft) => Self::LookingUp {
                look_ups: Box::pin(plan.look_up(head)),
                draft,
            },
        }
    }

    /// Polls the steps, by the plan with which it was begun.
    pub(in crate::middleware) fn poll(
        mut self: Pin<&mut Self>,
        plan: &Plan,
        head: &Parts,
        cx: &mut Context<'_>,
    ) -> Poll<Admission> {
        loop {
            let next = match self.as_mut().project() {
                StepProj::Known { admission } => match admission.take() {
                    Some(admission) => return Poll::Ready(admission),
                    None => panic!("polled after completion"),
                },
                StepProj::LookingUp { look_ups, draft } => {
                    let found = ready!(look_ups.as_mut().poll(cx));
                    let mut draft = mem::take(draft);
                    match plan.charge_found(&mut draft, found, head) {
                        Ok(()) => Self::submit(plan, draft.build()),
                        Err(rejection) => Self::reject(plan, rejection),
                    }
                }
                StepProj::Waiting { resolution } => {
                    let resolution = ready!(resolution.as_mut().poll(cx));
                    return Poll::Ready(admission(plan, resolution));
                }
                StepProj::Deciding { resolution } => {
                    let resolution = ready!(resolution.poll(cx));
                    return Poll::Ready(admission(plan, resolution));
                }
            };
            self.set(next);
        }
    }

    fn submit(plan: &Plan, check: Check) -> Self {
        if check.is_empty() {
            return Self::known(Ok(None));
        }
        let Some(max_wait) = plan.max_wait else {
            return Self::Deciding {
                resolution: plan.limiter.decide(check),
            };
        };
        let limiter = plan.limiter.clone();
        Self::Waiting {
            resolution: Box::pin(async move { limiter.wait(&check, max_wait).await }),
        }
    }

    /// The policies of a shadow layer reject nothing; its deny lists do.
    fn reject(plan: &Plan, rejection: Rejection) -> Self {
        Self::known(
            if plan.shadow && !matches!(rejection, Rejection::OnDenyList) {
                Ok(None)
            } else {
                Err(rejection)
            },
        )
    }

    const fn known(admission: Admission) -> Self {
        Self::Known {
            admission: Some(admission),
        }
    }
}

fn admission(plan: &Plan, resolution: Resolution) -> Admission {
    if let Resolution::Decided(decision) = &resolution {
        plan.limiter.count_strikes(decision);
    }
    match resolution {
        Resolution::Decided(Decision::Denied(denial)) => Err(Rejection::Denied(denial)),
        Resolution::Decided(Decision::Blocked(blocked)) => Err(Rejection::Blocked(blocked)),
        Resolution::Decided(decision) => Ok(Some(decision).filter(decides_something)),
        Resolution::Open(_) => Ok(None),
        Resolution::Closed(error) => Err(Rejection::Undecided(error)),
    }
}

/// Where only shadows were checked and could not be decided, the response and the handler get no decision.
fn decides_something(decision: &Decision) -> bool {
    let usage = decision.usage();
    !usage.check().charges().is_empty() || usage.shadow().is_some()
}
