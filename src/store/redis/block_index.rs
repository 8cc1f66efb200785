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

use super::{
    RedisStore, background,
    error::store_error,
    reports::{look, send_all},
};
use crate::{
    domain::{
        block::{Block, BlockRequest},
        check::Check,
        decision::Decision,
        error::StoreError,
        operation::Operation,
    },
    store::{CallFuture, StoreFuture},
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
    pub(super) fn with_index(&self, index: IndexUpdate, mut answer: CallFuture) -> CallFuture {
        if index.operations.is_empty() {
            return answer;
        }
        let (sent, blocks) = (answer.sent().cloned(), index.look.is_some());
        let write = index.write(self.clone());
        let both = StoreFuture::pending(async move {
            if blocks {
                noted(write).await;
                return answer.await;
            }
            let answer = answer.await;
            if answer
                .as_ref()
                .is_ok_and(|all| all.iter().all(Result::is_ok))
            {
                noted(write).await;
            }
            answer
        });
        both.queued(sent)
    }
}

/// Waits for a write of the index, for a short time. Written late, an identity is listed all the same.
async fn noted(write: impl Future<Output = Result<(), StoreError>> + Send + 'static) {
    // Warns about the first error, and again after a success.
    let mut noted = Box::pin(async {
        static FAILURES: Quiet = Quiet::new();
        FAILURES.note(&write.await, warning::blocks_not_indexed);
    });
    if within(PATIENCE, noted.as_mut()).await.is_none() {
        background::spawn(noted);
    }
}

impl IndexUpdate {
    async fn write(self, store: RedisStore) -> Result<(), StoreError> {
        let now_ms = match self.look {
            Some(look) => look.await?.usage().decided_at_ms(),
            None => 0,
        };
        let name = store.names.block_index();
        let index = |command| redis::cmd(command).arg(&name).take();
        let commands = self.operations.iter().flat_map(|operation| {
            let identity = operation.key().map(|key| store.names.identity(key));
            match operation {
                Operation::Block { request, .. } | Operation::Ban { request, .. } => vec![
                    // The identities whose blocks have ended.
                    index("ZREMRANGEBYSCORE")
                        .arg("-inf")
                        .arg(now_ms.saturating_sub(SLACK_MS))
                        .take(),
                    index("ZADD")
                        .arg("GT")
                        .arg(latest_end_ms(request, now_ms))
                        .arg(identity)
                        .take(),
                ],
                _ => vec![index("ZREM").arg(identity).take()],
            }
        });
        let commands: Vec<_> = commands.map(|cmd| (name.clone(), cmd)).collect();
        let replies = send_all(&store.transports, &commands).await;
        let error = replies.into_iter().find_map(Result::err);
        error.map_or(Ok(()), |error| Err(store_error(&error)))
    }
}

/// The store chooses the time of a ban that grows. This is the latest end that it can choose.
fn latest_end_ms(request: &BlockRequest, now_ms: u64) -> u64 {
    let ends_ms = Block::begin(request.until(), request.source(), now_ms).until_ms;
    let longest = match &*request.times_ms {
        [first, .., last] => last.saturating_sub(*first),
        _ => 0,
    };
    ends_ms.saturating_add(longest)
}
