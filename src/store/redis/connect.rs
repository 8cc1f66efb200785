//! The constructors of [`RedisStore`].

use std::{sync::Arc, time::Duration};

use redis::Client;
use tokio::time::{Instant, timeout_at};

#[cfg(feature = "cluster")]
use super::cluster::Cluster;
use super::connection::BAD_URL;
use super::connection::Sentinels;
use super::{
    RedisStore,
    connection::{ReconnectingConnection, RedisServer, Source, Target, within},
    error::store_error,
    transport::Transport,
};
use crate::domain::error::StoreError;

/// The timeout of the constructors that wait for a server.
pub(super) const GREETING_TIMEOUT: Duration = Duration::from_secs(1);

/// # Making one
///
/// A store over a URL, a `redis::Client`, sentinels or a pool uses one multiplexed connection [for each
/// runtime](super::deployment#connections), which all requests there share, and replaces the connection if it is lost.
/// The store notices a connection that has ended before it sends the next command. If a reply is owed and nothing has
/// come back for 500 ms, or for four times the usual reply time if that is longer (at most 5 s), the store drops the
/// connection. The timeouts of limiters do not matter. All callers of a runtime share an attempt to connect for 500 ms.
/// Then the next caller starts another beside it, and the store uses the first to succeed within 5 s. Attempts are at
/// least 25 ms apart. A command is sent only once, even after an error.
///
/// `TCP_NODELAY` is on, and keepalive after 30 s, so that firewalls and NATs do not forget an idle connection. If you
/// set a keepalive in the `TcpSettings` of a `ConnectionInfo`, the store uses yours.
impl RedisStore {
    /// Connects to the server of this URL (`redis://`, `rediss://`, `unix://`) or `ConnectionInfo`.
    ///
    /// The connection is kept for the runtime in which you call this; others connect when they first use the store. TLS
    /// needs one of the TLS features of the `redis` crate.
    ///
    /// # Errors
    ///
    /// If the URL is invalid or has a part that is not known, or if the server cannot be reached, refuses the user or
    /// cannot work, after one second at most. The [rights](super::deployment#the-least-rights) of the user are not tried: the first check does that. Use
    /// [`connect_lazy`](Self::connect_lazy) if your service must start without the server.
    pub async fn connect(server: impl Into<RedisServer>) -> Result<Self, StoreError> {
        greeted(Self::connect_lazy(server)?).await
    }

    /// Like [`connect`](Self::connect), but does not wait for the server: the first check connects.
    ///
    /// # Errors
    ///
    /// If the URL is invalid.
    pub fn connect_lazy(server: impl Into<RedisServer>) -> Result<Self, StoreError> {
        Ok(Self::from_source(server.into().target()?))
    }

