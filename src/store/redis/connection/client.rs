//! A `redis::Client` as a source of connections.

use std::time::Duration;

use redis::{
    Client, ConnectionInfo, IntoConnectionInfo, RedisFuture, RedisResult,
    aio::MultiplexedConnection, io::tcp::socket2::TcpKeepalive,
};

use super::source::{Source, config};

/// How often the system probes an idle connection. Firewalls and NATs silently forget connections that are idle for
/// some minutes.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// A client for this server, with the crate's settings.
pub(in crate::store::redis) fn client(server: impl IntoConnectionInfo) -> RedisResult<Client> {
    let info = prepared(server.into_connection_info()?);
    let mut settings = info.redis_settings().clone();
    if settings.lib_name().is_none() {
        // A proxy that does not know the command closes the connection.
        settings = settings.set_skip_set_lib_name();
    }
    Client::open(info.set_redis_settings(settings))
}

/// With `TCP_NODELAY` and keepalive on. A keepalive that the user has chosen is kept.
pub(super) fn prepared(info: ConnectionInfo) -> ConnectionInfo {
    #[cfg(feature = "tls")]
    crate::store::redis::tls::prepare(&info);
    let mut tcp = info.tcp_settings().clone().set_nodelay(true);
    if tcp.keepalive().is_none() {
        tcp = tcp.set_keepalive(TcpKeepalive::new().with_time(KEEPALIVE));
    }
    info.set_tcp_settings(tcp)
}

impl Source for Client {
    fn connect(&self) -> RedisFuture<'_, MultiplexedConnection> {
        Box::pin(async {
            self.get_multiplexed_async_connection_with_config(&config())
                .await
        })
    }
}
