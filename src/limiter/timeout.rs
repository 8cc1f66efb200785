//! The timeout around all that is waited for at once.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::{
    task::unconstrained,
    time::{Sleep, sleep},
};

pin_project! {
    /// A timer that starts when it is first polled.
    ///
    /// It is made then, and not before: what is known at once costs none, and needs no runtime.
    pub(crate) struct LazySleep {
        duration: Duration,
        #[pin]
        sleep: Option<Sleep>,
    }
}

impl LazySleep {
    pub(crate) const fn new(duration: Duration) -> Self {
        Self {
            duration,
            sleep: None,
        }
    }
}

impl Future for LazySleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        if this.sleep.is_none() {
            this.sleep.set(Some(sleep(*this.duration)));
        }
        // A future that is always busy uses up the task's budget for tokio's resources, the timer among them.
        match this.sleep.as_pin_mut() {
            Some(sleep) => pin!(unconstrained(sleep)).poll(cx),
            None => Poll::Ready(()),
        }
    }
}

/// What the work gives, or nothing if it takes longer. What is known at once needs no timer.
pub(super) async fn within<W: Future>(duration: Duration, work: W) -> Option<W::Output> {
    let (mut work, mut end) = (pin!(work), pin!(LazySleep::new(duration)));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => end.as_mut().poll(cx).map(|()| None),
    })
    .await
}
