//! The operations of a store as calls of the script.

use std::time::{SystemTime, UNIX_EPOCH};

use redis::{RedisError, Value};

use super::{
    RedisStore,
    error::{reply_error, store_error},
    transport::Transport,
    wire::{self, Call, Replies},
};
use crate::{
    domain::{
        check::Check,
        decision::Decision,
        error::StoreError,
        operation::{Operation, Reply, answer_of},
        rule::millis,
    },
    store::{CallFuture, StoreFuture, ext::ANOTHER_REPLY, queued::Task},
};

/// On a cluster, all keys of one call have to share a slot.
impl RedisStore {
    pub(super) fn call_one_slot(&self, operations: Vec<Operation>) -> CallFuture {
        StoreFuture::pending(self.execute_together(operations))
    }

    pub(super) fn check_one_slot(&self, check: &Check) -> StoreFuture<Decision> {
        self.execute_one(Task::Check(check.clone()), answer_of!(Check))
    }

    pub(super) fn execute_one<T: 'static>(
        &self,
        task: impl Into<Task>,
        read: fn(Reply) -> Option<T>,
    ) -> StoreFuture<T> {
        let (calls, task) = (self.shared.as_ref(), task.into());
        if let Some(calls) = calls.and_then(|calls| calls.of(self, &task)) {
            return calls.execute_one(task, read);
        }
        let reply = self.execute_alone(task.into_operation());
        StoreFuture::pending(async move { read(reply.await?).ok_or(ANOTHER_REPLY) })
    }

    /// The same store, which shares no calls with others.
    pub(super) fn unshared(&self) -> Self {
        Self {
            in_flight: 0,
            shared: None,
            ..self.clone()
        }
    }

    pub(super) fn execute_alone(
        &self,
        operation: Operation,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send + 'static {
        let replies = self.execute_together([operation]);
        async { replies.await?.pop().unwrap_or(Err(ANOTHER_REPLY)) }
    }

    /// Sends all of these operations in one call of the script.
    pub(super) fn execute_together(
        &self,
        operations: impl AsRef<[Operation]> + Send + 'static,
    ) -> impl Future<Output = Result<Vec<Result<Reply, StoreError>>, StoreError>> + Send + 'static
    {
        let (clock, near_ms) = (self.clock.now_ms(), self.client_now_ms());
        let call = Call::new(&self.names, clock, near_ms, operations.as_ref());
        let store = self.clone();
        async move {
            let reply = match call.routing_key() {
                Some(key) => run(&store.transport, &call, key).await,
                None => Ok(wire::no_reply()),
            };
            // While a slot is being moved, the keys of a call may be on two nodes. Calls with one key each still work.
            #[cfg(feature = "cluster")]
            if reply
                .as_ref()
                .is_err_and(|error| error.code() == Some("TRYAGAIN"))
            {
                let operations = operations.as_ref().to_vec();
                return store.unshared().call_by_key(operations).await;
            }
            let replies = wire::read_replies(operations.as_ref(), &reply?);
            if replies.elsewhere.is_empty() {
                return Ok(replies.results);
            }
            Ok(Box::pin(store.ask_again(operations.as_ref(), replies)).await)
        }
    }

    /// The time of this process's clock, for the periods of a first ask.
    fn client_now_ms(&self) -> u64 {
        self.clock.now_ms().unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            millis(since.unwrap_or_default())
        })
    }

    /// Asks once more for the operations whose periods were not sent, with the periods around the server's time. They
    /// were not executed.
    async fn ask_again(
        &self,
        operations: &[Operation],
        replies: Replies,
    ) -> Vec<Result<Reply, StoreError>> {
        let places = replies.elsewhere;
        let again: Vec<Operation> = places
            .iter()
            .map(|place| operations[*place].clone())
            .collect();
        let call = Call::new(&self.names, self.clock.now_ms(), replies.now_ms, &again);
        let mut results = replies.results;
        let Some(key) = call.routing_key() else {
            return results;
        };
        let answers = match run(&self.transport, &call, key).await {
            Ok(reply) => wire::read_replies(&again, &reply).results,
            Err(error) => places.iter().map(|_| Err(error.clone())).collect(),
        };
        for (place, answer) in places.into_iter().zip(answers) {
            results[place] = answer;
        }
        results
    }
}

/// Runs the script by its hash. If the server does not know the script, sends the source, once.
async fn run(transport: &Transport, call: &Call, key: &[u8]) -> Result<Value, StoreError> {
    let reply = transport.try_send(&call.by_hash(), key).await;
    let mut reply = reply.map_err(|error| store_error(&error).unsent())?;
    if reply.as_ref().is_err_and(is_unknown_script) {
        let again = Box::pin(async { transport.try_send(&call.by_source(), key).await }).await;
        reply = again.map_err(|error| store_error(&error).unsent())?;
    }
    reply.map_err(|error| reply_error(&error))
}

/// Only this error proves that the script did not run.
fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}
