//! Which keys a request is charged to: a [`KeyExtractor`] reads the head of a request and answers with [`Keys`],
//! *skip*, or an error.
//!
//! ```
//! use http::request::Parts;
//! use sluicegate::{Key, KeyExtractor, error::ExtractError, extract::Keys};
//!
//! // A closure over the head is an extractor. `None` means that the request has no key.
//! let tenant = |head: &Parts| {
//!     let host = head.uri.host()?;
//!     Some(Key::new("tenant", host.split('.').next()?))
//! };
//! let head = |uri: &str| http::Request::get(uri).body(()).unwrap().into_parts().0;
//!
//! assert_eq!(tenant.extract(&head("http://acme.example.com/"))?, Keys::from(Key::new("tenant", "acme")));
//! assert!(tenant.extract(&head("/")).is_err());
//!
//! // What happens then can be chosen; the default is to reject the request.
//! assert_eq!(tenant.or_skip().extract(&head("/"))?, Keys::skip());
//! # Ok::<(), ExtractError>(())
//! ```
//!
//! # Which one, and where its layer goes
//!
//! | extractor | what its keys identify | where the layer goes |
//! |---|---|---|
//! | [`PeerIp`](struct@PeerIp) | the address at the other end of the connection | outside authentication, which it protects; not behind a proxy |
//! | [`ForwardedIp`] | the client's address as trusted proxies report it | outside authentication; see [`forwarded`] for what each proxy needs |
//! | [`Header`] | whatever the client sends | anywhere; the value is not verified |
//! | [`Cookie`] | whatever the client sends | as a header |
//! | [`Extension`] | the user whom an outer layer has identified | *inside* the layer that inserts it, or every request is rejected |
//! | a [`Key`] | all clients together | anywhere |
//! | a closure | what you read from the head | where what it reads is present |
//! | an [`AsyncKeyExtractor`] | what you look up | as a closure |
//!
//! [`or`](KeyExtractor::or) takes the first of several keys, [`and`](KeyExtractor::and) combines two into one, and
//! [`only_when`](KeyExtractor::only_when) limits only some requests.
//!
//! # Never a shared key by accident
//!
//! A request without an identity has no key: not an empty one, not `unknown`, not the proxy's. Otherwise all such
//! requests would share one limit, and one client could use it up for all. So
//! [`Missing`](crate::error::ExtractErrorKind::Missing) rejects the request with a 400, unless you choose
//! [`or_skip`](KeyExtractor::or_skip), which leaves such requests to the *other* limits of the layer, or
//! [`or_shared`](KeyExtractor::or_shared), which names a key that they share.
//! [`Malformed`](crate::error::ExtractErrorKind::Malformed) always rejects the request, since a client could otherwise
//! choose to be skipped. [`Unavailable`](crate::error::ExtractErrorKind::Unavailable) follows the failure policy, as a
//! store that cannot decide does.

use std::sync::Arc;

use http::request::Parts;

use crate::{error::ExtractError, key::Key};

mod cidr;
mod combine;
mod cookie;
mod extension;
pub mod forwarded;
mod header;
mod ip;
mod keys;
mod keys_future;
mod peer_ip;

pub use cidr::{Cidr, CidrError};
pub use combine::{And, OnMissing, OnlyWhen, Or};
pub use cookie::Cookie;
pub use extension::Extension;
pub use forwarded::{ForwardedIp, TrustedProxies};
pub use header::Header;
pub use keys::{IntoKeys, Keys};
pub use keys_future::{AsyncKeyExtractor, KeysFuture};
pub use peer_ip::PeerIp;

/// Reads the head of a request and answers the keys that it is charged to.
///
/// Closures `Fn(&Parts) -> R` are extractors, where `R` is a [`Key`], an `Option<Key>`, [`Keys`], or a `Result` of a
/// key or keys; so is a [`Key`], which all requests share. It runs for every request: it must not block.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not extract keys",
    note = "a closure needs its argument's type: `|head: &http::request::Parts| Some(Key::new(\"user\", …))`",
    note = "a look-up that has to be awaited goes to `limit_async`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Answers the keys of a request; each is charged.
    ///
    /// # Errors
    ///
    /// When the request does not identify its client, does so in a way that cannot be read, or when the service cannot
    /// find out now.
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError>;

    /// Skips this limit for requests that do not identify their client
    /// ([`Missing`](crate::error::ExtractErrorKind::Missing)).
    fn or_skip(self) -> OnMissing<Self>
    where
        Self: Sized,
    {
        OnMissing::new(self, Keys::skip())
    }

    /// Charges all requests that do not identify their client ([`Missing`](crate::error::ExtractErrorKind::Missing)) to
    /// `key`: they share one limit.
    fn or_shared(self, key: Key) -> OnMissing<Self>
    where
        Self: Sized,
    {
        OnMissing::new(self, key.into())
    }

    /// Takes the keys of `other` for requests in which this extractor finds no client
    /// ([`Missing`](crate::error::ExtractErrorKind::Missing)).
    ///
    /// A client chooses which of the two counts by leaving the first one out. A value that a client can make up, such
    /// as an unverified [`Header`], must not come before one that it cannot choose.
    ///
    /// ```
    /// use sluicegate::{Key, KeyExtractor, PeerIp, extract::{Extension, Keys}};
    ///
    /// #[derive(Clone)]
    /// struct User(u64);
    ///
    /// let who = Extension::new(|user: &User| Key::new("user", user.0.to_string())).or(PeerIp);
    ///
    /// let mut head = http::Request::get("/").body(())?.into_parts().0;
    /// head.extensions.insert(std::net::SocketAddr::from(([203, 0, 113, 7], 50000)));
    /// assert_eq!(who.extract(&head)?, Keys::from(Key::new("ip", "203.0.113.7")));
    /// head.extensions.insert(User(7));
    /// assert_eq!(who.extract(&head)?, Keys::from(Key::new("user", "7")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn or<E: KeyExtractor>(self, other: E) -> Or<Self, E>
    where
        Self: Sized,
    {
        Or::new(self, other)
    }

    /// Combines this key and that of `other` into one: a user *at* an address, a user *of* a tenant.
    ///
    /// Two requests share the key only if both parts are equal. It is secret if one of the parts is. When either
    /// extractor skips or fails, so does the pair. To limit by each of two keys on its own, give the layer two limits
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
        And::new(self, other)
    }

    /// Applies this limit only to requests for which `condition` is true; the others skip it.
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
        OnlyWhen::new(self, condition)
    }
}

/// All requests are charged to this key.
impl KeyExtractor for Key {
    fn extract(&self, _head: &Parts) -> Result<Keys, ExtractError> {
        Ok(self.clone().into())
    }
}

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
