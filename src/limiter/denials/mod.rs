//! [`Tracker`]: counts denials in this process, and reports them to the store.
//!
//! ```text
//!  decision ──▶ count ──▶ table                        on the request's path: no waiting
//!                           │
//!             flush, once a second ──▶ Operation::ReportDenials
//! ```

mod hash;
mod table;

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use tokio::time::timeout;

use super::{
    Limiter,
    flusher::{Counter, Flusher, IDLE, TIMEOUT},
};
use crate::{
    domain::{
        decision::{Blocked, Decision, Denial, RuleUsage, Usage},
        denials::{DenialCount, DenialReport, Denials, KEPT_IDENTITIES},
        error::{StoreError, StoreErrorKind},
        operation::Operation,
    },
    observe::{CallInfo, CallKind},
    store::{Store, StoreExt, StoreFuture},
    warning,
};
use table::Table;

/// The denials of one limiter and its clones.
pub(super) struct Tracker {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn Store>,
    table: Table,
    /// Whether the store keeps no denials.
    is_off: AtomicBool,
    flusher: Flusher,
    /// How many flushes in a row had nothing to report.
    idle: AtomicU64,
}

impl Tracker {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        let shared = Shared {
            store,
            table: Table::default(),
            is_off: AtomicBool::new(false),
            flusher: Flusher::default(),
            idle: AtomicU64::new(0),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Counts the result of a check.
    pub(super) fn count(&self, decision: &Decision) {
        match decision {
            Decision::Allowed(usage) if self.shared.table.is_active() => self.admitted(usage),
            Decision::Allowed(_) => {}
            _ if self.shared.is_off.load(Relaxed) => {}
            Decision::Denied(denial) => self.denied(denial),
            Decision::Blocked(blocked) => self.blocked(blocked),
        }
    }

    fn admitted(&self, usage: &Usage) {
        let (table, at_ms) = (&self.shared.table, usage.decided_at_ms());
        let charges = usage.check().charges().iter();
        for charge in charges.filter(|charge| charge.cost() > 0) {
            // Without an earlier count since the last report, the task may have ended.
            if table.admit(charge.policy(), charge.key(), at_ms) == Some(true) {
                self.shared.flusher.ensure_running(&self.shared);
            }
        }
    }

    fn denied(&self, denial: &Denial) {
        let usage = denial.usage();
        for (charge, policy) in usage.check().charges().iter().zip(usage.policies()) {
            if policy.rules().iter().any(RuleUsage::is_exceeded) {
                let (policy, key) = (charge.policy(), charge.key());
                let table = &self.shared.table;
                table.deny(Some(policy), key, usage.decided_at_ms());
            }
        }
        self.shared.flusher.ensure_running(&self.shared);
    }

    fn blocked(&self, blocked: &Blocked) {
        let table = &self.shared.table;
        table.deny(None, blocked.key(), blocked.decided_at_ms());
        self.shared.flusher.ensure_running(&self.shared);
    }
}

impl Counter for Shared {
    fn flusher(&self) -> &Flusher {
        &self.flusher
    }

    async fn flush(&self) {
        let report = timeout(TIMEOUT, self.report()).await;
        if let Err(error) = report.unwrap_or(Err(TOO_LATE)) {
            self.failed(&error);
        }
    }

    fn is_idle(&self) -> bool {
        self.idle.load(Relaxed) >= IDLE
    }

    fn has_news(&self) -> bool {
        self.table.has_counts()
    }
}

impl Shared {
    /// Reports the counts to the store. They are lost on an error: the store may have added them.
    async fn report(&self) -> Result<(), StoreError> {
        let _turn = self.flusher.turn.lock().await;
        let reports = reports(&self.table);
        if reports.is_empty() {
            self.idle.fetch_add(1, Relaxed);
            return Ok(());
        }
        self.idle.store(0, Relaxed);
        let report = Operation::ReportDenials(reports);
        self.store.execute(report).await?;
        self.flusher.has_failed.store(false, Relaxed);
        Ok(())
    }

    #[cold]
    fn failed(&self, error: &StoreError) {
        if error.kind() == StoreErrorKind::InvalidRequest {
            // Forgetting all denials also stops the counting of admissions.
            self.is_off.store(true, Relaxed);
            self.table.forget_all();
        } else if self.flusher.is_news(error) {
            warning::denials_lost(error);
        }
    }
}

/// One report for each span; if there are too many identities, those with the most denials.
fn reports(table: &Table) -> Vec<DenialReport> {
    let mut by_span = BTreeMap::<u64, Vec<DenialCount>>::new();
    for counted in table.take() {
        by_span.entry(counted.span).or_default().push(counted.count);
    }
    let reports = by_span.into_iter().map(|(span, mut counts)| {
        if counts.len() > KEPT_IDENTITIES {
            counts.sort_unstable_by_key(|it| Reverse(it.counts.denied()));
            counts.truncate(KEPT_IDENTITIES);
        }
        let start_ms = table::start_ms(span);
        DenialReport { start_ms, counts }
    });
    reports.collect()
}

impl Limiter {
    /// Sets whether to count [denials](crate::denials) and report them to the store. The default is `true`.
    #[must_use]
    pub fn count_denials(self, count: bool) -> Self {
        let tracker = |store: &Arc<dyn Store>| Arc::new(Tracker::new(Arc::clone(store)));
        self.change(|inner| inner.denials = count.then(|| tracker(&inner.store)))
    }

    /// Lists the identities that any process denied within the last hour: see [`denials`](crate::denials).
    ///
    /// This process reports its newest denials first; those of other processes are up to about a second old. An
    /// observer is notified of a [peek](crate::observe::CallKind::Peek). For operators, not for requests.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout;
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when the store keeps no denials.
    pub async fn denials(&self) -> Result<Denials, StoreError> {
        let info = CallInfo::of(CallKind::Peek, &[]);
        let shared = self.inner.denials.as_ref().map(|it| Arc::clone(&it.shared));
        let store = Arc::clone(&self.inner.store);
        let begin = |_: &dyn Store| {
            StoreFuture::pending(async move {
                if let Some(shared) = shared {
                    shared.report().await?;
                }
                store.denials().await
            })
        };
        self.ask(info, begin).await
    }

    /// Counts the final outcome of a request; a denial may also be a strike.
    pub(crate) fn count_outcome(&self, decision: &Decision) {
        self.count_strikes(decision);
        if let Some(denials) = &self.inner.denials {
            denials.count(decision);
        }
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        self.shared.flusher.flush_last(&self.shared);
    }
}

impl fmt::Debug for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracker").finish_non_exhaustive()
    }
}

const TOO_LATE: StoreError = StoreError::new(
    StoreErrorKind::Timeout,
    "the store did not take the report of denials in time",
);
