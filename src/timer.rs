//! [`LazySleep`]: a timer that begins with the first wait, and [`within`].

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::{
    runtime::{Handle, Id},
    task::{unconstrained, yield_now},
    time::{Instant, Sleep, sleep_until},
};

use crate::background;

/// How often an expired timer lets ready tasks run first: those of the connection, of a shared call, and of the caller
/// that gets the answer.
const LAST_LOOKS: u8 = 3;

pin_project! {
    /// A timer that starts when first polled.
    ///
    /// Nothing is created before that, so an answer that is ready at once needs neither a timer nor a runtime. When the
    /// timer expires, the runtime polls its sockets before the timeout counts: a busy process must not treat an answer
    /// that has arrived as late.
    ///
    /// It may move to another runtime: a timer of one that has ended must not be polled.
    pub(crate) struct LazySleep {
        duration: Duration,
        last_looks: u8,
        runtime: Option<Id>,
        #[pin]
        sleep: Option<Sleep>,
    }
}

impl LazySleep {
    pub(crate) const fn new(duration: Duration) -> Self {
        Self {
            duration,
            last_looks: LAST_LOOKS,
            runtime: None,
            sleep: None,
        }
    }
}

impl Future for LazySleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        if this.sleep.is_none() && background::is_first_look() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let runtime = Handle::try_current().ok().map(|runtime| runtime.id());
        if this.sleep.is_none() || *this.runtime != runtime {
            let end = this
                .sleep
                .as_ref()
                .as_pin_ref()
                .map(|sleep| sleep.deadline());
            let end = end.unwrap_or_else(|| Instant::now() + *this.duration);
            this.sleep.set(Some(sleep_until(end)));
            *this.runtime = runtime;
        }
        // Unconstrained: a future that is always busy exhausts the task's budget for tokio's resources, which include
        // the timer.
        let has_run_out = this
            .sleep
            .as_pin_mut()
            .is_none_or(|sleep| pin!(unconstrained(sleep)).poll(cx).is_ready());
        if has_run_out && *this.last_looks > 0 {
            *this.last_looks -= 1;
            // Wakes this task after the other tasks have run.
            return pin!(yield_now()).poll(cx);
        }
        if has_run_out {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// The output of `work`, or `None` after `duration`. A result that is ready at once needs no timer.
pub(crate) async fn within<W: Future>(duration: Duration, work: W) -> Option<W::Output> {
    let (mut work, mut end) = (pin!(work), pin!(LazySleep::new(duration)));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => end.as_mut().poll(cx).map(|()| None),
    })
    .await
}
