//! Warns about servers that evict counts and blocks before they end.

use std::sync::atomic::Ordering::Relaxed;

use redis::Value;
use tokio::runtime::Handle;

use super::{RedisStore, background};
use crate::warning;

impl RedisStore {
    /// Asks the servers in the background, once for a store and its clones. The user needs no right to that: without an
    /// answer there is no warning.
    pub(super) fn look_for_evictions(&self) {
        if self.asked.load(Relaxed) || self.asked.swap(true, Relaxed) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let transport = self.transport.clone();
        background::spawn_in(&runtime, async move {
            let servers = transport.servers().await.unwrap_or_default();
            let mut info = redis::cmd("INFO");
            info.arg("memory");
            for server in servers {
                let answer = server.connection.ask_apart(&info).await;
                if let Ok(Some(policy)) = answer.as_ref().map(evicts) {
                    return warning::evicts(policy);
                }
            }
        });
    }
}

/// The policy by which a server evicts keys, if it does.
fn evicts(info: &Value) -> Option<&str> {
    let info = match info {
        Value::BulkString(bytes) => str::from_utf8(bytes).ok()?,
        Value::VerbatimString { text, .. } => text,
        _ => return None,
    };
    let field = |name| info.lines().find_map(|line| line.strip_prefix(name));
    let policy = field("maxmemory_policy:")?;
    (field("maxmemory:")? != "0" && policy != "noeviction").then_some(policy)
}