    /// Connects to the primary of this name, by asking these sentinels for it: see
    /// [the deployment page](super::deployment#sentinel-and-replication).
    ///
    /// Put the sentinels' user and password into their URLs. Put the primary's into a URL that has the name in the
    /// place of the host, or into a `ConnectionInfo`. A port of the primary is ignored.
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), sluicegate::StoreError> {
    /// use sluicegate::RedisStore;
    ///
    /// let sentinels = ["redis://s1:26379", "redis://s2:26379", "redis://s3:26379"];
    /// let store = RedisStore::sentinel(sentinels, "mymaster").await?;
    /// let store = RedisStore::sentinel(sentinels, "redis://limiter:password@mymaster").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`connect`](Self::connect), and if there are no sentinels, or none of them knows the name.
    pub async fn sentinel(
        sentinels: impl IntoIterator<Item: Into<RedisServer>>,
        primary: impl Into<RedisServer>,
    ) -> Result<Self, StoreError> {
        greeted(Self::connect_lazy_sentinel(sentinels, primary)?).await
    }

    /// Like [`sentinel`](Self::sentinel), but does not wait for a server: the first check asks and connects.
    ///
    /// # Errors
    ///
    /// If there are no sentinels, or a URL is invalid.
    pub fn connect_lazy_sentinel(
        sentinels: impl IntoIterator<Item: Into<RedisServer>>,
        primary: impl Into<RedisServer>,
    ) -> Result<Self, StoreError> {
        let (sentinels, primary) = (targets(sentinels)?, primary.into().primary()?);
        let make = move || {
            let sentinels = Sentinels::new(&sentinels, &primary);
            Transport::Server(ReconnectingConnection::new(Arc::new(sentinels)))
        };
        Ok(Self::over(make))
    }

    pub(super) fn from_source(source: impl Source) -> Self {
        let source: Arc<dyn Source> = Arc::new(source);
        let make = move || Transport::Server(ReconnectingConnection::new(Arc::clone(&source)));
        Self::over(make)
    }

    /// Connects to a [cluster](super::deployment#cluster) through these nodes: URLs (`redis://`, `rediss://`) or
    /// `ConnectionInfo`s. The store needs one node that answers, and finds the others through it.
    ///
    /// The store uses the first node's user, password and TLS settings for all nodes.
    ///
    /// # Errors
    ///
    /// If a URL is invalid or there is none; if no node can be reached, or none of them belongs to a cluster, after one
    /// second at most. Use [`connect_lazy_cluster`](Self::connect_lazy_cluster) if your service must start without the
    /// cluster.
    #[cfg(feature = "cluster")]
    pub async fn cluster(
        nodes: impl IntoIterator<Item: Into<RedisServer>>,
    ) -> Result<Self, StoreError> {
        greeted(Self::connect_lazy_cluster(nodes)?).await
    }

    /// Like [`cluster`](Self::cluster), but does not wait for the nodes: the first check connects.
    ///
    /// # Errors
    ///
    /// If a URL is invalid, or there is none.
    #[cfg(feature = "cluster")]
    pub fn connect_lazy_cluster(
        nodes: impl IntoIterator<Item: Into<RedisServer>>,
    ) -> Result<Self, StoreError> {
        let nodes = targets(nodes)?;
        if nodes.iter().any(|node| node.host().is_empty()) {
            return Err(BAD_URL);
        }
        let make = move || Transport::Cluster(Arc::new(Cluster::new(&nodes)));
        Ok(Self::over(make))
    }
}

fn targets(servers: impl IntoIterator<Item: Into<RedisServer>>) -> Result<Vec<Target>, StoreError> {
    let servers = servers.into_iter().map(Into::into);
    let targets: Vec<_> = servers.map(RedisServer::target).collect::<Result<_, _>>()?;
    (!targets.is_empty()).then_some(targets).ok_or(BAD_URL)
}

async fn greeted(store: RedisStore) -> Result<RedisStore, StoreError> {
    let end = Instant::now() + GREETING_TIMEOUT;
    let greeting = within(GREETING_TIMEOUT, store.transports.ping()).await;
    greeting.map_err(|error| store_error(&error))?;
    let _ = timeout_at(end, store.look_for_evictions(false)).await; // no caller has the store yet
    Ok(store)
}

/// Connects at the first check, with `TCP_NODELAY` on and the client's other settings as they are.
///
/// The library's name is sent only if you have set one in the client, because a proxy that does not know the command
/// closes the connection.
impl From<Client> for RedisStore {
    fn from(own: Client) -> Self {
        Self::from_source(Target::from(own.get_connection_info().clone()))
    }
}

/// Connects at the first check, with the pool's settings. The connections in the pool stay free for other users.
///
/// The store uses one connection for each runtime in addition to the pool's size. bb8-redis allows an attempt to connect one second.
///
/// The pool's `ConnectionInfo` sets the TCP options. Turn `TCP_NODELAY` and keepalive on there:
///
/// ```
/// use std::time::Duration;
///
/// use redis::{IntoConnectionInfo, io::tcp::{TcpSettings, socket2::TcpKeepalive}};
///
/// let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(30));
/// let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
/// let server = "redis://127.0.0.1/".into_connection_info()?.set_tcp_settings(tcp);
/// let manager = bb8_redis::RedisConnectionManager::new(server)?;
/// # let _ = manager;
/// # Ok::<(), redis::RedisError>(())
/// ```
#[cfg(feature = "bb8")]
impl From<bb8::Pool<bb8_redis::RedisConnectionManager>> for RedisStore {
    fn from(pool: bb8::Pool<bb8_redis::RedisConnectionManager>) -> Self {
        Self::from_source(pool)
    }
}
