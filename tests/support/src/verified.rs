//! A `DenyCache` that compares each repeated refusal with the store's own decision.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use sluicegate::{
    Decision, Store, StoreError,
    manual_clock::ManualClock,
    store::{CallFuture, Check, DenyCache, Operation, Reply, StoreFuture},
};

/// Asks the store again for each repeated refusal, and returns the store's answer. This changes nothing, because a
/// refused check is charged nowhere. The operations of a call are executed one by one, so that each can be compared.
#[derive(Debug)]
pub struct Verified<S> {
    cache: DenyCache,
    store: Arc<S>,
    repeated: Arc<AtomicU64>,
}

impl<S: Store> Verified<S> {
    /// The cache and the store share one clock.
    pub fn new((store, clock): (S, ManualClock)) -> (Self, ManualClock) {
        let store = Arc::new(store);
        let verified = Self {
            cache: DenyCache::new(Arc::clone(&store)).clock(clock.clone()),
            store,
            repeated: Arc::default(),
        };
        (verified, clock)
    }

    /// Counts the repeated refusals in `repeated`.
    pub fn counting(self, repeated: &Arc<AtomicU64>) -> Self {
        Self {
            repeated: Arc::clone(repeated),
            ..self
        }
    }

    async fn do_one(&self, operation: Operation) -> Result<Reply, StoreError> {
        let mut replies = self.cache.call(vec![operation.clone()]).await?;
        let reply = replies.remove(0)?;
        match (reply, operation) {
            (Reply::Check(decision), Operation::Check(check)) => {
                Ok(Reply::Check(self.verify(&check, decision).await?))
            }
            (Reply::CheckBatch(decisions), Operation::CheckBatch { check, .. }) => {
                let mut verified = Vec::new();
                for decision in decisions {
                    verified.push(self.verify(&check, decision).await?);
                }
                Ok(Reply::CheckBatch(verified))
            }
            (reply, _) => Ok(reply),
        }
    }

    async fn verify(&self, check: &Check, decision: Decision) -> Result<Decision, StoreError> {
        if !decision.usage().is_cached() {
            return Ok(decision);
        }
        self.repeated.fetch_add(1, Relaxed);
        let truth = self.store.check(check).await?;
        assert_repeats(&decision, &truth);
        Ok(truth)
    }
}

/// Later charges may have made the store deny for longer, but never for a shorter time.
fn assert_repeats(repeated: &Decision, truth: &Decision) {
    let at_ms = [repeated, truth].map(|it| it.usage().decided_at_ms());
    assert_eq!(at_ms[0], at_ms[1]);
    match (repeated, truth) {
        (Decision::Denied(repeated), Decision::Denied(truth)) => {
            let times = [repeated, truth].map(|it| it.retry_after());
            let is_in_time = times[1].is_none_or(|truth| times[0].is_some_and(|it| it <= truth));
            assert!(is_in_time, "{repeated:?}, and not {truth:?}");
            let rules = repeated.usage().rules().zip(truth.usage().rules());
            for (repeated, truth) in rules {
                assert_eq!(repeated.rule(), truth.rule());
                assert!(
                    repeated.retry_after() <= truth.retry_after() || truth.retry_after().is_none()
                );
            }
        }
        (Decision::Blocked(repeated), Decision::Blocked(truth)) => {
            assert_eq!(repeated.key(), truth.key());
            assert_eq!(repeated.block(), truth.block());
            assert_eq!(repeated.retry_after(), truth.retry_after());
        }
        _ => panic!("{repeated:?}, and not {truth:?}"),
    }
}

/// Derived `Clone` would require a store that can be cloned.
impl<S> Clone for Verified<S> {
    fn clone(&self) -> Self {
        Self {
            cache: self.cache.clone(),
            store: Arc::clone(&self.store),
            repeated: Arc::clone(&self.repeated),
        }
    }
}

impl<S: Store> Store for Verified<S> {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        let answer = self.cache.check(check);
        let (this, check) = (self.clone(), check.clone());
        StoreFuture::pending(async move { this.verify(&check, answer.await?).await })
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        match operation {
            Operation::Check(check) => self.check(&check).map(Reply::Check),
            other => self.cache.execute(other),
        }
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.cache)
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        let this = self.clone();
        StoreFuture::pending(async move {
            let mut results = Vec::new();
            for operation in operations {
                results.push(this.do_one(operation).await);
            }
            Ok(results)
        })
    }
}
