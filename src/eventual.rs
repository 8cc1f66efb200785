//! [`Eventual`]: a value that is known at once, or has to be waited for.

use std::{
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
