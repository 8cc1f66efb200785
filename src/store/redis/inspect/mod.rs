//! Reads the stored data of a [`RedisStore`], without writing anything: for operators' tools.
//!
//! After the login, the inspector uses no commands but `GET`, `ZSCAN`, `ZRANGE`, `HGETALL`, `TIME`, `SCAN`, `DBSIZE`,
//! `PING`, `HELLO` and [yours](Inspector::ask); on a cluster also `CLUSTER SLOTS` and `ASKING`, and behind sentinels
//! `ROLE`. No script is run.
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

use redis::{Cmd, FromRedisValue, RedisError, RedisResult, Value};

use super::{
    RedisStore,
    connection::{SingleServer, within},
    error::{code, store_error},
    key_names, milliseconds,
    value::read_slots,
    wire::{self, VERSION},
};
use crate::{
    domain::{
        Text,
        block::STRIKES,
        contributors::Contributors,
        denials::DeniedIdentity,
        error::{StoreError, StoreErrorKind},
        key::Key,
        operation::{Operation, Reply},
        policies::PublishedPolicy,
        policy::Policy,
        report::Account,
    },
    store::TIMED_OUT,
};

pub use super::value::UnreadableValue;
pub use blocks::StoredBlock;
pub use decide::decide;
pub use name::StoredName;
pub use server::Selection;
pub use value::{Section, Step, StoredValue};

/// The key of an identity of which you know only the stored hash: for `header=#5877…`, use the kind `header` and the
/// token `#5877…`, with 32 digits. `None` if the token has another form.
///
/// The key stands for the identity only over Redis, with the prefix and secret of that hash, and over no other store.
#[must_use]
pub fn hashed_key(kind: impl Into<Text>, token: &str) -> Option<Key> {
    key_names::hashed(kind, token)
}

/// Reads the reply of a server to a call of the script with these operations.
#[must_use]
pub fn read_replies(operations: &[Operation], reply: &Value) -> Vec<Result<Reply, StoreError>> {
    wire::read_replies(operations, reply).results
}

/// The value of one key, `None` if the key does not exist, or the reason why the value cannot be read.
pub type StoredResult = Result<Option<StoredValue>, UnreadableValue>;

/// The default timeout of each reply.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the data of a store. Cheap to clone; made by [`RedisStore::inspector`].
#[derive(Clone, Debug)]
pub struct Inspector {
    store: RedisStore,
    timeout: Duration,
    /// The one of several servers that it is about.
    server: Option<SingleServer>,
}

impl RedisStore {
    /// An inspector of the stored data, with the same connection, prefix and secret.
    #[doc(hidden)]
    #[must_use]
    pub fn inspector(&self) -> Inspector {
        Inspector {
            store: self.clone(),
            timeout: TIMEOUT,
            server: None,
        }
    }
}

