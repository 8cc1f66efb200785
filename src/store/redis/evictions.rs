//! Warns about servers that evict counts and blocks before they end.

use std::sync::atomic::Ordering::Relaxed;

use redis::Value;

use super::RedisStore;
use crate::warning;

impl RedisStore {
    /// Asks the servers, once for a store and its clones: over connections that are `apart` where others send calls,
    /// since a proxy may hang up on the question. The user needs no right to it: without an answer there is no warning.
    pub(super) async fn look_for_evictions(&self, apart: bool) {
        if self.asked.swap(true, Relaxed) {
            return;
        }
        let question = redis::cmd("INFO").arg("memory").take();
        for server in self.transports.servers().await.unwrap_or_default() {
            let answer = match apart {
                true => server.connection.ask_apart(&question).await,
                false => server.connection.send(&question).await,
            };
            if let Some(policy) = answer.ok().and_then(policy) {
                return warning::evicts(&policy);
            }
        }
    }
}

/// The policy by which a server evicts keys, if it does.
fn policy(answer: Value) -> Option<String> {
    let info: String = redis::from_redis_value(answer).ok()?;
    let field = |name| info.lines().find_map(|line| line.strip_prefix(name));
    let policy = field("maxmemory_policy:").filter(|it| *it != "noeviction")?;
    (field("maxmemory:")? != "0").then(|| policy.to_owned())
}
