//! [`Cluster`]: a connection for each primary, and the owner of each hash slot.
//!
//! We do not use redis-rs' own `ClusterConnection`. It stops all hash slots while it reads the topology, and waits there for
//! each node, even for nodes that do not answer. If it follows redirects, it may also resend commands that a lost
//! connection has executed. Here each primary has a
//! [`ReconnectingConnection`](super::connection::ReconnectingConnection), the topology is refreshed beside the traffic,
//! and only commands that were certainly not executed are sent again.

mod node;
mod nodes;
mod refresh;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use redis::{
    Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, cluster_routing::Slot as HashSlot,
};

pub(super) use node::Node;
use node::is_out_of_service;
use nodes::Nodes;
use refresh::REFRESH_PAUSE;

use super::{
    background,
    connection::{Connection, LOST_AFTER, Reply, SharedAttempt, Target},
};

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
    pub(super) fn new(seeds: &[Target]) -> Self {
        Self {
            nodes: Mutex::new(Nodes::new(seeds)),
            refresh: SharedAttempt::new(REFRESH_PAUSE, LOST_AFTER, background::spawn),
        }
    }

    /// Waits for a connection to the primary of this key.
    pub(super) async fn reach(
        self: &Arc<Self>,
        key: &[u8],
    ) -> RedisResult<(Arc<Node>, Arc<Connection>)> {
        let hash_slot = HashSlot::for_key(key);
        let node = self.owner(hash_slot).await?;
        match node.reach().await {
            Ok(connection) => Ok((node, connection)),
            Err(error) => self.reach_another(hash_slot, &node, error).await,
        }
    }

    /// Waits for a connection to the successor of a primary that does not accept connections.
    async fn reach_another(
        self: &Arc<Self>,
        hash_slot: HashSlot,
        node: &Arc<Node>,
        error: RedisError,
    ) -> RedisResult<(Arc<Node>, Arc<Connection>)> {
        if !error.is_connection_refusal() && !is_out_of_service(&error) {
            return Err(error);
        }
        match self.next_owner(hash_slot).await? {
            other if Arc::ptr_eq(&other, node) => Err(error),
            other => {
                let connection = other.reach().await?;
                Ok((other, connection))
            }
        }
    }

    /// Sends one command to this node, and follows redirects. The outer error says that no node has executed the command.
    pub(super) async fn send(
        self: &Arc<Self>,
        cmd: &Cmd,
        key: &[u8],
        node: &Arc<Node>,
        connection: &Arc<Connection>,
    ) -> Reply {
        let hash_slot = HashSlot::for_key(key);
        let (mut node, mut connection) = (Arc::clone(node), Arc::clone(connection));
        let mut asking = false;
        for _ in 0..MAX_HOPS {
            let error = match node.send(cmd, asking, &connection).await {
                Ok(reply) => return Ok(Ok(reply)),
                Err(error) => error,
            };
            asking = false;
            if self.nodes().is_stranger(&error, &node) {
                let _ = Box::pin(self.refresh()).await; // the node is dialled whatever became known of it
            }
            (node, connection) = match error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) => {
                    self.begin_refresh();
                    let named = self.nodes().moved(hash_slot, &error, &node)?;
                    match named.reach().await {
                        Ok(connection) => (named, connection),
                        Err(error) => self.reach_another(hash_slot, &named, error).await?,
                    }
                }
                ErrorKind::Server(ServerErrorKind::Ask) => {
                    asking = true;
                    let named = self.nodes().named(&error, &node)?;
                    let connection = named.reach().await?;
                    (named, connection)
                }
                // The command was certainly not executed.
                _ if error.is_connection_refusal() || is_out_of_service(&error) => {
                    self.reach_another(hash_slot, &node, error).await?
                }
                _ => return Ok(Err(error)),
            };
        }
        Err(io::Error::other("the nodes of the cluster point at each other").into())
    }

    /// The primary of a hash slot. Waits for a refresh of the topology only if no primary is known, or the known one may
    /// have failed.
    async fn owner(self: &Arc<Self>, hash_slot: HashSlot) -> RedisResult<Arc<Node>> {
        let known = self.nodes().owner(hash_slot);
        match known {
            Some(node) if !node.is_suspect() => Ok(node),
            _ => self.next_owner(hash_slot).await,
        }
    }

    /// The primary of a hash slot after a refresh of the topology.
    async fn next_owner(self: &Arc<Self>, hash_slot: HashSlot) -> RedisResult<Arc<Node>> {
        let refreshed = self.refresh().await;
        let owner = self.nodes().owner(hash_slot);
        owner.ok_or_else(|| refreshed.err().unwrap_or_else(unserved))
    }

    /// `HOST:PORT` of the primary of this key, if known.
    pub(super) fn address_of(&self, key: &[u8]) -> Option<String> {
        let owner = self.nodes().owner(HashSlot::for_key(key))?;
        Some(owner.address().to_string())
    }

    /// All primaries that serve hash slots in the current topology, of which there is at least one.
    pub(super) async fn primaries(self: &Arc<Self>) -> RedisResult<Vec<Arc<Node>>> {
        self.refresh().await?;
        let all = self.nodes().serving();
        (!all.is_empty()).then_some(all).ok_or_else(unserved)
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        crate::lock::lock(&self.nodes)
    }
}

fn unserved() -> RedisError {
    io::Error::other("no node serves this hash slot").into()
}
