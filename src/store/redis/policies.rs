//! Published policies: a hash of their definitions, for operators' tools.
//!
//! ```text
//!   sluicegate:!policies
//!     api:5f3c09ab   seen=1790000003123 · version=0.1.0 · blocks=true · kinds=ip,user · rules=10/1s
//! ```
//!
//! Two definitions with one name are two fields, so that you can see a difference between processes. There is only one
//! key, so all of this is in one slot of a cluster.

use std::time::Duration;

use redis::Value;

use super::{RedisStore, error::store_error};
use crate::{
    domain::{error::StoreError, published::PublishedPolicy, rule::millis},
    store::StoreFuture,
};

/// How long a definition is kept after the last process has published it.
const KEPT: Duration = Duration::from_secs(86_400);

/// The maximum number and total size of definitions.
const MAX_FIELDS: usize = 256;
const MAX_BYTES: usize = 65_536;

impl RedisStore {
    pub(super) fn publish_all(&self, policies: Vec<PublishedPolicy>) -> StoreFuture<()> {
        if policies.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        let store = self.clone();
        StoreFuture::pending(async move {
            let stored = store.published_fields().await?;
            let now_ms = store.client_now_ms();
            let is_over =
                |policy: &PublishedPolicy| policy.seen_ms().saturating_add(millis(KEPT)) < now_ms;
            let (over, held): (Vec<_>, Vec<_>) = stored
                .into_iter()
                .partition(|(_, _, policy)| policy.as_ref().is_none_or(is_over));
            let name = store.names.policies();
            let mut delete = redis::cmd("HDEL");
            delete.arg(&name);
            let mut set = redis::cmd("HSET");
            set.arg(&name);
            let (mut count, mut bytes) = (held.len(), held.iter().map(size).sum::<usize>());
            let mut is_set = false;
            for mut policy in policies {
                let field = field(&policy);
                let known = held.iter().find(|(known, ..)| *known == field);
                // Other processes may have seen other kinds, so keep theirs.
                if let Some((_, _, Some(known))) = known {
                    for kind in known.kinds() {
                        policy.add_kind(kind);
                    }
                }
                let text = policy.text(now_ms);
                if known.is_none() {
                    let more = field.len() + text.len();
                    if count == MAX_FIELDS || bytes + more > MAX_BYTES {
                        // Go on: later policies may be stored already, need no room, and have to be kept.
                        continue;
                    }
                    count += 1;
                    bytes += more;
                }
                set.arg(field).arg(text);
                is_set = true;
            }
            for (field, ..) in &over {
                delete.arg(field);
            }
            if !over.is_empty() {
                store.send_to_policies(&delete).await?;
            }
            if is_set {
                store.send_to_policies(&set).await?;
                let mut expire = redis::cmd("PEXPIRE");
                store
                    .send_to_policies(expire.arg(&name).arg(millis(KEPT)))
                    .await?;
            }
            Ok(())
        })
    }

    /// The published policies, without those that cannot be read.
    pub(super) async fn published_policies(&self) -> Result<Vec<PublishedPolicy>, StoreError> {
        let fields = self.published_fields().await?.into_iter();
        Ok(fields.filter_map(|(_, _, policy)| policy).collect())
    }

    /// The name of each field, the length of its value, and the parsed policy.
    async fn published_fields(
        &self,
    ) -> Result<Vec<(String, usize, Option<PublishedPolicy>)>, StoreError> {
        let mut all = redis::cmd("HGETALL");
        let reply = self
            .send_to_policies(all.arg(self.names.policies()))
            .await?;
        let fields: Vec<(Vec<u8>, Vec<u8>)> = redis::from_redis_value(reply)
            .map_err(|error| store_error(&redis::RedisError::from(error)))?;
        let fields = fields.into_iter().map(|(field, value)| {
            let field = String::from_utf8_lossy(&field).into_owned();
            let text = String::from_utf8_lossy(&value);
            let name = field.split(':').next().unwrap_or_default();
            let policy = PublishedPolicy::parse(name, &text);
            (field, value.len(), policy)
        });
        Ok(fields.collect())
    }

    async fn send_to_policies(&self, cmd: &redis::Cmd) -> Result<Value, StoreError> {
        let reply = self.transport.send(cmd, &self.names.policies()).await;
        reply.map_err(|error| store_error(&error))
    }
}

fn size((field, length, _): &(String, usize, Option<PublishedPolicy>)) -> usize {
    field.len() + length
}

/// The policy's name, and a hash of its definition.
fn field(policy: &PublishedPolicy) -> String {
    let hash = blake3::hash(policy.definition().as_bytes()).to_hex();
    format!("{}:{}", policy.policy().name(), &hash[..8])
}
