//! Contributors and denials, counted in this process by [`Counts`] and reported to the store.
//!
//! ```text
//!  decision ──▶ tally of its account ──▶ sketch        on the request's path: a lock, no waiting
//!                   │
//!                reporter, once a second ──▶ Operation::Report ──▶ what was kept ──▶ sketch
//! ```

mod counts;
mod hash;
mod sketch;
mod tally;

use std::sync::Arc;

use super::Limiter;
use crate::{
    domain::{
        charge::Charge,
        check::Check,
        contributors::Contributors,
        decision::{Decision, Usage},
        denials::DeniedIdentity,
        error::StoreError,
        key::Key,
        policy::Policy,
        report::{Account, Ranking},
        settlement::Settlement,
    },
    observe::{CallInfo, CallKind},
    store::{Store, StoreFuture, ext},
};
pub(super) use counts::Counts;

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
        let rankings = self.rankings(&[], Account::Denials).await?;
        Ok(DeniedIdentity::list(rankings))
    }

    /// Lists the contributors to the charges of `key` under `policy`, in the current window and across all processes:
    /// see [`contributors`](crate::contributors).
    ///
    /// The limiter first reports the newest contributions of this process. Those of the last second or so of other
    /// processes may be missing. The observer sees a [peek](crate::observe::CallKind::Peek).
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout;
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when the store keeps no contributors.
    pub async fn contributors(
        &self,
        policy: &Policy,
        key: &Key,
    ) -> Result<Contributors, StoreError> {
        let charges = [Charge::new(policy, key.clone(), 0)];
        let (policy, key) = (policy.clone(), key.clone());
        let account = Account::Contributors { policy, key };
        let rankings = self.rankings(&charges, account).await?;
        Ok(Contributors::of(rankings))
    }

    /// Reports the newest counts of an account, and then reads those of all processes.
    async fn rankings(
        &self,
        charges: &[Charge],
        account: Account,
    ) -> Result<Vec<Ranking>, StoreError> {
        let reports = Arc::clone(&self.inner.reporter.0);
        let begin = |_: &dyn Store| {
            StoreFuture::pending(async move {
                reports.flush_account(&account).await?;
                ext::rankings(&*reports.store, account).await
            })
        };
        self.ask(CallInfo::of(CallKind::Peek, charges), begin).await
    }

    /// Counts the final outcome of a request; a denial may also be a strike.
    pub(crate) fn count_outcome(&self, decision: &Decision) {
        self.count_strikes(decision);
        let reports = &self.inner.reporter.0;
        if self.inner.counts_denials && reports.counts.count(decision) {
            reports.ensure_running();
        }
    }

    /// Counts an admission by the store for its contributors.
    pub(super) fn record_contributors(&self, decision: &Decision, check: &Check) {
        let Decision::Allowed(usage) = decision else {
            return;
        };
        if usage.is_local() {
            return;
        }
        self.record(check.charges(), usage);
        if let Some(Decision::Allowed(shadow)) = usage.shadow() {
            self.record(check.shadow_charges(), shadow);
        }
    }

    fn record(&self, charges: &[Charge], usage: &Usage) {
        let at_ms = usage.decided_at_ms();
        let reports = &self.inner.reporter.0;
        for charge in charges {
            let units = charge.cost().cast_signed();
            reports.counts.contribute(charge, at_ms, units, true);
        }
        reports.ensure_running();
    }

    /// Counts the difference that a settlement makes: units that are given back in the span of the original charge, and
    /// further ones in that of `settled`, the usage after the settlement.
    pub(super) fn record_settled_contributors(&self, settlement: &Settlement, settled: &Usage) {
        let usage = settlement.usage();
        if !settlement.check().has_contributors() || usage.is_local() {
            return;
        }
        let reports = &self.inner.reporter.0;
        let charges = settlement.check().charges().iter();
        for (charge, cost) in charges.zip(settlement.costs()) {
            let difference = cost.cast_signed() - charge.cost().cast_signed();
            let is_now = difference > 0;
            let at_ms = if is_now { settled } else { usage }.decided_at_ms();
            reports.counts.contribute(charge, at_ms, difference, is_now);
        }
        reports.ensure_running();
    }
}
