//! [`Look`]: finding out which slot is whose, beside the traffic.

use std::{
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use redis::RedisError;
use tokio::{sync::watch, task::JoinSet, time::timeout};

use super::{Cluster, nodes::Range, unserved};
use crate::store::redis::{error::closed, keeper::CONNECT_TIMEOUT};

/// From one look to the next: a process asks a cluster in trouble at most 20 times a second.
const REST: Duration = Duration::from_millis(50);

/// How long a node may think before the next one is asked as well.
const HEDGE: Duration = Duration::from_millis(25);

/// A look at the topology, which all share who wait for one.
pub(super) struct Look {
    started: Instant,
    outcome: watch::Receiver<Option<Result<(), RedisError>>>,
}

impl Cluster {
    /// Waits until the topology was looked at, unless that was just now.
    pub(in crate::store::redis) async fn look(self: &Arc<Self>) -> Result<(), RedisError> {
        let mut outcome = self.latest_look();
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or_else(|| Err(closed())),
            // The runtime that looked was shut down.
            Err(_) => Err(closed()),
        }
    }

    /// The look that is under way or was taken just now; else a new one, in a task of its own: it outlives callers who leave
    /// at their timeout.
    fn latest_look(self: &Arc<Self>) -> watch::Receiver<Option<Result<(), RedisError>>> {
        let mut latest = self.look.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(look) = &*latest
            && (look.outcome.has_changed().is_ok() || look.started.elapsed() < REST)
        {
            return look.outcome.clone();
        }
        let (publish, outcome) = watch::channel(None);
        let cluster = Arc::clone(self);
        tokio::spawn(async move {
            let result = cluster.take_a_look().await;
            publish.send_replace(Some(result));
        });
        *latest = Some(Look {
            started: Instant::now(),
            outcome: outcome.clone(),
        });
        outcome
    }

    /// Asks one node after another, without waiting long for any, and believes the first that knows.
    async fn take_a_look(&self) -> Result<(), RedisError> {
        let mut others = self.nodes().all().into_iter();
        let mut asked = JoinSet::new();
        let mut why = unserved();
        loop {
            if let Some(node) = others.next() {
                let answer = async move { timeout(2 * CONNECT_TIMEOUT, node.topology()).await };
                asked.spawn(answer);
            } else if asked.is_empty() {
                return Err(why);
            }
            match timeout(HEDGE, asked.join_next()).await {
                Ok(Some(Ok(Ok(Ok(ranges))))) if !ranges.is_empty() => return self.adopt(ranges),
                Ok(Some(Ok(Ok(Err(error))))) => why = error,
                _ => {}
            }
        }
    }

    fn adopt(&self, ranges: Vec<Range>) -> Result<(), RedisError> {
        self.nodes().adopt(ranges)
    }
}
