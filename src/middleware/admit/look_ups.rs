//! Runs the look-ups of one request at the same time.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use crate::{
    domain::{charge::Charge, error::ExtractError},
    extract::ChargesFuture,
    limiter::LazySleep,
};

/// The result of one look-up.
pub(in crate::middleware) type Found = Result<Vec<Charge>, ExtractError>;

pin_project! {
    /// The look-ups of one request, which run at the same time under one timeout; their results are in their order.
    pub(in crate::middleware) struct LookUps {
        look_ups: Vec<LookUp>,
        #[pin]
        timeout: LazySleep,
    }
}

enum LookUp {
    Pending(ChargesFuture),
    Done(Found),
}

impl LookUps {
    pub(super) fn new(look_ups: impl Iterator<Item = ChargesFuture>, timeout: Duration) -> Self {
        Self {
            look_ups: look_ups.map(LookUp::Pending).collect(),
            timeout: LazySleep::new(timeout),
        }
    }
}

impl Future for LookUps {
    type Output = Vec<Found>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Vec<Found>> {
        let this = self.project();
        let mut all_done = true;
        for look_up in this.look_ups.iter_mut() {
            all_done &= look_up.poll(cx);
        }
        if !all_done && this.timeout.poll(cx).is_pending() {
            return Poll::Pending;
        }
        let look_ups = mem::take(this.look_ups).into_iter();
        Poll::Ready(look_ups.map(LookUp::into_found).collect())
    }
}

impl LookUp {
    /// Whether it is done.
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        if let Self::Pending(future) = self
            && let Poll::Ready(found) = future.as_mut().poll(cx)
        {
            *self = Self::Done(found);
        }
        matches!(self, Self::Done(_))
    }

    fn into_found(self) -> Found {
        match self {
            Self::Done(found) => found,
            Self::Pending(_) => Err(TOO_LATE),
        }
    }
}

const TOO_LATE: ExtractError = ExtractError::unavailable("a look-up took longer than its timeout");
