//! The ways to make a [`RedisStore`].

#[cfg(feature = "cluster")]
use std::sync::Arc;
use std::time::Duration;

use redis::{Client, IntoConnectionInfo, aio::ConnectionLike};

#[cfg(feature = "cluster")]
use super::cluster::Cluster;
#[cfg(feature = "sentinel")]
use super::connection::{SentinelPrimary, Sentinels};
use super::{
    IN_FLIGHT, RedisStore,
    connection::{ReconnectingConnection, Source, client, within},
    error::store_error,
    transport::{Route, Transport, is_known},
};
use crate::domain::error::{StoreError, StoreErrorKind};

const BAD_URL: StoreError = StoreError::new(
    StoreErrorKind::AccessDenied,
    "the Redis URL is invalid, or needs a feature of the redis crate that is off",
);

/// How long the constructors that wait for a server wait.
const GREETING_TIMEOUT: Duration = Duration::from_secs(1);

/// # Making one
///
/// A store over a URL, a `redis::Client`, sentinels or a pool keeps one multiplexed connection, which all requests
/// share, and replaces it by itself. A connection that has ended is noticed before the next command is sent. One over
/// which nothing has come back for 500 ms although a reply is owed is given up; where replies take long, for as long as
/// four of them. The timeouts of limiters do not matter. All callers share an attempt to connect for 500 ms; then the
/// next caller starts another beside it, and the first to succeed, within 5 s, is used. Attempts are at least 5 ms
/// apart. A command is sent once, whatever happens to it.
///
/// `TCP_NODELAY` is on, and keepalive after 30 s, so that firewalls and NATs do not forget an idle connection; a
/// keepalive of your own in the `TcpSettings` of a `ConnectionInfo` is kept.
impl RedisStore {
    /// Connects to the server of this URL (`redis://`, `rediss://`, `unix://`) or `ConnectionInfo`.
    ///
    /// TLS needs one of the TLS features of the `redis` crate.
    ///
    /// # Errors
    ///
    /// When the URL is invalid, or when the server cannot be reached, refuses the user or cannot work, after one second
    /// at most. The [rights](super::deployment#the-least-rights) of the user are not tried: the first check finds out.
    /// Use [`connect_lazy`](Self::connect_lazy) where the service must start without it.
    pub async fn connect(server: impl IntoConnectionInfo) -> Result<Self, StoreError> {
        greeted(Self::connect_lazy(server)?).await
    }

    /// Like [`connect`](Self::connect), but does not wait for the server: the first check connects.
    ///
    /// # Errors
    ///
    /// When the URL is invalid.
    pub fn connect_lazy(server: impl IntoConnectionInfo) -> Result<Self, StoreError> {
        let client = client(server).map_err(|_| BAD_URL)?;
        Ok(Self::from_source(client))
    }

    /// Connects to the primary of this name, by asking these sentinels for it: see
    /// [the deployment page](super::deployment#sentinel-and-replication).
    ///
    /// The sentinels' own user and password stand in their URLs; the primary's stand in a URL that has the name in the
    /// place of the host.
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
    /// Like [`connect`](Self::connect); and when there are no sentinels, or none of them knows the name.
    #[cfg(feature = "sentinel")]
    pub async fn sentinel(
        sentinels: impl IntoIterator<Item: IntoConnectionInfo>,
        primary: impl Into<SentinelPrimary>,
    ) -> Result<Self, StoreError> {
        greeted(Self::connect_lazy_sentinel(sentinels, primary)?).await
    }

    /// Like [`sentinel`](Self::sentinel), but does not wait for anybody: the first check asks and connects.
    ///
    /// # Errors
    ///
    /// When there are no sentinels, or a URL is invalid.
    #[cfg(feature = "sentinel")]
    pub fn connect_lazy_sentinel(
        sentinels: impl IntoIterator<Item: IntoConnectionInfo>,
        primary: impl Into<SentinelPrimary>,
    ) -> Result<Self, StoreError> {
        let sentinels = clients(sentinels)?.into_iter();
        let sentinels = sentinels.map(ReconnectingConnection::new);
        let sentinels = Sentinels::new(sentinels.collect(), primary.into());
        Ok(Self::from_source(sentinels.map_err(|_| BAD_URL)?))
    }

    fn from_source(source: impl Source) -> Self {
        let connection = ReconnectingConnection::new(source);
        Self::over(Transport::new(Route::Server(connection)), IN_FLIGHT)
    }

