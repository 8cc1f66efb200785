//! The one timeout around all that a call waits for.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, timeout_at};

use crate::{
    error::{StoreError, StoreErrorKind},
    store::StoreFuture,
};

pin_project! {
    /// An answer, or [`Timeout`](StoreErrorKind::Timeout) when the timeout comes first.
    ///
    /// The timer is made when the answer is first waited for, so that an answer that is known at once costs none.
    #[derive(Debug)]
    pub(crate) struct WithTimeout<T> {
        answer: StoreFuture<T>,
        timeout: Duration,
        #[pin]
        sleep: Option<Sleep>,
    }
}

impl<T> WithTimeout<T> {
    pub(super) const fn new(answer: StoreFuture<T>, timeout: Duration) -> Self {
        Self {
            answer,
            timeout,
            sleep: None,
        }
    }
}

impl<T> Future for WithTimeout<T> {
    type Output = Result<T, StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(result) = Pin::new(this.answer).poll(cx) {
            return Poll::Ready(result);
        }
        if this.sleep.is_none() {
            this.sleep.set(Some(tokio::time::sleep(*this.timeout)));
        }
        match this.sleep.as_pin_mut().map(|sleep| sleep.poll(cx)) {
            Some(Poll::Ready(())) => Poll::Ready(Err(too_late())),
            _ => Poll::Pending,
        }
    }
}

/// What a future answers by then, if anything. One that answers at once needs no timer, and so no runtime.
pub(crate) async fn by<F: Future + Unpin>(until: Instant, mut future: F) -> Option<F::Output> {
    let first = poll_fn(|cx| Poll::Ready(Pin::new(&mut future).poll(cx))).await;
    match first {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => timeout_at(until, future).await.ok(),
    }
}

pub(super) const fn too_late() -> StoreError {
    StoreError::new(StoreErrorKind::Timeout, "no answer within the timeout")
}
