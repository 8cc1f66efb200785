//! A `redis::Client` as a source of connections.

use std::time::Duration;

use redis::{Client, IntoConnectionInfo, RedisFuture, RedisResult, aio::MultiplexedConnection};

use super::{
    source::{Source, config},
    timeout::within,
};

/// A client for this server, with `TCP_NODELAY` on.
pub(in crate::store::redis) fn client(server: impl IntoConnectionInfo) -> RedisResult<Client> {
    let info = server.into_connection_info()?;
    #[cfg(feature = "tls")]
    crate::store::redis::tls::prepare(&info);
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let mut settings = info.redis_settings().clone();
    if settings.lib_name().is_none() {
        // A proxy that does not know the command hangs up.
        settings = settings.set_skip_set_lib_name();
    }
    Client::open(info.set_tcp_settings(tcp).set_redis_settings(settings))
}

impl Source for Client {
    fn connect(&self, timeout: Duration) -> RedisFuture<'_, MultiplexedConnection> {
        Box::pin(within(timeout, async {
            let connection = self
                .get_multiplexed_async_connection_with_config(&config())
                .await?;
            answering(connection).await
        }))
    }
}

/// The system accepts connections for a server that is stopped, so the server has to answer. An error reply will do.
pub(super) async fn answering(
    mut connection: MultiplexedConnection,
) -> RedisResult<MultiplexedConnection> {
    match connection.send_packed_command(&redis::cmd("PING")).await {
        Err(error) if error.code().is_none() => Err(error),
        _ => Ok(connection),
    }
}
