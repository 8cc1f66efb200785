//! [`Several`]: a check of several charges, some of them leased.
//!
//! The store decides the other charges first. Then the leased units are spent. If a lease has ended by then, the
//! admitted charges are refunded, and the store decides the whole check.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::time::timeout;

use super::{
    Entries, Inner, PATIENCE,
    clock::Moment,
    lease::{Claim, LeasedUnits},
    note_failure,
    transfer::Transfer,
};
use crate::{
    domain::{
        check::Check,
        decision::{Decision, RuleUsage, Usage},
        error::StoreError,
        settlement::Settlement,
    },
    store::{StoreExt, StoreFuture},
};

/// A check with its claims of leased units.
pub(super) struct Several {
    inner: Arc<Inner>,
    check: Check,
    entries: Entries,
    claims: Vec<Option<Claim>>,
    /// The indices of the charges that the store has to decide.
    rest: Vec<usize>,
}

impl Several {
    pub(super) fn new(inner: &Arc<Inner>, check: &Check, entries: Entries) -> Self {
        let now = || inner.clock.now();
        let charges = check.charges().iter().zip(entries.iter());
        let claims: Vec<Option<Claim>> = charges
            .map(|(charge, entry)| entry.as_ref()?.claim(charge.cost(), now))
            .collect();
        let rest = (0..claims.len()).filter(|place| claims[*place].is_none());
        Self {
            rest: rest.collect(),
            claims,
            inner: Arc::clone(inner),
            check: check.clone(),
            entries,
        }
    }

    /// The indices of the charges that the store has to decide.
    pub(super) fn rest(&self) -> &[usize] {
        &self.rest
    }

    /// Decides a check with a claim for each charge, without the store.
    pub(super) fn decide_here(mut self) -> StoreFuture<Decision> {
        match self.spend() {
            Ok(spent) => StoreFuture::ready(join(&self.check, true, &spent, None)),
            Err(spent) => self.unfinished(|several| several.start_again(spent, None)),
        }
    }

    /// Decides the check after the store has decided the rest.
    pub(super) fn decide_after(self, rest: StoreFuture<Decision>) -> StoreFuture<Decision> {
        self.unfinished(|several| several.finish(rest))
    }

    fn unfinished<F>(self, decide: impl FnOnce(Self) -> F) -> StoreFuture<Decision>
    where
        F: Future<Output = Result<Decision, StoreError>> + Send + 'static,
    {
        StoreFuture::pending(Unfinished {
            inner: Arc::clone(&self.inner),
            check: self.check.clone(),
            entries: self.entries.clone(),
            sent: self.inner.clock.now(),
            has_timers: self.inner.has_timers(),
            decision: Some(StoreFuture::pending(decide(self))),
        })
    }

    async fn finish(mut self, rest: StoreFuture<Decision>) -> Result<Decision, StoreError> {
        let decision = rest.await;
        if let Err(error) = &decision {
            note_failure(&self.entries, error);
        }
        match decision? {
            Decision::Allowed(usage) => match self.spend() {
                Ok(spent) => join(&self.check, true, &spent, Some(&usage)),
                Err(spent) => self.start_again(spent, Some(usage)).await,
            },
            Decision::Denied(denial) => {
                let released = self.release();
                let joined = join(&self.check, false, &released, Some(denial.usage()))?;
                if !denial.usage().may_be_repeated() {
                    joined.usage().forbid_repeats();
                }
                // A repeated denial says nothing about the store.
                if denial.usage().is_cached() {
                    return Ok(joined.repeated(&self.check, 0));
                }
                Ok(joined)
            }
            Decision::Blocked(blocked) => Ok(Decision::Blocked(blocked)),
        }
    }

    /// Spends all claimed units. If some cannot be spent, returns the spent ones as an error.
    fn spend(&mut self) -> Result<Vec<Option<LeasedUnits>>, Vec<Option<LeasedUnits>>> {
        let claimed = self.claims.iter().flatten().count();
        let now = || self.inner.clock.now();
        let claims = self.claims.drain(..);
        let spent: Vec<_> = claims.map(|claim| claim?.spend(now())).collect();
        if spent.iter().flatten().count() == claimed {
            Ok(spent)
        } else {
            Err(spent)
        }
    }

    fn release(&mut self) -> Vec<Option<LeasedUnits>> {
        let now = self.inner.clock.now();
        let claims = self.claims.drain(..);
        claims.map(|claim| Some(claim?.release(now))).collect()
    }

    /// Refunds the charges that the store admitted or that were spent here, and lets the store decide the whole check.
    async fn start_again(
        self,
        spent: Vec<Option<LeasedUnits>>,
        rest: Option<Usage>,
    ) -> Result<Decision, StoreError> {
        let is_admitted = |place: usize| spent[place].is_some() || self.rest.contains(&place);
        let admitted: Vec<usize> = (0..spent.len())
            .filter(|place| is_admitted(*place))
            .collect();
        let mut spent = spent;
        let parts: Vec<_> = admitted.iter().map(|place| spent[*place].take()).collect();
        if !admitted.is_empty() {
            let part = self.check.pick(&admitted);
            let decision = join(&part, true, &parts, rest.as_ref())?;
            let refund = Settlement::roll_back(decision.usage())?;
            let charges = part.charges().iter();
            // Until the refund has arrived, another check may be denied because of these units.
            let transfers: Vec<Transfer> = charges
                .map(|charge| self.inner.table.begin_transfer(charge))
                .collect();
            self.inner.store.settle(&refund).await?;
            drop(transfers);
        }
        self.inner.pass_on(&self.check, self.entries).await
    }
}

/// If the caller leaves, a background task finishes the check: it has to complete or refund the charges made so far.
struct Unfinished {
    inner: Arc<Inner>,
    check: Check,
    entries: Entries,
    sent: Moment,
    has_timers: bool,
    decision: Option<StoreFuture<Decision>>,
}

impl Future for Unfinished {
    type Output = Result<Decision, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(decision) = &mut self.decision else {
            return Poll::Pending;
        };
        let polled = Pin::new(decision).poll(cx);
        if polled.is_ready() {
            self.decision = None;
        }
        polled
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let Some(decision) = self.decision.take() else {
            return;
        };
        self.inner.note_left(&self.entries, self.sent);
        let charges = self.check.charges().iter();
        let transfers: Vec<Transfer> = charges
            .map(|charge| self.inner.table.begin_transfer(charge))
            .collect();
        if self.has_timers {
            self.inner.background.spawn(async move {
                let _ = timeout(PATIENCE, decision).await;
                drop(transfers);
            });
        }
    }
}

/// Joins the units spent here with the store's answer about the rest, in the order of the check.
fn join(
    check: &Check,
    is_admitted: bool,
    parts: &[Option<LeasedUnits>],
    rest: Option<&Usage>,
) -> Result<Decision, StoreError> {
    let mut rules: Vec<RuleUsage> = Vec::with_capacity(check.rule_count());
    let mut policies = rest.into_iter().flat_map(Usage::policies);
    for part in parts {
        match part {
            Some(units) => rules.extend(units.rules()),
            None => rules.extend(policies.next().into_iter().flat_map(|usage| usage.rules())),
        }
    }
    match rest {
        Some(usage) => {
            let joined = Decision::joined(check, is_admitted, usage.decided_at_ms(), rules)?;
            // The store has looked for blocks of the identities in `rest` only.
            joined.usage().note_unseen_blocks();
            Ok(joined)
        }
        None => {
            let times = parts.iter().flatten().map(LeasedUnits::now_ms);
            Decision::leased(check, times.max().unwrap_or(0), rules)
        }
    }
}
