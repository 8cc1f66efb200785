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
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use tokio::time::timeout;

use super::{
    Limiter,
    caller::To,
    delivery::{Delivery, IDLE, TIMEOUT},
};
use crate::{
    domain::{
        decision::{Decision, Denial, RuleUsage, Usage},
        denials::{DenialCount, DenialReport, DeniedIdentity, KEPT_IDENTITIES},
        error::{StoreError, StoreErrorKind},
        operation::Operation,
    },
    observe::{CallInfo, CallKind},
    store::{Store, StoreExt, StoreFuture},
    warning,
};
use table::Table;

/// The denials of one limiter and its clones.
#[derive(Default)]
pub(super) struct Tracker {
    table: Table,
    /// Whether the store keeps no denials.
    is_off: AtomicBool,
    pub(super) delivery: Delivery,
    /// How many flushes in a row had nothing to report.
    idle: AtomicU64,
}

impl Tracker {
    /// Counts the result of a check, and returns whether the task may have to be started.
    fn count(&self, decision: &Decision) -> bool {
        match decision {
            Decision::Allowed(usage) => self.table.is_active() && self.admitted(usage),
            _ if self.is_off.load(Relaxed) => false,
            Decision::Denied(denial) => {
                self.denied(denial);
                true
            }
            Decision::Blocked(blocked) => {
                let at_ms = blocked.decided_at_ms();
                self.table.deny(None, blocked.key(), at_ms);
                true
            }
        }
    }

    /// Returns whether this is the first count of an identity since the last report: the task may have ended.
    fn admitted(&self, usage: &Usage) -> bool {
        let at_ms = usage.decided_at_ms();
        let mut is_first = false;
        let charges = usage.check().charges().iter();
        for charge in charges.filter(|charge| charge.cost() > 0) {
            is_first |= self.table.admit(charge.policy(), charge.key(), at_ms) == Some(true);
        }
        is_first
    }

    fn denied(&self, denial: &Denial) {
        let usage = denial.usage();
        for (charge, policy) in usage.check().charges().iter().zip(usage.policies()) {
            if policy.rules().iter().any(RuleUsage::is_exceeded) {
                let (policy, key) = (charge.policy(), charge.key());
                self.table.deny(Some(policy), key, usage.decided_at_ms());
            }
        }
    }

    /// Reports the counts, and returns whether there were some lately.
    pub(super) async fn flush(&self, store: &dyn Store) -> bool {
        if let Ok(Err(error)) = timeout(TIMEOUT, self.report(store)).await {
            self.failed(&error);
        }
        self.idle.load(Relaxed) < IDLE
    }

    pub(super) fn has_news(&self) -> bool {
        self.table.has_counts()
    }

    /// Reports the counts to the store. They are lost on an error: the store may have added them.
    async fn report(&self, store: &dyn Store) -> Result<(), StoreError> {
        let _turn = self.delivery.turn.lock().await;
        let reports = reports(&self.table);
        if reports.is_empty() {
            self.idle.fetch_add(1, Relaxed);
            return Ok(());
        }
        self.idle.store(0, Relaxed);
        let report = Operation::ReportDenials(reports);
        store.execute(report).await?;
        self.delivery.succeeded();
        Ok(())
    }

    #[cold]
    fn failed(&self, error: &StoreError) {
        if error.kind() == StoreErrorKind::InvalidRequest {
            // Forgetting all denials also stops the counting of admissions.
            self.is_off.store(true, Relaxed);
            self.table.forget_all();
        } else if self.delivery.is_news(error) {
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
            counts.sort_unstable_by_key(|count| Reverse(count.counts.denied()));
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
        self.change(|inner| inner.counts_denials = count)
    }

    /// Lists the identities that any process denied within the last hour, sorted by their denials in the last minute,
    /// most first: see [`denials`](crate::denials).
    ///
    /// This process reports its newest denials first; those of other processes are up to about a second old. An
    /// observer is notified of a [peek](crate::observe::CallKind::Peek). For operators, not for requests.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout;
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when the store keeps no denials.
    pub async fn denials(&self) -> Result<Vec<DeniedIdentity>, StoreError> {
        let info = CallInfo::of(CallKind::Peek, &[]);
        let reports = Arc::clone(&self.inner.jobs.reporter.0);
        let counts = self.inner.counts_denials;
        let begin = |_: &dyn Store| {
            StoreFuture::pending(async move {
                if counts {
                    reports.denials.report(&*reports.store).await?;
                }
                reports.store.denials().await
            })
        };
        self.inner.caller.ask(To::Store, info, begin).await
    }

    /// Counts the final outcome of a request; a denial may also be a strike.
    pub(crate) fn count_outcome(&self, decision: &Decision) {
        self.inner.jobs.strikes.count(decision, self);
        let reports = &self.inner.jobs.reporter.0;
        if self.inner.counts_denials && reports.denials.count(decision) {
            reports.ensure_running();
        }
    }
}
