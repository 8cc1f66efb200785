//! What is asked of a store, as calls of the script.

use redis::{Cmd, RedisError, Value};

use super::{RedisStore, error::store_error, script, transport::Transport};
use crate::{
    check::Check,
    decision::{Decision, Usage},
    error::StoreError,
    settlement::Settlement,
    store::{CallFuture, Operation, Reply, Store, StoreFuture},
};

impl RedisStore {
    pub(super) fn check_batch_in_one_call(&self, checks: Vec<Check>) -> StoreFuture<Vec<Decision>> {
        let call = script::check_call(&self.names, self.now_ms(), &checks);
        let transport = self.transport.clone();
        StoreFuture::pending(async move {
            script::decisions(&checks, &run(&transport, &call, b"").await?)
        })
    }

    /// Does several operations whose keys share a slot, in this order.
    #[cfg(feature = "cluster")]
    pub(super) fn call_one_slot(&self, operations: Vec<Operation>) -> CallFuture {
        self.one_by_one(operations)
    }

    pub(super) fn check_one_slot(&self, check: &Check) -> StoreFuture<Decision> {
        let call = script::check_call(&self.names, self.now_ms(), [check]);
        let (transport, key) = (self.transport.clone(), self.routing_key(check));
        let check = check.clone();
        StoreFuture::pending(async move {
            script::decision(&check, &run(&transport, &call, &key).await?)
        })
    }

    /// Decides the charges that count, and then the shadows in a call of their own. What goes wrong with them is
    /// dropped.
    pub(super) fn check_then_shadows(
        &self,
        counting: Check,
        shadows: Check,
    ) -> StoreFuture<Decision> {
        let store = self.clone();
        StoreFuture::pending(async move {
            let decision = store.check(&counting).await?;
            if !decision.is_allowed() {
                return Ok(decision);
            }
            Ok(match store.check(&shadows).await {
                Ok(shadow) => decision.with_shadow(shadow),
                Err(_) => decision,
            })
        })
    }

    pub(super) fn settle_one_slot(&self, settlement: &Settlement) -> StoreFuture<Usage> {
        let call = script::settle_call(&self.names, self.now_ms(), settlement);
        let key = self.routing_key(settlement.check());
        let (transport, settlement) = (self.transport.clone(), settlement.clone());
        StoreFuture::pending(async move {
            script::usage(&settlement, &run(&transport, &call, &key).await?)
        })
    }

    /// Does one operation after the other.
    pub(super) fn one_by_one(&self, operations: Vec<Operation>) -> CallFuture {
        let store = self.clone();
        StoreFuture::pending(async move {
            let mut results = Vec::with_capacity(operations.len());
            for operation in operations {
                results.push(store.call_one(operation).await);
            }
            Ok(results)
        })
    }

    fn call_one(&self, operation: Operation) -> StoreFuture<Reply> {
        match operation {
            Operation::Check(check) => self.check(&check).map(Reply::Check),
            Operation::Fill { check, count } => self.fill(check, count).map(Reply::Fill),
            Operation::Settle(settlement) => self.settle(&settlement).map(Reply::Settle),
            Operation::Reset { policy, key } => self.reset(&policy, &key).map(|()| Reply::Reset),
        }
    }

    /// Decides identical checks one by one: after the first denial all are denied as it was.
    fn fill(&self, check: Check, count: u16) -> StoreFuture<Vec<Decision>> {
        let store = self.clone();
        StoreFuture::pending(async move {
            let mut decisions: Vec<Decision> = Vec::with_capacity(count.into());
            while decisions.len() < count.into() {
                let decision = match decisions.last() {
                    Some(denied @ Decision::Denied(_)) => denied.clone(),
                    _ => store.check(&check).await?,
                };
                decisions.push(decision);
            }
            Ok(decisions)
        })
    }

    /// The name of a key that a call has, which says where it belongs. Only a cluster needs to know.
    fn routing_key(&self, check: &Check) -> Vec<u8> {
        let charge = check.charges().first();
        match charge.filter(|_| self.transport.is_cluster()) {
            Some(charge) => self.names.name(charge.policy().name(), charge.key()),
            None => Vec::new(),
        }
    }
}

/// Runs the script: by its hash, and once by its source on a server that does not know it.
async fn run(transport: &Transport, call: &Cmd, key: &[u8]) -> Result<Value, StoreError> {
    let mut reply = transport.send(call, key).await;
    if reply.as_ref().is_err_and(is_unknown_script) {
        reply = Box::pin(transport.send(&script::with_source(call), key)).await;
    }
    reply.map_err(|error| store_error(&error))
}

/// Only this error makes it certain that nothing was executed.
fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}
