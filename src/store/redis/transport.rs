//! [`Transport`]: the way to the server, or to the nodes of a cluster.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use redis::{
    Cmd, RedisError, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, ConnectionManager, MultiplexedConnection},
};

#[cfg(feature = "cluster")]
use super::cluster::Cluster;
use super::connection::{LOST_AFTER, ReconnectingConnection, Reply};

/// The way to the server or servers; cheap to clone.
#[derive(Clone)]
pub(super) enum Transport {
    Server(SingleServer),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Cluster>),
    /// The user's own connection to a cluster.
    #[cfg(feature = "cluster")]
    CustomCluster(Arc<dyn CustomConnection>),
}

/// One server, or one of the nodes of a cluster.
#[derive(Clone)]
pub(super) enum SingleServer {
    Reconnecting(Arc<ReconnectingConnection>),
    #[cfg(feature = "cluster")]
    Node(Arc<super::cluster::Node>),
    /// The user's own connection. The store does not reconnect it.
    Custom(Arc<dyn CustomConnection>),
}

impl Transport {
    /// Uses a connection that you made.
    pub(super) fn custom(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        #[cfg(feature = "cluster")]
        if is_cluster(&connection) {
            return Self::CustomCluster(Arc::new(connection));
        }
        Self::Server(SingleServer::Custom(Arc::new(connection)))
    }

    /// Makes sure that the server, or a node of the cluster, answers and accepts the credentials.
    pub(super) async fn ping(&self) -> RedisResult<()> {
        #[cfg(feature = "cluster")]
        if let Self::Cluster(cluster) = self {
            return cluster.refresh().await;
        }
        match self.send(&redis::cmd("PING"), b"").await {
            Err(error) if may_not_ping(&error) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Whether the keys of one call have to share a slot.
    pub(super) const fn is_cluster(&self) -> bool {
        match self {
            Self::Server(_) => false,
            #[cfg(feature = "cluster")]
            Self::Cluster(_) | Self::CustomCluster(_) => true,
        }
    }

    /// `HOST:PORT` of the node of a cluster that serves this key.
    #[cfg_attr(
        not(feature = "cluster"),
        expect(unused_variables, clippy::unused_self, reason = "there is one server")
    )]
    pub(super) fn node_address(&self, routing_key: &[u8]) -> Option<String> {
        #[cfg(feature = "cluster")]
        if let Self::Cluster(cluster) = self {
            return cluster.address_of(redis::cluster_routing::Slot::for_key(routing_key));
        }
        None
    }

    /// How long to wait for a reply before dropping the connection, so that later callers get a new one.
    pub(super) fn give_up_after(&self) -> Duration {
        if let Self::Server(SingleServer::Reconnecting(connection)) = self {
            return connection.lost_after();
        }
        LOST_AFTER
    }

    /// Sends one command, once, to the server of this key, and waits for the reply. An error reply is an error.
    /// The outer error says that there was no connection, so that nothing was sent.
    ///
    /// There is no time limit while a server keeps its connection open and sends nothing.
    ///
    /// Cancellation: the server executes a command that was sent, and the reply is dropped.
    #[cfg_attr(
        not(feature = "cluster"),
        expect(unused_variables, reason = "there is one server")
    )]
    pub(super) async fn try_send(&self, cmd: &Cmd, routing_key: &[u8]) -> Reply {
        match self {
            Self::Server(server) => server.try_send(cmd).await,
            // Boxed, so that this branch does not set the size of the whole future.
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => Box::pin(cluster.try_send(cmd, routing_key)).await,
            #[cfg(feature = "cluster")]
            Self::CustomCluster(connection) => send_over(&**connection, cmd).await,
        }
    }

    /// The same with one kind of error.
    pub(super) async fn send(&self, cmd: &Cmd, routing_key: &[u8]) -> RedisResult<Value> {
        self.try_send(cmd, routing_key).await?
    }

    /// The server, or each primary of a cluster.
    pub(super) async fn servers(&self) -> RedisResult<Vec<SingleServer>> {
        match self {
            Self::Server(server) => Ok(vec![server.clone()]),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                let primaries = cluster.primaries().await?.into_iter();
                Ok(primaries.map(SingleServer::Node).collect())
            }
            #[cfg(feature = "cluster")]
            Self::CustomCluster(_) => {
                let problem = "the nodes of a cluster cannot be told apart over this connection";
                Err((redis::ErrorKind::InvalidClientConfig, problem).into())
            }
        }
    }
}

impl SingleServer {
    /// `HOST:PORT` of a node of a cluster.
    pub(super) fn node_address(&self) -> Option<String> {
        match self {
            #[cfg(feature = "cluster")]
            Self::Node(node) => Some(node.address().to_string()),
            Self::Reconnecting(_) | Self::Custom(_) => None,
        }
    }

    /// Sends one command, once. The outer error and the time limit are as in [`Transport::try_send`].
    async fn try_send(&self, cmd: &Cmd) -> Reply {
        match self {
            Self::Reconnecting(connection) => connection.try_send(cmd).await,
            #[cfg(feature = "cluster")]
            Self::Node(node) => node.try_send(cmd, false).await,
            Self::Custom(connection) => send_over(&**connection, cmd).await,
        }
    }

    /// The same with one kind of error.
    pub(super) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        self.try_send(cmd).await?
    }

    /// Sends these commands together. An error reply takes its place among the replies.
    pub(super) async fn send_all(
        &self,
        cmds: &redis::Pipeline,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        match self {
            Self::Reconnecting(connection) => connection.send_all(cmds).await,
            #[cfg(feature = "cluster")]
            Self::Node(node) => node.send_all(cmds).await,
            Self::Custom(connection) => {
                let mut replies = Vec::with_capacity(cmds.len());
                for cmd in cmds.cmd_iter() {
                    match send_over(&**connection, cmd).await? {
                        Err(error) if error.code().is_none() => return Err(error),
                        reply => replies.push(reply),
                    }
                }
                Ok(replies)
            }
        }
    }
}

impl fmt::Debug for SingleServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SingleServer")
    }
}

async fn send_over(connection: &dyn CustomConnection, cmd: &Cmd) -> Reply {
    Ok(connection.send(cmd).await.and_then(Value::extract_error))
}

#[cfg(feature = "cluster")]
fn is_cluster(connection: &dyn Any) -> bool {
    connection.is::<redis::cluster_async::ClusterConnection>()
}

/// Whether redis-rs defines the type of a connection. A connection of another type may lead to a cluster, so one call
/// must not carry keys of several identities.
pub(super) fn is_known(connection: &dyn Any) -> bool {
    #[cfg(feature = "cluster")]
    if is_cluster(connection) {
        return true;
    }
    connection.is::<ConnectionManager>() || connection.is::<MultiplexedConnection>()
}

/// A user without the right to PING has been let in. This holds for no other missing right: sentinels send a ROLE
/// first.
fn may_not_ping(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    error.code() == Some("NOPERM") && detail.contains("'ping'")
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transport")
    }
}

/// A user's own connection, with its type erased.
pub(super) trait CustomConnection: Send + Sync {
    fn send<'a>(&self, cmd: &'a Cmd) -> RedisFuture<'a, Value>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> CustomConnection for C {
    fn send<'a>(&self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_command(cmd).await })
    }
}
