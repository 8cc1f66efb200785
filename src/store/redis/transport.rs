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
pub(super) struct Transport {
    route: Route,
}

#[derive(Clone)]
pub(super) enum Route {
    Server(Arc<ReconnectingConnection>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Cluster>),
    /// The user's own connection.
    Custom {
        connection: Arc<dyn CustomConnection>,
        is_cluster: bool,
    },
}

impl Transport {
    pub(super) const fn new(route: Route) -> Self {
        Self { route }
    }

    /// Uses a connection that you made. The store does not reconnect it.
    pub(super) fn custom(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        let route = Route::Custom {
            is_cluster: is_cluster(&connection),
            connection: Arc::new(connection),
        };
        Self::new(route)
    }

    /// Makes sure that the server, or a node of the cluster, answers and accepts the credentials.
    pub(super) async fn ping(&self) -> RedisResult<()> {
        #[cfg(feature = "cluster")]
        if let Route::Cluster(cluster) = &self.route {
            return cluster.refresh().await;
        }
        match self.send(&redis::cmd("PING"), b"").await {
            Err(error) if may_not_ping(&error) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Whether the keys of one call have to share a slot.
    pub(super) const fn is_cluster(&self) -> bool {
        match self.route {
            Route::Server(_) => false,
            #[cfg(feature = "cluster")]
            Route::Cluster(_) => true,
            Route::Custom { is_cluster, .. } => is_cluster,
        }
    }

    /// Whether the node of this slot owes answers for too long.
    #[cfg(feature = "cluster")]
    pub(super) fn is_unresponsive(&self, slot: redis::cluster_routing::Slot) -> bool {
        match &self.route {
            Route::Cluster(cluster) => cluster.is_unresponsive(slot),
            Route::Server(_) | Route::Custom { .. } => false,
        }
    }

    /// `HOST:PORT` of the node of a cluster that serves this key.
    #[cfg_attr(
        not(feature = "cluster"),
        expect(unused_variables, reason = "there is one server")
    )]
    pub(super) fn node_address(&self, routing_key: &[u8]) -> Option<String> {
        match &self.route {
            #[cfg(feature = "cluster")]
            Route::Cluster(cluster) => {
                cluster.address_of(redis::cluster_routing::Slot::for_key(routing_key))
            }
            Route::Server(_) | Route::Custom { .. } => None,
        }
    }

    /// How long to wait for a reply before dropping the connection, so that later callers get a new one.
    pub(super) fn give_up_after(&self) -> Duration {
        match &self.route {
            Route::Server(connection) => connection.lost_after(),
            #[cfg(feature = "cluster")]
            Route::Cluster(_) => LOST_AFTER,
            Route::Custom { .. } => LOST_AFTER,
        }
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
        match &self.route {
            Route::Server(connection) => connection.try_send(cmd).await,
            // Boxed, so that this branch does not set the size of the whole future.
            #[cfg(feature = "cluster")]
            Route::Cluster(cluster) => Box::pin(cluster.try_send(cmd, routing_key)).await,
            Route::Custom { connection, .. } => {
                Ok(connection.send(cmd).await.and_then(Value::extract_error))
            }
        }
    }

    /// The same with one kind of error.
    pub(super) async fn send(&self, cmd: &Cmd, routing_key: &[u8]) -> RedisResult<Value> {
        self.try_send(cmd, routing_key).await?
    }
}

/// One of the servers behind a [`Transport`].
#[derive(Clone)]
pub(super) enum SingleServer {
    Server(Arc<ReconnectingConnection>),
    #[cfg(feature = "cluster")]
    Node(Arc<super::cluster::Node>),
    /// The user's own connection.
    Custom(Arc<dyn CustomConnection>),
}

impl Transport {
    /// The server, or each primary of a cluster.
    pub(super) async fn servers(&self) -> RedisResult<Vec<SingleServer>> {
        Ok(match &self.route {
            Route::Server(connection) => vec![SingleServer::Server(Arc::clone(connection))],
            #[cfg(feature = "cluster")]
            Route::Cluster(cluster) => {
                let primaries = cluster.primaries().await?.into_iter();
                primaries.map(SingleServer::Node).collect()
            }
            Route::Custom {
                is_cluster: true, ..
            } => {
                let problem = "the nodes of a cluster cannot be told apart over this connection";
                return Err((redis::ErrorKind::InvalidClientConfig, problem).into());
            }
            Route::Custom { connection, .. } => vec![SingleServer::Custom(Arc::clone(connection))],
        })
    }
}

impl SingleServer {
    /// `HOST:PORT` of a node of a cluster.
    pub(super) fn node_address(&self) -> Option<String> {
        match self {
            #[cfg(feature = "cluster")]
            Self::Node(node) => Some(node.address().to_string()),
            Self::Server(_) | Self::Custom(_) => None,
        }
    }

    /// Sends one command, once. There is no time limit, as in [`Transport::send`].
    pub(super) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Server(connection) => connection.send(cmd).await,
            #[cfg(feature = "cluster")]
            Self::Node(node) => node.send(cmd).await,
            Self::Custom(connection) => connection.send(cmd).await.and_then(Value::extract_error),
        }
    }

    /// Sends these commands together. An error reply takes its place among the replies.
    pub(super) async fn send_all(
        &self,
        cmds: &redis::Pipeline,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        match self {
            Self::Server(connection) => connection.send_all(cmds).await,
            #[cfg(feature = "cluster")]
            Self::Node(node) => node.send_all(cmds).await,
            Self::Custom(connection) => {
                let mut replies = Vec::with_capacity(cmds.len());
                for cmd in cmds.cmd_iter() {
                    let reply = connection.send(cmd).await;
                    match reply.and_then(Value::extract_error) {
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

fn is_cluster(_connection: &dyn Any) -> bool {
    #[cfg(feature = "cluster")]
    return _connection.is::<redis::cluster_async::ClusterConnection>();
    #[cfg(not(feature = "cluster"))]
    false
}

/// Whether redis-rs defines the type of a connection. A connection of another type may lead to a cluster, so one call
/// must not carry keys of several identities.
pub(super) fn is_known(connection: &dyn Any) -> bool {
    connection.is::<ConnectionManager>()
        || connection.is::<MultiplexedConnection>()
        || is_cluster(connection)
}

/// A user without the right to PING has been let in. This holds for no other missing right: sentinels send a ROLE
/// first.
fn may_not_ping(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    error.code() == Some("NOPERM") && detail.contains("'ping'")
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.route {
            Route::Server(_) => "Transport::Server",
            #[cfg(feature = "cluster")]
            Route::Cluster(_) => "Transport::Cluster",
            Route::Custom { .. } => "Transport::Custom",
        })
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
