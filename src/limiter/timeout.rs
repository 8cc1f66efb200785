//! How long calls may take, and [`LazySleep`], the timeout of store calls.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::{
    task::{unconstrained, yield_now},
    time::{Instant, Sleep, sleep},
};

/// The timeout of a call that a request waits for, by default.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_millis(100);

/// How long a settlement that no request waits for is tried.
pub(crate) const SETTLING: Duration = Duration::from_secs(60);

/// How long a report to the store may take, before it counts as lost.
pub(super) const REPORTING: Duration = Duration::from_secs(1);

/// A year: longer than any real wait, and far below the limit of `Instant`.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(31_536_000);

/// How often an expired timer lets ready tasks run first: those of the connection, of a shared call, and of the caller
/// that gets the answer.
const LAST_LOOKS: u8 = 3;

/// How late any deadline may be noticed: the runtime and the system both count whole milliseconds, and a store looks at
/// its deadlines every few.
const COARSENESS: Duration = Duration::from_millis(5);

pin_project! {
    /// A timer that starts when first polled.
    ///
    /// Nothing is created before that, so an answer that is ready at once needs neither a timer nor a runtime. When the
    /// timer expires, the runtime polls its sockets before the timeout counts: a busy process must not treat an answer
    /// that has arrived as late.
    pub(crate) struct LazySleep {
        duration: Duration,
        last_looks: u8,
        #[pin]
        sleep: Option<Sleep>,
    }
}

impl LazySleep {
    pub(crate) const fn new(duration: Duration) -> Self {
        Self {
            duration,
            last_looks: LAST_LOOKS,
            sleep: None,
        }
    }

    /// The end, once it was polled.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.sleep.as_ref().map(Sleep::deadline)
    }
}

/// Whether this process noticed the end of a timeout so late that an answer may have gone unnoticed as well.
pub(super) fn is_noticed_late(deadline: Instant, timeout: Duration) -> bool {
    deadline.elapsed() > COARSENESS.max(timeout / 4)
}

impl Future for LazySleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        if this.sleep.is_none() {
            this.sleep.set(Some(sleep(*this.duration)));
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
pub(super) async fn within<W: Future>(duration: Duration, work: W) -> Option<W::Output> {
    let (mut work, mut end) = (pin!(work), pin!(LazySleep::new(duration)));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => end.as_mut().poll(cx).map(|()| None),
    })
    .await
}
