//! [`Link`]: where commands go.

use std::{fmt, sync::Arc};

use redis::{
    Cmd, RedisError, RedisFuture, Value,
    aio::{ConnectionLike, ConnectionManager},
};

use super::{
    keeper::Keeper,
    pulse::{Pulse, is_open},
};

#[cfg(feature = "cluster")]
use super::cluster::Cluster;
#[cfg(feature = "bb8")]
use super::pool::Pool;

/// Where commands go; cheap to clone.
#[derive(Clone)]
pub(super) enum Link {
    Own(Arc<Keeper>),
    Manager(ConnectionManager, Arc<Pulse>),
    #[cfg(feature = "bb8")]
    Pool(Arc<Pool>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Cluster>),
    /// A cluster connection that goes its own ways.
    #[cfg(feature = "cluster")]
    OtherCluster(Arc<dyn Connection>),
    Other(Arc<dyn Connection>),
}

impl Link {
    /// Over a connection that heals by itself, or not at all.
    pub(super) fn other(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        Self::Other(Arc::new(connection))
    }

    pub(super) fn manager(manager: ConnectionManager) -> Self {
        Self::Manager(manager, Arc::new(Pulse::new()))
    }

    /// Whether the keys of one call have to share a slot.
    pub(super) const fn is_cluster(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) | Self::OtherCluster(_) => true,
            Self::Own(_) | Self::Manager(..) | Self::Other(_) => false,
            #[cfg(feature = "bb8")]
            Self::Pool(_) => false,
        }
    }

    /// Sends one command, once, and waits for its reply; an error reply is an error.
    ///
    /// Not bounded in time while a server keeps its connection open and says nothing.
    ///
    /// Cancellation: what was sent is executed, and its reply dropped.
    pub(super) async fn send(&self, cmd: &Cmd) -> Result<Value, RedisError> {
        // Boxed where it is large: the largest would be the size of all.
        match self.clone() {
            Self::Own(keeper) => keeper.send(cmd).await,
            Self::Manager(manager, pulse) => Box::pin(send_managed(manager, &pulse, cmd)).await,
            #[cfg(feature = "bb8")]
            Self::Pool(pool) => Box::pin(pool.send(cmd)).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => Box::pin(cluster.send(cmd)).await,
            #[cfg(feature = "cluster")]
            Self::OtherCluster(it) => it.send(cmd).await.and_then(Value::extract_error),
            Self::Other(connection) => connection.send(cmd).await.and_then(Value::extract_error),
        }
    }
}

async fn send_managed(
    mut manager: ConnectionManager,
    pulse: &Pulse,
    cmd: &Cmd,
) -> Result<Value, RedisError> {
    // A manager learns that its connection has ended from a command that fails, so let that be one of no account.
    let _ = pulse.is_fresh() || is_open(&mut manager).await;
    pulse.asks();
    let mut reply = manager.send_packed_command(cmd).await;
    if reply.as_ref().is_err_and(RedisError::is_connection_refusal) {
        // An attempt to connect that may be older than this call: nothing was sent, and the next attempt has begun.
        reply = manager.send_packed_command(cmd).await;
    }
    pulse.heard(reply)
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own(_) => "Link::Own",
            Self::Manager(..) => "Link::Manager",
            #[cfg(feature = "bb8")]
            Self::Pool(_) => "Link::Pool",
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => "Link::Cluster",
            #[cfg(feature = "cluster")]
            Self::OtherCluster(_) => "Link::OtherCluster",
            Self::Other(_) => "Link::Other",
        })
    }
}

/// A user's own connection, its type forgotten.
pub(super) trait Connection: Send + Sync {
    fn send<'a>(&self, cmd: &'a Cmd) -> RedisFuture<'a, Value>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connection for C {
    fn send<'a>(&self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_command(cmd).await })
    }
}
