//! Settling: the final costs of what was admitted.

use super::{Limiter, call::Answer};
use crate::{
    decision::Usage,
    error::StoreError,
    eventual::Eventual,
    observe::{CallInfo, CallKind, RequestOutcome},
    operation::{Operation, Reply},
    settlement::Settlement,
    store::{CallFuture, Store, StoreFuture},
};

type Settled = Vec<Result<Usage, StoreError>>;

impl Limiter {
    /// Gives each charge of an admitted check its final cost: what the work turned out to cost, or 0 to take it back.
    ///
    /// The difference is added to or taken from the step that was charged, if that still counts: even above the limit,
    /// never below zero. A check that is not settled keeps its cost. `costs` are in the order of [`Usage::policies`].
    /// What [shadows](Usage::shadow) charged is settled apart, by their own usage.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout; the settlement may have been done, and cannot be tried
    /// again. [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when the check was denied or has been
    /// settled, or when the number of costs is wrong.
    pub async fn settle(
        &self,
        usage: &Usage,
        costs: impl IntoIterator<Item = u64>,
    ) -> Result<Usage, StoreError> {
        let settlement = Settlement::new(usage, costs)?;
        let settled = self.settle_all(vec![settlement]).await.pop();
        settled.unwrap_or_else(|| Err(no_settlement()))
    }

    /// Settles what one request was charged, in one call: what counts, and what shadows charged. Answers one by one.
    ///
    /// All of it was decided in one place, and is settled there.
    pub(crate) async fn settle_all(&self, settlements: Vec<Settlement>) -> Settled {
        let local = settlements.iter().any(|it| it.usage().is_local());
        let Answer { result, timing } = self.call_to_settle(&settlements, local).await;
        let results = result.unwrap_or_else(|error| vec![Err(error); settlements.len()]);
        for (index, (settlement, result)) in settlements.iter().zip(&results).enumerate() {
            let call = info(settlement).shared(index > 0);
            match result {
                Ok(_) => {
                    self.record_settled_contributors(settlement);
                    self.report_completion(call, local, timing);
                }
                Err(error) => self.report_error(call, error, RequestOutcome::Failed, timing),
            }
            // Also where it has failed: it may have been done.
            self.inner.queues.wake_settled(settlement);
        }
        results
    }

    fn call_to_settle(&self, settlements: &[Settlement], local: bool) -> Eventual<Answer<Settled>> {
        let info = || info(&settlements[0]);
        let operations = settlements.iter().cloned().map(Operation::Settle).collect();
        let settle = |store: &dyn Store| usages(store.call(operations), local);
        if local {
            self.call_local(info, settle)
        } else {
            self.call(info, settle)
        }
    }
}

fn info(settlement: &Settlement) -> CallInfo<'_> {
    CallInfo::new(CallKind::Settle, settlement.check())
}

/// The usage after each settlement; an error where none was done, which is how the breaker sees that the call has
/// failed.
fn usages(call: CallFuture, local: bool) -> StoreFuture<Settled> {
    StoreFuture::pending(async move {
        let replies = call.await?.into_iter();
        let usages = replies.map(|reply| match reply? {
            Reply::Settle(usage) if local => Ok(usage.local()),
            Reply::Settle(usage) => Ok(usage),
            _ => Err(no_settlement()),
        });
        let usages: Settled = usages.collect();
        match &usages[..] {
            [Err(first), rest @ ..] if rest.iter().all(Result::is_err) => Err(first.clone()),
            _ => Ok(usages),
        }
    })
}

const fn no_settlement() -> StoreError {
    StoreError::protocol("the store answered a settlement with something else")
}
