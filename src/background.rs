//! The back room: one thread of this process, for all work that no request waits for.
//!
//! ```text
//! settlement, return, late answer ──▶ first look, where it arises ──▶ done
//!                                                 │ has to wait
//! renewal, report, strike ────────────────────────┴──▶ the thread, with a runtime of its own
//! ```
//!
//! So this work survives the runtimes of callers, goes on while handlers block theirs, and works where there is none.
//! After a `fork` there is no thread: the runtimes of callers do the work.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    process,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
        mpsc::sync_channel,
    },
    task::{Context, Poll, Waker},
    thread,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::Notify,
};

use crate::warning;

/// The most living jobs that the end of a process waits for.
const MOST_COUNTED: usize = 16_384;

/// The most of them that wait for late answers, so that there is room for settlements beside these.
const MOST_LATE: usize = MOST_COUNTED / 4 * 3;

/// The most living jobs of the others.
const MOST_OTHERS: usize = 1_024;

/// The place of the work of a [`Limiter`](crate::Limiter) that no request waits for: see
/// [`Limiter::background`](crate::Limiter::background).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Background {
    /// In one thread of the process, with a runtime of its own. The thread starts when it is first needed. If it cannot
    /// be started, there is one warning, and the work is done in the runtimes of callers. A process that is forked
    /// afterwards has no such thread, and does the work there, too.
    #[default]
    Thread,
    /// In the runtime that is current where the work arises, or in the thread if there is none: for tests that pause the
    /// clock of their runtime. The work ends with that runtime.
    Here,
}

/// The background work of a limiter with its clones, or of a layer of stores.
#[derive(Default)]
pub(crate) struct BackRoom {
    is_here: AtomicBool,
    /// The living jobs that the end of a process waits for.
    counted: AtomicUsize,
    /// Notified when the last of them has ended.
    idle: Notify,
    others: AtomicUsize,
    has_warned: OnceLock<()>,
}

/// A job that the end of a process waits for, until this is dropped.
pub(crate) struct Task(Arc<BackRoom>);

/// Another job, until this is dropped.
struct Other(Arc<BackRoom>);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    static IS_FIRST_LOOK: Cell<bool> = const { Cell::new(false) };
}

/// Whether this poll is the first look at a job. Those that follow may be in another runtime, so a timer begins with them.
pub(crate) fn is_first_look() -> bool {
    IS_FIRST_LOOK.get()
}

impl BackRoom {
    pub(crate) fn set(&self, place: Background) {
        self.is_here.store(place == Background::Here, Relaxed);
    }

    /// Begins work in the thread.
    pub(crate) fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let other = Other(Arc::clone(self));
        if self.has_room(&self.others, MOST_OTHERS) {
            self.start(Box::pin(async move {
                work.await;
                drop(other);
            }));
        }
    }

    /// Begins work here that the end of a process waits for: what is ready at once is done when this returns, and calls to a
    /// server stand in the line of the caller's runtime. The rest is done in the thread.
    pub(crate) fn finish(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        self.finish_within(MOST_COUNTED, Box::pin(work));
    }

    /// The same for work that waits for a late answer.
    pub(crate) fn finish_late(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        self.finish_within(MOST_LATE, Box::pin(work));
    }

    fn finish_within(self: &Arc<Self>, most: usize, mut work: Work) {
        if look(&mut work).is_pending()
            && let Some(task) = self.begin_within(most)
        {
            self.start(Box::pin(async move {
                work.await;
                drop(task);
            }));
        }
    }

    /// Counts a job that the end of a process waits for. `None` if there are too many: drop the job.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Task> {
        self.begin_within(MOST_COUNTED)
    }

    fn begin_within(self: &Arc<Self>, most: usize) -> Option<Task> {
        let task = Task(Arc::clone(self));
        self.has_room(&self.counted, most).then_some(task)
    }

    /// Counts one more, and returns whether there is room for it.
    fn has_room(&self, jobs: &AtomicUsize, most: usize) -> bool {
        let has_room = jobs.fetch_add(1, Relaxed) < most;
        if !has_room {
            self.has_warned.get_or_init(warning::back_room_full);
        }
        has_room
    }

    /// How many of the counted jobs have not ended.
    pub(crate) fn left(&self) -> usize {
        self.counted.load(Acquire)
    }

    /// Waits until the counted jobs have ended.
    pub(crate) async fn ended(&self) {
        loop {
            let mut idle = pin!(self.idle.notified());
            idle.as_mut().enable();
            if self.left() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Begins work in the thread that is counted already, or lets it go on there.
    pub(crate) fn start(&self, work: Work) {
        let here = || Handle::try_current().ok();
        let own = self.is_here.load(Relaxed).then(here).flatten();
        // Without the thread, the work is done here, or dropped where there is no runtime.
        if let Some(runtime) = own.or_else(|| thread().cloned()).or_else(here) {
            drop(runtime.spawn(work));
        }
    }
}

/// Begins work in the thread for all stores of the process together.
#[cfg(feature = "redis")]
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    static ROOM: OnceLock<Arc<BackRoom>> = OnceLock::new();
    ROOM.get_or_init(Arc::default).spawn(work);
}

/// Polls a job once in the caller's runtime. A job that panics has ended.
fn look(work: &mut Work) -> Poll<()> {
    if thread::panicking() || Handle::try_current().is_err() {
        return Poll::Pending;
    }
    let before = IS_FIRST_LOOK.replace(true);
    let mut context = Context::from_waker(Waker::noop());
    let looked = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut context)));
    IS_FIRST_LOOK.set(before);
    looked.unwrap_or(Poll::Ready(()))
}

/// The runtime of the thread, which starts at the first need; `None` if it cannot be started, or was before a `fork`.
fn thread() -> Option<&'static Handle> {
    static THREAD: OnceLock<(u32, Option<Handle>)> = OnceLock::new();
    in_process(
        THREAD.get_or_init(|| (process::id(), start())),
        process::id(),
    )
}

fn in_process(&(of, ref started): &(u32, Option<Handle>), process: u32) -> Option<&Handle> {
    started.as_ref().filter(|_| of == process)
}

fn start() -> Option<Handle> {
    let (sender, started) = sync_channel(1);
    let run = move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let _ = sender.send(runtime.as_ref().ok().map(|it| it.handle().clone()));
        if let Ok(runtime) = runtime {
            runtime.block_on(std::future::pending())
        }
    };
    let thread = thread::Builder::new().name("sluicegate".into());
    let started = thread.spawn(run).ok().and_then(|_| started.recv().ok()?);
    if started.is_none() {
        warning::no_back_room();
    }
    started
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.0.counted.fetch_sub(1, AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.0.others.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[test]
    fn the_jobs_that_wait_take_bounded_memory_and_one_that_panics_ends_alone() {
        let room = Arc::<BackRoom>::default();
        room.set(Background::Here);
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for _ in 0..2 * MOST_COUNTED {
                room.finish(async { panic!("on purpose") });
                room.spawn(pending());
            }
            assert_eq!((room.left(), room.others.load(Relaxed)), (0, MOST_OTHERS));
            for _ in 0..2 * MOST_COUNTED {
                room.finish(pending());
            }
            assert_eq!(room.left(), MOST_COUNTED);
        });
        drop(runtime);
        assert_eq!((room.left(), room.others.load(Relaxed)), (0, 0));
    }

    #[test]
    fn a_process_that_was_forked_uses_no_thread_of_its_parent() {
        let started = (7, start());
        assert!(in_process(&started, 7).is_some());
        assert!(in_process(&started, 8).is_none());
    }
}