impl Inspector {
    /// Sets the timeout of each reply, and of an attempt to connect. The default is two seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Checks that a server, or a node of a cluster, answers and accepts the user.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached within the timeout, or refuses the user.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let greeting = within(self.timeout, self.store.transports.ping()).await;
        greeting.map_err(|error| store_error(&error))
    }

    /// `HOST:PORT` of the cluster node that keeps this identity, if known; `None` for a single server.
    #[must_use]
    pub fn node_address(&self, key: &Key) -> Option<String> {
        let transports = &self.store.transports;
        transports.node_address(&self.store.names.name("", key))
    }

    /// The time of the server that keeps this identity, in ms since the Unix epoch.
    ///
    /// # Errors
    ///
    /// If the server does not answer in time, or with an error. A proxy such as twemproxy closes the connection.
    pub async fn now_ms(&self, key: &Key) -> Result<u64, StoreError> {
        self.now_ms_at(&self.store.names.name("", key)).await
    }

    /// The name of the key that holds the counts of an identity under the policy of this name.
    #[must_use]
    pub fn name(&self, key: &Key, policy: &str) -> StoredName {
        StoredName::write(&self.store.names, key, policy)
    }

    /// The name of the key that holds the counts or slots of an identity under this policy.
    #[must_use]
    pub fn name_under(&self, key: &Key, policy: &Policy) -> StoredName {
        StoredName::of(&self.store.names, key, policy)
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
    /// The outer error if the server does not answer in time, or with an error; the inner one if the stored value
    /// cannot be read.
    pub async fn read(&self, name: &StoredName) -> Result<StoredResult, StoreError> {
        let value = self.send(&name.read_command(), name.as_bytes()).await;
        stored_at(name, value)
    }

    /// The contributors to the account of this key, by the server's time: like
    /// [`Limiter::contributors`](crate::Limiter::contributors), but without a script.
    ///
    /// # Errors
    ///
    /// If the server does not answer in time, or with an error. A proxy such as twemproxy closes the connection.
    pub async fn contributors(
        &self,
        policy: &Policy,
        key: &Key,
    ) -> Result<Contributors, StoreError> {
        let now_ms = self.now_ms(key).await?;
        let (policy, key) = (policy.clone(), key.clone());
        let account = Account::Contributors { policy, key };
        let rankings = self.store.rankings_at(now_ms, &account);
        self.in_time(rankings).await.map(Contributors::of)
    }

    /// The identities that were denied within the hour before this time: see [`denials`](crate::denials). Sends
    /// `ZRANGE`.
    ///
    /// # Errors
    ///
    /// If the server does not answer in time, or with an error.
    pub async fn denials(&self, now_ms: u64) -> Result<Vec<DeniedIdentity>, StoreError> {
        let rankings = self.store.rankings_at(now_ms, &Account::Denials);
        self.in_time(rankings).await.map(DeniedIdentity::list)
    }

    /// The policies that services [publish](crate::Limiter::publish_policies). If processes differ, you get several
    /// policies with the same name.
    ///
    /// # Errors
    ///
    /// If the server does not answer in time, or with an error.
    pub async fn policies(&self) -> Result<Vec<PublishedPolicy>, StoreError> {
        self.in_time(self.store.published_policies()).await
    }

    /// The labels of the processes that hold slots, by [the number](crate::store::SlotId::process) in the ids of these. A
    /// process without a label publishes none: see [`Limiter::process_label`](crate::Limiter::process_label).
    ///
    /// # Errors
    ///
    /// If the server does not answer in time, or with an error.
    pub async fn processes(&self) -> Result<HashMap<u64, String>, StoreError> {
        self.in_time(self.store.labels_of_processes()).await
    }

    /// The servers that keep keys: the server, or each primary of a cluster; each inspector is about one of them.
    ///
    /// # Errors
    ///
    /// If a cluster cannot be reached.
    pub async fn servers(&self) -> Result<Vec<Self>, StoreError> {
        let servers = within(self.timeout, self.store.transports.servers()).await;
        let servers = servers.map_err(|error| store_error(&error))?.into_iter();
        let server = |server| Self {
            server: Some(server),
            ..self.clone()
        };
        Ok(servers.map(server).collect())
    }

    async fn now_ms_at(&self, name: &[u8]) -> Result<u64, StoreError> {
        if let Some(now_ms) = self.store.set_now_ms() {
            return Ok(now_ms);
        }
        let time = self.send(&redis::cmd("TIME"), name).await;
        let now_ms = time.and_then(milliseconds);
        now_ms.map_err(|error| unknown_to_proxies(&error, self.store.transports.is_cluster()))
    }

    /// Bounds the wait for several replies.
    pub(super) async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = tokio::time::timeout(self.timeout, answer);
        answer.await.unwrap_or(Err(TIMED_OUT))
    }

    async fn send(&self, cmd: &Cmd, routing_key: &[u8]) -> RedisResult<Value> {
        match &self.server {
            Some(server) => within(self.timeout, server.connection.send(cmd)).await,
            None => within(self.timeout, self.store.transports.send(cmd, routing_key)).await,
        }
    }
}

/// Reads the reply about a key of counts or slots.
fn stored_at(name: &StoredName, value: RedisResult<Value>) -> Result<StoredResult, StoreError> {
    if let (Some(form), Ok(Value::BulkString(_))) = (name.form(), &value)
        && form != VERSION
    {
        return Ok(Err(UnreadableValue::OtherForm(form)));
    }
    let Some(window_ms) = name.slots_expire_after_ms() else {
        return stored(value, StoredValue::read);
    };
    let members = value.and_then(|value| Ok(Vec::from_redis_value(value)?));
    match members {
        Ok(members) if members.is_empty() => Ok(Ok(None)),
        Ok(members) => {
            let slots = read_slots(window_ms, members);
            Ok(slots.map(|slots| Some(StoredValue::of_slots(slots))))
        }
        Err(error) if code(&error) == Some("WRONGTYPE") => Ok(Err(UnreadableValue::WrongType)),
        Err(error) => Err(store_error(&error)),
    }
}

/// Applies `read` to the reply to a `GET`.
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

/// Whether the server has closed a connection.
fn hangs_up(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

/// The error of a command that proxies do not know. No cluster node is behind a proxy.
fn unknown_to_proxies(error: &RedisError, is_of_cluster: bool) -> StoreError {
    if is_of_cluster || !hangs_up(error) {
        return store_error(error);
    }
    StoreError::new(
        StoreErrorKind::Unavailable,
        "the connection was lost: a proxy such as twemproxy hangs up on TIME, SCAN and DBSIZE",
    )
}
