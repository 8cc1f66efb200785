//! [`Cookie`]: keys from the value of a cookie, such as a session.

use std::{str::FromStr, sync::Arc};

use http::{header::COOKIE, request::Parts};

use super::{KeyExtractor, Keys, header::named};
use crate::domain::{
    error::{ConfigError, ExtractError, valid},
    key::Key,
};

/// The value of a cookie, for instance a session: a secret, so stores keep only a hash.
///
/// A cookie that is absent or empty is missing. A cookie that is sent twice is malformed, since the service may use
/// either value, unless you [choose otherwise](Self::repeated). The cookie may be in any of several `Cookie` lines, as
/// HTTP/2 clients send them. One pair of quotes around the value is ignored; nothing else is decoded.
///
/// **The value is not verified**, as with [`Header`](super::Header). A service that decodes values may accept several
/// texts for one session; here, each of them has a separate key.
///
/// ```
/// use sluicegate::{KeyExtractor, extract::Cookie};
///
/// let session = Cookie::new("session");
/// let with = |cookies: &str| http::Request::get("/").header("cookie", cookies).body(()).unwrap().into_parts().0;
///
/// assert_eq!(session.extract(&with("session=s3cret"))?, session.extract(&with("theme=dark; session=s3cret"))?);
/// assert!(session.extract(&with("theme=dark")).is_err());
/// assert!(session.extract(&with("session=a; session=b")).is_err());
/// # Ok::<(), sluicegate::error::ExtractError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Cookie {
    name: Arc<str>,
    repeated: RepeatedCookie,
}

/// How a [`Cookie`] treats a request that has several cookies of this name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RepeatedCookie {
    /// [Malformed](crate::error::ExtractErrorKind::Malformed): the request is rejected. The default.
    #[default]
    Malformed,
    /// [Missing](crate::error::ExtractErrorKind::Missing), so that `or_skip`, `or_shared` or `or` decides.
    Missing,
    /// Use the first one: correct if your service uses the first.
    First,
    /// Use the last one: correct if your service uses the last, as the `CookieJar` of axum-extra does.
    Last,
}

impl Cookie {
    /// Creates an extractor of this cookie; the name is case-sensitive. To use a name from your configuration, parse
    /// it: `name.parse::<Cookie>()?`.
    ///
    /// # Panics
    ///
    /// When `name` cannot be the name of a cookie: it is empty, or has `=`, `;`, a blank or a control character.
    #[track_caller]
    pub fn new(name: &'static str) -> Self {
        valid(name.parse())
    }

    /// Sets how to treat a request that has several cookies of this name.
    ///
    /// By default the request is rejected, since a client could otherwise count as one session and be served as
    /// another. But **another site on a subdomain of yours can set a cookie for the whole domain**, and the user is
    /// then rejected until that cookie is gone. If you do not control all subdomains, limit such requests by address:
    ///
    /// ```
    /// use sluicegate::{Key, KeyExtractor, PeerIp, extract::{Cookie, Keys, RepeatedCookie}};
    ///
    /// let session = Cookie::new("session").repeated(RepeatedCookie::Missing).or(PeerIp);
    ///
    /// let request = http::Request::get("/").header("cookie", "session=mine; session=theirs").body(())?;
    /// let (mut head, ()) = request.into_parts();
    /// head.extensions.insert(std::net::SocketAddr::from(([203, 0, 113, 7], 50000)));
    /// assert_eq!(session.extract(&head)?, Keys::from(Key::new("ip", "203.0.113.7")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Or give the cookie a name that begins with `__Host-`: browsers let no other host set a cookie with such a name.
    pub const fn repeated(mut self, repeated: RepeatedCookie) -> Self {
        self.repeated = repeated;
        self
    }

    /// Returns the key of requests whose cookie has this value. You use it to reset, peek or block from code.
    ///
    /// ```
    /// # use sluicegate::{KeyExtractor, extract::{Cookie, Keys}};
    /// let session = Cookie::new("session");
    /// let head = http::Request::get("/").header("cookie", "session=s3cret").body(())?.into_parts().0;
    /// assert_eq!(session.extract(&head)?, Keys::from(session.key("s3cret")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn key(&self, value: impl AsRef<[u8]>) -> Key {
        self.key_of(unquoted(value.as_ref().trim_ascii()))
    }

    /// An `=` ends the name, since no name contains one.
    fn key_of(&self, value: &[u8]) -> Key {
        named("cookie", &self.name, b'=', value)
    }

    /// Returns the value, if the pair is this cookie.
    fn value<'a>(&self, pair: &'a [u8]) -> Option<&'a [u8]> {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
        (name == self.name.as_bytes()).then(|| unquoted(value))
    }
}

fn unquoted(value: &[u8]) -> &[u8] {
    match value {
        [b'"', inner @ .., b'"'] => inner,
        _ => value,
    }
}

/// Parses a name from your configuration.
impl FromStr for Cookie {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        // More than RFC 6265 allows: `express:sess` is a name that frameworks choose.
        let ends_name = |letter: char| {
            matches!(letter, '=' | ';') || letter.is_whitespace() || letter.is_control()
        };
        if name.is_empty() || name.contains(ends_name) {
            return Err(ConfigError::of_name(name, "cannot be the name of a cookie"));
        }
        Ok(Self {
            name: name.into(),
            repeated: RepeatedCookie::default(),
        })
    }
}

impl KeyExtractor for Cookie {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        let lines = head.headers.get_all(COOKIE).iter();
        let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        let mut values = pairs.filter_map(|pair| self.value(pair));
        let first = values.next().unwrap_or_default();
        let value = match (values.next_back(), self.repeated) {
            (None, _) | (Some(_), RepeatedCookie::First) => first,
            (Some(last), RepeatedCookie::Last) => last,
            (Some(_), RepeatedCookie::Missing) => {
                return Err(ExtractError::missing(TWICE).about(Arc::clone(&self.name)));
            }
            (Some(_), RepeatedCookie::Malformed) => {
                return Err(ExtractError::malformed(TWICE).about(Arc::clone(&self.name)));
            }
        };
        if value.is_empty() {
            return Err(ABSENT.about(Arc::clone(&self.name)));
        }
        // Not `key`, which would remove a second pair of quotes.
        Ok(self.key_of(value).into())
    }
}

const ABSENT: ExtractError =
    ExtractError::missing("the cookie that identifies the client is absent or empty");

const TWICE: &str = "the cookie that identifies the client was sent twice";
