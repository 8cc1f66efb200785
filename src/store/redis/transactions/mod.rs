//! [`TransactionStore`]: decides by transactions instead of a script, for servers without scripts.
//!
#![doc = concat!(include_str!("../../../../docs/links.md"), include_str!("../../../../docs/guide/transactions.md"))]

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use bb8::Pool;
use bb8_redis::RedisConnectionManager;
use futures_util::future::{Either, select};
use redis::Pipeline;
use tokio::sync::oneshot;

use super::{
    RedisStore, background,
    by_runtime::ByRuntime,
    error::{NO_RUNTIME, SHUT_DOWN},
};
#[cfg(feature = "manual-clock")]
use crate::manual_clock::ManualClock;
use crate::{
    domain::{
        check::Check,
        decision::Decision,
        error::{StoreError, StoreErrorKind},
        operation::{Operation, Reply, answer_of},
    },
    store::{CallFuture, Store, StoreFuture, engine, one_by_one, sent::Sent},
};
use lanes::Lanes;
use session::Session;

mod lanes;
mod session;
mod snapshot;

type Replies = Vec<Result<Reply, StoreError>>;

impl RedisStore {
    /// A store that decides by transactions instead of scripts, over the connections of this pool: see
    /// [`transactions`](super::transactions).
    #[must_use]
    pub fn transactions(pool: Pool<RedisConnectionManager>) -> TransactionStore {
        TransactionStore {
            store: Self::from_source(pool.clone()),
            pool,
            lanes: Arc::new(ByRuntime::new()),
            lost: Arc::default(),
        }
    }
}

/// Keeps the counts in Redis, so that all replicas of a service share them, without scripts; cheap to clone.
///
/// Made by [`RedisStore::transactions`]; [its page](self) lists requirements and costs.
#[derive(Clone)]
pub struct TransactionStore {
    pool: Pool<RedisConnectionManager>,
    /// Over the same pool, with the names and the clock: writes and reads the index of blocks.
    store: RedisStore,
    lanes: Arc<ByRuntime<Arc<Lanes>>>,
    /// How many connections of the pool may be dead, since another was.
    lost: Arc<AtomicU32>,
}

impl fmt::Debug for TransactionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TransactionStore")
    }
}

impl TransactionStore {
    /// Sets the prefix of all keys, as [`RedisStore::prefix`] does. The default is `sluicegate`.
    ///
    /// # Panics
    ///
    /// If the prefix has a space, a brace, or a character that is not printable ASCII, or more than 48 characters.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.store = self.store.prefix(prefix);
        self
    }

    /// Sets the secret that keys the hashes of identities, as [`RedisStore::secret`] does.
    #[must_use]
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.store = self.store.secret(secret);
        self
    }

    /// Decides by this clock instead of the server's.
    #[cfg(feature = "manual-clock")]
    #[must_use]
    pub fn clock(mut self, clock: ManualClock) -> Self {
        self.store = self.store.clock(clock);
        self
    }

    fn call_all(&self, operations: Vec<Operation>) -> CallFuture {
        let index = RedisStore::index_update(&operations, |look| self.check(look));
        let sent = Sent::queued();
        let replies = self.clone().begin(operations, sent.clone());
        let replies = StoreFuture::pending(replies).queued(Some(sent));
        self.store.with_index(index, replies)
    }

    /// Executes these operations in this order, in one transaction.
    ///
    /// Cancellation: if you drop the future before the mark begins, none is done; afterwards the transaction goes on.
    async fn begin(self, operations: Vec<Operation>, sent: Sent) -> Result<Replies, StoreError> {
        let lanes = self
            .lanes
            .here(|_| Arc::new(Lanes::new()))
            .ok_or(NO_RUNTIME)?;
        let (reply, answer) = oneshot::channel();
        // In a task, because a future that is not polled would keep others out of its lanes.
        background::spawn(self.transact(lanes, operations, sent.clone(), reply));
        let answer = answer.await;
        answer.unwrap_or_else(|_| Err(SHUT_DOWN.unsent_if(sent.leave())))
    }

    async fn transact(
        self,
        lanes: Arc<Lanes>,
        operations: Vec<Operation>,
        sent: Sent,
        mut reply: oneshot::Sender<Result<Replies, StoreError>>,
    ) {
        let names = engine::names_of(&*self.store.names, &operations);
        let turn = async {
            let taken = lanes.take(&names).await;
            (taken, Session::check_out(&self.pool).await)
        };
        // A caller that leaves while it waits makes room for the next.
        let Either::Left(((taken, session), _)) = select(pin!(turn), pin!(reply.closed())).await
        else {
            return;
        };
        let session = async { session?.renew(&self.pool, &self.lost).await };
        let mut session = match session.await {
            Ok(session) if sent.begin() => session,
            Ok(_) => return,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let replies = self.attempt(&mut session, &names, &operations).await;
        if session.is_lost {
            self.lost.store(self.pool.state().connections, Relaxed);
        }
        // The next in these lanes begins while this caller is answered.
        drop(taken);
        let _ = reply.send(replies);
    }

    /// Reads, decides and writes until no other process has written in between.
    async fn attempt(
        &self,
        session: &mut Session,
        names: &[Vec<u8>],
        operations: &[Operation],
    ) -> Result<Replies, StoreError> {
        loop {
            let (time_ms, values) = session.read(names).await.map_err(StoreError::unsent)?;
            let clock_ms = self.store.set_now_ms();
            let now_ms = clock_ms.unwrap_or(time_ms);
            let mut snapshot = snapshot::snapshot(&self.store.names, now_ms, names, &values);
            let replies = operations.iter();
            let replies = replies.map(|it| engine::execute(it, &mut snapshot));
            let replies = replies.collect();
            // The server's clock ends keys. One that is set by hand must not meet that end.
            let longer_ms = clock_ms.map_or(0, |_| 86_400_000);
            let mut changes = Pipeline::new();
            for (name, stored) in snapshot.into_changes() {
                snapshot::write(&name, &stored, now_ms, longer_ms, &mut changes);
            }
            // A denial needs no write and no transaction: it depends on one key, which was read at one time.
            if changes.is_empty() || session.write(changes).await? {
                return Ok(replies);
            }
            if !session.has_time() {
                return Err(CONTENDED);
            }
        }
    }
}

impl Store for TransactionStore {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.execute(Operation::Check(check.clone()))
            .read(answer_of!(Check))
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        match operation {
            Operation::ListBlocks { .. } => self.store.execute(operation),
            operation if !operation.is_of_keys() => {
                StoreFuture::ready(Err(operation.unsupported()))
            }
            operation => self.call_all(vec![operation]).only(),
        }
    }

    /// In one transaction, unless one of them is not about keys to charge, block or reset.
    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        if operations.iter().all(Operation::is_of_keys) {
            return self.call_all(operations);
        }
        one_by_one(self, operations)
    }
}

const CONTENDED: StoreError = StoreError::new(
    StoreErrorKind::Unavailable,
    "others have changed the same keys at each attempt",
)
.unsent();
