#![doc = concat!(include_str!("../../docs/links.md"), include_str!("../../docs/guide/extractors.md"))]

use std::sync::Arc;

use http::{HeaderValue, request::Parts};

use crate::domain::{error::ExtractError, key::Key};

mod bearer_token;
mod challenge;
mod charges;
mod cidr;
mod combine;
mod cookie;
pub mod forwarded;
mod from_extension;
mod header;
mod host;
pub(crate) mod ip;
mod keys;
mod peer_ip;
pub(crate) mod watch;

pub use bearer_token::BearerToken;
pub(crate) use charges::ChargesFuture;
#[doc(hidden)]
pub use charges::IntoCharges;
pub use cidr::Cidr;
#[doc(hidden)]
pub use combine::{And, OnMissing, OnlyWhen, Or};
pub use cookie::{Cookie, RepeatedCookie};
pub use forwarded::{ForwardedIp, TrustedProxies};
pub use from_extension::FromExtension;
pub use header::Header;
pub use host::Host;
#[doc(hidden)]
pub use keys::IntoKeys;
pub use keys::Keys;
pub use peer_ip::PeerIp;

/// Reads the head of a request and returns the keys to charge.
///
/// Closures `Fn(&Parts) -> R` are extractors if `R` is a [`Key`], several as an array, a `Vec<Key>` or [`Keys`], or an
/// `Option` or a `Result` of one of them; so is a [`Key`], which all requests share. An empty list [skips](Keys::skip)
/// the limit. An extractor runs for every request, so do not block in one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not extract keys",
    note = "by a header: `Header::new(\"x-api-key\")`; by the client's address: `PeerIp` or `ForwardedIp`",
    note = "a closure needs its argument's type: `|head: &http::request::Parts| Some(Key::new(\"user\", …))`, or \
            `extract::from_fn(|head| …)`",
    note = "it answers a `Key`, an `Option<Key>`, several keys as an array or a `Vec<Key>`, or a `Result` of one of these, \
            whose error is an `ExtractError`",
    note = "a look-up that has to be awaited goes to `charge_async`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the keys of a request; each is charged.
    ///
    /// # Errors
    ///
    /// When the request does not identify a client, when the identity cannot be read, or when the service cannot look
    /// the identity up now.
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError>;

    /// Skips this limit for requests that do not identify a client
    /// ([`Missing`](crate::error::ExtractErrorKind::Missing)).
    fn or_skip(self) -> OnMissing<Self>
    where
        Self: Sized,
    {
        self.or(Ok(Keys::skip()))
    }

    /// Charges all requests that do not identify a client ([`Missing`](crate::error::ExtractErrorKind::Missing)) to
    /// `key`: they share one limit.
    fn or_shared(self, key: Key) -> OnMissing<Self>
    where
        Self: Sized,
    {
        self.or(Ok(key.into()))
    }

    /// Answers requests that do not identify a client ([`Missing`](crate::error::ExtractErrorKind::Missing)) with a 401
    /// instead of a 400. The response has `challenge`, for instance `Bearer`, as `WWW-Authenticate`.
    ///
    /// ```
    /// use http::HeaderValue;
    /// use sluicegate::{Header, KeyExtractor};
    ///
    /// let by_key = Header::new("x-api-key").or_unauthorized(HeaderValue::from_static("ApiKey"));
    ///
    /// let realm = "staging";                                          // from the configuration
    /// let challenge = HeaderValue::try_from(format!("Bearer realm=\"{realm}\""))?;
    /// let by_token = Header::new("authorization").or_unauthorized(challenge);
    /// # let _ = (by_key, by_token);
    /// # Ok::<(), http::header::InvalidHeaderValue>(())
    /// ```
    fn or_unauthorized(self, challenge: HeaderValue) -> OnMissing<Self>
    where
        Self: Sized,
    {
        let missing = ExtractError::missing("the client has to authenticate");
        self.or(Err(missing.with_challenge(challenge)))
    }

    /// Uses the keys of `other` for requests in which this extractor finds no client
    /// ([`Missing`](crate::error::ExtractErrorKind::Missing)).
    ///
    /// A client chooses between the two by leaving the first one out. So do not put a value that clients can make up,
    /// such as an unverified [`Header`], before one that they cannot choose.
    ///
    /// ```
    /// use sluicegate::{Key, KeyExtractor, PeerIp, extract::{FromExtension, Keys}};
    ///
    /// #[derive(Clone)]
    /// struct User(u64);
    ///
    /// let who = FromExtension::new(|user: &User| Key::new("user", user.0.to_string())).or(PeerIp);
    ///
    /// let mut head = http::Request::get("/").body(())?.into_parts().0;
    /// head.extensions.insert(std::net::SocketAddr::from(([203, 0, 113, 7], 50000)));
    /// head.extensions.insert(None::<User>);                           // no user has signed in
    /// assert_eq!(who.extract(&head)?, Keys::from(Key::new("ip", "203.0.113.7")));
    /// head.extensions.insert(Some(User(7)));
    /// assert_eq!(who.extract(&head)?, Keys::from(Key::new("user", "7")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn or<E: KeyExtractor>(self, other: E) -> Or<Self, E>
    where
        Self: Sized,
    {
        Or {
            first: self,
            second: other,
        }
    }

    /// Combines this key and the key of `other` into one: a user *at* an address, a user *of* a tenant.
    ///
    /// Two requests share the key only if both parts are equal. The key is secret if one of the parts is. When either
    /// extractor skips or fails, so does the pair. To limit by each of two keys separately, give the layer two limits
    /// instead.
    ///
    /// ```
    /// use sluicegate::{Header, KeyExtractor, PeerIp};
    ///
    /// // Guesses of a password are limited at the address that sends them; the user is not locked out elsewhere.
    /// let who = Header::new("x-user").and(PeerIp);
    ///
    /// let from = |ip: [u8; 4]| {
    ///     let mut head = http::Request::get("/").header("x-user", "alice").body(()).unwrap().into_parts().0;
    ///     head.extensions.insert(std::net::SocketAddr::from((ip, 50000)));
    ///     head
    /// };
    /// assert_eq!(who.extract(&from([203, 0, 113, 7]))?, who.extract(&from([203, 0, 113, 7]))?);
    /// assert_ne!(who.extract(&from([203, 0, 113, 7]))?, who.extract(&from([203, 0, 113, 8]))?);
    /// # Ok::<(), sluicegate::error::ExtractError>(())
    /// ```
    fn and<E: KeyExtractor>(self, other: E) -> And<Self, E>
    where
        Self: Sized,
    {
        And {
            first: self,
            second: other,
        }
    }

    /// Applies this limit only to requests for which `condition` returns true; all others skip the limit.
    ///
    /// ```
    /// use http::{Method, request::Parts};
    /// use sluicegate::{Key, KeyExtractor, extract::Keys};
    ///
    /// let writes = Key::new("service", "all").only_when(|head: &Parts| head.method != Method::GET);
    /// let head = http::Request::get("/").body(())?.into_parts().0;
    /// assert_eq!(writes.extract(&head)?, Keys::skip());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn only_when<F>(self, condition: F) -> OnlyWhen<Self, F>
    where
        Self: Sized,
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        OnlyWhen {
            extractor: self,
            condition,
        }
    }
}

