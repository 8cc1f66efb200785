//! An index of the current blocks: a sorted set of identities by the end of their blocks, so that listing takes time
//! proportional to the number of blocks.
//!
//! ```text
//!   sluicegate:!blocks
//!     ip=203.0.113.7      1790000003123
//! ```
//!
//! The index is a hint: the blocks decide, and a listing reads each block. The index may be on another node of a
//! cluster than the block, so separate commands write it: just before a block, and after an unblock that succeeded. A
//! crash in between leaves an extra identity, which is not listed and expires. An error here changes no block.

use std::time::Duration;

use redis::Cmd;
use tokio::{runtime::Handle, sync::oneshot, time::timeout};

use super::{
    RedisStore, background,
    connection::within,
    error::store_error,
    reports::{look, send_all},
};
use crate::{
    domain::{
        block::{Block, BlockRequest},
        check::Check,
        decision::Decision,
        error::StoreError,
        key::Key,
        operation::{Operation, Reply},
    },
    store::StoreFuture,
    warning::{self, Quiet},
};

/// How long after its end a block may stay in the index, in ms: the nodes of a cluster have clocks of their own.
const SLACK_MS: u64 = 3_600_000;

/// How long the index may hold up a call: half of the default timeout of limiters.
const PATIENCE: Duration = Duration::from_millis(50);

/// How long the commands to the index may take after that, such as for a new connection.
const LATEST: Duration = Duration::from_secs(1);

/// What the operations of a call change in the index.
pub(super) struct IndexUpdate {
    operations: Vec<Operation>,
    /// A look that says the server's time, by which blocks end; `None` if no operation blocks. A wrong date of this
    /// process would drop the blocks of others.
    look: Option<StoreFuture<Decision>>,
}

impl RedisStore {
    /// `check` decides a look, if an operation blocks.
    pub(super) fn index_update(
        operations: &[Operation],
        check: impl FnOnce(&Check) -> StoreFuture<Decision>,
    ) -> IndexUpdate {
        use Operation::{Ban, Block, Unblock};
        let blocks = |it: &&Operation| matches!(it, Block { .. } | Ban { .. });
        let changes = |it: &&Operation| blocks(it) || matches!(it, Unblock { .. });
        let blocked = operations.iter().find(blocks).and_then(Operation::key);
        IndexUpdate {
            operations: operations.iter().filter(changes).cloned().collect(),
            look: blocked.map(|key| check(&look(key.clone()))),
        }
    }

    /// Updates the index, and then makes the call; if the call only unblocks, updates the index after its success.
    ///
    /// An index on a slow node holds up the call for a short time only.
    pub(super) fn with_index<T: Send + 'static>(
        &self,
        index: IndexUpdate,
        mut answer: StoreFuture<T>,
        is_done: fn(&T) -> bool,
    ) -> StoreFuture<T> {
        if index.operations.is_empty() {
            return answer;
        }
        let (store, sent) = (self.clone(), answer.sent().cloned());
        let both = StoreFuture::pending(async move {
            if index.look.is_some() {
                index.write(store).await;
                return answer.await;
            }
            let answer = answer.await;
            if answer.as_ref().is_ok_and(is_done) {
                index.write(store).await;
            }
            answer
        });
        both.queued(sent)
    }

    fn index_operation(&self, operation: &Operation, now_ms: u64) -> Vec<Cmd> {
        match operation {
            Operation::Block { key, request } | Operation::Ban { key, request, .. } => {
                self.index_block(key, request, now_ms)
            }
            Operation::Unblock { key } => self.index_unblock(key),
            _ => Vec::new(),
        }
    }

    /// Adds an identity, and removes the identities whose blocks have ended.
    fn index_block(&self, key: &Key, request: &BlockRequest, now_ms: u64) -> Vec<Cmd> {
        let name = self.names.block_index();
        let ends_ms = Block::begin(request.until(), request.source(), now_ms).stored_until_ms();
        // The store chooses the time of a ban that grows. This is the latest end that it can choose.
        let longest = match request.times_ms() {
            [first, .., last] => last.saturating_sub(*first),
            _ => 0,
        };
        let ends_ms = ends_ms.saturating_add(longest);
        let mut drop_ended = redis::cmd("ZREMRANGEBYSCORE");
        let ended_ms = now_ms.saturating_sub(SLACK_MS);
        drop_ended.arg(&name).arg("-inf").arg(ended_ms);
        let mut add = redis::cmd("ZADD");
        add.arg(&name).arg("GT").arg(ends_ms);
        add.arg(self.names.identity(key));
        vec![drop_ended, add]
    }

    fn index_unblock(&self, key: &Key) -> Vec<Cmd> {
        let mut remove = redis::cmd("ZREM");
        remove.arg(self.names.block_index());
        remove.arg(self.names.identity(key));
        vec![remove]
    }
}

impl IndexUpdate {
    async fn write(self, store: RedisStore) {
        let only_unblocks = self.look.is_none();
        let written = self.send(store);
        match Handle::try_current() {
            // Removed late, an identity might have been blocked again. A block that a failed unblock leaves stays.
            Ok(_) if only_unblocks => {
                if let Ok(result) = timeout(PATIENCE, written).await {
                    note(&result);
                }
            }
            // Added late, an identity is listed all the same.
            Ok(runtime) => {
                let (done, is_done) = oneshot::channel::<()>();
                background::spawn_in(&runtime, async move {
                    let result = within(LATEST, async { Ok(written.await) }).await;
                    note(&result.unwrap_or_else(|error| Err(store_error(&error))));
                    drop(done);
                });
                let _ = timeout(PATIENCE, is_done).await;
            }
            // Only the connection of a test works outside of a runtime, where there are no timers.
            Err(_) => note(&written.await),
        }
    }

    async fn send(self, store: RedisStore) -> Result<(), StoreError> {
        let now_ms = match self.look {
            Some(look) => look.await?.usage().decided_at_ms(),
            None => 0,
        };
        let operations = self.operations.iter();
        let commands = operations.flat_map(|it| store.index_operation(it, now_ms));
        let commands = commands.map(|cmd| (store.names.block_index(), cmd));
        let commands: Vec<_> = commands.collect();
        let replies = send_all(&store.transports, &commands).await;
        let error = replies.into_iter().find_map(Result::err);
        error.map_or(Ok(()), |error| Err(store_error(&error)))
    }
}

/// Warns about the first error, and again after a success.
fn note(result: &Result<(), StoreError>) {
    static FAILURES: Quiet = Quiet::new();
    FAILURES.note(result, warning::blocks_not_indexed);
}

/// Whether each operation of a call was done.
pub(super) fn are_done(results: &[Result<Reply, StoreError>]) -> bool {
    results.iter().all(Result::is_ok)
}
