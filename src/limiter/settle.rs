//! Settling: the final costs of what was admitted.

use super::{
    Limiter,
    call::{Answer, Call},
};
use crate::{
    decision::Usage,
    error::{StoreError, StoreErrorKind},
    observe::{CallInfo, CallKind, RequestOutcome},
    operation::{Operation, Reply},
    settlement::Settlement,
    store::{CallFuture, StoreFuture},
};

type Settled = Vec<Result<Usage, StoreError>>;

impl Limiter {
    pub(super) async fn settle_one(&self, settlement: Settlement) -> Result<Usage, StoreError> {
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
        let results = results
            .into_iter()
            .map(|it| it.map(|usage| mark(usage, local)));
        let results: Settled = results.collect();
        for (index, (settlement, result)) in settlements.iter().zip(&results).enumerate() {
            let call = info(settlement).shared(index > 0);
            match result {
                Ok(_) => self.report_completion(call, local, timing),
                Err(error) => self.report_error(call, error, RequestOutcome::Failed, timing),
            }
            // Also where it has failed: it may have been done.
            self.inner.queues.wake_settled(settlement);
        }
        results
    }

    fn call_to_settle(&self, settlements: &[Settlement], local: bool) -> Call<Settled> {
        let info = || info(&settlements[0]);
        let operations = settlements.iter().cloned().map(Operation::Settle).collect();
        if local {
            self.call_local(info, |store| usages(store.call(operations)))
        } else {
            self.call(info, |store| usages(store.call(operations)))
        }
    }
}

fn info(settlement: &Settlement) -> CallInfo<'_> {
    CallInfo::new(CallKind::Settle, settlement.check())
}

fn mark(usage: Usage, local: bool) -> Usage {
    if local { usage.local() } else { usage }
}

/// The usage after each settlement; an error where none was done, which is how the breaker sees that the call has failed.
fn usages(call: CallFuture) -> StoreFuture<Settled> {
    StoreFuture::pending(async {
        let replies = call.await?.into_iter();
        let usages: Settled = replies.map(|reply| reply.and_then(usage)).collect();
        match &usages[..] {
            [Err(first), rest @ ..] if rest.iter().all(Result::is_err) => Err(first.clone()),
            _ => Ok(usages),
        }
    })
}

fn usage(reply: Reply) -> Result<Usage, StoreError> {
    match reply {
        Reply::Settle(usage) => Ok(usage),
        _ => Err(no_settlement()),
    }
}

const fn no_settlement() -> StoreError {
    let message = "the store answered a settlement with something else";
    StoreError::new(StoreErrorKind::Protocol, message)
}
