//! The operations of a store as calls of the script.

use std::time::{SystemTime, UNIX_EPOCH};

use redis::{RedisError, Value};

use super::{
    RedisStore,
    error::{NO_RUNTIME, reply_error},
    transport::{Route, unreached},
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
    store::{
        ANOTHER_REPLY, StoreFuture, TIMED_OUT,
        redis::shared_calls::queued::{Queued, Task},
        sent::Sent,
    },
};

/// On a cluster, all keys of one call have to share a hash slot.
impl RedisStore {
    pub(super) fn check_one_hash_slot(&self, check: &Check) -> StoreFuture<Decision> {
        self.execute_one(Task::Check(check.clone()), None, answer_of!(Check))
    }

    /// Executes an operation alone, or in a call with others, unless its caller leaves before one with this mark is sent.
    pub(super) fn execute_one<T: Send + 'static>(
        &self,
        task: impl Into<Task>,
        sent: Option<Sent>,
        read: fn(Reply) -> Option<T>,
    ) -> StoreFuture<T> {
        let task = task.into();
        if let Some(calls) = &self.shared {
            return StoreFuture::in_line(Queued::new(calls, task, sent, read));
        }
        let sent = sent.unwrap_or_else(Sent::queued);
        let replies = self.execute_together([task.into_operation()], Some(sent.clone()));
        let reply = async { replies.await?.pop().unwrap_or(Err(ANOTHER_REPLY)) };
        StoreFuture::pending(reply).queued(Some(sent)).read(read)
    }

    /// The same store, which shares no calls with others.
    pub(super) fn unshared(&self) -> Self {
        Self {
            in_flight: 0,
            shared: None,
            ..self.clone()
        }
    }

    /// Sends all of these operations in one call of the script, unless their caller leaves before.
    pub(super) fn execute_together(
        &self,
        operations: impl AsRef<[Operation]> + Send + 'static,
        sent: Option<Sent>,
    ) -> impl Future<Output = Result<Vec<Result<Reply, StoreError>>, StoreError>> + Send + 'static
    {
        let store = self.clone();
        async move {
            #[cfg(feature = "cluster")]
            let key = operations.as_ref().first().map_or_else(Vec::new, |first| {
                store.routing_key(first.check(), first.key())
            });
            #[cfg(not(feature = "cluster"))]
            let key = [];
            let transport = store.transports.here().map_err(|_| NO_RUNTIME)?;
            let route = transport.reach(&key).await;
            let route = route.map_err(|error| unreached(&error))?;
            if sent.is_some_and(|sent| !sent.begin()) {
                return Err(LEFT);
            }
            store.execute_over(route, operations).await
        }
    }

    /// Sends all of these operations in one call of the script over this connection.
    pub(super) async fn execute_over(
        &self,
        route: Route,
        operations: impl AsRef<[Operation]> + Send,
    ) -> Result<Vec<Result<Reply, StoreError>>, StoreError> {
        let operations = operations.as_ref();
        let replies = self.ask(&route, self.client_now_ms(), operations).await;
        // While a hash slot is being moved, the keys of a call may be on two nodes. Calls with one key each still work.
        #[cfg(feature = "cluster")]
        if replies
            .as_ref()
            .is_err_and(|error| error.code() == Some("TRYAGAIN"))
        {
            let operations = operations.to_vec();
            return self.unshared().call_by_key(operations).await;
        }
        let mut replies = replies?;
        if replies.needs_another_connection {
            route.replace();
        }
        if !replies.elsewhere.is_empty() {
            // The server's time is in no period that was sent, so these were not executed.
            let again = replies.elsewhere.iter();
            let again: Vec<_> = again.map(|it| operations[*it].clone()).collect();
            let answers = Box::pin(self.ask(&route, replies.now_ms, &again)).await;
            let answers = answers.map_or_else(
                |error| again.iter().map(|_| Err(error.clone())).collect(),
                |answers| answers.results,
            );
            for (place, answer) in replies.elsewhere.into_iter().zip(answers) {
                replies.results[place] = answer;
            }
        }
        Ok(replies.results)
    }

    /// Sends operations with the periods of the calendar around this time.
    async fn ask(
        &self,
        route: &Route,
        near_ms: u64,
        operations: &[Operation],
    ) -> Result<Replies, StoreError> {
        let call = Call::new(&self.names, self.set_now_ms(), near_ms, operations);
        let reply = match call.routing_key() {
            Some(key) => run(route, &call, key).await?,
            None => Value::Nil,
        };
        Ok(wire::read_replies(operations, &reply))
    }

    /// The time of this process's clock, for the periods of a first ask.
    fn client_now_ms(&self) -> u64 {
        self.set_now_ms().unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            millis(since.unwrap_or_default())
        })
    }
}

/// Runs the script by its hash. If the server does not know the script, sends the source, once.
async fn run(route: &Route, call: &Call, key: &[u8]) -> Result<Value, StoreError> {
    let reply = route.send(call.by_hash(), key).await;
    let mut reply = reply.map_err(|error| unreached(&error))?;
    // Only this error proves that the script did not run.
    let is_unknown = |error: &RedisError| error.code() == Some("NOSCRIPT");
    if reply.as_ref().is_err_and(is_unknown) {
        let again = Box::pin(async { route.send(&call.by_source(), key).await }).await;
        reply = again.map_err(|error| unreached(&error))?;
    }
    reply.map_err(|error| reply_error(&error))
}

/// The error of an operation whose caller has left.
const LEFT: StoreError = TIMED_OUT.unsent();
