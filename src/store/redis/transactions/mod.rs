//! [`TransactionStore`]: decides by transactions instead of a script, for servers without scripts.
//!
#![doc = include_str!("../../../../docs/guide/transactions.md")]

use std::sync::Arc;

use bb8::Pool;
use bb8_redis::RedisConnectionManager;

use super::{RedisStore, error::ANOTHER_REPLY, names::Names};
#[cfg(feature = "test-util")]
use crate::test_util::TestClock;
use crate::{
    domain::sent_call::Journey,
    domain::{
        block::{Block, BlockRequest, BlockedIdentity},
        decision::{Decision, Usage},
        key::Key,
        policy::Policy,
        rule::Rule,
    },
    store::{CallFuture, Check, Operation, Reply, Settlement, Store, StoreFuture},
};
use attempts::{Attempts, Settings};

mod attempts;
mod blocks;
mod held;
mod image;
mod layout;
mod plan;
mod queue;

impl RedisStore {
    /// A store that decides by transactions instead of scripts, over the connections of this pool: see
    /// [`transactions`](super::transactions).
    #[must_use]
    pub fn transactions(pool: Pool<RedisConnectionManager>) -> TransactionStore {
        let settings = Settings {
            pool,
            names: Names::new("sluicegate"),
            #[cfg(feature = "test-util")]
            clock: None,
        };
        TransactionStore {
            attempts: Attempts::new(settings),
        }
    }
}

/// Keeps the counts in Redis, so that all replicas of a service share them, without scripts; cheap to clone.
///
/// Made by [`RedisStore::transactions`]; [its page](self) lists requirements and costs.
#[derive(Clone, Debug)]
pub struct TransactionStore {
    attempts: Arc<Attempts>,
}

impl TransactionStore {
    /// Sets the prefix of all keys, as [`RedisStore::prefix`] does. The default is `sluicegate`.
    ///
    /// # Panics
    ///
    /// If the prefix has a space, a brace, or a character that is not printable ASCII, or more than 48 characters.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        self.with(|settings| settings.names.set_prefix(prefix))
    }

    /// Sets the secret that keys the hashes of identities, as [`RedisStore::secret`] does.
    #[must_use]
    pub fn secret(self, secret: impl AsRef<[u8]>) -> Self {
        self.with(|settings| settings.names.set_secret(secret.as_ref()))
    }

    /// Decides by this clock instead of the server's.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn clock(self, clock: TestClock) -> Self {
        self.with(|settings| settings.clock = Some(clock))
    }

    /// Makes a new queue, because waiting jobs use the old names and clock.
    fn with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.attempts.settings.clone();
        change(&mut settings);
        let attempts = Attempts::new(settings);
        Self { attempts }
    }

    fn execute_one<T: Send + 'static>(
        &self,
        operation: Operation,
        read: fn(Reply) -> Option<T>,
    ) -> StoreFuture<T> {
        self.execute(vec![operation]).then(move |replies| {
            let reply = replies?.pop().unwrap_or(Err(ANOTHER_REPLY));
            read(reply?).ok_or(ANOTHER_REPLY)
        })
    }

    fn execute(&self, operations: Vec<Operation>) -> CallFuture {
        let (attempts, journey) = (Arc::clone(&self.attempts), Journey::default());
        let replies = attempts.execute(operations, journey.clone());
        StoreFuture::pending(replies).travelling(journey)
    }
}

impl Store for TransactionStore {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.execute_one(Operation::Check(check.clone()), Reply::decision)
    }

    fn settle(&self, settlement: &Settlement) -> StoreFuture<Usage> {
        self.execute_one(Operation::Settle(settlement.clone()), Reply::usage)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let (policy, key) = (policy.clone(), key.clone());
        self.execute_one(Operation::Reset { policy, key }, |_| Some(()))
    }

    fn block(&self, key: &Key, request: BlockRequest) -> StoreFuture<Block> {
        let key = key.clone();
        self.execute_one(Operation::Block { key, request }, Reply::block)
    }

    fn ban(&self, key: &Key, strikes: Rule, request: BlockRequest) -> StoreFuture<Option<Block>> {
        let key = key.clone();
        let ban = Operation::Ban {
            key,
            strikes,
            request,
        };
        self.execute_one(ban, Reply::ban)
    }

    fn unblock(&self, key: &Key) -> StoreFuture<()> {
        let key = key.clone();
        self.execute_one(Operation::Unblock { key }, |_| Some(()))
    }

    fn blocks(&self, most: usize) -> StoreFuture<Vec<BlockedIdentity>> {
        StoreFuture::pending(blocks::list(Arc::clone(&self.attempts), most))
    }

    /// Executes all operations in one transaction.
    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        self.execute(operations)
    }
}
