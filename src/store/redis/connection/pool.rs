//! A bb8 pool as a source of connections.

use std::time::Duration;

use bb8::Pool;
use bb8_redis::RedisConnectionManager;
use redis::{RedisFuture, aio::MultiplexedConnection};

use super::source::Source;

/// bb8-redis makes connections that give up a reply after 500 ms, and this cannot be switched off, only made very
/// long.
pub(in crate::store::redis) const NO_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A connection made as the pool makes its own, and none of the pool's: a connection that is shared does twice the
/// work of connections that are held for each call, and bb8-redis never calls a connection broken.
impl Source for Pool<RedisConnectionManager> {
    fn connect(&self) -> RedisFuture<'_, MultiplexedConnection> {
        Box::pin(async {
            let mut connection = self.dedicated_connection().await?;
            connection.set_response_timeout(NO_TIMEOUT);
            Ok(connection)
        })
    }
}
