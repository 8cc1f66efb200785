//! Settling: the final costs of what was admitted.

use super::{Limiter, call::Answer};
use crate::{
    domain::{
        charge::Charge,
        decision::{Decision, Usage},
        error::StoreError,
        settlement::Settlement,
    },
    observe::{CallInfo, CallKind, RequestOutcome},
    store::{Store, StoreExt, eventual::Eventual},
};

type Settled = Vec<Result<Usage, StoreError>>;

impl Limiter {
    /// Gives each charge of an admitted check its final cost: what the work turned out to cost, or 0 to take it back.
    ///
    /// `cost` is called with each charge, those of [shadows](Usage::shadow) among them, and answers its final cost:
    /// [`Charge::cost`] to leave it as it is. An [`ActualCost`] does that by the names of policies:
    /// `|charge| cost.under(charge)`. Charges of one policy and key were added up by the check, and are one here.
    ///
    /// The difference is added to or taken from the step that was charged, if that still counts: even above the limit,
    /// never below zero. A check that is not settled keeps its cost.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout. If the error [is unsent](StoreError::is_unsent), as when the
    /// breaker is open, you can settle the check again; otherwise the settlement may have been done, and cannot be
    /// tried again. [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when the check was denied or has
    /// been settled. An error about shadows alone is none where other charges are settled: the observer is notified.
    ///
    /// [`ActualCost`]: crate::limiter::ActualCost
    pub async fn settle(
        &self,
        usage: &Usage,
        cost: impl Fn(&Charge) -> u64,
    ) -> Result<Usage, StoreError> {
        let shadow = admitted_shadow(usage);
        let parts = match shadow {
            Some(shadow) if usage.check().charges().is_empty() => {
                vec![Settlement::new(shadow, cost)?]
            }
            _ => {
                let mut parts = vec![Settlement::new(usage, &cost)?];
                parts.extend(shadow.and_then(|shadow| Settlement::of_change(shadow, &cost)));
                parts
            }
        };
        self.settle_parts(usage, parts).await
    }

    /// The settlements that a changed cost needs: of the charges that count, and of the shadows, each once.
    pub(crate) fn changed_parts(usage: &Usage, cost: impl Fn(&Charge) -> u64) -> Vec<Settlement> {
        let both = [Some(usage), admitted_shadow(usage)];
        let parts = both.into_iter().flatten();
        parts
            .filter_map(|part| Settlement::of_change(part, &cost))
            .collect()
    }

    /// Settles these parts of one check at the same time; the usage afterwards, that of the shadows with it.
    pub(crate) async fn settle_parts(
        &self,
        usage: &Usage,
        parts: Vec<Settlement>,
    ) -> Result<Usage, StoreError> {
        let counts = parts.first().is_some_and(|it| it.usage().is_same(usage));
        let mut settled = self.settle_all(parts).await.into_iter();
        let (counting, shadow) = if counts {
            let counting = settled.next().unwrap_or_else(|| Ok(usage.clone()))?;
            (counting, settled.next().and_then(Result::ok))
        } else {
            (usage.clone(), settled.next().transpose()?)
        };
        let shadow = shadow.map(Decision::Allowed);
        Ok(match shadow.or_else(|| usage.shadow().cloned()) {
            Some(shadow) => counting.with_shadow(shadow),
            None => counting,
        })
    }

    /// All of it was decided in one place, and is settled there. Answers one by one.
    async fn settle_all(&self, parts: Vec<Settlement>) -> Settled {
        let Some(first) = parts.first() else {
            return Vec::new();
        };
        let local = first.usage().is_local();
        let Answer { result, timing } = self.call_to_settle(first, parts.get(1), local).await;
        let results = result.unwrap_or_else(|error| vec![Err(error); parts.len()]);
        for (index, (settlement, result)) in parts.iter().zip(&results).enumerate() {
            let call = info(settlement).shared(index > 0);
            match result {
                Ok(_) => {
                    self.record_settled_contributors(settlement);
                    self.report_completion(call, local, timing);
                }
                Err(error) => {
                    if error.is_unsent() {
                        settlement.give_up();
                    }
                    self.report_error(call, error, RequestOutcome::Failed, timing);
                }
            }
            // Also where it has failed: it may have been done.
            self.inner.queues.wake_settled(settlement);
        }
        results
    }

    fn call_to_settle(
        &self,
        first: &Settlement,
        second: Option<&Settlement>,
        local: bool,
    ) -> Eventual<Answer<Settled>> {
        let settle = |store: &dyn Store| {
            let settled = store.settle(first);
            let settled = match second {
                Some(second) => settled.both(store.settle(second)).then(one_failure),
                None => settled.map(|usage| vec![Ok(usage)]),
            };
            settled.map(move |usages| usages.into_iter().map(|it| as_decided(it, local)).collect())
        };
        if local {
            self.call_local(|| info(first), settle)
        } else {
            self.call(|| info(first), settle)
        }
    }
}

fn admitted_shadow(usage: &Usage) -> Option<&Usage> {
    match usage.shadow() {
        Some(Decision::Allowed(shadow)) => Some(shadow),
        _ => None,
    }
}

fn info(settlement: &Settlement) -> CallInfo<'_> {
    CallInfo::new(CallKind::Settle, settlement.check())
}

fn as_decided(usage: Result<Usage, StoreError>, local: bool) -> Result<Usage, StoreError> {
    usage.map(|it| if local { it.local() } else { it })
}

/// An error where neither was done, which is how the breaker sees one failure. Of two, the one that may have been sent:
/// what may have been done is not tried again.
fn one_failure(both: Result<Settled, StoreError>) -> Result<Settled, StoreError> {
    let both = both?;
    match &both[..] {
        [Err(first), Err(second)] if first.is_unsent() => Err(second.clone()),
        [Err(first), Err(_)] => Err(first.clone()),
        _ => Ok(both),
    }
}
