//! [`Header`]: keys from the value of a header, such as an API key.

use std::{str::FromStr, sync::Arc};

use http::{HeaderName, request::Parts};

use super::{KeyExtractor, Keys};
use crate::domain::{
    error::{ConfigError, ExtractError, valid},
    key::Key,
};

/// A name and a value that together are at most this long are joined without an allocation.
const SHORT: usize = 192;

/// The value of a header, for instance an API key: a secret, so stores keep only a hash.
///
/// A header that is absent or empty is missing. A header that is sent twice is malformed, since the service may use
/// either value. White space around the value is ignored. The name is part of the key: two headers with the same value
/// are two keys.
///
/// **The value is not verified.** Unless an outer layer rejects unknown values, a client that makes up a new value for
/// each request is never limited: use this together with [`PeerIp`](struct@super::PeerIp), or limit by a
/// [`FromExtension`](super::FromExtension) of what authentication has inserted.
///
/// For bearer tokens, use [`BearerToken`](super::BearerToken): a client can write the value of `authorization` in many
/// ways for one credential, and with `Header` each way would have a separate quota.
///
/// ```
/// use sluicegate::{Header, KeyExtractor, extract::Keys};
///
/// let head = http::Request::get("/").header("X-Api-Key", "s3cret").body(())?.into_parts().0;
/// let keys = Header::new("x-api-key").extract(&head)?;
/// assert_eq!(keys.into_iter().map(|key| key.is_secret()).collect::<Vec<_>>(), [true]);
/// assert!(Header::new("authorization").extract(&head).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
    /// The name for errors.
    shown: Arc<str>,
}

impl Header {
    /// Creates an extractor of this header; the name is case-insensitive. To use a name from your configuration, parse
    /// it: `name.parse::<Header>()?`.
    ///
    /// # Panics
    ///
    /// When `name` cannot be the name of a header, as [`HeaderName::from_static`] does.
    #[must_use]
    #[track_caller]
    pub fn new(name: &'static str) -> Self {
        valid(name.parse())
    }

    /// Returns the key of requests whose header has this value. You use it to reset, peek or block from code.
    ///
    /// ```
    /// use sluicegate::{Charge, Header, Limiter, MemoryStore, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let (limiter, api) = (Limiter::new(MemoryStore::new()), Policy::parse("api", "60/1m")?);
    /// let key = Header::new("x-api-key").key("s3cret");
    ///
    /// let usage = limiter.peek([Charge::new(&api, key.clone(), 0)]).await?;
    /// assert_eq!(usage.rules().next().unwrap().remaining(), 60);
    /// limiter.reset(&api, &key).await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn key(&self, value: impl AsRef<[u8]>) -> Key {
        let value = value.as_ref().trim_ascii();
        // A colon ends the name, since no name contains one.
        named("header", self.name.as_str(), b':', value)
    }
}

/// Parses a name from your configuration.
///
/// ```
/// use sluicegate::Header;
///
/// assert!("x-api-key".parse::<Header>().is_ok());
/// let error = "x api key".parse::<Header>().unwrap_err();
/// assert_eq!(error.to_string(), "`x api key` cannot be the name of a header");
/// ```
impl FromStr for Header {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        let error = |_| ConfigError::of_name(name, "cannot be the name of a header");
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(error)?;
        Ok(name.into())
    }
}

impl From<HeaderName> for Header {
    fn from(name: HeaderName) -> Self {
        Self {
            shown: name.as_str().into(),
            name,
        }
    }
}

impl KeyExtractor for Header {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        let mut lines = head.headers.get_all(&self.name).iter();
        let value = lines.next().map_or(&b""[..], |line| line.as_bytes());
        if lines.next().is_some() {
            return Err(TWICE.about(Arc::clone(&self.shown)));
        }
        match value.trim_ascii() {
            b"" => Err(ABSENT.about(Arc::clone(&self.shown))),
            value => Ok(self.key(value).into()),
        }
    }
}

const ABSENT: ExtractError =
    ExtractError::missing("the header that identifies the client is absent or empty");

const TWICE: ExtractError =
    ExtractError::malformed("the header that identifies the client was sent twice");

/// Makes a secret key from a name, a byte that ends the name, and a value.
pub(super) fn named(kind: &'static str, name: &str, end: u8, value: &[u8]) -> Key {
    let name = name.as_bytes();
    let len = name.len() + 1 + value.len();
    let mut short = [0; SHORT];
    if len > SHORT {
        return Key::secret(kind, [name, &[end], value].concat());
    }
    short[..name.len()].copy_from_slice(name);
    short[name.len()] = end;
    short[name.len() + 1..len].copy_from_slice(value);
    Key::secret(kind, &short[..len])
}
