//! The ways to make a [`RedisStore`].

use std::{io, sync::Arc};

use redis::{
    Client, IntoConnectionInfo, RedisError, RedisResult,
    aio::{ConnectionLike, ConnectionManager},
};
use tokio::time::timeout;

#[cfg(feature = "cluster")]
use super::cluster::Cluster;
#[cfg(feature = "sentinel")]
use super::sentinel::{Primary, Sentinels};
use super::{
    RedisStore,
    error::store_error,
    keeper::{CONNECT_TIMEOUT, Keeper, Source},
    link::Link,
};
use crate::error::{StoreError, StoreErrorKind};

const BAD_URL: &str =
    "the Redis URL makes no sense, or needs a feature of the redis crate that is off";

/// # Making one
///
/// A store over a URL or a `redis::Client` keeps one multiplexed connection and replaces it by itself: a connection that has
/// ended is noticed before the next command is sent, and one that owes an answer for half a second is given up. An attempt
/// to connect takes at most 500 ms and is shared by all who wait for it. A command is sent once, whatever happens to it.
impl RedisStore {
    /// Connects to the server of this URL (`redis://`, `rediss://`, `unix://`) or `ConnectionInfo`.
    ///
    /// TLS needs one of the TLS features of the `redis` crate.
    ///
    /// # Errors
    ///
    /// When the URL makes no sense, or when the server cannot be reached, refuses the user or cannot work, after one second
    /// at most. Use [`lazy`](Self::connect_lazy) where the service must start without it.
    pub async fn connect(server: impl IntoConnectionInfo) -> Result<Self, StoreError> {
        greeted(Self::connect_lazy(server)?).await
    }

    /// Like [`connect`](Self::connect), but does not wait for the server: the first check connects.
    ///
    /// # Errors
    ///
    /// When the URL makes no sense.
    pub fn connect_lazy(server: impl IntoConnectionInfo) -> Result<Self, StoreError> {
        let client = client(server).map_err(|_| bad_url())?;
        Ok(Self::keeping(Source::Client(client.into())))
    }

    /// Connects to the primary of this name, by asking these sentinels for it: see
    /// [the module](super#sentinel-and-replication).
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
        primary: impl Into<Primary>,
    ) -> Result<Self, StoreError> {
        greeted(Self::connect_lazy_sentinel(sentinels, primary)?).await
    }

    /// Like [`sentinel`](Self::sentinel), but does not wait for anybody: the first check asks and connects.
    ///
    /// # Errors
    ///
    /// When there are no sentinels, or a URL makes no sense.
    #[cfg(feature = "sentinel")]
    pub fn connect_lazy_sentinel(
        sentinels: impl IntoIterator<Item: IntoConnectionInfo>,
        primary: impl Into<Primary>,
    ) -> Result<Self, StoreError> {
        let keeper =
            |sentinel| client(sentinel).map(|it| Arc::new(Keeper::new(Source::Client(it.into()))));
        let keepers: RedisResult<Vec<_>> = sentinels.into_iter().map(keeper).collect();
        let sentinels = keepers.and_then(|keepers| Sentinels::new(keepers, primary.into()));
        let sentinels = sentinels.map_err(|_| bad_url())?;
        Ok(Self::keeping(Source::Sentinels(Arc::new(sentinels))))
    }

    fn keeping(source: Source) -> Self {
        Self::over(Link::Own(Arc::new(Keeper::new(source))))
    }

    /// Connects to the [cluster](super#on-a-cluster) that these servers are nodes of: URLs (`redis://`, `rediss://`) or
    /// `ConnectionInfo`s. One that answers is enough; the others are found through it.
    ///
    /// All nodes are spoken to as the first one is: with its user, password and TLS settings.
    ///
    /// # Errors
    ///
    /// When a URL makes no sense or there is none; when no node can be reached, or none of them is of a cluster, after one
    /// second at most. Use [`connect_lazy_cluster`](Self::connect_lazy_cluster) where the service must start without it.
    #[cfg(feature = "cluster")]
    pub async fn cluster<T: IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = T>,
    ) -> Result<Self, StoreError> {
        let cluster = cluster_of(nodes)?;
        let greeted = timeout(2 * CONNECT_TIMEOUT, cluster.look()).await;
        greeted
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
            .map_err(|error| store_error(&error))?;
        Ok(Self::over(Link::Cluster(cluster)))
    }

    /// Like [`cluster`](Self::cluster), but does not wait for the nodes: the first check connects.
    ///
    /// # Errors
    ///
    /// When a URL makes no sense, or there is none.
    #[cfg(feature = "cluster")]
    pub fn connect_lazy_cluster<T: IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = T>,
    ) -> Result<Self, StoreError> {
        Ok(Self::over(Link::Cluster(cluster_of(nodes)?)))
    }

    /// Uses a connection whose own business it is to heal.
    ///
    /// A bare `MultiplexedConnection` does not: after its server was gone once, every check fails until the process is
    /// started again. Give the store a URL or a `Client` instead. Timeouts are the connection's, and the limiter's timeout. For a
    /// cluster connection use `From`: it may not be sent keys of several slots in one call.
    pub fn from_connection(
        connection: impl ConnectionLike + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::over(Link::other(connection))
    }
}

