//! [`Flusher`]: reports to the store once a second, by a task that runs while there is something to report.

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

/// How long one call may take; later, its report is lost. As long as a flush may be late.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);

/// After so many flushes without anything to report, the task ends.
pub(super) const IDLE: u64 = 10;

/// Counts something, and reports it to the store.
pub(super) trait Counter: Send + Sync + 'static {
    fn flusher(&self) -> &Flusher;

    /// Reports the counts to the store.
    fn flush(&self) -> impl Future<Output = ()> + Send;

    /// Whether the task may end, as nothing was counted for a while.
    fn is_idle(&self) -> bool;

    /// Whether there is something to report.
    fn has_news(&self) -> bool;
}

/// The task that flushes, and what it has met.
#[derive(Default)]
pub(super) struct Flusher {
    running: Arc<AtomicBool>,
    /// Where the task was spawned, for the last report when the limiter is dropped.
    runtime: Mutex<Option<Handle>>,
    /// One flush at a time: the store's answer is about its newest report.
    pub(super) turn: tokio::sync::Mutex<()>,
    pub(super) has_failed: AtomicBool,
}

/// Notes that the task has ended, however it did: it may be aborted with its runtime.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl Flusher {
    /// Spawns the task, unless it runs, after something was counted. Outside of a runtime there is none.
    pub(super) fn ensure_running<C: Counter>(&self, counter: &Arc<C>) {
        // Pairs with that of a task that ends: this thread sees that it has ended, or the task sees the counts.
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

    /// Whether the error of a flush calls for a warning: an outage has warnings of its own, and others get one until a
    /// flush succeeds.
    pub(super) fn is_news(&self, error: &StoreError) -> bool {
        let is_outage = matches!(
            error.kind(),
            StoreErrorKind::Unavailable | StoreErrorKind::Timeout
        );
        !is_outage && !self.has_failed.swap(true, Relaxed)
    }

    /// Reports the rest, in the background and if there is a runtime.
    pub(super) fn flush_last<C: Counter>(&self, counter: &Arc<C>) {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(runtime) = runtime.take() else {
            return;
        };
        let counter = Arc::clone(counter);
        runtime.spawn(async move { counter.flush().await });
    }
}

/// Flushes once a second until the limiter is dropped, or nothing happens any more.
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
        // A thread that counted just before has seen a running task.
        fence(SeqCst);
        if counter.has_news() {
            counter.flusher().ensure_running(&counter);
        }
        return;
    }
}
