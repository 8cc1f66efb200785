//! An index of who is blocked: a sorted set of identities by the end of their blocks, so that blocks are listed in
//! time proportional to their number.
//!
//! ```text
//!   sluicegate:!blocks
//!     ip=203.0.113.7      1790000003123
//! ```
//!
//! It is a hint: the blocks themselves decide, and who lists them reads each. Its key may be on another node of a
//! cluster, so commands of their own write it, sent just before the block. A crash in between leaves an identity too
//! many, which is not listed and goes when its time has passed; what fails here changes no block.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    task::Poll,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use redis::{Cmd, RedisResult, Value};

use super::{RedisStore, contributors::send_all, error::store_error};
use crate::{
    domain::{
        block::{Block, BlockRequest},
        key::Key,
        operation::Operation,
        rule::millis,
    },
    store::StoreFuture,
    warning,
};

/// For so long after its end a block may be in the index, since clients' clocks write it, in ms.
const SLACK_MS: u64 = 3_600_000;

/// How much longer than the block's own answer the index is waited for.
const PATIENCE: Duration = Duration::from_millis(25);

impl RedisStore {
    /// The same answer, and commands to the index beside it, which are sent first.
    pub(super) fn with_index<T: Send + 'static>(
        &self,
        commands: Vec<Cmd>,
        mut answer: StoreFuture<T>,
    ) -> StoreFuture<T> {
        if commands.is_empty() {
            return answer;
        }
        let (transport, name) = (self.transport.clone(), self.names.block_index());
        let journey = answer.journey.clone();
        let both = StoreFuture::pending(async move {
            let commands = commands.iter().map(|cmd| (cmd, &*name)).collect();
            let mut index = pin!(send_all(&transport, commands));
            let mut written = None;
            let answer = poll_fn(|cx| {
                if written.is_none()
                    && let Poll::Ready(replies) = index.as_mut().poll(cx)
                {
                    written = Some(replies);
                }
                Pin::new(&mut answer).poll(cx)
            });
            let answer = answer.await;
            if written.is_none() {
                written = tokio::time::timeout(PATIENCE, index).await.ok();
            }
            note(written.into_iter().flatten());
            answer
        });
        match journey {
            Some(journey) => both.travelling(journey),
            None => both,
        }
    }

    /// What an operation writes to the index.
    pub(super) fn index_operation(&self, operation: &Operation) -> Vec<Cmd> {
        match operation {
            Operation::Block { key, request } | Operation::Ban { key, request, .. } => {
                self.index_block(key, request)
            }
            Operation::Unblock { key } => self.index_unblock(key),
            _ => Vec::new(),
        }
    }

    /// Adds an identity, and drops those whose blocks have ended.
    fn index_block(&self, key: &Key, request: &BlockRequest) -> Vec<Cmd> {
        let now_ms = self.client_now_ms();
        let name = self.names.block_index();
        let ends_ms = Block::begin(request.until(), request.by(), now_ms).stored_until_ms();
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

    #[cfg_attr(
        not(feature = "test-util"),
        expect(clippy::unused_self, reason = "only tests set a clock")
    )]
    pub(super) fn client_now_ms(&self) -> u64 {
        #[cfg(feature = "test-util")]
        if let Some(clock) = &self.clock {
            return clock.now_ms();
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        millis(since.unwrap_or_default())
    }
}

/// Warns of the first error; the next one after a success is new.
fn note(replies: impl Iterator<Item = RedisResult<Value>>) {
    static HAS_FAILED: AtomicBool = AtomicBool::new(false);
    let error = replies.filter_map(Result::err).next();
    let had_failed = HAS_FAILED.swap(error.is_some(), Relaxed);
    if let Some(error) = error.filter(|_| !had_failed) {
        warning::blocks_not_indexed(&store_error(&error));
    }
}
