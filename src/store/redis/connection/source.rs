//! [`Source`]: where connections come from.

use std::pin::Pin;

use redis::{AsyncConnectionConfig, RedisFuture, aio::MultiplexedConnection};

/// So many commands may wait to be written; further callers wait for room.
const QUEUE: usize = 1_024;

/// Where a [`ReconnectingConnection`](super::ReconnectingConnection) gets its connections from: a client, sentinels or
/// a pool.
pub(in crate::store::redis) trait Source: Send + Sync + 'static {
    /// Makes a connection. Not bounded in time.
    fn connect(&self) -> RedisFuture<'_, MultiplexedConnection>;

    /// Asks whether the server that the latest connection leads to has been replaced by another; `None` when the source
    /// does not know such a thing, or asked a short while ago. Called before each command.
    fn has_moved(&self) -> Option<Pin<Box<dyn Future<Output = bool> + Send>>> {
        None
    }
}

/// Without a timeout for replies: the limiter's timeout and `ConnectionHealth` see to that, without a timer for each
/// command.
pub(super) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE)
}
