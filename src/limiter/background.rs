//! [`Background`]: counts the tasks that go on after their requests have ended.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{
            AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
};

use tokio::{runtime::Handle, sync::Notify};

use super::Limiter;

/// Counts the tasks that renew slots, return slots or settle costs, so that the end of a process can wait for them.
#[derive(Default)]
pub(super) struct Background {
    tasks: AtomicUsize,
    /// Notified when the last task has ended.
    idle: Notify,
}

/// One counted task. The count ends when this is dropped, by the task or by a runtime that stops.
pub(super) struct Task(Arc<Background>);

impl Drop for Task {
    fn drop(&mut self) {
        if self.0.tasks.fetch_sub(1, AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

impl Background {
    /// Counts a task before you spawn it.
    pub(super) fn begin(self: &Arc<Self>) -> Task {
        self.tasks.fetch_add(1, Relaxed);
        Task(Arc::clone(self))
    }

    /// Whether no task is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.tasks.load(Acquire) == 0
    }

    /// Waits until no task is under way.
    pub(super) async fn ended(&self) {
        loop {
            let mut idle = pin!(self.idle.notified());
            idle.as_mut().enable();
            if self.is_idle() {
                return;
            }
            idle.await;
        }
    }
}

impl Limiter {
    pub(crate) fn in_background(
        &self,
        runtime: &Handle,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let task = self.inner.background.begin();
        drop(runtime.spawn(async move {
            let _task = task;
            work.await;
        }));
    }
}
