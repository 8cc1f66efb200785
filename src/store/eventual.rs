//! [`Eventual`]: a value that is known at once, or has to be waited for.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

/// A value that is known at once, or has to be waited for.
///
/// What is known costs no allocation, and can be [taken](Self::known) without a task: a store in memory is asked, and a
/// request passed on, in one go.
pub(crate) enum Eventual<T> {
    /// `None` once it was taken.
    Known(Option<T>),
    Pending(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T> Eventual<T> {
    pub(crate) const fn ready(value: T) -> Self {
        Self::Known(Some(value))
    }

    pub(crate) fn pending(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self::Pending(Box::pin(future))
    }

    /// Takes the value if it is known already.
    pub(crate) const fn known(&mut self) -> Option<T> {
        match self {
            Self::Known(value) => value.take(),
            Self::Pending(_) => None,
        }
    }
}

impl<T> Unpin for Eventual<T> {}

impl<T> Future for Eventual<T> {
    type Output = T;

    /// # Panics
    ///
    /// When polled again after the value was taken.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            Self::Known(value) => match value.take() {
                Some(value) => Poll::Ready(value),
                None => panic!("polled after completion"),
            },
            Self::Pending(future) => future.as_mut().poll(cx),
        }
    }
}

/// Waits for all at the same time. Their outputs are in their order.
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
