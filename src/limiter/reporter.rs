//! [`Reporter`]: reports contributors, denials and policies to the store, in one task that runs while there is
//! something to report.

use std::{
    sync::{
        Arc, Weak,
        atomic::{Ordering::SeqCst, fence},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};

use super::{contributors, denials, publisher::Publisher};
use crate::{background::BackRoom, store::Store};

const INTERVAL: Duration = Duration::from_secs(1);

/// The reports of one limiter and its clones. The last of them to be dropped reports the rest in the background.
pub(super) struct Reporter(pub(super) Arc<Reports>);

pub(super) struct Reports {
    pub(super) store: Arc<dyn Store>,
    pub(super) contributors: contributors::Tracker,
    pub(super) denials: denials::Tracker,
    pub(super) policies: Publisher,
    /// Its permit is free while no task runs.
    task: Arc<Semaphore>,
    background: Arc<BackRoom>,
}

impl Reporter {
    pub(super) fn new(store: Arc<dyn Store>, background: &Arc<BackRoom>) -> Self {
        Self(Arc::new(Reports {
            store,
            contributors: contributors::Tracker::default(),
            denials: denials::Tracker::default(),
            policies: Publisher::default(),
            task: Arc::new(Semaphore::new(1)),
            background: Arc::clone(background),
        }))
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        let reports = Arc::clone(&self.0);
        if reports.contributors.has_news() || reports.denials.has_news() {
            let background = Arc::clone(&reports.background);
            background.spawn(async move {
                let _ = reports.flush().await;
            });
        }
    }
}

impl Reports {
    /// Spawns the task after a count, if none runs. Without a runtime, nothing is reported.
    pub(super) fn ensure_running(self: &Arc<Self>) {
        // Pairs with the fence of an ending task: either this thread sees the end, or the task sees the counts.
        fence(SeqCst);
        if self.task.available_permits() > 0 {
            self.spawn();
        }
    }

    #[cold]
    fn spawn(self: &Arc<Self>) {
        if let Ok(task) = Arc::clone(&self.task).try_acquire_owned() {
            self.background.spawn(run(Arc::downgrade(self), task));
        }
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
async fn run(reports: Weak<Reports>, task: OwnedSemaphorePermit) {
    loop {
        sleep(INTERVAL).await;
        let Some(reports) = reports.upgrade() else {
            return;
        };
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
