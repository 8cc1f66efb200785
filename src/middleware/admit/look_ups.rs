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
    extract::{ChargesFuture, Keys, KeysFuture},
    limiter::LazySleep,
};

/// The results of a request's look-ups, each in the order of the limits.
pub(in crate::middleware) struct Found {
    pub(super) keys: Vec<Result<Keys, ExtractError>>,
    pub(super) charges: Vec<Result<Vec<Charge>, ExtractError>>,
}

pin_project! {
    /// The look-ups of one request, which run at the same time under one timeout.
    pub(in crate::middleware) struct LookUps {
        keys: Vec<LookUp<Keys>>,
        charges: Vec<LookUp<Vec<Charge>>>,
        #[pin]
        timeout: LazySleep,
    }
}

enum LookUp<T> {
    Pending(Pin<Box<dyn Future<Output = Result<T, ExtractError>> + Send>>),
    Done(Result<T, ExtractError>),
}

impl LookUps {
    pub(super) fn new(
        keys: impl Iterator<Item = KeysFuture>,
        charges: impl Iterator<Item = ChargesFuture>,
        timeout: Duration,
    ) -> Self {
        Self {
            keys: keys.map(LookUp::Pending).collect(),
            charges: charges.map(LookUp::Pending).collect(),
            timeout: LazySleep::new(timeout),
        }
    }
}

impl Future for LookUps {
    type Output = Found;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Found> {
        let this = self.project();
        let all_done = poll_all(this.keys, cx) & poll_all(this.charges, cx);
        if !all_done && this.timeout.poll(cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(Found {
            keys: found(this.keys),
            charges: found(this.charges),
        })
    }
}

/// Whether all are done.
fn poll_all<T>(look_ups: &mut [LookUp<T>], cx: &mut Context<'_>) -> bool {
    let mut all_done = true;
    for look_up in look_ups {
        all_done &= look_up.poll(cx);
    }
    all_done
}

fn found<T>(look_ups: &mut Vec<LookUp<T>>) -> Vec<Result<T, ExtractError>> {
    let look_ups = mem::take(look_ups).into_iter();
    look_ups.map(LookUp::into_found).collect()
}

impl<T> LookUp<T> {
    /// Whether it is done.
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        if let Self::Pending(future) = self
            && let Poll::Ready(found) = future.as_mut().poll(cx)
        {
            *self = Self::Done(found);
        }
        matches!(self, Self::Done(_))
    }

    fn into_found(self) -> Result<T, ExtractError> {
        match self {
            Self::Done(found) => found,
            Self::Pending(_) => Err(TOO_LATE),
        }
    }
}

const TOO_LATE: ExtractError = ExtractError::unavailable("a look-up took longer than its timeout");
