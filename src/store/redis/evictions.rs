//! Warns about servers that evict counts and blocks before they end.

use std::sync::atomic::Ordering::Relaxed;

use tokio::runtime::Handle;

use super::{RedisStore, background, connection::SingleServer};
use crate::warning;

impl RedisStore {
    /// Asks the servers in the background, once for a store and its clones. The user needs no right to that: without an
    /// answer there is no warning.
    pub(super) fn look_for_evictions(&self) {
        if self.asked.load(Relaxed) || self.asked.swap(true, Relaxed) {
            return;
        }
        let transport = self.transport.clone();
        let ask = async move {
            for server in transport.servers().await.unwrap_or_default() {
                if let Some(policy) = evicts(&server).await {
                    return warning::evicts(&policy);
                }
            }
        };
        if let Ok(runtime) = Handle::try_current() {
            background::spawn_in(&runtime, ask);
        }
    }
}

/// The policy by which a server evicts keys, if it does.
async fn evicts(server: &SingleServer) -> Option<String> {
    let info = redis::cmd("INFO").arg("memory").take();
    let info = server.connection.ask_apart(&info).await.ok()?;
    let info: String = redis::from_redis_value(info).ok()?;
    let field = |name| info.lines().find_map(|line| line.strip_prefix(name));
    let policy = field("maxmemory_policy:").filter(|it| *it != "noeviction")?;
    (field("maxmemory:")? != "0").then(|| policy.to_owned())
}
