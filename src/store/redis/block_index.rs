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

use std::{sync::Arc, time::Duration};

use redis::{Cmd, RedisResult, Value};
use tokio::{runtime::Handle, sync::oneshot, time::timeout};

use super::{
    RedisStore, background, connection::within, error::store_error, reports::send_all,
    transport::Transports,
};
use crate::{
    domain::{
        block::{Block, BlockRequest},
        error::StoreError,
        key::Key,
        operation::{Operation, Reply},
    },
    store::StoreFuture,
    warning::{self, Quiet},
};

/// How long after its end a block may stay in the index, in ms, because clients' clocks write the index.
const SLACK_MS: u64 = 3_600_000;

/// How long the index may hold up a call: half of the default timeout of limiters.
const PATIENCE: Duration = Duration::from_millis(50);

/// How long the commands to the index may take after that, such as for a new connection.
const LATEST: Duration = Duration::from_secs(1);

/// The commands to the index for the operations of a call.
pub(super) struct IndexUpdate {
    commands: Vec<(Vec<u8>, Cmd)>,
    /// Whether no operation blocks. A block that a failed unblock leaves has to stay in the list.
    only_unblocks: bool,
}

impl RedisStore {
    pub(super) fn index_update(&self, operations: &[Operation]) -> IndexUpdate {
        let commands = operations.iter().flat_map(|it| self.index_operation(it));
        let commands = commands.map(|cmd| (self.names.block_index(), cmd));
        let blocks = |it| matches!(it, &Operation::Block { .. } | &Operation::Ban { .. });
        IndexUpdate {
            commands: commands.collect(),
            only_unblocks: !operations.iter().any(blocks),
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
        if index.commands.is_empty() {
            return answer;
        }
        let (transports, sent) = (Arc::clone(&self.transports), answer.sent().cloned());
        let both = StoreFuture::pending(async move {
            if !index.only_unblocks {
                index.write(transports).await;
                return answer.await;
            }
            let answer = answer.await;
            if answer.as_ref().is_ok_and(is_done) {
                index.write(transports).await;
            }
            answer
        });
        both.queued(sent)
    }

    fn index_operation(&self, operation: &Operation) -> Vec<Cmd> {
        match operation {
            Operation::Block { key, request } | Operation::Ban { key, request, .. } => {
                self.index_block(key, request)
            }
            Operation::Unblock { key } => self.index_unblock(key),
            _ => Vec::new(),
        }
    }

    /// Adds an identity, and removes the identities whose blocks have ended.
    fn index_block(&self, key: &Key, request: &BlockRequest) -> Vec<Cmd> {
        let now_ms = self.client_now_ms();
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
    async fn write(self, transports: Arc<Transports>) {
        let replies = async move { send_all(&transports, &self.commands).await };
        match Handle::try_current() {
            // Removed late, an identity might have been blocked again.
            Ok(_) if self.only_unblocks => {
                if let Ok(replies) = timeout(PATIENCE, replies).await {
                    note(replies);
                }
            }
            // Added late, an identity is listed all the same.
            Ok(runtime) => {
                let (done, is_done) = oneshot::channel::<()>();
                background::spawn_in(&runtime, async move {
                    let replies = within(LATEST, async { Ok(replies.await) }).await;
                    note(replies.unwrap_or_else(|error| vec![Err(error)]));
                    drop(done);
                });
                let _ = timeout(PATIENCE, is_done).await;
            }
            // Only the connection of a test works outside of a runtime, where there are no timers.
            Err(_) => note(replies.await),
        }
    }
}

/// Warns about the first error, and again after a success.
fn note(replies: Vec<RedisResult<Value>>) {
    static FAILURES: Quiet = Quiet::new();
    let error = replies.into_iter().find_map(Result::err);
    let result = error.map_or(Ok(()), |error| Err(store_error(&error)));
    FAILURES.note(&result, warning::blocks_not_indexed);
}

/// Whether each operation of a call was done.
pub(super) fn are_done(results: &[Result<Reply, StoreError>]) -> bool {
    results.iter().all(Result::is_ok)
}
