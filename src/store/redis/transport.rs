//! [`Transport`]: the way to the server, or to the nodes of a cluster.

use std::{fmt, sync::Arc, time::Duration};

use redis::{Cmd, RedisError, RedisResult, Value};
#[cfg(feature = "manual-clock")]
use redis::{RedisFuture, aio::ConnectionLike};

#[cfg(feature = "cluster")]
use super::cluster::Cluster;
#[cfg(any(feature = "cluster", feature = "manual-clock"))]
use super::connection::LOST_AFTER;
use super::connection::{ReconnectingConnection, Reply, SingleServer};

/// The way to the server or servers; cheap to clone.
#[derive(Clone)]
pub(super) enum Transport {
    Server(Arc<ReconnectingConnection>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Cluster>),
    /// A connection of a test.
    #[cfg(feature = "manual-clock")]
    OfTest(Arc<dyn TestConnection>),
}

impl Transport {
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
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => true,
            _ => false,
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
        match self {
            Self::Server(connection) => connection.lost_after(),
            #[cfg(any(feature = "cluster", feature = "manual-clock"))]
            _ => LOST_AFTER,
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
        match self {
            Self::Server(connection) => connection.try_send(cmd).await,
            // Boxed, so that this branch does not set the size of the whole future.
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => Box::pin(cluster.try_send(cmd, routing_key)).await,
            #[cfg(feature = "manual-clock")]
            Self::OfTest(connection) => {
                Ok(connection.send(cmd).await.and_then(Value::extract_error))
            }
        }
    }

    /// The same with one kind of error.
    pub(super) async fn send(&self, cmd: &Cmd, routing_key: &[u8]) -> RedisResult<Value> {
        self.try_send(cmd, routing_key).await?
    }

    /// Replaces the connection to the server of this key before the next command, at most four times a second.
    #[cfg_attr(
        not(feature = "cluster"),
        expect(unused_variables, reason = "there is one server")
    )]
    pub(super) fn replace(&self, routing_key: &[u8]) {
        match self {
            Self::Server(connection) => connection.mark_stale(),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.mark_stale(routing_key),
            #[cfg(feature = "manual-clock")]
            Self::OfTest(_) => {}
        }
    }

    /// The server, or each primary of a cluster.
    pub(super) async fn servers(&self) -> RedisResult<Vec<SingleServer>> {
        match self {
            Self::Server(connection) => Ok(vec![SingleServer {
                connection: Arc::clone(connection),
                address: None,
            }]),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                let primaries = cluster.primaries().await?.into_iter();
                Ok(primaries.map(|node| node.server()).collect())
            }
            #[cfg(feature = "manual-clock")]
            Self::OfTest(_) => Ok(Vec::new()),
        }
    }
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

/// A connection of a test, with its type erased.
#[cfg(feature = "manual-clock")]
pub(super) trait TestConnection: Send + Sync {
    fn send<'a>(&self, cmd: &'a Cmd) -> RedisFuture<'a, Value>;
}

#[cfg(feature = "manual-clock")]
impl<C: ConnectionLike + Clone + Send + Sync + 'static> TestConnection for C {
    fn send<'a>(&self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_command(cmd).await })
    }
}
