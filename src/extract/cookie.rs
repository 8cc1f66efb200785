use http::{HeaderName, header::COOKIE, request::Parts};

use super::{KeyExtractor, Keys, header::named};
use crate::error::ExtractError;

/// The value of a cookie, for instance a session: a secret, of which stores keep only a hash.
///
/// A cookie that is absent or empty is missing. A cookie that is sent twice is malformed, since the service may use
/// either value. It may be in any of several `Cookie` lines, as HTTP/2 clients send them. One pair of quotes around
/// the value is ignored; nothing else is decoded.
///
/// **The value is not verified**, as with [`Header`](super::Header). A service that decodes values may accept several
/// texts for one session; each of them is a key of its own here.
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
pub struct Cookie {
    name: Box<str>,
}

impl Cookie {
    /// Creates an extractor of this cookie; its name is case-sensitive.
    ///
    /// # Panics
    ///
    /// When `name` cannot be the name of a cookie.
    #[must_use]
    pub fn new(name: &str) -> Self {
        // Names of cookies and of headers are made of the same characters.
        let valid = HeaderName::from_bytes(name.as_bytes()).is_ok();
        assert!(valid, "`{name}` cannot be the name of a cookie");
        Self { name: name.into() }
    }

    /// The value, if the pair is this cookie.
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

impl KeyExtractor for Cookie {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        let lines = head.headers.get_all(COOKIE).iter();
        let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        let mut values = pairs.filter_map(|pair| self.value(pair));
        let value = values.next().unwrap_or_default();
        if values.next().is_some() {
            return Err(ExtractError::malformed(
                "the cookie that identifies the client was sent twice",
            ));
        }
        if value.is_empty() {
            return Err(ExtractError::missing(
                "the cookie that identifies the client is absent or empty",
            ));
        }
        Ok(named("cookie", &self.name, value).into())
    }
}
