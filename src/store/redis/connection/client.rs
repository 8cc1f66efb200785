//! A `redis::Client` as a source of connections.

use std::time::Duration;

use redis::{
    Client, ConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisError, RedisFuture,
    RedisResult, aio::MultiplexedConnection, cmd, io::tcp::socket2::TcpKeepalive,
};

use super::source::{Source, config};

/// How often the system probes an idle connection. Firewalls and NATs silently forget connections that are idle for
/// some minutes.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// A client for this server, with the crate's settings.
pub(in crate::store::redis) fn client(server: ConnectionInfo) -> RedisResult<Client> {
    Client::open(prepared(server))
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
            let server = self.get_connection_info();
            let bare = RedisConnectionInfo::default().set_skip_set_lib_name();
            let mut connection = Self::open(server.clone().set_redis_settings(bare))?
                .get_multiplexed_async_connection_with_config(&config())
                .await?;
            greet(&mut connection, server.redis_settings()).await?;
            Ok(connection)
        })
    }
}

/// Sends the commands that redis-rs sends first, one after the other. redis-rs drops the text of some error replies, and
/// the code of others: then a server without room for a connection seems to refuse the password.
async fn greet(
    connection: &mut MultiplexedConnection,
    settings: &RedisConnectionInfo,
) -> RedisResult<()> {
    if let Some(password) = settings.password() {
        let auth = |user: Option<&str>| cmd("AUTH").arg(user).arg(password).take();
        match auth(settings.username()).exec_async(connection).await {
            Err(error) if knows_no_users(&error) => auth(None).exec_async(connection).await?,
            reply => reply?,
        }
    }
    if settings.protocol() == ProtocolVersion::RESP3 {
        cmd("HELLO").arg(3).exec_async(connection).await?;
    }
    let db = settings.db();
    if db != 0 {
        cmd("SELECT").arg(db).exec_async(connection).await?;
    }
    // A proxy that does not know the command closes the connection, so the library is named only if the user wants it.
    let name = settings
        .lib_name()
        .filter(|_| !settings.skip_set_lib_name());
    for (field, value) in [
        ("LIB-NAME", name),
        ("LIB-VER", name.and(settings.lib_ver())),
    ] {
        if let Some(value) = value {
            let set = cmd("CLIENT").arg(&["SETINFO", field, value]).take();
            let _ = set.exec_async(connection).await; // an old server does not know it, and works
        }
    }
    Ok(())
}

/// Before version 6, an `AUTH` has no user.
fn knows_no_users(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    detail.contains("wrong number of arguments for 'auth' command")
}
