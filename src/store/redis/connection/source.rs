//! [`Source`]: makes the connections.

use std::pin::Pin;

use redis::{AsyncConnectionConfig, RedisFuture};

use super::Connection;

/// How many commands may wait to be written. Further callers wait for room.
const QUEUE: usize = 1_024;

/// Makes the connections of a [`ReconnectingConnection`](super::ReconnectingConnection): a server, sentinels or a pool.
pub(in crate::store::redis) trait Source: Send + Sync + 'static {
    /// Makes a connection over which the server has answered. Has no timeout.
    fn connect(&self) -> RedisFuture<'_, Connection>;

    /// Asks whether another server has replaced the one that the latest connection leads to. `None` if the source
    /// cannot know, or asked a short while ago. Called before each command.
    fn has_moved(&self) -> Option<Pin<Box<dyn Future<Output = bool> + Send>>> {
        None
    }
}

/// Uses no timeout for replies: the limiter's timeout and `ConnectionHealth` bound the wait without a timer for each
/// command.
pub(super) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE)
}
