//! [`RedisServer`]: a server to connect to. Every part of a URL has a meaning, or is an error.

use std::{fmt, path::PathBuf};

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, parse_redis_url};

use super::{
    login::{Credentials, Logins},
    target::Target,
};
use crate::domain::error::{StoreError, StoreErrorKind};

pub(in crate::store::redis) const BAD_URL: StoreError = StoreError::new(
    StoreErrorKind::AccessDenied,
    "the Redis URL is invalid, or needs a feature of the redis crate that is off",
);
const UNKNOWN_PART: StoreError = StoreError::new(
    StoreErrorKind::AccessDenied,
    "the Redis URL has a part that is not known: write the database as redis://HOST:PORT/3, and %3F for `?`, %23 for `#` in a password; the parameters are `protocol` and, for unix:// alone, `db`, `user` and `pass`, and only rediss:// may end with #insecure",
);

/// A server: a URL or a `ConnectionInfo`, and more settings where a [cloud](crate::store::redis::clouds) needs them. For
/// the primary of sentinels, the name that they use stands in the place of the host, or alone.
///
/// ```no_run
/// # async fn token() -> Result<String, std::io::Error> { Ok(String::new()) }
/// # async fn run() -> Result<(), sluicegate::StoreError> {
/// use std::time::Duration;
///
/// use sluicegate::{Credentials, RedisServer, RedisStore};
///
/// const VALID_FOR: Duration = Duration::from_secs(15 * 60);
/// let server = RedisServer::parse("rediss://cache.example.com:6379")?.credentials(|| async {
///     token().await.map(|it| Credentials::new("limiter", it).valid_for(VALID_FOR))
/// });
/// let store = RedisStore::connect(server).await?;
/// # let _ = store;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisServer(Result<Target, StoreError>);

impl From<&str> for RedisServer {
    fn from(text: &str) -> Self {
        Self(read(text))
    }
}

impl From<String> for RedisServer {
    fn from(text: String) -> Self {
        Self::from(&*text)
    }
}

impl From<ConnectionInfo> for RedisServer {
    fn from(info: ConnectionInfo) -> Self {
        Self(Ok(info.into()))
    }
}

impl fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisServer") // without the password
    }
}

impl RedisServer {
    /// The server of this URL (`redis://`, `rediss://`, `unix://`).
    ///
    /// # Errors
    ///
    /// If the URL is invalid or has a part that is not known.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        read(url).map(|target| Self(Ok(target)))
    }

    /// Asks this source for user and password, in the place of those in the URL: for passwords that expire.
    ///
    /// The store asks when it first connects, when a server refuses the answer of before, and after four fifths of its
    /// [validity](Credentials::valid_for); then living connections log in again, before the password ends. There is one ask at a
    /// time for all connections, at most four a second and for at most five seconds each, in a [thread of this
    /// crate](crate::Limiter::background) that must not be blocked. If the source returns an error or panics, the store
    /// cannot connect: that is [`AccessDenied`](crate::error::StoreErrorKind::AccessDenied) with the text of the error, so
    /// put no password there.
    ///
    /// The nodes of a cluster share the credentials of the first.
    #[must_use]
    pub fn credentials<F, E>(self, source: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: fmt::Display,
    {
        self.set(|target| target.logins = Some(Logins::new(source)))
    }

    /// Reads the password from this file at each ask, without the end of the line: for a secret of Kubernetes or of
    /// Vault's agent. The user is the URL's. Sets [`credentials`](Self::credentials).
    #[must_use]
    pub fn password_file(self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        self.credentials(move || {
            let path = path.clone();
            async move {
                let text = tokio::fs::read_to_string(&path).await;
                let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
                Ok::<_, String>(Credentials::new("", text.trim_end_matches(['\r', '\n'])))
            }
        })
    }

    /// Like [`credentials`](Self::credentials), for all sentinels of this primary that have no source and no password in
    /// their URL.
    #[must_use]
    pub fn sentinel_credentials<F, E>(self, source: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: fmt::Display,
    {
        self.set(|target| target.sentinel_logins = Some(Logins::new(source)))
    }

    /// Checks certificates against this name, for servers that are dialled by address or through a tunnel. The default is
    /// the host that is dialled. If a node of a cluster gives a name beside its address, the name of the node goes first.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls_host(self, name: impl Into<String>) -> Self {
        self.set(|target| target.tls_host = Some(name.into()))
    }

    /// Maps the addresses that nodes of a cluster or sentinels name to those that this process can dial: for tunnels and
    /// NAT. The addresses that you name are dialled as they are. Return those that you do not know unchanged. The map is
    /// called before each attempt to connect to a named address.
    #[must_use]
    pub fn map_addresses(
        self,
        map: impl Fn(String, u16) -> (String, u16) + Send + Sync + 'static,
    ) -> Self {
        self.set(|target| target.addresses = Some(std::sync::Arc::new(map)))
    }

    fn set(mut self, set: impl FnOnce(&mut Target)) -> Self {
        let _ = self.0.as_mut().map(set); // an invalid URL stays one
        self
    }

    pub(in crate::store::redis) fn target(self) -> Result<Target, StoreError> {
        let target = self.0?;
        let is_bare_name = matches!(target.addr(), ConnectionAddr::Tcp(_, 0));
        (!is_bare_name).then_some(target).ok_or(BAD_URL)
    }

    /// The primary of sentinels. redis-rs keeps its name where a URL has the host.
    pub(in crate::store::redis) fn primary(self) -> Result<Target, StoreError> {
        let primary = self.0?;
        let has_name = !primary.host().is_empty();
        has_name.then_some(primary).ok_or(BAD_URL)
    }
}

/// Reads a URL, or the bare name of a primary, with port 0. redis-rs ignores the parts that it does not know.
fn read(text: &str) -> Result<Target, StoreError> {
    if !text.contains("://") {
        return info((text, 0));
    }
    let url = parse_redis_url(text).ok_or(BAD_URL)?;
    let is_unix = url.scheme().ends_with("unix");
    let is_known = |name: &str| match name {
        "protocol" => true,
        "db" | "user" | "pass" => is_unix,
        _ => false,
    };
    let has_fragment = url.fragment().is_some() && !matches!(url.scheme(), "rediss" | "valkeys");
    if has_fragment || !url.query_pairs().all(|(name, _)| is_known(&name)) {
        return Err(UNKNOWN_PART);
    }
    info(text)
}

fn info(of: impl IntoConnectionInfo) -> Result<Target, StoreError> {
    of.into_connection_info()
        .map(Target::from)
        .map_err(|_| BAD_URL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_primary_stands_bare_or_in_the_place_of_the_host() {
        for (primary, name) in [
            (RedisServer::from("my_Master.1"), "my_Master.1"),
            (
                RedisServer::from("redis://user:sesame@my_Master.1/2"),
                "my_Master.1",
            ),
            (RedisServer::from(String::from("redis://m:1")), "m"),
        ] {
            assert!(!format!("{primary:?}").contains("sesame"));
            assert_eq!(primary.primary().unwrap().host(), name);
        }
        assert!(RedisServer::from("http://m").primary().is_err());
        assert!(RedisServer::from("m").target().is_err());
    }
}
