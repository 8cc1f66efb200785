//! [`Step`]: the stages of a request's admission.

use std::{
    mem,
    ops::ControlFlow::{self, Break, Continue},
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::request::Parts;

use super::{
    look_ups::LookUps,
    plan::{Draft, Plan},
};
use crate::{
    domain::{check::Check, decision::Decision},
    limiter::{Resolution, WhereOpen},
    middleware::Rejection,
    store::eventual::Eventual,
};

/// Whether to serve a request: with the decision that admitted the request, or without one if no limit applies or the
/// failure policy lets the request pass.
pub(in crate::middleware) type Admission = Result<Option<Decision>, Rejection>;

/// The current stage of a request's admission.
///
/// ```text
/// begin ──▶ LookingUp ──▶ Deciding, or waiting in the queue ──▶ admission
/// ```
pub(in crate::middleware) enum Step {
    LookingUp {
        look_ups: Pin<Box<LookUps>>,
        draft: Box<Draft>,
    },
    Deciding(Eventual<Resolution>),
}

/// The admission, or the next stage.
pub(in crate::middleware) type Next = ControlFlow<Admission, Step>;

impl Step {
    /// Evaluates the head, and asks the store if there are no look-ups.
    pub(in crate::middleware) fn begin(plan: &Plan, head: &Parts) -> Next {
        match plan.skips(head) {
            Ok(false) => {}
            Ok(true) => return Break(Ok(None)),
            Err(rejection) => return Self::reject(plan, rejection),
        }
        let mut draft = plan.draft();
        match plan.charge_known(&mut draft, head) {
            Err(rejection) => Self::reject(plan, rejection),
            Ok(()) if !plan.looks_up() => Self::submit(plan, draft.build()),
            Ok(()) => Continue(Self::LookingUp {
                look_ups: Box::pin(plan.look_up(head)),
                draft: Box::new(draft),
            }),
        }
    }

    /// Polls the stages. `plan` must be that of [`begin`](Self::begin).
    pub(in crate::middleware) fn poll(
        &mut self,
        plan: &Plan,
        head: &Parts,
        cx: &mut Context<'_>,
    ) -> Poll<Admission> {
        loop {
            let next = match self {
                Self::LookingUp { look_ups, draft } => {
                    let found = ready!(look_ups.as_mut().poll(cx));
                    match plan.charge_found(draft, found, head) {
                        Ok(()) => Self::submit(plan, mem::take(&mut **draft).build()),
                        Err(rejection) => Self::reject(plan, rejection),
                    }
                }
                Self::Deciding(resolution) => {
                    let resolution = ready!(Pin::new(resolution).poll(cx));
                    Break(admission(plan, resolution))
                }
            };
            match next {
                Break(admission) => return Poll::Ready(admission),
                Continue(step) => *self = step,
            }
        }
    }

    fn submit(plan: &Plan, check: Option<Check>) -> Next {
        plan.warnings.found_out();
        let Some(check) = check else {
            return Break(Ok(None));
        };
        let Some(max_wait) = plan.max_wait else {
            let mut resolution = plan.limiter.decide(check);
            return match resolution.known() {
                Some(resolution) => Break(admission(plan, resolution)),
                None => Continue(Self::Deciding(resolution)),
            };
        };
        let limiter = plan.limiter.clone();
        Continue(Self::Deciding(Eventual::pending(async move {
            limiter.wait(&check, max_wait, WhereOpen::Pass).await
        })))
    }

    /// The policies of a shadow layer reject no request; its deny lists do.
    fn reject(plan: &Plan, rejection: Rejection) -> Next {
        Break(
            if plan.shadow && !matches!(rejection, Rejection::OnDenyList) {
                Ok(None)
            } else {
                Err(rejection)
            },
        )
    }
}

fn admission(plan: &Plan, resolution: Resolution) -> Admission {
    if let Resolution::Decided(decision) = &resolution {
        plan.limiter.count_outcome(decision);
    }
    match resolution {
        Resolution::Decided(Decision::Denied(denial)) => Err(Rejection::Denied(denial)),
        Resolution::Decided(Decision::Blocked(blocked)) => Err(Rejection::Blocked(blocked)),
        Resolution::Decided(decision) => Ok(Some(decision).filter(decides_something)),
        Resolution::Open(_) => Ok(None),
        Resolution::Closed(error) => Err(Rejection::Undecided(error)),
    }
}

/// If only shadows were checked and undecided, neither the response nor the handler gets a decision.
fn decides_something(decision: &Decision) -> bool {
    let usage = decision.usage();
    !usage.check().charges().is_empty() || usage.shadow().is_some()
}
