//! [`Reporter`]: reports contributors, denials and policies to the store, in one task that runs while there is
//! something to report.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
            fence,
        },
    },
    time::Duration,
};

use tokio::{runtime::Handle, time::sleep};

use super::{contributors, denials, publisher::Publisher};
use crate::{
    sole_task::{Alive, SoleTask},
    store::Store,
};

const INTERVAL: Duration = Duration::from_secs(1);

/// Longer than an interval and the timeouts of all calls of the reports after it.
const LATE: Duration = Duration::from_secs(30);

/// The reports of one limiter and its clones. The last of them to be dropped reports the rest in the background.
pub(super) struct Reporter(pub(super) Arc<Reports>);

pub(super) struct Reports {
    pub(super) store: Arc<dyn Store>,
    pub(super) contributors: contributors::Tracker,
    pub(super) denials: denials::Tracker,
    pub(super) policies: Publisher,
    task: Arc<SoleTask>,
    /// The second of the store in which a check last looked whether the task is late.
    looked: AtomicU64,
    /// The runtime of the task, for the last report when the limiter is dropped.
    runtime: Mutex<Option<Handle>>,
}

impl Reporter {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self(Arc::new(Reports {
            store,
            contributors: contributors::Tracker::default(),
            denials: denials::Tracker::default(),
            policies: Publisher::default(),
            task: Arc::default(),
            looked: AtomicU64::new(0),
            runtime: Mutex::default(),
        }))
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        let runtime = &self.0.runtime;
        let mut runtime = runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = runtime.take() {
            let reports = Arc::clone(&self.0);
            runtime.spawn(async move { reports.flush().await });
        }
    }
}

impl Reports {
    /// Spawns the task after a count, if none runs. Without a runtime, nothing is reported.
    pub(super) fn ensure_running(self: &Arc<Self>) {
        // Pairs with the fence of an ending task: either this thread sees the end, or the task sees the counts.
        fence(SeqCst);
        if self.task.is_absent() {
            self.spawn();
        }
    }

    /// Replaces a task that is late: a check looks once in each second of the store, so that others read no clock.
    pub(super) fn replace_late_task(self: &Arc<Self>, at_ms: u64) {
        let second = at_ms / 1_000;
        if self.looked.load(Relaxed) != second {
            self.looked.store(second, Relaxed);
            if self.task.is_late() && self.spawn() {
                self.contributors.delivery.revoke_turn();
                self.denials.delivery.revoke_turn();
            }
        }
    }

    /// Returns whether this caller has begun the task.
    #[cold]
    fn spawn(self: &Arc<Self>) -> bool {
        let Ok(runtime) = Handle::try_current() else {
            return false;
        };
        let Some(task) = self.task.begin(LATE) else {
            return false;
        };
        let mut last = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(runtime.clone());
        drop(last);
        runtime.spawn(run(Arc::downgrade(self), task));
        true
    }

    /// Reports all counts, and returns whether to expect more soon.
    async fn flush(&self) -> bool {
        let contributors = self.contributors.flush(&*self.store).await;
        self.denials.flush(&*self.store).await || contributors
    }

    fn has_news(&self) -> bool {
        self.contributors.has_news() || self.denials.has_news() || self.policies.has_news()
    }
}

/// Reports once a second until the limiter is dropped or idle.
async fn run(reports: Weak<Reports>, mut task: Alive) {
    loop {
        sleep(INTERVAL).await;
        let Some(reports) = reports.upgrade() else {
            return;
        };
        if !task.goes_on() {
            return; // another has replaced it
        }
        let goes_on = reports.flush().await;
        if reports.policies.second_passed(&*reports.store).await || goes_on {
            continue;
        }
        drop(task);
        // A thread that counted just before may still have seen a running task, and so started none.
        fence(SeqCst);
        if reports.has_news() {
            reports.ensure_running();
        }
        return;
    }
}
