//! [`Flusher`]: tells the store once a second, by a task that runs while there is something to tell.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Relaxed, Release},
        },
    },
    time::Duration,
};

use tokio::{runtime::Handle, time::sleep};

const INTERVAL: Duration = Duration::from_secs(1);

/// How long one call may take; what it was to tell is lost then. As long as a flush may be late.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);

/// After so many flushes without anything to tell, the task ends.
pub(super) const IDLE: u64 = 10;

/// What counts something, and tells the store of it.
pub(super) trait Counter: Send + Sync + 'static {
    fn flusher(&self) -> &Flusher;

    /// Tells the store what was counted.
    fn flush(&self) -> impl Future<Output = ()> + Send;

    /// Whether the task may end, as nothing was counted for a while.
    fn is_idle(&self) -> bool;

    /// Whether there is something to tell.
    fn has_news(&self) -> bool;
}

/// The task that flushes, and what it has met.
#[derive(Default)]
pub(super) struct Flusher {
    running: Arc<AtomicBool>,
    /// Where the task was spawned, for what is to be told when the limiter is dropped.
    runtime: Mutex<Option<Handle>>,
    /// One flush at a time: what the store answers is about what it was told last.
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
    /// Spawns the task, unless it runs. Outside of a runtime there is none.
    pub(super) fn ensure_running<C: Counter>(&self, counter: &Arc<C>) {
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

    /// Tells what was not told yet, in the background and if there is a runtime.
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
        if counter.has_news() {
            counter.flusher().ensure_running(&counter);
        }
        return;
    }
}
