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

use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
    time::Instant,
};

use crate::warning;

/// How much work waits for another runtime at most. More is dropped, as without a runtime.
const MAX_LEFT: usize = 16_384;

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
    /// Whether the runtime is known, and has refused no work. Written under the lock.
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
    runtime: Id,
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

    /// Lets work that an ended runtime has left go on in that of the caller.
    pub(crate) fn resume(self: &Arc<Self>) {
        if !self.has_runtime.load(Relaxed) {
            self.start(None);
        }
    }

    /// Keeps work for the next runtime, since this one ends. Without room the work is dropped.
    pub(crate) fn keep(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.lock();
        self.has_runtime.store(false, Relaxed);
        if state.runtime.is_some() && state.left.len() < MAX_LEFT {
            state.left.push((Box::pin(work), None));
        }
    }

    /// Whether there is a runtime for work: that of this caller from now on, if there was none, or if that has ended.
    /// Ask this before work that may begin on a thread outside of any.
    pub(crate) fn knows_runtime(self: &Arc<Self>) -> bool {
        self.has_runtime.load(Relaxed) || self.note_runtime()
    }

    #[cold]
    fn note_runtime(self: &Arc<Self>) -> bool {
        self.start(None); // and what was left to it
        self.has_runtime.load(Relaxed)
    }

    /// Makes the caller's runtime that of the work, if the last one has nothing to do, or refuses work.
    fn enter(&self, state: &mut State, is_free: bool) {
        if (is_free || !self.has_runtime.load(Relaxed))
            && let Ok(caller) = Handle::try_current()
        {
            state.runtime = Some(caller);
            self.has_runtime.store(true, Relaxed);
        }
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
            self.start(None);
            if !self.has_runtime.load(Relaxed) {
                let left = mem::take(&mut self.lock().left);
                drop(left); // it can go on in no runtime
            }
            if self.is_idle() {
                return;
            }
            idle.await;
        }
    }

    /// Spawns this work, and the tasks that an earlier runtime has left.
    fn start(self: &Arc<Self>, work: Option<(Work, Option<Task>)>) {
        let mut state = self.lock();
        let is_free = state.jobs == 0;
        self.enter(&mut state, is_free);
        let has_runtime = self.has_runtime.load(Relaxed);
        let Some(runtime) = state.runtime.clone().filter(|_| has_runtime) else {
            return self.do_without(state, work);
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
                runtime: runtime.id(),
                work: Some(work),
                task,
            };
            drop(runtime.spawn(job.run()));
        }
    }

    #[cold]
    fn do_without(&self, state: MutexGuard<'_, State>, work: Option<(Work, Option<Task>)>) {
        match work {
            Some(work) if state.runtime.is_some() => self.leave(state, work),
            Some(_) => {
                drop(state);
                self.lacks_runtime.get_or_init(warning::no_background);
            }
            None => {}
        }
    }

    /// Leaves work of a runtime that has ended to the next, if it is a task.
    fn leave(&self, mut state: MutexGuard<'_, State>, (work, task): (Work, Option<Task>)) {
        if task.is_some() && state.left.len() < MAX_LEFT {
            state.left.push((work, task));
            drop(state);
            self.idle.notify_waiters();
        } else {
            drop(state); // before the work and the task, whose ends may begin other work
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
        let is_current = |it: &Handle| it.id() == self.runtime;
        if work.is_some() && state.runtime.as_ref().is_some_and(is_current) {
            self.room.has_runtime.store(false, Relaxed);
        }
        match work {
            Some(work) => self.room.leave(state, (work, task)),
            None => drop(state), // before the task
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

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn the_work_that_waits_for_another_runtime_takes_bounded_memory() {
        let room = Arc::<BackRoom>::default();
        let runtime = || Builder::new_current_thread().build().unwrap();
        runtime().block_on(async { assert!(room.knows_runtime()) });
        for _ in 0..2 * MAX_LEFT {
            room.finish(ready(()));
        }
        assert!(!room.knows_runtime(), "it has ended");
        assert_eq!(room.lock().left.len(), MAX_LEFT);
        runtime().block_on(room.ended());
        assert!(room.is_idle());
    }
}
