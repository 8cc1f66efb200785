//! [`MaybeReady`]: a value that is ready, or a future of one.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

/// A value that is ready, or a future of one.
///
/// A value that is ready needs no allocation, and [`into_ready`](Self::into_ready) takes it without a task. So a
/// decision in memory and the inner service share one poll of the request.
pub(crate) enum MaybeReady<T> {
    /// `None` after you took the value.
    Ready(Option<T>),
    Pending(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T> MaybeReady<T> {
    pub(crate) const fn ready(value: T) -> Self {
        Self::Ready(Some(value))
    }

    pub(crate) fn pending(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self::Pending(Box::pin(future))
    }

    /// Takes the value if it is ready.
    pub(crate) fn into_ready(self) -> Result<T, Self> {
        match self {
            Self::Ready(Some(value)) => Ok(value),
            other => Err(other),
        }
    }
}

impl<T> Unpin for MaybeReady<T> {}

impl<T> Future for MaybeReady<T> {
    type Output = T;

    /// # Panics
    ///
    /// When polled again after it returned the value.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            Self::Ready(value) => match value.take() {
                Some(value) => Poll::Ready(value),
                None => panic!("polled after completion"),
            },
            Self::Pending(future) => future.as_mut().poll(cx),
        }
    }
}

/// Waits for all at the same time, and returns their outputs in the order of the futures.
pub(crate) async fn join_all<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let Poll::Ready(ready) = Pin::new(future).poll(cx)
            {
                *output = Some(ready);
            }
        }
        match outputs.iter().all(Option::is_some) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