/// Returns the closure unchanged. You use this so that the compiler knows the argument's type, `&Parts`, and you need
/// not write it.
///
/// For closures that extract keys, and for closures that choose a policy:
///
/// ```
/// use sluicegate::{Key, MemoryStore, Policy, RateLimitLayer, extract::from_fn};
///
/// let [reads, writes] = [Policy::parse("reads", "600/1m")?, Policy::parse("writes", "60/1m")?];
/// let layer = RateLimitLayer::new(MemoryStore::new()).limit(
///     from_fn(move |head| if head.method.is_safe() { reads.clone() } else { writes.clone() }),
///     from_fn(|head| Some(Key::new("app", head.headers.get("x-app")?))),
/// );
/// # assert!(format!("{layer:?}").contains("Closure"));
/// # Ok::<(), sluicegate::error::ConfigError>(())
/// ```
pub const fn from_fn<F, R>(closure: F) -> F
where
    F: Fn(&Parts) -> R + Send + Sync + 'static,
{
    closure
}

/// Charges all requests to this key.
impl KeyExtractor for Key {
    fn extract(&self, _head: &Parts) -> Result<Keys, ExtractError> {
        Ok(self.clone().into())
    }
}

#[diagnostic::do_not_recommend]
impl<F, R> KeyExtractor for F
where
    F: Fn(&Parts) -> R + Send + Sync + 'static,
    R: IntoKeys,
{
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        self(head).into_keys()
    }
}

impl KeyExtractor for Box<dyn KeyExtractor> {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        (**self).extract(head)
    }
}

impl KeyExtractor for Arc<dyn KeyExtractor> {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        (**self).extract(head)
    }
}
