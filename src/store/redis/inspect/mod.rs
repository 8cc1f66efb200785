//! Reads what a [`RedisStore`] has stored, without writing anything: for operators' tools.
//!
//! Once it has logged in, no command but `GET`, `ZSCAN`, `ZRANGE`, `HGETALL`, `TIME`, `SCAN`, `DBSIZE`, `PING` and `HELLO` is
//! sent; on a cluster also
//! `CLUSTER SLOTS` and `ASKING`, and behind sentinels `ROLE`. No script is run.
//!
//! ```no_run
//! use sluicegate::{Key, RedisStore};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let inspector = RedisStore::connect("redis://127.0.0.1/").await?.inspector();
//! let alice = Key::new("user", "alice");
//! let now_ms = inspector.now_ms(&alice).await?;
//! if let Some(value) = inspector.read(&inspector.name(&alice, "api")).await?? {
//!     for section in value.sections() {
//!         println!("{} in {:?}", section.used(now_ms), section.rule(0).window());
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod blocks;
mod decide;
mod name;
mod server;
mod value;

use std::{collections::HashMap, time::Duration};

use redis::{Cmd, RedisError, RedisResult, Value};

use super::{
    RedisStore,
    connection::within,
    error::{code, store_error},
    milliseconds, names,
};
use crate::domain::{
    Text,
    block::STRIKES,
    contributors::Contributors,
    error::{StoreError, StoreErrorKind},
    key::Key,
    policies::PublishedPolicy,
    policy::Policy,
};

pub use blocks::StoredBlock;
pub use decide::decide;
pub use name::StoredName;
pub use server::{Selection, Server};
pub use value::{Section, Step, StoredValue, UnreadableValue};

/// The key of an identity whose value is only known as the hash that the store has of it: of `header=#5877…`, the kind
/// `header` and the token `#5877…`, with 32 digits. `None` if this is no such token.
///
/// It stands for the identity over Redis, with the prefix and secret by which it was hashed, and over no other store.
#[must_use]
pub fn hashed_key(kind: impl Into<Text>, token: &str) -> Option<Key> {
    names::hashed(kind, token)
}

/// What is read of one key: its value, `None` if it holds nothing; or why that cannot be read.
pub type StoredResult = Result<Option<StoredValue>, UnreadableValue>;

/// How long each reply is waited for, unless it is said.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reads what a store has stored. Cheap to clone; made by [`RedisStore::inspector`].
#[derive(Clone, Debug)]
pub struct Inspector {
    pub(super) store: RedisStore,
    pub(super) timeout: Duration,
}

impl RedisStore {
    /// A reader of what is stored, over the same connection, with the same prefix and secret.
    #[must_use]
    pub fn inspector(&self) -> Inspector {
        Inspector::over(self)
    }
}

impl Inspector {
    pub(super) fn over(store: &RedisStore) -> Self {
        Self {
            store: store.clone(),
            timeout: TIMEOUT,
        }
    }

