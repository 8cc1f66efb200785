//! [`Transactions`]: each call is a transaction, again and again until no other process has written in between.

use std::{
    collections::BTreeSet,
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use bb8::Pool;
use bb8_redis::RedisConnectionManager;
use tokio::{
    sync::{Mutex, MutexGuard, oneshot},
    time::sleep,
};

use super::{
    session::Session,
    snapshot::{Snapshot, names_of},
};
use crate::{
    domain::error::{StoreError, StoreErrorKind},
    store::{
        Operation, Reply, engine,
        redis::{
            RedisStore, background,
            by_runtime::ByRuntime,
            error::{NO_RUNTIME, SHUT_DOWN},
        },
        sent::Sent,
    },
};

/// The pause between two attempts to replace a lost connection of the pool.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// The reply to each operation of a call.
type Replies = Vec<Result<Reply, StoreError>>;

/// Executes calls over the connections of a pool.
pub(super) struct Transactions {
    pub(super) pool: Pool<RedisConnectionManager>,
    /// Over the same pool, with the names and the clock: writes and reads the index of blocks.
    pub(super) store: RedisStore,
    lanes: ByRuntime<Lanes>,
}

impl fmt::Debug for Transactions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transactions")
    }
}

impl Transactions {
    pub(super) fn new(pool: Pool<RedisConnectionManager>, store: RedisStore) -> Arc<Self> {
        let lanes = ByRuntime::new();
        Arc::new(Self { pool, store, lanes })
    }

    /// Executes these operations in this order, in one transaction.
    ///
    /// Cancellation: if you drop the future before the mark begins, none is done; afterwards the transaction goes on.
    pub(super) async fn execute(
        self: Arc<Self>,
        operations: Vec<Operation>,
        sent: Sent,
    ) -> Result<Replies, StoreError> {
        let lanes = self.lanes.here(|_| Lanes::new()).ok_or(NO_RUNTIME)?;
        let (reply, answer) = oneshot::channel();
        // In a task, because a future that is not polled would keep others out of its lanes.
        background::spawn(self.transact(lanes, operations, sent.clone(), reply));
        let answer = answer.await;
        answer.unwrap_or_else(|_| Err(SHUT_DOWN.unsent_if(sent.leave())))
    }

    async fn transact(
        self: Arc<Self>,
        lanes: Arc<Lanes>,
        operations: Vec<Operation>,
        sent: Sent,
        reply: oneshot::Sender<Result<Replies, StoreError>>,
    ) {
        let names = names_of(&self.store.names, &operations);
        let taken = lanes.take(&names).await;
        if reply.is_closed() {
            return;
        }
        let mut session = match Session::check_out(&self.pool).await {
            Ok(session) if sent.begin() => session,
            Ok(_) => return,
            Err(error) => return drop(reply.send(Err(error.unsent()))),
        };
        let replies = self.attempt(&mut session, &names, &operations).await;
        // The next in these lanes begins while this caller is answered.
        drop(taken);
        let _ = reply.send(replies);
        // The pool cannot hand out a lost connection that is held here. This ends with the last user of the store.
        let (user, pool) = (Arc::downgrade(&self), self.pool.clone());
        drop(self);
        while session.is_lost() && user.strong_count() > 0 && session.renew(&pool).await.is_err() {
            sleep(RECONNECT_PAUSE).await;
        }
    }

    /// Reads, decides and writes until no other process has written in between.
    async fn attempt(
        &self,
        session: &mut Session,
        names: &[Vec<u8>],
        operations: &[Operation],
    ) -> Result<Replies, StoreError> {
        let mut is_new = false;
        loop {
            let (time_ms, values) = match session.read(names).await {
                Ok(read) => read,
                // The connection may have ended while it was idle, so try a new one.
                Err(_) if session.is_lost() && !is_new && session.has_time() => {
                    let renewed = session.renew(&self.pool).await;
                    renewed.map_err(StoreError::unsent)?;
                    is_new = true;
                    continue;
                }
                Err(error) => return Err(error.unsent()),
            };
            let clock_ms = self.store.clock.now_ms();
            let now_ms = clock_ms.unwrap_or(time_ms);
            let mut snapshot = Snapshot::new(&self.store.names, now_ms, names, values);
            let replies = operations
                .iter()
                .map(|operation| engine::execute(operation, &mut snapshot))
                .collect();
            // The server's clock ends keys. One that is set by hand must not meet that end.
            let longer_ms = clock_ms.map_or(0, |_| 86_400_000);
            let changes = snapshot.into_changes(longer_ms);
            // A denial needs no write and no transaction: it depends on one key, which was read at one time.
            if changes.is_empty() || session.write(changes).await? {
                return Ok(replies);
            }
            if !session.has_time() {
                return Err(CONTENDED.unsent());
            }
        }
    }
}

/// Locks for the names of keys, so that the transactions of a runtime do not disturb each other: those of one key run one
/// after the other. Two keys may share a lock.
struct Lanes {
    locks: [Mutex<()>; 256],
    hasher: RandomState,
}

impl Lanes {
    fn new() -> Self {
        Self {
            locks: [(); 256].map(|()| Mutex::new(())),
            hasher: RandomState::new(),
        }
    }

    /// Waits for the lanes of these names, first come, first served. All take them in the same order, so that no two wait
    /// for each other.
    async fn take(&self, names: &[Vec<u8>]) -> Vec<MutexGuard<'_, ()>> {
        let lanes = names
            .iter()
            .map(|name| self.hasher.hash_one(name).to_le_bytes()[0]);
        let lanes: BTreeSet<u8> = lanes.collect();
        let mut taken = Vec::with_capacity(lanes.len());
        for lane in lanes {
            taken.push(self.locks[usize::from(lane)].lock().await);
        }
        taken
    }
}

const CONTENDED: StoreError = StoreError::new(
    StoreErrorKind::Unavailable,
    "others have changed the same keys at each attempt",
);
