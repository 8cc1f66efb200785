use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::request::Parts;

use super::{
    look_ups::LookUps,
    plan::{Draft, Plan},
};
use crate::{
    decision::Decision,
    eventual::Eventual,
    limiter::{Limiter, Resolution},
    middleware::Rejection,
};

/// Whether a request is served: with the decision that admitted it, or without one, where no limit applies or the
/// failure policy lets it pass.
pub(in crate::middleware) type Admission = Result<Option<Decision>, Rejection>;

/// How far the decision about a request is.
///
/// ```text
/// Known ◀── begin ──▶ LookingUp ──▶ Deciding, or waiting in the queue ──▶ admission
/// ```
pub(in crate::middleware) enum Step {
    /// `None` once it was taken.
    Known(Option<Admission>),
    LookingUp {
        look_ups: Pin<Box<LookUps>>,
        draft: Box<Draft>,
    },
    Deciding(Eventual<Resolution>),
}

impl Step {
    /// The first step: all that the head alone tells, and the question to the store, where nothing is looked up.
    pub(in crate::middleware) fn begin(plan: &Plan, head: &Parts) -> Self {
        match plan.skips(head) {
            Ok(false) => {}
            Ok(true) => return Self::known_as(Ok(None)),
            Err(rejection) => return Self::reject(plan, rejection),
        }
        let mut draft = plan.draft(head);
        match plan.charge_known(&mut draft, head) {
            Err(rejection) => Self::reject(plan, rejection),
            Ok(()) if !plan.looks_up() => Self::submit(plan, draft),
            Ok(()) => Self::LookingUp {
                look_ups: Box::pin(plan.look_up(head)),
                draft: Box::new(draft),
            },
        }
    }

    /// Takes the admission if nothing has to be waited for.
    pub(in crate::middleware) fn known(&mut self) -> Option<Admission> {
        match self {
            Self::Known(admission) => admission.take(),
            Self::LookingUp { .. } | Self::Deciding(_) => None,
        }
    }

    /// Polls the steps, by the plan with which it was begun.
    pub(in crate::middleware) fn poll(
        &mut self,
        plan: &Plan,
        head: &Parts,
        cx: &mut Context<'_>,
    ) -> Poll<Admission> {
        loop {
            *self = match self {
                Self::Known(admission) => match admission.take() {
                    Some(admission) => return Poll::Ready(admission),
                    None => panic!("polled after completion"),
                },
                Self::LookingUp { look_ups, draft } => {
                    let found = ready!(look_ups.as_mut().poll(cx));
                    let mut draft = mem::take(draft);
                    match plan.charge_found(&mut draft, found, head) {
                        Ok(()) => Self::submit(plan, *draft),
                        Err(rejection) => Self::reject(plan, rejection),
                    }
                }
                Self::Deciding(resolution) => {
                    let resolution = ready!(Pin::new(resolution).poll(cx));
                    return Poll::Ready(admission(&plan.limiter, resolution));
                }
            };
        }
    }

    fn submit(plan: &Plan, draft: Draft) -> Self {
        if draft.is_empty() {
            return Self::known_as(Ok(None));
        }
        let check = draft.build();
        let Some(max_wait) = plan.max_wait else {
            let mut resolution = plan.limiter.decide(check);
            return match resolution.known() {
                Some(resolution) => Self::known_as(admission(&plan.limiter, resolution)),
                None => Self::Deciding(resolution),
            };
        };
        let limiter = plan.limiter.clone();
        Self::Deciding(Eventual::pending(async move {
            limiter.wait(&check, max_wait).await
        }))
    }

    /// The policies of a shadow layer reject nothing; its deny lists do.
    fn reject(plan: &Plan, rejection: Rejection) -> Self {
        Self::known_as(
            if plan.shadow && !matches!(rejection, Rejection::OnDenyList) {
                Ok(None)
            } else {
                Err(rejection)
            },
        )
    }

    const fn known_as(admission: Admission) -> Self {
        Self::Known(Some(admission))
    }
}

fn admission(limiter: &Limiter, resolution: Resolution) -> Admission {
    if let Resolution::Decided(decision) = &resolution {
        limiter.count_strikes(decision);
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
