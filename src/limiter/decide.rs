//! [`DecisionFuture`]: the one path of every decision, and [`Resolution`], what comes out of it.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;

use super::{
    Limiter,
    call::{Answer, Call},
};
use crate::{
    check::Check,
    decision::Decision,
    error::StoreError,
    observe::{CallInfo, CallKind},
    store::StoreFuture,
};

/// What becomes of a check.
#[derive(Debug)]
pub(crate) enum Resolution {
    /// The store has decided, or the memory of this process in its place.
    Decided(Decision),
    /// Nobody could decide, and the failure policy lets the request pass.
    Open(StoreError),
    /// Nobody could decide, and the request does not pass.
    Closed(StoreError),
}

impl Resolution {
    /// Whether the request passes.
    pub(super) const fn passes(&self) -> bool {
        match self {
            Self::Decided(decision) => decision.is_allowed(),
            Self::Open(_) => true,
            Self::Closed(_) => false,
        }
    }

    /// The decision; an error where the failure policy is for the caller to follow.
    pub(super) fn into_result(self) -> Result<Decision, StoreError> {
        match self {
            Self::Decided(decision) => Ok(decision),
            Self::Open(error) | Self::Closed(error) => Err(error),
        }
    }
}

pin_project! {
    /// Decides a check: by the store, or by the failure policy. Begun when it is made.
    pub(crate) struct DecisionFuture {
        kind: CallKind,
        check: Check,
        #[pin]
        call: Call<Decision>,
    }
}

impl Limiter {
    /// Decides a check and charges it.
    pub(crate) fn decide(&self, mut check: Check) -> DecisionFuture {
        if self.inner.heeds_blocks {
            check = check.with_blocks();
        }
        DecisionFuture::new(self, CallKind::Check, check)
    }
}

impl DecisionFuture {
    pub(super) fn new(limiter: &Limiter, kind: CallKind, check: Check) -> Self {
        // Of nothing, there is nothing to ask or to tell.
        let call = if check.is_empty() {
            let nothing = Decision::new(&check, true, 0, &[]);
            Call::new(limiter, StoreFuture::ready(nothing))
        } else {
            limiter.call(|| CallInfo::new(kind, &check), |store| store.check(&check))
        };
        Self { kind, check, call }
    }
}

impl Future for DecisionFuture {
    type Output = Resolution;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Resolution> {
        let mut this = self.project();
        let Answer { result, timing } = ready!(this.call.as_mut().poll(cx));
        let limiter = this.call.limiter();
        let resolution = match result {
            Ok(decision) => Resolution::Decided(decision),
            Err(error) => limiter.fall_back(*this.kind, this.check, &error, timing),
        };
        if let Resolution::Decided(decision) = &resolution {
            if this.check.has_contributors() {
                limiter.record_contributors(decision, this.check);
            }
            limiter.report_decision(*this.kind, decision, this.check, timing);
        }
        Poll::Ready(resolution)
    }
}
