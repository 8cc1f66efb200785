//! Refreshes the topology beside the traffic.

use std::{future::ready, sync::Arc, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::RedisResult;

use super::{Cluster, node::Range, nodes::owners, unserved};
use crate::store::redis::{
    background,
    connection::{CONNECT_TIMEOUT, within},
};

/// Between two refreshes: a process asks a cluster in trouble at most 20 times a second.
pub(super) const REFRESH_PAUSE: Duration = Duration::from_millis(50);

/// How long to wait for a node before asking the next one as well.
const HEDGE: Duration = Duration::from_millis(25);

impl Cluster {
    /// Waits for a refresh of the topology, unless the last one began just now.
    pub(in crate::store::redis) async fn refresh(self: &Arc<Self>) -> RedisResult<()> {
        within(CONNECT_TIMEOUT, async {
            loop {
                self.begin_refresh();
                if let Some((_, outcome)) = self.refresh.outcome().await {
                    return outcome;
                }
            }
        })
        .await
    }

    /// Begins a refresh of the topology, unless the last one began just now.
    pub(super) fn begin_refresh(self: &Arc<Self>) {
        self.refresh.start_unless(
            |started, _| started.elapsed() < REFRESH_PAUSE,
            || Arc::clone(self).ask_and_adopt(),
        );
    }

    /// Waits until a primary lets this store in.
    pub(in crate::store::redis) async fn reach_any(self: &Arc<Self>) -> RedisResult<()> {
        let primaries = self.primaries().await?;
        let reached = primaries.iter().map(|node| Box::pin(node.reach()));
        futures_util::future::select_ok(reached).await.map(drop)
    }

    async fn ask_and_adopt(self: Arc<Self>) -> RedisResult<()> {
        let ranges = within(CONNECT_TIMEOUT, self.ask_for_topology()).await?;
        self.adopt(ranges);
        Ok(())
    }

    /// Asks one node after another, without waiting long for any, and uses the first useful answer.
    async fn ask_for_topology(&self) -> RedisResult<Vec<Range>> {
        let mut others = self.nodes().all().into_iter();
        let mut asked = FuturesUnordered::new();
        let mut why = unserved();
        loop {
            if let Some(node) = others.next() {
                asked.push(async move { within(CONNECT_TIMEOUT, node.topology()).await });
            } else if asked.is_empty() {
                return Err(why);
            }
            match tokio::time::timeout(HEDGE, asked.next()).await {
                Ok(Some(Ok(ranges))) if !ranges.is_empty() => {
                    // A node that was asked in vain would seem lost.
                    background::spawn(asked.for_each(|_| ready(())));
                    return Ok(ranges);
                }
                Ok(Some(Err(error))) => why = error,
                _ => {}
            }
        }
    }

    /// If nothing has changed, the lock, which all traffic takes, is held only for a comparison.
    fn adopt(&self, ranges: Vec<Range>) {
        if self.nodes().is_known(&ranges) {
            return;
        }
        let primaries = self.nodes().primaries(&ranges);
        let owners = owners(&ranges, &primaries);
        let old = self.nodes().adopt(ranges, owners);
        drop(old);
    }
}