    /// Sets how long each reply is waited for, and an attempt to connect. The default is two seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes sure that a server is there that lets us in, or a node of a cluster.
    ///
    /// # Errors
    ///
    /// When it cannot be reached within the timeout, or refuses the user.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let greeting = within(self.timeout, self.store.transport.greet()).await;
        greeting.map_err(|error| store_error(&error))
    }

    /// Whether the server is a node of a cluster, and so keeps only some of the keys: connect to the cluster instead.
    /// `false` where the server does not say so: a proxy, which hangs up, or a server that does not know `HELLO`.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or does not answer in time.
    pub async fn is_cluster_node(&self) -> Result<bool, StoreError> {
        match self.send(&redis::cmd("HELLO"), b"").await {
            Ok(reply) => Ok(mode(reply).is_some_and(|mode| mode == "cluster")),
            Err(error) if error.code().is_some() || hangs_up(&error) => Ok(false),
            Err(error) => Err(store_error(&error)),
        }
    }

    /// `HOST:PORT` of the node of a cluster that keeps this identity, as far as it is known; `None` of a server by itself.
    #[must_use]
    pub fn node_address(&self, key: &Key) -> Option<String> {
        let transport = &self.store.transport;
        transport.node_address(&self.store.names.name("", key))
    }

    /// The time of the server that keeps this identity, in ms since the Unix epoch.
    ///
    /// # Errors
    ///
    /// When the server does not answer in time, or with an error. A proxy such as twemproxy hangs up.
    pub async fn now_ms(&self, key: &Key) -> Result<u64, StoreError> {
        self.now_ms_at(&self.store.names.name("", key)).await
    }

    /// The name of the key that holds the counts of an identity under the policy of this name.
    #[must_use]
    pub fn name(&self, key: &Key, policy: &str) -> StoredName {
        StoredName::write(&self.store.names, key, policy)
    }

    /// The name of the key that holds the [strikes](crate::block#bans) of an identity.
    #[must_use]
    pub fn strikes(&self, key: &Key) -> StoredName {
        self.name(key, STRIKES)
    }

    /// Reads one key.
    ///
    /// # Errors
    ///
    /// The outer when the server does not answer in time, or with an error; the inner when what it keeps cannot be
    /// read.
    pub async fn read(&self, name: &StoredName) -> Result<StoredResult, StoreError> {
        let name = name.as_bytes();
        let value = self.send(redis::cmd("GET").arg(name), name).await;
        stored(value, StoredValue::read)
    }

    /// Who has contributed to the account of this key, by the server's time: like
    /// [`Limiter::contributors`](crate::Limiter::contributors), without its script.
    ///
    /// # Errors
    ///
    /// When the server does not answer in time, or with an error. A proxy such as twemproxy hangs up.
    pub async fn contributors(
        &self,
        policy: &Policy,
        key: &Key,
    ) -> Result<Contributors, StoreError> {
        let now_ms = self.now_ms(key).await?;
        let contributors = self.store.contributors_at(now_ms, policy, key);
        self.in_time(contributors).await
    }

    /// What services [publish](crate::Limiter::publish_policies) of their policies. Where processes differ, there are
    /// several of one name.
    ///
    /// # Errors
    ///
    /// When the server does not answer in time, or with an error.
    pub async fn policies(&self) -> Result<Vec<PublishedPolicy>, StoreError> {
        self.in_time(self.store.published_policies()).await
    }

    /// The servers that keep keys: the server, or each primary of a cluster.
    ///
    /// # Errors
    ///
    /// When a cluster cannot be reached; and over a connection of your own that is of a cluster.
    pub async fn servers(&self) -> Result<Vec<Server>, StoreError> {
        let servers = within(self.timeout, self.store.transport.servers()).await;
        let servers = servers.map_err(|error| store_error(&error))?.into_iter();
        Ok(servers.map(|to| Server::new(self, to)).collect())
    }

    async fn now_ms_at(&self, name: &[u8]) -> Result<u64, StoreError> {
        #[cfg(feature = "test-util")]
        if let Some(clock) = &self.store.clock {
            return Ok(clock.now_ms());
        }
        let time = self.send(&redis::cmd("TIME"), name).await;
        let now_ms = time.and_then(milliseconds);
        now_ms.map_err(|error| unknown_to_proxies(&error, self.store.transport.is_cluster()))
    }

    /// Waits for the answer to several commands.
    async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = tokio::time::timeout(self.timeout, answer);
        answer.await.unwrap_or(Err(TOO_LATE))
    }

    async fn send(&self, cmd: &Cmd, routing_key: &[u8]) -> RedisResult<Value> {
        within(self.timeout, self.store.transport.send(cmd, routing_key)).await
    }
}

const TOO_LATE: StoreError =
    StoreError::new(StoreErrorKind::Timeout, "no answer within the timeout");

/// What a `GET` has answered, as `read` reads it.
fn stored<T>(
    value: RedisResult<Value>,
    read: impl FnOnce(&[u8]) -> Result<T, UnreadableValue>,
) -> Result<Result<Option<T>, UnreadableValue>, StoreError> {
    match value {
        Ok(Value::Nil) => Ok(Ok(None)),
        Ok(Value::BulkString(value)) => Ok(read(&value).map(Some)),
        Ok(_) => Err(StoreError::protocol(
            "the Redis server's reply cannot be read",
        )),
        Err(error) if code(&error) == Some("WRONGTYPE") => Ok(Err(UnreadableValue::WrongType)),
        Err(error) => Err(store_error(&error)),
    }
}

/// How a server that has answered `HELLO` is run: alone, in a cluster, as a sentinel.
fn mode(reply: Value) -> Option<String> {
    let mut reply: HashMap<String, Value> = redis::from_redis_value(reply).ok()?;
    redis::from_redis_value(reply.remove("mode")?).ok()
}

/// Whether the server has closed a connection.
fn hangs_up(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

/// The error of a command that proxies do not know. No node of a cluster is behind one.
fn unknown_to_proxies(error: &RedisError, is_of_cluster: bool) -> StoreError {
    if is_of_cluster || !hangs_up(error) {
        return store_error(error);
    }
    StoreError::new(
        StoreErrorKind::Unavailable,
        "the connection was lost: a proxy such as twemproxy hangs up on TIME, SCAN and DBSIZE",
    )
}
