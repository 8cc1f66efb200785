//! The ways to make a [`RedisStore`].

use std::{io, sync::Arc};

use redis::{
    Client, IntoConnectionInfo, RedisError,
    aio::{ConnectionLike, ConnectionManager},
};
use tokio::time::timeout;

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
    /// at most. Use [`lazy`](Self::lazy) where the service must start without it.
    pub async fn connect(server: impl IntoConnectionInfo) -> Result<Self, StoreError> {
        let store = Self::lazy(server)?;
        greet(&store.link)
            .await
            .map_err(|error| store_error(&error))?;
        Ok(store)
    }

    /// Like [`connect`](Self::connect), but does not wait for the server: the first check connects.
    ///
    /// # Errors
    ///
    /// When the URL makes no sense.
    pub fn lazy(server: impl IntoConnectionInfo) -> Result<Self, StoreError> {
        server
            .into_connection_info()
            .and_then(Client::open)
            .map(Self::from)
            .map_err(|_| StoreError::new(StoreErrorKind::Refused, BAD_URL))
    }

    /// Uses a connection whose own business it is to heal, for instance a cluster connection.
    ///
    /// A bare `MultiplexedConnection` does not: after its server was gone once, every check fails until the process is
    /// started again. Give the store a URL or a `Client` instead. Timeouts are the connection's, and the limiter's deadline.
    pub fn from_connection(
        connection: impl ConnectionLike + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::over(Link::other(connection))
    }
}

/// Makes sure that somebody is there who lets us in. A user who may not PING has been let in.
async fn greet(link: &Link) -> Result<(), RedisError> {
    let ping = redis::cmd("PING");
    match timeout(2 * CONNECT_TIMEOUT, link.send(&ping)).await {
        Ok(Err(error)) if error.code() == Some("NOPERM") => Ok(()),
        Ok(result) => result.map(drop),
        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
    }
}

/// Connects at the first check, with `TCP_NODELAY` on and the client's other settings as they are.
impl From<Client> for RedisStore {
    fn from(client: Client) -> Self {
        let info = client.get_connection_info().clone();
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let client = Client::open(info.set_tcp_settings(tcp)).unwrap_or(client);
        Self::over(Link::Own(Arc::new(Keeper::new(Source::Client(Box::new(
            client,
        ))))))
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
