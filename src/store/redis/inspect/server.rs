//! Scans of one server, and reads of many keys.

use std::collections::HashMap;

use redis::{Pipeline, RedisResult, Value};

use super::{Inspector, StoredName, StoredResult, hangs_up, stored_at, unknown_to_proxies};
use crate::{
    domain::{error::StoreError, key::Key},
    store::redis::{
        connection::within,
        error::{code, store_error},
        reports::send_all,
    },
};

/// Selects the keys for a [scan](Inspector::scan).
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pattern: Vec<u8>,
    of_any_prefix: bool,
    /// The name of the policy, if it may be followed by the window of slots.
    policy: Option<Box<str>>,
}

impl Inspector {
    /// All keys of the store, or those under the policy of this name.
    #[must_use]
    pub fn all(&self, policy: Option<&str>) -> Selection {
        let named = policy.filter(|policy| !policy.starts_with(['!', '*']));
        // Behind the name may be the number of the form, or the window of slots.
        let pattern = named.map(|named| format!("{named}*"));
        let pattern = pattern.as_deref().or(policy);
        Selection {
            pattern: self.store.names.pattern(None, pattern),
            policy: named.map(Into::into),
            ..Selection::default()
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
            ..Selection::default()
        }
    }

    /// The keys of one identity, under any policy.
    #[must_use]
    pub fn all_of(&self, key: &Key) -> Selection {
        Selection {
            pattern: self.store.names.pattern(Some(key), None),
            ..Selection::default()
        }
    }

    /// `HOST:PORT` of the cluster node that this is about; `None` for a single server.
    #[must_use]
    pub fn address(&self) -> Option<String> {
        self.server.as_ref()?.address.clone()
    }

    /// Sends a command of yours, and waits for the reply.
    ///
    /// # Errors
    ///
    /// If the server does not answer in time, or with an error.
    pub async fn ask(&self, command: &redis::Cmd) -> Result<Value, StoreError> {
        let reply = self.send(command, b"").await;
        reply.map_err(|error| store_error(&error))
    }

    /// The fields of the reply to `HELLO`, among them `mode`, `role` and `version`; none from a proxy or a server
    /// without that command.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached, or does not answer in time.
    pub async fn greeting(&self) -> Result<HashMap<String, String>, StoreError> {
        match self.send(&redis::cmd("HELLO"), b"").await {
            Ok(reply) => {
                let reply: HashMap<String, Value> =
                    redis::from_redis_value(reply).unwrap_or_default();
                let text = |value| redis::from_redis_value(value).ok();
                let fields = reply.into_iter();
                Ok(fields
                    .filter_map(|(name, value)| Some((name, text(value)?)))
                    .collect())
            }
            Err(error) if error.code().is_some() || hangs_up(&error) => Ok(HashMap::new()),
            Err(error) => Err(store_error(&error)),
        }
    }

    /// How many keys the server keeps, including those of other applications.
    ///
    /// # Errors
    ///
    /// As [`now_ms`](Self::now_ms).
    pub async fn key_count(&self) -> Result<u64, StoreError> {
        let count = self.send(&redis::cmd("DBSIZE"), b"").await;
        let count = count.and_then(|count| Ok(redis::from_redis_value(count)?));
        count.map_err(|error| unknown_to_proxies(&error, self.address().is_some()))
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
        let found = self.send(&scan, b"").await;
        let found = found.and_then(|found| Ok(redis::from_redis_value(found)?));
        let (next, found): (u64, Vec<Vec<u8>>) =
            found.map_err(|error| unknown_to_proxies(&error, self.address().is_some()))?;
        let names = &self.store.names;
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

    /// Reads these keys at the same time, of one server in one pipeline. A key that has moved to another node of a cluster
    /// meanwhile has no value there.
    ///
    /// # Errors
    ///
    /// If a server does not answer in time, or with an error that is not about a key.
    pub async fn read_all(&self, names: &[StoredName]) -> Result<Vec<StoredResult>, StoreError> {
        let replies = self.get_all(names).await?;
        let values = replies.into_iter().zip(names);
        values.map(|(value, name)| stored_at(name, value)).collect()
    }

    pub(super) async fn get_all(
        &self,
        names: &[StoredName],
    ) -> Result<Vec<RedisResult<Value>>, StoreError> {
        let gets = names.iter().map(StoredName::read_command);
        let Some(server) = &self.server else {
            let gets = names.iter().map(|it| it.as_bytes().to_vec()).zip(gets);
            let gets: Vec<_> = gets.collect();
            let replies = send_all(&self.store.transports, &gets);
            return self.in_time(async { Ok(replies.await) }).await;
        };
        let mut pipeline = Pipeline::with_capacity(names.len());
        for get in gets {
            pipeline.add_command(get);
        }
        let replies = within(self.timeout, server.connection.send_all(&pipeline)).await;
        let replies = replies.map_err(|error| store_error(&error))?.into_iter();
        let replies = replies.map(|reply| match reply {
            Err(error) if matches!(code(&error), Some("MOVED" | "ASK" | "TRYAGAIN")) => {
                Ok(Value::Nil)
            }
            reply => reply,
        });
        Ok(replies.collect())
    }
}
