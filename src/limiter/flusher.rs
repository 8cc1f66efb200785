//! [`Flusher`]: reports to the store once a second, in a task that runs while there are counts to report.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Relaxed, Release, SeqCst},
            fence,
        },
    },
    time::Duration,
};

use tokio::{runtime::Handle, time::sleep};

use crate::domain::error::{StoreError, StoreErrorKind};

const INTERVAL: Duration = Duration::from_secs(1);

/// How long one call may take, before its report counts as lost: one interval.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);

/// The task ends after this many flushes without a report.
pub(super) const IDLE: u64 = 10;

/// Counts something, and reports it to the store.
pub(super) trait Counter: Send + Sync + 'static {
    fn flusher(&self) -> &Flusher;

    /// Reports the counts to the store.
    fn flush(&self) -> impl Future<Output = ()> + Send;

    /// Whether the task may end, because nothing was counted for a while.
    fn is_idle(&self) -> bool;

    /// Whether there is something to report.
    fn has_news(&self) -> bool;
}

/// The state of the flushing task.
#[derive(Default)]
pub(super) struct Flusher {
    running: Arc<AtomicBool>,
    /// The runtime of the task, for the last report when the limiter is dropped.
    runtime: Mutex<Option<Handle>>,
    /// Held during a flush. Flushes must not overlap: the store's answer is about the newest report.
    pub(super) turn: tokio::sync::Mutex<()>,
    pub(super) has_failed: AtomicBool,
}

/// Marks the task as ended when dropped, also when the runtime aborts the task.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl Flusher {
    /// Spawns the task after a count, if none runs. Without a runtime, nothing is reported.
    pub(super) fn ensure_running<C: Counter>(&self, counter: &Arc<C>) {
        // Pairs with the fence of an ending task: either this thread sees the end, or the task sees the counts.
        fence(SeqCst);
        if !self.running.load(Relaxed) {
            self.spawn(counter);
        }
    }

    #[cold]
    fn spawn<C: Counter>(&self, counter: &Arc<C>) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if self.running.swap(true, AcqRel) {
            return;
        }
        let running = Running(Arc::clone(&self.running));
        let mut last = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(runtime.clone());
        drop(last);
        runtime.spawn(run(Arc::downgrade(counter), running));
    }

    /// Whether to warn about the error of a flush. An outage has its own warnings; other errors warn once, until a
    /// flush succeeds.
    pub(super) fn is_news(&self, error: &StoreError) -> bool {
        let is_outage = matches!(
            error.kind(),
            StoreErrorKind::Unavailable | StoreErrorKind::Timeout
        );
        !is_outage && !self.has_failed.swap(true, Relaxed)
    }

    /// Reports the rest in the background, if a runtime is known.
    pub(super) fn flush_last<C: Counter>(&self, counter: &Arc<C>) {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(runtime) = runtime.take() else {
            return;
        };
        let counter = Arc::clone(counter);
        runtime.spawn(async move { counter.flush().await });
    }
}

/// Flushes once a second until the limiter is dropped or idle.
async fn run<C: Counter>(counter: Weak<C>, running: Running) {
    loop {
        sleep(INTERVAL).await;
        let Some(counter) = counter.upgrade() else {
            return;
        };
        counter.flush().await;
        if !counter.is_idle() {
            continue;
        }
        drop(running);
        // A thread that counted just before may still have seen a running task, and so started none.
        fence(SeqCst);
        if counter.has_news() {
            counter.flusher().ensure_running(&counter);
        }
        return;
    }
}
