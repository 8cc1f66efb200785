//! [`Transport`]: the way to the server, or to the nodes of a cluster. Each runtime has its own.
#![cfg_attr(
    not(feature = "cluster"),
    expect(unused_variables, reason = "there is one server")
)]

use std::{io, sync::Arc};

use redis::{Cmd, RedisError, RedisResult, Value};

#[cfg(feature = "cluster")]
use super::cluster::{Cluster, Node};
use super::{
    by_runtime::ByRuntime,
    connection::{Connection, ReconnectingConnection, Reply, SingleServer},
    error::store_error,
};
use crate::domain::error::StoreError;

/// The transport of each runtime. The clones of a store share them, whatever their other settings.
pub(super) struct Transports {
    make: Box<dyn Fn() -> Transport + Send + Sync>,
    is_cluster: bool,
    runtimes: ByRuntime<Transport>,
}

impl Transports {
    /// `make` returns a transport without connections.
    pub(super) fn new(make: impl Fn() -> Transport + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            is_cluster: !matches!(make(), Transport::Server(_)),
            make: Box::new(make),
            runtimes: ByRuntime::new(),
        })
    }

    /// The transport of the current runtime.
    pub(super) fn here(&self) -> RedisResult<Transport> {
        let here = self.runtimes.here(|_| (self.make)());
        here.ok_or_else(|| io::Error::other("called outside of a tokio runtime").into())
    }

    /// The same within a runtime.
    pub(super) fn inside(&self) -> Transport {
        self.here().unwrap_or_else(|_| (self.make)())
    }

    /// Whether the keys of one call have to share a hash slot.
    pub(super) const fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    /// Makes sure that the server, or a primary of the cluster, answers and accepts the credentials.
    pub(super) async fn ping(&self) -> RedisResult<()> {
        self.here()?.ping().await
    }

    /// `HOST:PORT` of the node of a cluster that serves this key.
    pub(super) fn node_address(&self, routing_key: &[u8]) -> Option<String> {
        match self.here().ok()? {
            Transport::Server(_) => None,
            #[cfg(feature = "cluster")]
            Transport::Cluster(cluster) => cluster.address_of(routing_key),
        }
    }

    /// Sends one command, once, to the server of this key, and waits for the reply.
    pub(super) async fn send(&self, cmd: &Cmd, routing_key: &[u8]) -> RedisResult<Value> {
        let route = self.here()?.reach(routing_key).await?;
        route.send(cmd, routing_key).await?
    }

    /// The server, or each primary of a cluster.
    pub(super) async fn servers(&self) -> RedisResult<Vec<SingleServer>> {
        self.here()?.servers().await
    }
}

/// The way to the server or servers; cheap to clone.
#[derive(Clone)]
pub(super) enum Transport {
    Server(Arc<ReconnectingConnection>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Cluster>),
}

impl Transport {
    async fn ping(&self) -> RedisResult<()> {
        #[cfg(feature = "cluster")]
        if let Self::Cluster(cluster) = self {
            return cluster.reach_any().await;
        }
        let reply = self.reach(b"").await?.send(&redis::cmd("PING"), b"").await;
        match reply.and_then(|reply| reply) {
            Err(error) if may_not_ping(&error) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Waits for a connection to the server of this key.
    pub(super) async fn reach(&self, routing_key: &[u8]) -> RedisResult<Route> {
        match self {
            Self::Server(server) => Ok(Route::Server(Arc::clone(server), server.usable().await?)),
            // Boxed, so that this branch does not set the size of the whole future.
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                let (node, connection) = Box::pin(cluster.reach(routing_key)).await?;
                Ok(Route::Cluster(Arc::clone(cluster), node, connection))
            }
        }
    }

    async fn servers(&self) -> RedisResult<Vec<SingleServer>> {
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
        }
    }
}

/// A connection to the server of a key.
pub(super) enum Route {
    Server(Arc<ReconnectingConnection>, Arc<Connection>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<Cluster>, Arc<Node>, Arc<Connection>),
}

impl Route {
    /// Sends one command, once, and waits for the reply. An error reply is an error. The outer error says that there was no
    /// connection, so that nothing was sent.
    ///
    /// There is no time limit while a server keeps its connection open and sends nothing.
    ///
    /// Cancellation: the server executes a command that was sent, and the reply is dropped.
    pub(super) async fn send(&self, cmd: &Cmd, routing_key: &[u8]) -> Reply {
        match self {
            Self::Server(_, connection) => Ok(connection.send(cmd).await),
            // Boxed, so that this branch does not set the size of the whole future.
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster, node, connection) => {
                Box::pin(cluster.send(cmd, routing_key, node, connection)).await
            }
        }
    }

    /// Takes another connection before the next command, unless one was replaced just now.
    pub(super) fn replace(&self) {
        match self {
            Self::Server(server, connection) => server.replace_refusing(connection),
            #[cfg(feature = "cluster")]
            Self::Cluster(_, node, connection) => node.connection.replace_refusing(connection),
        }
    }
}

/// The error of a caller that waits for a connection.
pub(super) fn unreached(error: &RedisError) -> StoreError {
    store_error(error).unsent()
}

/// A user without the right to PING has been let in. This holds for no other missing right: sentinels send a ROLE
/// first.
fn may_not_ping(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    error.code() == Some("NOPERM") && detail.contains("'ping'")
}
