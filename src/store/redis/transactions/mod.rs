//! [`TransactionStore`]: decides by transactions instead of a script, for servers without scripts.
//!
#![doc = include_str!("../../../../docs/guide/transactions.md")]

use std::sync::Arc;

use bb8::Pool;
use bb8_redis::RedisConnectionManager;

use super::{RedisStore, block_index::are_done};
#[cfg(feature = "manual-clock")]
use crate::manual_clock::ManualClock;
use crate::{
    domain::{
        check::Check,
        decision::Decision,
        operation::{Operation, Reply, answer_of},
    },
    store::{CallFuture, Store, StoreFuture, ext::ANOTHER_REPLY, one_by_one, sent::Sent},
};
use transact::Transactions;

mod session;
mod snapshot;
mod transact;

impl RedisStore {
    /// A store that decides by transactions instead of scripts, over the connections of this pool: see
    /// [`transactions`](super::transactions).
    #[must_use]
    pub fn transactions(pool: Pool<RedisConnectionManager>) -> TransactionStore {
        let store = Self::from_source(pool.clone());
        TransactionStore {
            inner: Transactions::new(pool, store),
        }
    }
}

/// Keeps the counts in Redis, so that all replicas of a service share them, without scripts; cheap to clone.
///
/// Made by [`RedisStore::transactions`]; [its page](self) lists requirements and costs.
#[derive(Clone, Debug)]
pub struct TransactionStore {
    inner: Arc<Transactions>,
}

impl TransactionStore {
    /// Sets the prefix of all keys, as [`RedisStore::prefix`] does. The default is `sluicegate`.
    ///
    /// # Panics
    ///
    /// If the prefix has a space, a brace, or a character that is not printable ASCII, or more than 48 characters.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        self.with(|store| store.prefix(prefix))
    }

    /// Sets the secret that keys the hashes of identities, as [`RedisStore::secret`] does.
    #[must_use]
    pub fn secret(self, secret: impl AsRef<[u8]>) -> Self {
        self.with(|store| store.secret(secret))
    }

    /// Decides by this clock instead of the server's.
    #[cfg(feature = "manual-clock")]
    #[must_use]
    pub fn clock(self, clock: ManualClock) -> Self {
        self.with(|store| store.clock(clock))
    }

    fn with(self, change: impl FnOnce(RedisStore) -> RedisStore) -> Self {
        let Transactions { pool, store, .. } = &*self.inner;
        Self {
            inner: Transactions::new(pool.clone(), change(store.clone())),
        }
    }

    fn execute_one<T: Send + 'static>(
        &self,
        operation: Operation,
        read: fn(Reply) -> Option<T>,
    ) -> StoreFuture<T> {
        self.call_all(vec![operation]).then(move |replies| {
            let reply = replies?.pop().unwrap_or(Err(ANOTHER_REPLY));
            read(reply?).ok_or(ANOTHER_REPLY)
        })
    }

    fn call_all(&self, operations: Vec<Operation>) -> CallFuture {
        let store = &self.inner.store;
        let index = RedisStore::index_update(&operations, |look| self.check(look));
        let (inner, sent) = (Arc::clone(&self.inner), Sent::queued());
        let replies = inner.execute(operations, sent.clone());
        let replies = StoreFuture::pending(replies).queued(Some(sent));
        store.with_index(index, replies, |all| are_done(all))
    }
}

impl Store for TransactionStore {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.execute_one(Operation::Check(check.clone()), answer_of!(Check))
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        match operation {
            Operation::ListBlocks { .. } => self.inner.store.execute(operation),
            operation if !operation.is_of_keys() => {
                StoreFuture::ready(Err(operation.unsupported()))
            }
            operation => self.execute_one(operation, Some),
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
