//! [`BackRoom`]: spawns the work that no request waits for.

use std::{
    mem,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, time::Instant};

use crate::warning;

/// A runtime that begins no job for so long counts as one that nothing drives.
const LATE: Duration = Duration::from_secs(1);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The background work of a limiter with its clones, or of a store's layer.
///
/// One runtime does all of it, that of the first caller. When the work has ended, or a runtime that was shut down has
/// dropped the work, the runtime of the next caller takes over.
#[derive(Default)]
pub(crate) struct BackRoom {
    state: Mutex<State>,
    has_runtime: AtomicBool,
    counted: AtomicUsize,
    /// Notified when the last counted task has ended, or when a runtime has left one.
    idle: Notify,
    /// Set by the warning.
    has_delay: OnceLock<()>,
    /// The same.
    lacks_runtime: OnceLock<()>,
}

#[derive(Default)]
struct State {
    /// The last one, while there is no job.
    runtime: Option<Handle>,
    jobs: usize,
    /// Since when jobs wait for the runtime to begin one of them.
    unbegun: Option<Instant>,
    /// For the next runtime.
    left: Vec<(Work, Option<Task>)>,
}

struct Job {
    room: Arc<BackRoom>,
    /// `None` once it has begun.
    work: Option<Work>,
    /// A job with a task goes on in the next runtime if this one ends before the job has begun.
    task: Option<Task>,
}

/// A task that the end of a process waits for, until this is dropped, by the task or by a runtime that ends.
pub(crate) struct Task(Arc<BackRoom>);

impl BackRoom {
    /// Spawns work that ends with its runtime: the next caller that needs it spawns it again. Without a runtime, the
    /// work is dropped.
    pub(crate) fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        self.start(Some((Box::pin(work), None)));
    }

    /// Spawns work that the end of a process waits for.
    pub(crate) fn finish(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        self.start(Some((Box::pin(work), Some(self.begin()))));
    }

    /// Whether there is a runtime for work: that of this caller from now on, if there was none. Ask this before work
    /// that may begin on a thread outside of any.
    pub(crate) fn knows_runtime(&self) -> bool {
        self.has_runtime.load(Relaxed) || self.note_runtime()
    }

    #[cold]
    fn note_runtime(&self) -> bool {
        let mut state = self.lock();
        state.runtime = state.runtime.take().or_else(|| Handle::try_current().ok());
        self.has_runtime.store(state.runtime.is_some(), Relaxed);
        state.runtime.is_some()
    }

    /// Counts a task that the end of a process waits for.
    pub(crate) fn begin(self: &Arc<Self>) -> Task {
        self.counted.fetch_add(1, Relaxed);
        Task(Arc::clone(self))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.counted.load(Acquire) == 0
    }

    /// Waits until the counted tasks have ended, in this runtime if theirs has left them.
    pub(crate) async fn ended(self: &Arc<Self>) {
        loop {
            let mut idle = pin!(self.idle.notified());
            idle.as_mut().enable();
            match Handle::try_current() {
                Ok(_) => self.start(None),
                Err(_) => {
                    let left = mem::take(&mut self.lock().left);
                    drop(left); // it can go on in no runtime
                }
            }
            if self.is_idle() {
                return;
            }
            idle.await;
        }
    }

    /// Spawns this work, and the tasks that an earlier runtime has left.
    fn start(self: &Arc<Self>, work: Option<(Work, Option<Task>)>) {
        let caller = Handle::try_current().ok();
        let mut state = self.lock();
        if state.jobs == 0 && caller.is_some() {
            state.runtime = caller;
        }
        let Some(runtime) = state.runtime.clone() else {
            drop(state);
            if work.is_some() {
                self.lacks_runtime.get_or_init(warning::no_background);
            }
            return;
        };
        let left = mem::take(&mut state.left);
        let jobs = left.len() + usize::from(work.is_some());
        state.jobs += jobs;
        state.unbegun = state.unbegun.or_else(|| (jobs > 0).then(Instant::now));
        // Without the lock: a runtime that has been shut down drops a job at once.
        drop(state);
        self.look();
        for (work, task) in left.into_iter().chain(work) {
            let job = Job {
                room: Arc::clone(self),
                work: Some(work),
                task,
            };
            drop(runtime.spawn(job.run()));
        }
    }

    /// Warns once if work waits for a runtime that nothing drives.
    pub(crate) fn look(&self) {
        let since = self.lock().unbegun;
        if since.is_some_and(|since| since.elapsed() > LATE) {
            self.has_delay.get_or_init(warning::runtime_not_driven);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    async fn run(mut self) {
        self.room.lock().unbegun = None;
        if let Some(work) = self.work.take() {
            work.await;
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let (work, task) = (self.work.take(), self.task.take());
        let mut state = self.room.lock();
        state.jobs -= 1;
        if state.jobs == 0 {
            state.unbegun = None;
        }
        match work {
            Some(work) if task.is_some() => {
                state.left.push((work, task));
                drop(state);
                self.room.idle.notify_waiters();
            }
            _ => drop(state), // before the work and the task, whose ends may begin other work
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.0.counted.fetch_sub(1, AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
