//! [`TopologyRefresh`]: finding out which slot is whose, beside the traffic.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use redis::RedisResult;
use tokio::{sync::watch, task::JoinSet, time::Instant};

use super::{Cluster, node::Range, nodes::owners, unserved};
use crate::store::redis::connection::{published, within};

/// From one refresh to the next: a process asks a cluster in trouble at most 20 times a second.
const REFRESH_PAUSE: Duration = Duration::from_millis(50);

/// How long a node may take before the next one is asked as well.
const HEDGE: Duration = Duration::from_millis(25);

/// A refresh under way or just done, which all share who wait for one.
pub(super) struct TopologyRefresh {
    started: Instant,
    outcome: watch::Receiver<Option<RedisResult<()>>>,
}

impl Cluster {
    /// Waits until the topology was asked for, unless that was just now.
    pub(in crate::store::redis) async fn refresh(self: &Arc<Self>) -> RedisResult<()> {
        published(self.latest_refresh()).await
    }

    /// The refresh that is under way or was done just now; else a new one, in a task of its own: it outlives callers
    /// who leave at their timeout.
    fn latest_refresh(self: &Arc<Self>) -> watch::Receiver<Option<RedisResult<()>>> {
        let mut latest = self.refresh.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(refresh) = &*latest
            && (refresh.outcome.has_changed().is_ok() || refresh.started.elapsed() < REFRESH_PAUSE)
        {
            return refresh.outcome.clone();
        }
        let (publish, outcome) = watch::channel(None);
        let cluster = Arc::clone(self);
        tokio::spawn(async move {
            let result = cluster.ask_for_topology().await;
            publish.send_replace(Some(result.and_then(|ranges| cluster.adopt(ranges))));
        });
        *latest = Some(TopologyRefresh {
            started: Instant::now(),
            outcome: outcome.clone(),
        });
        outcome
    }

    /// Asks one node after another, without waiting long for any, and believes the first that knows.
    async fn ask_for_topology(&self) -> RedisResult<Vec<Range>> {
        let mut others = self.nodes().all().into_iter();
        let mut asked = JoinSet::new();
        let mut why = unserved();
        loop {
            if let Some(node) = others.next() {
                let timeout = 2 * self.timeout.get();
                asked.spawn(async move { within(timeout, node.topology()).await });
            } else if asked.is_empty() {
                return Err(why);
            }
            match tokio::time::timeout(HEDGE, asked.join_next()).await {
                Ok(Some(Ok(Ok(ranges)))) if !ranges.is_empty() => {
                    // The others may answer later than this one, and not be in trouble.
                    asked.detach_all();
                    return Ok(ranges);
                }
                Ok(Some(Ok(Err(error)))) => why = error,
                _ => {}
            }
        }
    }

    /// Holds the lock, which all traffic takes, for a comparison if nothing has changed.
    fn adopt(&self, ranges: Vec<Range>) -> RedisResult<()> {
        if self.nodes().is_known(&ranges) {
            return Ok(());
        }
        let primaries = self.nodes().primaries(&ranges)?;
        let owners = owners(&ranges, &primaries);
        let old = self.nodes().adopt(ranges, owners);
        drop(old);
        Ok(())
    }
}
