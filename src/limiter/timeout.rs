//! The timeout around all that is waited for at once.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::{
    task::{unconstrained, yield_now},
    time::{Sleep, sleep},
};

/// How often a timer that has run out lets the tasks go first that are ready: the connection's, a shared call's, and
/// the caller's that it answers.
const LAST_LOOKS: u8 = 3;

/// How late any timer may be noticed: the runtime counts whole milliseconds, and so does the system.
const COARSENESS: Duration = Duration::from_millis(2);

pin_project! {
    /// A timer that starts when it is first polled.
    ///
    /// It is made then, and not before: what is known at once costs none, and needs no runtime. When it has run out,
    /// the runtime first looks at its sockets: a busy process must not take an answer that has come for one that is
    /// late.
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

    /// Whether this process has noticed it so late that it was too busy to notice an answer either.
    pub(crate) fn is_noticed_late(&self) -> bool {
        let late = COARSENESS.max(self.duration / 4);
        let sleep = self.sleep.as_ref();
        sleep.is_some_and(|it| it.deadline().elapsed() > late)
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
        let has_run_out = this
            .sleep
            .as_pin_mut()
            .is_none_or(|sleep| pin!(unconstrained(sleep)).poll(cx).is_ready());
        if has_run_out && *this.last_looks > 0 {
            *this.last_looks -= 1;
            // Wakes this task when the others had their turn.
            return pin!(yield_now()).poll(cx);
        }
        if has_run_out {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// What the work gives, or nothing if it takes longer. A result that is ready at once needs no timer.
pub(super) async fn within<W: Future>(duration: Duration, work: W) -> Option<W::Output> {
    let (mut work, mut end) = (pin!(work), pin!(LazySleep::new(duration)));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => end.as_mut().poll(cx).map(|()| None),
    })
    .await
}
