//! [`RedisServer`]: a server to connect to. Every part of a URL has a meaning, or is an error.

use std::fmt;

use redis::{ConnectionInfo, IntoConnectionInfo, parse_redis_url};

use crate::domain::error::{StoreError, StoreErrorKind};

pub(in crate::store::redis) const BAD_URL: StoreError = StoreError::new(
    StoreErrorKind::AccessDenied,
    "the Redis URL is invalid, or needs a feature of the redis crate that is off",
);
const UNKNOWN_PART: StoreError = StoreError::new(
    StoreErrorKind::AccessDenied,
    "the Redis URL has a part that is not known: write the database as redis://HOST:PORT/3, and %3F for `?`, %23 for `#` in a password; the parameters are `protocol` and, for unix:// alone, `db`, `user` and `pass`, and only rediss:// may end with #insecure",
);

/// A server: a URL or a `ConnectionInfo`. For the primary of sentinels, the name that they use stands in the place of the
/// host, or alone.
pub struct RedisServer(Result<ConnectionInfo, String>);

impl From<&str> for RedisServer {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl From<String> for RedisServer {
    fn from(text: String) -> Self {
        Self(Err(text))
    }
}

impl From<ConnectionInfo> for RedisServer {
    fn from(info: ConnectionInfo) -> Self {
        Self(Ok(info))
    }
}

impl fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisServer") // without the password
    }
}

impl RedisServer {
    pub(in crate::store::redis) fn info(self) -> Result<ConnectionInfo, StoreError> {
        self.0.or_else(|url| read(&url))
    }

    /// The primary of sentinels; its port is 0 where the name stands alone.
    #[cfg(feature = "sentinel")]
    pub(super) fn primary(self) -> Result<ConnectionInfo, StoreError> {
        match self.0 {
            Err(name) if !name.contains("://") => {
                let info = (name, 0).into_connection_info();
                info.map_err(|_| BAD_URL)
            }
            _ => self.info(),
        }
    }
}

/// Reads a URL. redis-rs ignores the parts that it does not know.
fn read(text: &str) -> Result<ConnectionInfo, StoreError> {
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
    text.into_connection_info().map_err(|_| BAD_URL)
}

#[cfg(all(test, feature = "sentinel"))]
mod tests {
    use redis::ConnectionAddr;

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
            let ConnectionAddr::Tcp(host, _) = primary.primary().unwrap().addr().clone() else {
                panic!("{name}");
            };
            assert_eq!(host, name);
        }
        assert!(RedisServer::from("http://m").primary().is_err());
        assert!(RedisServer::from("m").info().is_err());
    }
}
