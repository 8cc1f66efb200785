//! An index of the current blocks: a sorted set of identities by the end of their blocks, so that listing takes time
//! proportional to the number of blocks.
//!
//! ```text
//!   sluicegate:!blocks
//!     ip=203.0.113.7      1790000003123
//! ```
//!
//! The index is a hint: the blocks decide, and a listing reads each block. The index may be on another node of a
//! cluster than the block, so separate commands write it, just before the block. A crash in between leaves an extra
//! identity, which is not listed and expires. An error here changes no block.

use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use tokio::{runtime::Handle, time::timeout};

use super::{RedisStore, error::store_error, reports::send_all};
use crate::{
    domain::{
        block::{Block, BlockRequest},
        key::Key,
        operation::Operation,
    },
    store::StoreFuture,
    warning::{self, Quiet},
};

/// How long after its end a block may stay in the index, in ms, because clients' clocks write the index.
const SLACK_MS: u64 = 3_600_000;

/// How long the index may hold up a block: half of the default timeout of limiters.
const PATIENCE: Duration = Duration::from_millis(50);

impl RedisStore {
    /// Sends commands to the index, and then makes the block's call.
    ///
    /// An index on a slow node holds up the block for a short time only. The node still executes the commands that it
    /// got.
    pub(super) fn with_index<T: Send + 'static>(
        &self,
        commands: Vec<Cmd>,
        answer: StoreFuture<T>,
    ) -> StoreFuture<T> {
        if commands.is_empty() {
            return answer;
        }
        let (transport, name) = (self.transport.clone(), self.names.block_index());
        let sent = answer.sent.clone();
        let both = StoreFuture::pending(async move {
            let commands = commands.into_iter().map(|cmd| (name.clone(), cmd));
            let commands: Vec<_> = commands.collect();
            let replies = send_all(&transport, &commands);
            let written = match Handle::try_current() {
                Ok(_) => timeout(PATIENCE, replies).await.ok(),
                // Only your own connection works outside of a runtime, where there are no timers.
                Err(_) => Some(replies.await),
            };
            if let Some(replies) = written {
                note(replies.into_iter());
            }
            answer.await
        });
        both.queued(sent)
    }

    /// The commands to the index for an operation.
    pub(super) fn index_operation(&self, operation: &Operation) -> Vec<Cmd> {
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

/// Warns about the first error, and again after a success.
fn note(replies: impl Iterator<Item = RedisResult<Value>>) {
    static FAILURES: Quiet = Quiet::new();
    let error = replies.filter_map(Result::err).next();
    let result = error.map_or(Ok(()), |error| Err(store_error(&error)));
    FAILURES.note(&result, warning::blocks_not_indexed);
}
