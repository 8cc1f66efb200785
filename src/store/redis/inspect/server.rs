//! [`Server`]: one server, with all its keys.

use redis::{Pipeline, RedisError, RedisResult, Value};

use super::{Inspector, StoredName, StoredResult, stored_at, unknown_to_proxies};
use crate::{
    domain::{error::StoreError, key::Key},
    store::redis::{
        connection::{SingleServer, within},
        error::{code, store_error},
        milliseconds,
    },
};

/// One server that keeps keys: see [`Inspector::servers`].
#[derive(Debug)]
pub struct Server {
    pub(super) inspector: Inspector,
    pub(super) to: SingleServer,
}

/// Selects the keys for a [scan](Server::scan).
#[derive(Clone, Debug)]
pub struct Selection {
    pattern: Vec<u8>,
    of_any_prefix: bool,
    /// The name of the policy, if it may be followed by the window of slots.
    policy: Option<Box<str>>,
}

impl Selection {
    const fn of_this_prefix(pattern: Vec<u8>) -> Self {
        Self {
            pattern,
            of_any_prefix: false,
            policy: None,
        }
    }
}

impl Inspector {
    /// All keys of the store, or those under the policy of this name.
    #[must_use]
    pub fn all(&self, policy: Option<&str>) -> Selection {
        let Some(policy) = policy.filter(|policy| !policy.starts_with(['!', '*'])) else {
            return Selection::of_this_prefix(self.store.names.pattern(None, policy));
        };
        let pattern = self.store.names.pattern(None, Some(&format!("{policy}*")));
        Selection {
            policy: Some(policy.into()),
            ..Selection::of_this_prefix(pattern)
        }
    }

    /// All keys of the store, and those that hold [blocks](StoredName::is_of_block).
    #[must_use]
    pub fn all_with_blocks(&self) -> Selection {
        self.all(Some("*"))
    }

    /// The keys of all stores of this crate that use the server, whatever their [prefixes](StoredName::prefix), and
    /// those that hold [blocks](StoredName::is_of_block).
    #[must_use]
    pub fn all_prefixes(&self) -> Selection {
        Selection {
            pattern: b"*:{*=*}:*".to_vec(),
            of_any_prefix: true,
            policy: None,
        }
    }

    /// The keys of one identity, under any policy.
    #[must_use]
    pub fn all_of(&self, key: &Key) -> Selection {
        Selection::of_this_prefix(self.store.names.pattern(Some(key), None))
    }
}

impl Server {
    /// `HOST:PORT` of a cluster node; `None` for a single server.
    #[must_use]
    pub fn node_address(&self) -> Option<String> {
        self.to.address.clone()
    }

    /// The server's time, in ms since the Unix epoch.
    ///
    /// # Errors
    ///
    /// If the server does not answer in time, or with an error. A proxy such as twemproxy closes the connection.
    pub async fn now_ms(&self) -> Result<u64, StoreError> {
        if let Some(now_ms) = self.inspector.store.set_now_ms() {
            return Ok(now_ms);
        }
        let now_ms = self.send(&redis::cmd("TIME")).await.and_then(milliseconds);
        now_ms.map_err(|error| self.error(&error))
    }

    /// How many keys the server keeps, including those of other applications.
    ///
    /// # Errors
    ///
    /// As [`now_ms`](Self::now_ms).
    pub async fn key_count(&self) -> Result<u64, StoreError> {
        let count = self.send(&redis::cmd("DBSIZE")).await;
        let count = count.and_then(|count| Ok(redis::from_redis_value(count)?));
        count.map_err(|error| self.error(&error))
    }

    /// Scans about `count` keys, and returns the selected ones and a cursor for your next call. Use the cursor 0 for
    /// the first call; a returned 0 means the end.
    ///
    /// A key that exists from the beginning to the end is found, possibly more than once.
    ///
    /// # Errors
    ///
    /// As [`now_ms`](Self::now_ms).
    pub async fn scan(
        &self,
        cursor: u64,
        selection: &Selection,
        count: u32,
    ) -> Result<(u64, Vec<StoredName>), StoreError> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(&selection.pattern)
            .arg("COUNT")
            .arg(count);
        let found = self.send(&scan).await;
        let found = found.and_then(|found| Ok(redis::from_redis_value(found)?));
        let (next, found): (u64, Vec<Vec<u8>>) = found.map_err(|error| self.error(&error))?;
        let names = &self.inspector.store.names;
        // The pattern also matches other keys, such as those of contributors.
        let found = found.into_iter().filter_map(|name| {
            let name = if selection.of_any_prefix {
                StoredName::read_of_any_prefix(name)
            } else {
                StoredName::read(names, name)
            };
            let policy = selection.policy.as_deref();
            name.filter(|name| policy.is_none_or(|policy| name.policy() == policy))
        });
        Ok((next, found.collect()))
    }

    /// Reads these keys, in one pipeline. A key that has moved to another node of a cluster meanwhile has no value
    /// here.
    ///
    /// # Errors
    ///
    /// If the server does not answer in time, or with an error that is not about a key.
    pub async fn read(&self, names: &[StoredName]) -> Result<Vec<StoredResult>, StoreError> {
        let replies = self.get_all(names).await?;
        let values = replies.into_iter().zip(names);
        values.map(|(value, name)| stored_at(name, value)).collect()
    }

    pub(super) async fn get_all(
        &self,
        names: &[StoredName],
    ) -> Result<Vec<RedisResult<Value>>, StoreError> {
        let mut gets = Pipeline::with_capacity(names.len());
        for name in names {
            gets.add_command(name.read_command());
        }
        let replies = within(self.inspector.timeout, self.to.connection.send_all(&gets)).await;
        let replies = replies.map_err(|error| store_error(&error))?.into_iter();
        let replies = replies.map(|reply| match reply {
            Err(error) if has_moved(&error) => Ok(Value::Nil),
            reply => reply,
        });
        Ok(replies.collect())
    }

    fn error(&self, error: &RedisError) -> StoreError {
        unknown_to_proxies(error, self.to.address.is_some())
    }

    async fn send(&self, cmd: &redis::Cmd) -> RedisResult<Value> {
        within(self.inspector.timeout, self.to.connection.send(cmd)).await
    }
}

fn has_moved(error: &RedisError) -> bool {
    matches!(code(error), Some("MOVED" | "ASK" | "TRYAGAIN"))
}
