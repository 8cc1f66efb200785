//! The one place of this room that spawns: connections, calls and roll-backs go on when their callers leave.

#[cfg(feature = "cluster")]
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{runtime::Handle, task::JoinSet};

#[cfg(feature = "cluster")]
use crate::{background::BackRoom, store::sent::Sent};

/// Spawns work in the runtime of the caller.
///
/// # Panics
///
/// Outside of a runtime.
pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(work));
}

/// Spawns work in this runtime, which drops the work if it has been shut down.
pub(super) fn spawn_in(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
    drop(runtime.spawn(work));
}

/// Does this work in a task that ends with the caller's wait. A panic is an error, with its text.
pub(super) async fn caught<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, String> {
    let mut task = JoinSet::new();
    task.spawn(work);
    let done = task.join_next().await.ok_or_else(String::new)?;
    done.map_err(|panic| panic.to_string())
}

/// Counted work that goes on in the back room of a store when its caller leaves, or the runtime of the caller ends; unless
/// nothing of it was sent.
#[cfg(feature = "cluster")]
pub(super) struct Outliving<T: Send + 'static> {
    /// `None` when the work has ended.
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    sent: Option<Sent>,
    room: Arc<BackRoom>,
}

#[cfg(feature = "cluster")]
impl<T: Send + 'static> Outliving<T> {
    pub(super) fn new(
        room: &Arc<BackRoom>,
        work: impl Future<Output = T> + Send + 'static,
        sent: Option<Sent>,
    ) -> Self {
        Self {
            work: Some(Box::pin(work)),
            sent,
            room: Arc::clone(room),
        }
    }
}

#[cfg(feature = "cluster")]
impl<T: Send + 'static> Future for Outliving<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(work) = &mut self.work else {
            panic!("polled after completion");
        };
        let output = ready!(work.as_mut().poll(cx));
        self.work = None;
        Poll::Ready(output)
    }
}

#[cfg(feature = "cluster")]
impl<T: Send + 'static> Drop for Outliving<T> {
    fn drop(&mut self) {
        let is_unsent = self.sent.as_ref().is_some_and(Sent::leave);
        if let Some(work) = self.work.take().filter(|_| !is_unsent) {
            self.room.start(Box::pin(async { drop(work.await) }));
        }
    }
}
