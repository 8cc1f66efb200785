//! [`Cluster`]: a connection for each primary, and which slot is whose.
//!
//! redis-rs' own `ClusterConnection` stops all slots while it looks at the topology, and waits there for each node,
//! also for nodes that do not answer; and whoever lets it follow redirects lets it send again what a lost connection
//! may have executed. So each primary has a [`ReconnectingConnection`](super::connection::ReconnectingConnection)
//! here, the topology is refreshed beside the traffic, and only what was certainly not executed is sent again.

mod calls;
mod cross_slot;
mod moving;
mod node;
mod nodes;
mod refresh;
mod slots;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redis::{
    Client, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value, cluster_routing::Slot,
};

pub(super) use node::Node;
use node::is_out_of_service;
use nodes::Nodes;
use refresh::REFRESH_PAUSE;

use super::connection::SharedAttempt;

/// How often a command is sent on before it fails. Each time it was not executed.
const MAX_HOPS: u32 = 16;

/// The primaries of a cluster, found through any node of it.
pub(super) struct Cluster {
    nodes: Mutex<Nodes>,
    refresh: Arc<SharedAttempt<()>>,
}

impl Cluster {
    /// Does nothing until the first command. All nodes are connected to as the first of these is: same user, same TLS.
    pub(super) fn new(seeds: &[Client]) -> RedisResult<Self> {
        Ok(Self {
            nodes: Mutex::new(Nodes::new(seeds)?),
            refresh: SharedAttempt::new(REFRESH_PAUSE),
        })
    }

    /// Sends one command to the primary of this key, or on to where the cluster points.
    pub(super) async fn send(self: &Arc<Self>, cmd: &Cmd, key: &[u8]) -> RedisResult<Value> {
        let slot = Slot::for_key(key);
        let mut node = self.owner(slot).await?;
        let mut asking = false;
        for _ in 0..MAX_HOPS {
            let error = match node.send(cmd, asking).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            (node, asking) = match error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) => {
                    (self.nodes().moved(slot, &error, &node)?, false)
                }
                ErrorKind::Server(ServerErrorKind::Ask) => {
                    (self.nodes().named(&error, &node)?, true)
                }
                // Certainly not executed.
                _ if error.is_connection_refusal() || is_out_of_service(&error) => {
                    match self.owner(slot).await? {
                        other if Arc::ptr_eq(&other, &node) => return Err(error),
                        other => (other, false),
                    }
                }
                _ => return Err(error),
            };
        }
        Err(io::Error::other("the nodes of the cluster point at each other").into())
    }

    /// The primary of a slot. Waits for a refresh of the topology only if none is known or the one that is may have
    /// failed.
    async fn owner(self: &Arc<Self>, slot: Slot) -> RedisResult<Arc<Node>> {
        let known = self.nodes().owner(slot);
        match known {
            Some(node) if !node.is_suspect() => Ok(node),
            _ => {
                let refreshed = self.refresh().await;
                let owner = self.nodes().owner(slot);
                owner.ok_or_else(|| refreshed.err().unwrap_or_else(unserved))
            }
        }
    }

    /// `HOST:PORT` of the primary of a slot, as far as one is known.
    pub(super) fn address_of(&self, slot: Slot) -> Option<String> {
        Some(self.nodes().owner(slot)?.address().to_string())
    }

    /// Whether the primary of a slot is known not to answer.
    pub(super) fn is_unresponsive(&self, slot: Slot) -> bool {
        let owner = self.nodes().owner(slot);
        owner.is_some_and(|node| node.is_unresponsive())
    }

    /// The primaries of all slots that are served, as the topology is now.
    pub(super) async fn primaries(self: &Arc<Self>) -> RedisResult<Vec<Arc<Node>>> {
        self.refresh().await?;
        Ok(self.nodes().serving())
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unserved() -> RedisError {
    io::Error::other("no node serves this slot").into()
}
