//! [`Target`]: a server to connect to, as a source of connections.

use std::{mem, net::SocketAddr, sync::Arc, time::Duration};

use redis::{
    Client, ConnectionAddr, ConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisFuture,
    RedisResult,
    aio::MultiplexedConnection,
    cmd,
    io::{AsyncDNSResolver, tcp::socket2::TcpKeepalive},
};

use super::{
    Connection,
    login::{Logins, authenticate},
    source::{Source, config},
};

/// How often the system probes an idle connection. Firewalls and NATs silently forget connections that are idle for
/// some minutes.
const KEEPALIVE: Duration = Duration::from_secs(30);

type AddressMap = dyn Fn(String, u16) -> (String, u16) + Send + Sync;

/// A server, and all that it takes to connect.
#[derive(Clone)]
pub(in crate::store::redis) struct Target {
    pub(super) info: ConnectionInfo,
    /// The name that the certificate must have; `None` for the host's.
    pub(super) tls_host: Option<String>,
    /// The source of user and password, in the place of those in `info`.
    pub(super) logins: Option<Arc<Logins>>,
    pub(super) sentinel_logins: Option<Arc<Logins>>,
    /// Returns the host and port to dial in place of those that a server names.
    pub(super) addresses: Option<Arc<AddressMap>>,
    /// Whether another server has named this one.
    is_named: bool,
}

/// With `TCP_NODELAY` and keepalive on. A keepalive that the user has chosen is kept.
impl From<ConnectionInfo> for Target {
    fn from(info: ConnectionInfo) -> Self {
        #[cfg(feature = "tls")]
        crate::store::redis::tls::prepare(&info);
        let mut tcp = info.tcp_settings().clone().set_nodelay(true);
        if tcp.keepalive().is_none() {
            tcp = tcp.set_keepalive(TcpKeepalive::new().with_time(KEEPALIVE));
        }
        Self {
            info: info.set_tcp_settings(tcp),
            tls_host: None,
            logins: None,
            sentinel_logins: None,
            addresses: None,
            is_named: false,
        }
    }
}

impl Target {
    pub(in crate::store::redis) fn addr(&self) -> &ConnectionAddr {
        self.info.addr()
    }

    /// The host, or the name of a primary; empty for a socket.
    pub(in crate::store::redis) fn host(&self) -> &str {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
            _ => "",
        }
    }

    /// The server that another server names, with the same settings. Its certificate must have this name, if
    /// there is one beside the address.
    pub(in crate::store::redis) fn named(&self, at: (&str, u16), name: Option<&str>) -> Self {
        let mut named = self.at(at.0.to_owned(), at.1);
        named.tls_host = name.map(str::to_owned).or(named.tls_host);
        named.is_named = true;
        named
    }

    /// The server at this address, with the same settings.
    pub(in crate::store::redis) fn at(&self, host: String, port: u16) -> Self {
        let mut target = self.clone();
        let mut addr = self.addr().clone();
        match &mut addr {
            ConnectionAddr::Tcp(to, at) => (*to, *at) = (host, port),
            ConnectionAddr::TcpTls {
                host: to, port: at, ..
            } => (*to, *at) = (host, port),
            _ => {}
        }
        target.info = target.info.set_addr(addr);
        target
    }

    /// With the address to dial. Calls the user's map, so no lock is held.
    fn to_dial(&self) -> Self {
        if let (true, Some(map)) = (self.is_named, &self.addresses)
            && let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } =
                self.addr()
        {
            let (host, port) = map(host.clone(), *port);
            return self.at(host, port);
        }
        self.clone()
    }

    async fn open(&self) -> RedisResult<Connection> {
        if let Some(logins) = &self.logins {
            logins.current().await?; // no connection waits for the source
        }
        let (mut addr, mut config) = (self.info.addr().clone(), config());
        if let (ConnectionAddr::TcpTls { host, .. }, Some(name)) = (&mut addr, &self.tls_host) {
            config = config.set_dns_resolver(Dialled(mem::replace(host, name.clone())));
        }
        let bare = RedisConnectionInfo::default().set_skip_set_lib_name();
        let mut connection =
            Client::open(self.info.clone().set_addr(addr).set_redis_settings(bare))?
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
        let (settings, mut is_kept) = (self.info.redis_settings(), None);
        if let Some(logins) = &self.logins {
            is_kept = Some(logins.log_in(&mut connection, &self.info).await?);
        } else if let Some(password) = settings.password() {
            authenticate(&mut connection, settings.username(), password).await?;
        }
        greet(&mut connection, settings).await?;
        Connection::answering(connection, is_kept).await
    }
}

impl Source for Target {
    fn connect(&self) -> RedisFuture<'_, Connection> {
        Box::pin(async { self.to_dial().open().await })
    }
}

/// Finds the addresses of this host for a connection that TLS checks under another name.
struct Dialled(String);

impl AsyncDNSResolver for Dialled {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((self.0.as_str(), port)).await?;
            Ok(Box::new(found) as Box<_>)
        })
    }
}

/// Sends the commands that redis-rs sends first, one after the other. redis-rs drops the text of some error replies, and
/// the code of others: then a server without room for a connection seems to refuse the password.
async fn greet(
    connection: &mut MultiplexedConnection,
    settings: &RedisConnectionInfo,
) -> RedisResult<()> {
    if settings.protocol() == ProtocolVersion::RESP3 {
        cmd("HELLO").arg(3).exec_async(connection).await?;
    }
    let db = settings.db();
    if db != 0 {
        cmd("SELECT").arg(db).exec_async(connection).await?;
    }
    // A proxy that does not know the command closes the connection, so the library is named only if the user wants it.
    let is_named = !settings.skip_set_lib_name();
    let name = settings.lib_name().filter(|_| is_named);
    let version = name.and(settings.lib_ver());
    for (field, value) in [("LIB-NAME", name), ("LIB-VER", version)] {
        let Some(value) = value else { continue };
        let set = cmd("CLIENT").arg(&["SETINFO", field, value]).take();
        let _ = set.exec_async(connection).await; // an old server does not know it, and works
    }
    Ok(())
}