    /// Connects to the [cluster](super::deployment#cluster) that these servers are nodes of: URLs (`redis://`,
    /// `rediss://`) or `ConnectionInfo`s. One that answers is enough; the others are found through it.
    ///
    /// All nodes are connected to as the first one is: with its user, password and TLS settings.
    ///
    /// # Errors
    ///
    /// When a URL is invalid or there is none; when no node can be reached, or none of them is of a cluster, after one
    /// second at most. Use [`connect_lazy_cluster`](Self::connect_lazy_cluster) where the service must start without
    /// it.
    #[cfg(feature = "cluster")]
    pub async fn cluster(
        nodes: impl IntoIterator<Item: IntoConnectionInfo>,
    ) -> Result<Self, StoreError> {
        greeted(Self::connect_lazy_cluster(nodes)?).await
    }

    /// Like [`cluster`](Self::cluster), but does not wait for the nodes: the first check connects.
    ///
    /// # Errors
    ///
    /// When a URL is invalid, or there is none.
    #[cfg(feature = "cluster")]
    pub fn connect_lazy_cluster(
        nodes: impl IntoIterator<Item: IntoConnectionInfo>,
    ) -> Result<Self, StoreError> {
        let cluster = Cluster::new(&clients(nodes)?).map_err(|_| BAD_URL)?;
        let route = Route::Cluster(Arc::new(cluster));
        Ok(Self::over(Transport::new(route), IN_FLIGHT))
    }

    /// Uses a connection that reconnects by itself, such as a `redis::aio::ConnectionManager`.
    ///
    /// Prefer a URL or a `Client`: over a connection of your own the store does not find a lost connection before it
    /// sends, does not replace one that is open and does not answer, and does not apply the limiter's timeout to
    /// attempts to connect. A manager learns that its connection has ended from a command that fails, so at least one
    /// check fails after each restart of the server; and with its defaults, callers wait for seconds until it has
    /// reconnected. These settings are better (turn `TCP_NODELAY` on in the client's `TcpSettings` as well):
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let config = redis::aio::ConnectionManagerConfig::new()
    ///     .set_number_of_retries(0)                                       // the next request is the retry
    ///     .set_connection_timeout(Some(Duration::from_millis(500)))
    ///     .set_response_timeout(Some(Duration::from_millis(500)))
    ///     .set_pipeline_buffer_size(1_024);
    /// # assert_eq!(config.number_of_retries(), 0);
    /// ```
    ///
    /// A bare `MultiplexedConnection` never reconnects: after its server was gone once, every check fails.
    ///
    /// A `redis::cluster_async::ClusterConnection` is recognised and sent the keys of one slot at a time; one inside a
    /// type of your own is not, and its server then answers `CROSSSLOT` to a check of several identities. Prefer
    /// [`cluster`](Self::cluster): this connection stops all slots while it looks at the topology, for as long as a
    /// node does not answer, and its retries, of which it needs one to follow a redirect, also send again what a lost
    /// connection may have executed. That charges a request twice; it never admits too much. By default it waits
    /// without end:
    ///
    #[cfg_attr(feature = "cluster", doc = "```")]
    #[cfg_attr(not(feature = "cluster"), doc = "```ignore")]
    /// # use std::time::Duration;
    /// let client = redis::cluster::ClusterClient::builder(["redis://127.0.0.1/"])
    ///     .retries(1)
    ///     .min_retry_wait(5)
    ///     .max_retry_wait(10)
    ///     .connection_timeout(Duration::from_millis(500))
    ///     .response_timeout(Duration::from_millis(100))
    ///     .build()?;
    /// # let _ = client;
    /// # Ok::<(), redis::RedisError>(())
    /// ```
    pub fn from_connection(
        connection: impl ConnectionLike + Clone + Send + Sync + 'static,
    ) -> Self {
        let in_flight = if is_known(&connection) { IN_FLIGHT } else { 0 };
        Self::over(Transport::custom(connection), in_flight)
    }
}

#[cfg(any(feature = "cluster", feature = "sentinel"))]
fn clients(
    servers: impl IntoIterator<Item: IntoConnectionInfo>,
) -> Result<Vec<Client>, StoreError> {
    let clients = servers.into_iter().map(client);
    clients.collect::<Result<_, _>>().map_err(|_| BAD_URL)
}

async fn greeted(store: RedisStore) -> Result<RedisStore, StoreError> {
    let greeting = within(GREETING_TIMEOUT, store.transport.greet()).await;
    greeting.map_err(|error| store_error(&error))?;
    Ok(store)
}

/// Connects at the first check, with `TCP_NODELAY` on and the client's other settings as they are.
///
/// The name of the library is told only if the client has been given one: a proxy that does not know the command hangs
/// up.
impl From<Client> for RedisStore {
    fn from(own: Client) -> Self {
        let client = client(own.get_connection_info().clone()).unwrap_or(own);
        Self::from_source(client)
    }
}

/// Connects at the first check, as the pool makes its connections; the connections in the pool stay free for others.
///
/// The store's connection is one more than the pool's size allows. bb8-redis gives an attempt to connect one second.
///
/// The pool's own `ConnectionInfo` decides about TCP. Turn `TCP_NODELAY` and keepalive on there:
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
