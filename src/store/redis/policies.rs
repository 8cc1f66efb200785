//! Published policies: a hash of their definitions, for operators' tools.
//!
//! ```text
//!   sluicegate:!policies
//!     api:5f3c09ab      seen=1790000003123 · version=0.1.0 · blocks=true · kinds=ip,user · rules=10/1s
//!     @05c1…            seen=1790000003123 · label=web-3:4711, of the process whose slots have ids that begin so
//! ```
//!
//! Two definitions with one name are two fields, so that you can see a difference between processes. There is only one
//! key, so all of this is in one slot of a cluster.

use std::collections::HashMap;

use redis::Value;

use super::{RedisStore, background, error::store_error};
use crate::{
    domain::{
        error::StoreError,
        published::{PublishedPolicy, plain_label},
        report::Account,
        slot_id::this_process,
    },
    store::StoreFuture,
};

/// How long a definition is kept after the last process has published it, in ms.
const KEPT_MS: u64 = 86_400_000;

/// The maximum number and total size of definitions.
const MAX_FIELDS: usize = 256;
const MAX_BYTES: usize = 65_536;

/// How many processes with slots keep a label: the oldest labels make room.
const MAX_PROCESSES: usize = 256;

/// A field of the hash.
struct HashField {
    field: String,
    /// The size of the field and the value.
    bytes: usize,
    /// When a process has published it last; 0 if no process did.
    seen_ms: u64,
    /// `None` if this version or its features cannot read the definition, which others may need.
    policy: Option<PublishedPolicy>,
    /// The number and the label of a process.
    process: Option<(u64, String)>,
}

impl HashField {
    /// Whether no process has published the definition for too long.
    fn is_over(&self, now_ms: u64) -> bool {
        self.seen_ms.saturating_add(KEPT_MS) < now_ms
    }
}

impl RedisStore {
    pub(super) fn publish_all(&self, policies: Vec<PublishedPolicy>) -> StoreFuture<()> {
        if policies.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        let store = self.clone();
        StoreFuture::pending(async move {
            let stored = store.published_fields().await?;
            let asking = store.clone();
            background::spawn(async move { asking.look_for_evictions(true).await });
            let now_ms = store.now_ms(&Account::Denials).await?;
            let (replaced, policies): (Vec<_>, Vec<_>) =
                policies.into_iter().partition(|it| it.is_replaced);
            let replaced: Vec<String> = replaced.iter().map(field).collect();
            let (mut over, mut held): (Vec<_>, Vec<_>) = stored
                .into_iter()
                .partition(|it| it.is_over(now_ms) || replaced.contains(&it.field));
            let mut labels: Vec<_> = held
                .extract_if(.., |stored| stored.process.is_some())
                .collect();
            labels.sort_unstable_by_key(|stored| stored.seen_ms);
            let others = labels.len().saturating_sub(MAX_PROCESSES - 1);
            over.extend(labels.drain(..others));
            let over = over.into_iter().map(|stored| stored.field).collect();
            store.change("HDEL", over).await?;
            let label = policies.iter().find_map(|policy| policy.process.as_ref());
            let label = label.map(|label| {
                let field = format!("@{:016x}", this_process());
                [field, format!("seen={now_ms}\nlabel={label}")]
            });
            let mut fields = fields(policies, &held, now_ms);
            fields.extend(label);
            if fields.is_empty() {
                return Ok(());
            }
            store.change("HSET", fields.concat()).await?;
            store.change("PEXPIRE", vec![KEPT_MS.to_string()]).await
        })
    }

    /// Sends a command about the hash, if there is anything to do.
    async fn change(&self, command: &str, args: Vec<String>) -> Result<(), StoreError> {
        if args.is_empty() {
            return Ok(());
        }
        let mut change = redis::cmd(command);
        change.arg(self.names.policies()).arg(args);
        self.send_to_policies(&change).await.map(drop)
    }

    /// The published policies, without those that cannot be read.
    pub(super) async fn published_policies(&self) -> Result<Vec<PublishedPolicy>, StoreError> {
        let fields = self.published_fields().await?.into_iter();
        Ok(fields.filter_map(|stored| stored.policy).collect())
    }

    /// The labels of processes that publish policies with slots, by the number in the ids of their slots.
    pub(super) async fn labels_of_processes(&self) -> Result<HashMap<u64, String>, StoreError> {
        let fields = self.published_fields().await?.into_iter();
        Ok(fields.filter_map(|stored| stored.process).collect())
    }

    async fn published_fields(&self) -> Result<Vec<HashField>, StoreError> {
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
            let seen = text.strip_prefix("seen=").and_then(|it| it.lines().next());
            HashField {
                bytes: field.len() + value.len(),
                seen_ms: seen.and_then(|ms| ms.parse().ok()).unwrap_or(0),
                policy: PublishedPolicy::parse(name, &text),
                process: process(&field, &text),
                field,
            }
        });
        Ok(fields.collect())
    }

    async fn send_to_policies(&self, cmd: &redis::Cmd) -> Result<Value, StoreError> {
        let reply = self.transports.send(cmd, &self.names.policies()).await;
        reply.map_err(|error| store_error(&error))
    }
}

/// The fields of these policies and their values, as far as there is room beside the held ones.
fn fields(policies: Vec<PublishedPolicy>, held: &[HashField], now_ms: u64) -> Vec<[String; 2]> {
    let mut count = held.len();
    let mut bytes: usize = held.iter().map(|stored| stored.bytes).sum();
    let mut fields = Vec::with_capacity(policies.len());
    for mut policy in policies {
        let field = field(&policy);
        let known = held.iter().find(|stored| stored.field == field);
        // Other processes may have seen other kinds, so keep theirs.
        let theirs = known.and_then(|stored| stored.policy.as_ref());
        for kind in theirs.iter().flat_map(|theirs| &theirs.kinds) {
            policy.add_kind(kind);
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
        fields.push([field, text]);
    }
    fields
}

/// Reads the field of a process. Any client may have written it, so the label is made plain again.
fn process(field: &str, text: &str) -> Option<(u64, String)> {
    let number = u64::from_str_radix(field.strip_prefix('@')?, 16).ok()?;
    let label = text.lines().find_map(|line| line.strip_prefix("label="))?;
    Some((number, plain_label(label).into()))
}

/// The policy's name, and a hash of its definition.
fn field(policy: &PublishedPolicy) -> String {
    let hash = blake3::hash(policy.definition().as_bytes()).to_hex();
    format!("{}:{}", policy.policy.name(), &hash[..8])
}
