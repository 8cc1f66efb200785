//! [`Cluster`]: a connection for each primary, and which slot is whose.
//!
//! redis-rs' own `ClusterConnection` stands still for all slots while it looks at the topology, and waits there for each node,
//! mute ones too; and whoever lets it follow redirects lets it send again what a lost connection may have executed. So each
//! primary has a [`Keeper`](super::keeper::Keeper) here, the topology is looked at beside the traffic, and only what was
//! certainly not executed is sent again.

mod look;
mod nodes;
mod parts;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use redis::{
    Arg, Cmd, ConnectionInfo, ErrorKind, RedisError, ServerErrorKind, Value, cluster_routing::Slot,
};
use tokio::time::sleep;

use look::Look;
use nodes::{Node, Nodes};

/// How often a command is sent on before the cluster is said to be out of order. Each time it was refused, and not executed.
const MOST_HOPS: u32 = 16;

/// From one attempt to the next while the keys of a slot are on their way from one node to another.
const PAUSE: Duration = Duration::from_millis(5);

/// The primaries of a cluster, found through any node of it.
pub(super) struct Cluster {
    nodes: Mutex<Nodes>,
    look: Mutex<Option<Look>>,
}

impl Cluster {
    /// Does nothing until the first command. All nodes are spoken to as the first of these is: same user, same TLS.
    pub(super) fn new(seeds: &[ConnectionInfo]) -> Result<Self, RedisError> {
        Ok(Self {
            nodes: Mutex::new(Nodes::new(seeds)?),
            look: Mutex::default(),
        })
    }

    /// Sends one command to the primary of its first key, or on to where the cluster points.
    pub(super) async fn send(self: Arc<Self>, cmd: &Cmd) -> Result<Value, RedisError> {
        let slot = slot_of(cmd);
        let mut node = self.owner(slot).await?;
        let mut asking = false;
        for _ in 0..MOST_HOPS {
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
                ErrorKind::Server(ServerErrorKind::TryAgain) => {
                    sleep(PAUSE).await;
                    (self.owner(slot).await?, false)
                }
                _ if is_unread(&error) => match self.owner(slot).await? {
                    other if Arc::ptr_eq(&other, &node) => return Err(error),
                    other => (other, false),
                },
                _ => return Err(error),
            };
        }
        Err(io::Error::other("the nodes of the cluster point at each other").into())
    }

    /// The primary of a slot. Waits for a look at the topology only if none is known or the one that is may have failed.
    async fn owner(self: &Arc<Self>, slot: Slot) -> Result<Arc<Node>, RedisError> {
        let known = self.nodes().owner(slot);
        match known {
            Some(node) if !node.is_suspect() => Ok(node),
            _ => {
                let looked = self.look().await;
                let owner = self.nodes().owner(slot);
                owner.ok_or_else(|| looked.err().unwrap_or_else(unserved))
            }
        }
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slot of a call of the script, whose keys share it, or of a `DEL`.
fn slot_of(cmd: &Cmd) -> Slot {
    let mut args = cmd.args_iter();
    let key = match args.next() {
        Some(Arg::Simple(b"DEL")) => args.next(),
        _ => args.nth(2),
    };
    match key {
        Some(Arg::Simple(key)) => Slot::for_key(key),
        _ => Slot::for_key(""), // no key, so that any node will do
    }
}

/// Whether the command was certainly not executed, and another node may have taken over.
fn is_unread(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly};
    error.is_connection_refusal()
        || matches!(
            error.kind(),
            ErrorKind::Server(BusyLoading | ClusterDown | MasterDown | ReadOnly)
        )
}

fn unserved() -> RedisError {
    io::Error::other("no node serves this slot").into()
}
