//! [`Admission`]: from the head of a request to the decision about it, in stages.

use std::{
    mem,
    ops::ControlFlow::{self, Break, Continue},
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::request::Parts;

use super::{CheckDraft, LayerConfig, check_draft::Drafted, look_ups::LookedUp};
use crate::{
    domain::decision::{Decision, Usage},
    limiter::{Resolution, WhereOpen},
    middleware::respond::Rejection,
    store::maybe_ready::MaybeReady,
};

/// Whether to serve a request.
pub(in crate::middleware) type Admitted = Result<Pass, Rejection>;

/// How a request passes.
pub(in crate::middleware) enum Pass {
    /// The decision has admitted the request.
    Decided(Decision),
    /// No limit applies, or the failure policy lets the request pass. The store may still admit its check, to be settled
    /// with this usage.
    Undecided(Option<Usage>),
}

/// The current stage of a request's admission.
///
/// ```text
/// begin ──▶ LookingUp ──▶ Deciding, or waiting in the queue ──▶ admitted
/// ```
pub(in crate::middleware) enum Admission {
    LookingUp {
        look_ups: Pin<Box<dyn Future<Output = Vec<LookedUp>> + Send>>,
        draft: CheckDraft,
    },
    Deciding(MaybeReady<Resolution>),
}

/// The admission, or the next stage.
pub(in crate::middleware) type Next = ControlFlow<Admitted, Admission>;

impl Admission {
    /// Evaluates the head, and asks the store if there are no look-ups.
    pub(in crate::middleware) fn begin(config: &LayerConfig, head: &Parts) -> Next {
        match config.skips(head) {
            Ok(false) => {}
            Ok(true) => return Break(Ok(Pass::Undecided(None))),
            Err(rejection) => return Self::reject(config, rejection),
        }
        let mut draft = CheckDraft::default();
        match draft.charge_known(config, head) {
            Err(rejection) => Self::reject(config, rejection),
            Ok(()) if !config.looks_up => Self::submit(config, draft.build()),
            Ok(()) => Continue(Self::LookingUp {
                look_ups: Box::pin(config.look_up(head)),
                draft,
            }),
        }
    }

    /// Polls the stages. `config` must be that of [`begin`](Self::begin).
    pub(in crate::middleware) fn poll(
        &mut self,
        config: &LayerConfig,
        head: &Parts,
        cx: &mut Context<'_>,
    ) -> Poll<Admitted> {
        loop {
            let next = match self {
                Self::LookingUp { look_ups, draft } => {
                    let found = ready!(look_ups.as_mut().poll(cx));
                    match draft.charge_found(config, found, head) {
                        Ok(()) => Self::submit(config, mem::take(draft).build()),
                        Err(rejection) => Self::reject(config, rejection),
                    }
                }
                Self::Deciding(resolution) => {
                    let resolution = ready!(Pin::new(resolution).poll(cx));
                    Break(admitted(resolution))
                }
            };
            match next {
                Break(admitted) => return Poll::Ready(admitted),
                Continue(next) => *self = next,
            }
        }
    }

    fn submit(config: &LayerConfig, drafted: Drafted) -> Next {
        config.warnings.found_out();
        let check = match drafted {
            Drafted::Nothing => return Break(Ok(Pass::Undecided(None))),
            Drafted::Check(check) => check,
            Drafted::FirstOf(first_of) => {
                let (limiter, max_wait) = (config.limiter.clone(), config.max_wait);
                return Continue(Self::Deciding(MaybeReady::pending(async move {
                    limiter.decide_first(first_of, max_wait).await
                })));
            }
        };
        let Some(max_wait) = config.max_wait else {
            return match config.limiter.decide(check).into_ready() {
                Ok(resolution) => Break(admitted(resolution)),
                Err(deciding) => Continue(Self::Deciding(deciding)),
            };
        };
        let limiter = config.limiter.clone();
        Continue(Self::Deciding(MaybeReady::pending(async move {
            limiter
                .decide_within(&check, max_wait, WhereOpen::Pass)
                .await
        })))
    }

    /// The policies of a shadow layer reject no request; its deny lists do.
    fn reject(config: &LayerConfig, rejection: Rejection) -> Next {
        Break(
            if config.shadow && !matches!(rejection, Rejection::OnDenyList) {
                Ok(Pass::Undecided(None))
            } else {
                Err(rejection)
            },
        )
    }
}

fn admitted(resolution: Resolution) -> Admitted {
    match resolution {
        Resolution::Decided(Decision::Denied(denial)) => Err(Rejection::Denied(denial)),
        Resolution::Decided(Decision::Blocked(blocked)) => Err(Rejection::Blocked(blocked)),
        Resolution::Decided(decision) if decides_something(&decision) => {
            Ok(Pass::Decided(decision))
        }
        // Shadows alone, undecided, may be admitted late.
        Resolution::Decided(decision) => Ok(Pass::Undecided(Some(decision.usage().clone()))),
        Resolution::Open(_, late) => {
            late.iter().for_each(Usage::serve_late);
            Ok(Pass::Undecided(late))
        }
        Resolution::Closed(error) => Err(Rejection::Undecided(error)),
    }
}

/// If only shadows were checked and undecided, neither the response nor the handler gets a decision.
fn decides_something(decision: &Decision) -> bool {
    let usage = decision.usage();
    !usage.check().ruled().is_empty() || usage.shadow().is_some()
}
