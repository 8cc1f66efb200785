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

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    time::Duration,
};

use redis::Cmd;

use super::{
    RedisStore,
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
    timer::within,
    warning::{self, Quiet},
};

/// How long after its end a block may stay in the index, in ms: the nodes of a cluster have clocks of their own.
const SLACK_MS: u64 = 3_600_000;

/// How long the index may hold up a call: half of the default timeout of limiters.
const PATIENCE: Duration = Duration::from_millis(50);

/// The changes of the index by the operations of a call.
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
            if index.look.is_none() {
                let answer = answer.await;
                if answer.as_ref().is_ok_and(is_done) {
                    within(PATIENCE, index.write(store)).await;
                }
                return answer;
            }
            let mut write = pin!(index.write(store));
            let mut is_written = within(PATIENCE, write.as_mut()).await.is_some();
            // Written late, an identity is listed all the same.
            poll_fn(|cx| {
                is_written = is_written || write.as_mut().poll(cx).is_ready();
                Pin::new(&mut answer).poll(cx)
            })
            .await
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
        note(&self.send(store).await);
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
