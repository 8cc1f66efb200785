//! [`Reports`]: reports counts and policies to the store, in one task that runs while there is something to report.

use std::{
    mem,
    sync::{
        Arc, Weak,
        atomic::{Ordering::SeqCst, fence},
    },
    time::Duration,
};

use tokio::{
    sync::{Mutex, OwnedSemaphorePermit, Semaphore},
    time::sleep,
};

use super::{publisher::Publisher, tallies::Tallies, timeout::REPORTING};
use crate::{
    background::BackRoom,
    domain::{
        decision::{Decision, Usage},
        error::{StoreError, StoreErrorKind},
        operation::{Operation, Reply},
        report::{Account, Report},
        settlement::Settlement,
    },
    store::{Store, TIMED_OUT},
    timer::within,
    warning::{self, Quiet},
};

const INTERVAL: Duration = Duration::from_secs(1);

/// How many reports one call has: some thousand commands.
const CALL: usize = 64;

/// The reports of one limiter and its clones.
pub(super) struct Reports {
    pub(super) store: Arc<dyn Store>,
    pub(super) tallies: Tallies,
    pub(super) policies: Publisher,
    /// Held during a report, for those that ask for the newest counts: they may be under way.
    turn: Mutex<()>,
    losses: Quiet,
    /// Its permit is free while no task runs.
    task: Arc<Semaphore>,
    background: Arc<BackRoom>,
}

impl Reports {
    pub(super) fn new(store: Arc<dyn Store>, background: &Arc<BackRoom>) -> Self {
        Self {
            tallies: Tallies::default(),
            policies: Publisher::new(&*store),
            store,
            turn: Mutex::default(),
            losses: Quiet::default(),
            task: Arc::new(Semaphore::new(1)),
            background: Arc::clone(background),
        }
    }

    /// Sends the remaining counts, in the background.
    pub(super) fn flush_rest(self: &Arc<Self>) {
        if self.tallies.has_news() {
            let reports = Arc::clone(self);
            self.background.finish(async move {
                reports.flush().await;
            });
        }
    }

    /// Counts the final outcome of a request for the list of denials.
    ///
    /// Other processes read a store, so it gets the counts each second. A store of this process gets them when they are
    /// read, or after some minutes.
    pub(super) fn count(self: &Arc<Self>, decision: &Decision) {
        if !self.tallies.deny(decision) {
            return;
        }
        if !self.store.is_private() {
            self.ensure_running();
        } else if self.tallies.fills_up() {
            self.flush_rest();
        }
    }

    /// Counts an admission by the store for its contributors.
    pub(super) fn contribute(self: &Arc<Self>, usage: &Usage) {
        for part in usage.admitted_parts().filter(|part| !part.is_local()) {
            let at_ms = part.decided_at_ms();
            for charge in part.check().charges() {
                let units = charge.cost().cast_signed();
                self.tallies.contribute(charge, at_ms, at_ms, units);
            }
            self.ensure_running();
        }
    }

    /// Counts the difference that a settlement makes: units that are given back in the span of the original charge, and
    /// further ones in that of `settled`, the usage after the settlement.
    pub(super) fn contribute_settled(self: &Arc<Self>, settlement: &Settlement, settled: &Usage) {
        let usage = settlement.usage();
        if !settlement.check().has_contributors() || usage.is_local() {
            return;
        }
        let (charged_ms, now_ms) = (usage.decided_at_ms(), settled.decided_at_ms());
        let charges = settlement.check().charges().iter();
        for (charge, cost) in charges.zip(settlement.costs()) {
            let difference = cost.cast_signed() - charge.cost().cast_signed();
            let at_ms = if difference > 0 { now_ms } else { charged_ms };
            self.tallies.contribute(charge, at_ms, now_ms, difference);
        }
        self.ensure_running();
    }

    /// Spawns the task after a count, if none runs.
    pub(super) fn ensure_running(self: &Arc<Self>) {
        // Pairs with the fence of an ending task: either this thread sees the end, or the task sees the counts.
        fence(SeqCst);
        if self.task.available_permits() > 0
            && let Ok(task) = Arc::clone(&self.task).try_acquire_owned()
        {
            self.background.spawn(run(Arc::downgrade(self), task));
        }
    }

    /// Reports all counts, and returns whether there were some.
    async fn flush(&self) -> bool {
        let Some(_turn) = within(REPORTING, self.turn.lock()).await else {
            return true;
        };
        let reports = self.tallies.take(|_| true);
        if reports.is_empty() {
            return false;
        }
        let contributes = reports.iter().any(|it| !it.account.is_of_denials());
        self.note(contributes, &self.send_all(reports).await);
        true
    }

    /// Reports the counts of one account, for a caller that may leave. Waits for a report under way, which may have begun
    /// before the newest of them.
    pub(super) async fn flush_account(&self, account: &Account) -> Result<(), StoreError> {
        let _turn = self.turn.lock().await;
        self.send_all(self.tallies.take(|it| it.is(account))).await
    }

    /// Sends reports in several calls. Those of a call are lost on an error: the store may have added them, and must not add
    /// them twice.
    async fn send_all(&self, mut reports: Vec<Report>) -> Result<(), StoreError> {
        let mut result = Ok(());
        while !reports.is_empty() {
            let rest = reports.split_off(reports.len().min(CALL));
            let call = Operation::Report(mem::replace(&mut reports, rest));
            let is_done = |reply| matches!(reply, Reply::Report).then_some(());
            let sent = self.store.execute(call).read(is_done);
            // An error may be about one account only, so go on with the others.
            result = result.and(within(REPORTING, sent).await.ok_or(TIMED_OUT)?);
        }
        result
    }

    /// Warns about the first loss since a success. An outage has its own warnings. A store that keeps no reports is worth
    /// a warning only if charges name contributors, since denials are counted by default.
    fn note(&self, contributes: bool, result: &Result<(), StoreError>) {
        use StoreErrorKind::{InvalidRequest, Refused, Timeout, Unavailable};
        match result.as_ref().map_err(StoreError::kind) {
            Err(Timeout | Unavailable | Refused) => return,
            Err(InvalidRequest) => {
                self.tallies.switch_denials_off();
                if !contributes {
                    return;
                }
            }
            _ => {}
        }
        self.losses.note(result, warning::reports_lost);
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
        if reports.tallies.has_news() || reports.policies.has_news() {
            reports.ensure_running();
        }
        return;
    }
}
