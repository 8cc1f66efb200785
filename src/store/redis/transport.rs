//! [`Transport`]: where commands go.

use std::{any::Any, fmt, sync::Arc, time::Duration};

use redis::{
    Cmd, RedisError, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, ConnectionManager, MultiplexedConnection},
};

#[cfg(feature = "cluster")]
use super::cluster::Cluster;
use super::connection::{LOST_AFTER, ReconnectingConnection};

/// Where commands go; cheap to clone.
#[derive(Clone)]
pub(super) struct Transport {
    route: Route,
}

#[derive(Clone)]
pub(super) enum Route {
    Server(Arc<ReconnectingConnection>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Cluster>),
    /// A user's own.
    Custom {
        connection: Arc<dyn CustomConnection>,
        is_cluster: bool,
    },
}

impl Transport {
    pub(super) const fn new(route: Route) -> Self {
        Self { route }
    }

    /// Over a connection that reconnects by itself, or not at all.
    pub(super) fn custom(connection: impl ConnectionLike + Clone + Send + Sync + 'static) -> Self {
        let route = Route::Custom {
            is_cluster: is_cluster(&connection),
            connection: Arc::new(connection),
        };
        Self::new(route)
    }

    /// Makes sure that a server is there that lets us in, or a node of a cluster.
    pub(super) async fn greet(&self) -> RedisResult<()> {
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

    /// Whether the node of this slot is known not to answer.
    #[cfg(feature = "cluster")]
    pub(super) fn is_unresponsive(&self, slot: redis::cluster_routing::Slot) -> bool {
        match &self.route {
            Route::Cluster(cluster) => cluster.is_unresponsive(slot),
            Route::Server(_) | Route::Custom { .. } => false,
        }
    }

    /// `HOST:PORT` of the node of a cluster that this key is sent to.
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

    /// How long a connection may owe a reply before it is given up.
    pub(super) fn patience(&self) -> Duration {
        match &self.route {
            Route::Server(connection) => connection.lost_after(),
            #[cfg(feature = "cluster")]
            Route::Cluster(_) => LOST_AFTER,
            Route::Custom { .. } => LOST_AFTER,
        }
    }

    /// Sends one command, once, to the server of this key, and waits for its reply; an error reply is an error.
    ///
    /// Not bounded in time while a server keeps its connection open and says nothing.
    ///
    /// Cancellation: what was sent is executed, and its reply dropped.
    #[cfg_attr(
        not(feature = "cluster"),
        expect(unused_variables, reason = "there is one server")
    )]
    pub(super) async fn send(&self, cmd: &Cmd, routing_key: &[u8]) -> RedisResult<Value> {
        match &self.route {
            Route::Server(connection) => connection.send(cmd).await,
            // In a box of its own: the largest variant would be the size of all.
            #[cfg(feature = "cluster")]
            Route::Cluster(cluster) => Box::pin(cluster.send(cmd, routing_key)).await,
            Route::Custom { connection, .. } => {
                connection.send(cmd).await.and_then(Value::extract_error)
            }
        }
    }
}

/// One server of those that a [`Transport`] leads to.
#[derive(Clone)]
pub(super) enum SingleServer {
    Server(Arc<ReconnectingConnection>),
    #[cfg(feature = "cluster")]
    Node(Arc<super::cluster::Node>),
    /// A user's own.
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

    /// Sends one command, once. Not bounded in time, like [`Transport::send`].
    pub(super) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Server(connection) => connection.send(cmd).await,
            #[cfg(feature = "cluster")]
            Self::Node(node) => node.send(cmd, false).await,
            Self::Custom(connection) => connection.send(cmd).await.and_then(Value::extract_error),
        }
    }

    /// Sends these commands together. An error reply is one among the replies.
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

/// Whether a connection is of a type of redis-rs. Another may lead to a cluster, so that keys of several identities are
/// not to be sent in one call over it.
pub(super) fn is_known(connection: &dyn Any) -> bool {
    connection.is::<ConnectionManager>()
        || connection.is::<MultiplexedConnection>()
        || is_cluster(connection)
}

/// A user who may not PING has been let in. Not any other missing right: behind sentinels a ROLE comes first.
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

/// A user's own connection, its type forgotten.
pub(super) trait CustomConnection: Send + Sync {
    fn send<'a>(&self, cmd: &'a Cmd) -> RedisFuture<'a, Value>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> CustomConnection for C {
    fn send<'a>(&self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_command(cmd).await })
    }
}
