use std::{
    mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use crate::{
    error::ExtractError,
    extract::{Keys, KeysFuture},
    limiter::LazySleep,
};

/// What a look-up has found.
pub(super) type Found = Result<Keys, ExtractError>;

pin_project! {
    /// The look-ups of one request, made at the same time and under one timeout.
    pub(in crate::middleware) struct KeyLookUps {
        look_ups: Vec<LookUp>,
        #[pin]
        timeout: LazySleep,
    }
}

enum LookUp {
    Pending(KeysFuture),
    Done(Found),
}

impl KeyLookUps {
    pub(super) fn new(look_ups: impl Iterator<Item = KeysFuture>, timeout: Duration) -> Self {
        Self {
            look_ups: look_ups.map(LookUp::Pending).collect(),
            timeout: LazySleep::new(timeout),
        }
    }
}

impl Future for KeyLookUps {
    /// In the order of the look-ups.
    type Output = Vec<Found>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Vec<Found>> {
        let this = self.project();
        let mut all_done = true;
        for look_up in &mut *this.look_ups {
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

const TOO_LATE: ExtractError = ExtractError::unavailable("no key was found within the timeout");
