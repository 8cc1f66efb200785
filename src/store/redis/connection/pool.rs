//! A bb8 pool as a source of connections.

use std::time::Duration;

use bb8::Pool;
use bb8_redis::RedisConnectionManager;
use redis::RedisFuture;

use super::{Connection, source::Source};

/// bb8-redis makes connections that stop waiting for a reply after 500 ms. The timeout cannot be turned off, so use a
/// very long one.
pub(in crate::store::redis) const NO_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Uses the pool's settings, but takes no connection from the pool: a shared connection does twice the work of
/// connections that are held for each call, and bb8-redis never calls a connection broken.
impl Source for Pool<RedisConnectionManager> {
    fn connect(&self) -> RedisFuture<'_, Connection> {
        Box::pin(async {
            let mut connection = self.dedicated_connection().await?;
            connection.set_response_timeout(NO_TIMEOUT);
            Connection::answering(connection, None).await
        })
    }
}