#[cfg(feature = "cluster")]
fn cluster_of<T: IntoConnectionInfo>(
    nodes: impl IntoIterator<Item = T>,
) -> Result<Arc<Cluster>, StoreError> {
    let nodes: Result<Vec<_>, _> = nodes
        .into_iter()
        .map(IntoConnectionInfo::into_connection_info)
        .collect();
    #[cfg(feature = "tls")]
    nodes.iter().flatten().for_each(super::tls::prepare);
    nodes
        .and_then(|nodes| Cluster::new(&nodes))
        .map(Arc::new)
        .map_err(|_| bad_url())
}

fn client(server: impl IntoConnectionInfo) -> RedisResult<Client> {
    let info = server.into_connection_info()?;
    #[cfg(feature = "tls")]
    super::tls::prepare(&info);
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let mut settings = info.redis_settings().clone();
    if settings.lib_name().is_none() {
        settings = settings.set_skip_set_lib_name();
    }
    Client::open(info.set_tcp_settings(tcp).set_redis_settings(settings))
}

fn bad_url() -> StoreError {
    StoreError::new(StoreErrorKind::AccessDenied, BAD_URL)
}

async fn greeted(store: RedisStore) -> Result<RedisStore, StoreError> {
    let greeting = greet(&store.link).await;
    greeting.map_err(|error| store_error(&error))?;
    Ok(store)
}

/// Makes sure that somebody is there who lets us in. A user who may not PING has been let in.
async fn greet(link: &Link) -> Result<(), RedisError> {
    let ping = redis::cmd("PING");
    match timeout(2 * CONNECT_TIMEOUT, link.send(&ping)).await {
        Ok(Err(error)) if may_not_ping(&error) => Ok(()),
        Ok(result) => result.map(drop),
        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
    }
}

/// Not any other missing right: behind sentinels a ROLE comes first.
fn may_not_ping(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    error.code() == Some("NOPERM") && detail.contains("'ping'")
}

/// Connects at the first check, with `TCP_NODELAY` on and the client's other settings as they are.
///
/// The name of the library is told only if the client has been given one: a proxy that does not know the command hangs up.
impl From<Client> for RedisStore {
    fn from(own: Client) -> Self {
        let client = client(own.get_connection_info().clone()).unwrap_or(own);
        Self::keeping(Source::Client(client.into()))
    }
}

/// Uses the manager as it is, with its own timeouts and its own way to come back.
///
/// The manager's defaults keep callers waiting for seconds after a server was gone. With these settings the next request
/// works as soon as the server does:
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
/// Turn `TCP_NODELAY` on in the client's `TcpSettings`. A manager never gives up a connection that is open and mute.
impl From<ConnectionManager> for RedisStore {
    fn from(manager: ConnectionManager) -> Self {
        Self::over(Link::manager(manager))
    }
}

/// Lets the pool decide which connection to use. A connection is free again before its command is sent, so a few are plenty.
///
/// Build the pool with `test_on_check_out(false)`: the store notices lost connections by itself and replaces them, and bb8's
/// own test costs a round trip for each check. After a check that got no answer, all idle connections are asked for one, and
/// those that stay mute for 500 ms are replaced. While the pool has no connection, one more than its size may be open.
#[cfg(feature = "bb8")]
impl From<bb8::Pool<bb8_redis::RedisConnectionManager>> for RedisStore {
    fn from(pool: bb8::Pool<bb8_redis::RedisConnectionManager>) -> Self {
        Self::over(Link::Pool(Arc::new(super::pool::Pool::new(pool))))
    }
}

/// Uses redis-rs' own cluster connection as it is, with its own timeouts and its own way to come back.
///
/// [`RedisStore::cluster`] does better on a bad day: this connection halts all slots while it looks at the topology, for as
/// long as a node is mute, and its retries, of which it needs one to follow a redirect, also send again what a lost
/// connection may have executed. That charges a request twice; it never admits too much. Its defaults wait for ever:
///
/// ```
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
#[cfg(feature = "cluster")]
impl From<redis::cluster_async::ClusterConnection> for RedisStore {
    fn from(connection: redis::cluster_async::ClusterConnection) -> Self {
        Self::over(Link::OtherCluster(Arc::new(connection)))
    }
}
