//! [`Cluster`]: a connection for each primary, and the owner of each slot.
//!
//! We do not use redis-rs' own `ClusterConnection`. It stops all slots while it reads the topology, and waits there for
//! each node, even for nodes that do not answer. If it follows redirects, it may also resend commands that a lost
//! connection has executed. Here each primary has a
//! [`ReconnectingConnection`](super::connection::ReconnectingConnection), the topology is refreshed beside the traffic,
//! and only commands that were certainly not executed are sent again.

mod node;
mod nodes;
mod refresh;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redis::{
    Client, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, cluster_routing::Slot,
};

pub(super) use node::Node;
use node::is_out_of_service;
use nodes::Nodes;
use refresh::REFRESH_PAUSE;

use super::connection::{Reply, SharedAttempt};

/// How often a command is redirected before it fails. No redirect has executed the command.
const MAX_HOPS: u32 = 16;

/// The primaries of a cluster, found through any node.
pub(super) struct Cluster {
    nodes: Mutex<Nodes>,
    refresh: Arc<SharedAttempt<()>>,
}

impl Cluster {
    /// Opens no connection before the first command. All nodes use the settings of the first seed: the same user, the
    /// same TLS.
    pub(super) fn new(seeds: &[Client]) -> RedisResult<Self> {
        Ok(Self {
            nodes: Mutex::new(Nodes::new(seeds)?),
            refresh: SharedAttempt::new(REFRESH_PAUSE),
        })
    }

    /// Sends one command to the primary of this key, and follows redirects. The outer error says that no node has
    /// executed the command.
    pub(super) async fn try_send(self: &Arc<Self>, cmd: &Cmd, key: &[u8]) -> Reply {
        let slot = Slot::for_key(key);
        let mut node = self.owner(slot).await?;
        let mut asking = false;
        for _ in 0..MAX_HOPS {
            let (error, is_unsent) = match node.try_send(cmd, asking).await {
                Ok(Ok(reply)) => return Ok(Ok(reply)),
                Ok(Err(error)) => (error, false),
                Err(error) => (error, true),
            };
            (node, asking) = match error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) => {
                    (self.nodes().moved(slot, &error, &node)?, false)
                }
                ErrorKind::Server(ServerErrorKind::Ask) => {
                    (self.nodes().named(&error, &node)?, true)
                }
                // The command was certainly not executed.
                _ if error.is_connection_refusal() || is_out_of_service(&error) => {
                    match self.owner(slot).await? {
                        other if Arc::ptr_eq(&other, &node) => return Err(error),
                        other => (other, false),
                    }
                }
                _ if is_unsent => return Err(error),
                _ => return Ok(Err(error)),
            };
        }
        Err(io::Error::other("the nodes of the cluster point at each other").into())
    }

    /// The primary of a slot. Waits for a refresh of the topology only if no primary is known, or the known one may
    /// have failed.
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

    /// Replaces the connection to the primary of this key, and asks for the topology, before the next command; not if
    /// the connection is young.
    pub(super) fn mark_stale(&self, key: &[u8]) {
        if let Some(node) = self.nodes().owner(Slot::for_key(key)) {
            node.mark_stale();
        }
    }

    /// `HOST:PORT` of the primary of a slot, if known.
    pub(super) fn address_of(&self, slot: Slot) -> Option<String> {
        Some(self.nodes().owner(slot)?.address().to_string())
    }

    /// All primaries that serve slots in the current topology.
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
