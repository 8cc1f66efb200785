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
//! The closure's argument needs its type, `&Parts`. Without it the compiler says that an "implementation of `FnOnce`
//! is not general enough"; [`from_fn`] takes a closure without the type.
//!
//! # Which one, and where its layer goes
//!
//! | extractor | what its keys identify | where the layer goes |
//! |---|---|---|
//! | [`PeerIp`](struct@PeerIp) | the address at the other end of the connection | outside authentication, which it protects; not behind a proxy |
//! | [`ForwardedIp`] | the client's address as trusted proxies report it | outside authentication; see [`forwarded`] for what each proxy needs |
//! | [`Header`] | whatever the client sends | anywhere; the value is not verified |
//! | [`Cookie`] | whatever the client sends | as a header |
//! | [`Extension`] | the user whom an outer layer has identified | *inside* the layer that inserts it, or every request is a 500 |
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
//! requests would share one limit, and one client could use it up for all. What happens instead depends on
//! [why](crate::error::ExtractErrorKind) there is none:
//!
//! | kind | what happened | the request gets |
//! |---|---|---|
//! | `Missing` | the client does not say who it is | a 400, unless you choose [`or_skip`](KeyExtractor::or_skip), which leaves such requests to the *other* limits of the layer, [`or_shared`](KeyExtractor::or_shared), which names a key that they share, [`or_unauthorized`](KeyExtractor::or_unauthorized) or [`or`](KeyExtractor::or) |
//! | `Unauthenticated` | the client has to authenticate | a 401, with its challenge in `WWW-Authenticate` |
//! | `Malformed` | what the client says cannot be read | a 400, always: a client could otherwise choose to be skipped |
//! | `Unavailable` | the service could not find out | what the failure policy says, as when a store cannot decide |
//! | `Misconfigured` | a layer or a setting of the service is missing | a 500, always, whatever the failure policy; and a **warning**, once for each layer, that says what to do |
//!
//! Warnings go to the crate `tracing`, with the feature of that name, which is on by default.
//!
//! # The key of one client
//!
//! [`Header::key`], [`Cookie::key`], [`PeerIp::key`](struct@PeerIp#method.key), [`ForwardedIp::key`] and [`And::key`]
//! make the key that a request would have: to [reset](crate::Limiter::reset) it, to [peek](crate::Limiter::peek) at
//! what is left, or to compare with it in [`block_keys`](crate::RateLimitLayer::block_keys).
//!
//! # Names that other crates have, too
//!
//! `Extension` and `Cookie` are also names of axum and axum-extra, and so are `Key` (cookies) and
//! [`Route`](crate::middleware::Route) (`axum::routing`). Where a file uses both, import the modules:
//!
//! ```
//! use axum::{Extension, Router, routing::get};
//! use sluicegate::{self as limits, MemoryStore, Policy, RateLimitLayer, extract};
//!
//! #[derive(Clone)]
//! struct User(String);
//!
//! let user = extract::Extension::new(|user: &User| limits::Key::new("user", &user.0));
//! let layer = RateLimitLayer::new(MemoryStore::new()).limit(Policy::parse("user", "60/1m")?, user);
//! let app: Router = Router::new()
//!     .route("/", get(async |Extension(user): Extension<User>| user.0))
//!     .layer(layer)
//!     .layer(Extension(User("alice".to_owned())));                 // stands for authentication
//! # let _ = app;
//! # Ok::<(), sluicegate::error::PolicyError>(())
//! ```

use std::sync::Arc;

use http::{HeaderValue, request::Parts};

use crate::{error::ExtractError, key::Key};

mod charges;
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

pub(crate) use charges::ChargesFuture;
pub use charges::IntoCharges;
pub use cidr::{Cidr, CidrError};
pub use combine::{And, OnMissing, OnlyWhen, Or};
pub use cookie::{Cookie, RepeatedCookie};
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
    note = "a closure needs its argument's type: `|head: &http::request::Parts| Some(Key::new(\"user\", …))`, or \
            `extract::from_fn(|head| …)`",
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

    /// Whether the keys are of the address at the other end of the connection, as those of
    /// [`PeerIp`](struct@PeerIp) are. The layer warns once if such a limit is behind a proxy, where that is the proxy's
    /// address.
    fn reads_peer(&self) -> bool {
        false
    }

    /// Skips this limit for requests that do not identify their client
    /// ([`Missing`](crate::error::ExtractErrorKind::Missing)).
    fn or_skip(self) -> OnMissing<Self>
    where
        Self: Sized,
    {
        OnMissing::new(self, Ok(Keys::skip()))
    }

    /// Charges all requests that do not identify their client ([`Missing`](crate::error::ExtractErrorKind::Missing)) to
    /// `key`: they share one limit.
    fn or_shared(self, key: Key) -> OnMissing<Self>
    where
        Self: Sized,
    {
        OnMissing::new(self, Ok(key.into()))
    }

    /// Answers requests that do not identify their client ([`Missing`](crate::error::ExtractErrorKind::Missing)) with a
    /// 401, instead of a 400, and with `challenge` as its `WWW-Authenticate`, for instance `Bearer`.
    ///
    /// # Panics
    ///
    /// When `challenge` cannot be the value of a header.
    fn or_unauthorized(self, challenge: &'static str) -> OnMissing<Self>
    where
        Self: Sized,
    {
        assert!(
            HeaderValue::from_str(challenge).is_ok(),
            "`{challenge}` cannot be the value of a header"
        );
        OnMissing::new(self, Err(ExtractError::unauthenticated(challenge)))
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
    /// head.extensions.insert(None::<User>);                           // nobody has signed in
    /// assert_eq!(who.extract(&head)?, Keys::from(Key::new("ip", "203.0.113.7")));
    /// head.extensions.insert(Some(User(7)));
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

/// The closure itself: it says to the compiler that the argument is the head of a request, so that you need not.
///
/// For closures that extract keys, and for those that choose a policy:
///
/// ```
/// use sluicegate::{Key, MemoryStore, Policy, RateLimitLayer, extract::from_fn};
///
/// let [reads, writes] = [Policy::parse("reads", "600/1m")?, Policy::parse("writes", "60/1m")?];
/// let layer = RateLimitLayer::new(MemoryStore::new()).limit(
///     from_fn(move |head| if head.method.is_safe() { reads.clone() } else { writes.clone() }),
///     from_fn(|head| Some(Key::new("host", head.uri.host()?))),
/// );
/// # assert!(format!("{layer:?}").contains("Closure"));
/// # Ok::<(), sluicegate::error::PolicyError>(())
/// ```
pub const fn from_fn<F, R>(closure: F) -> F
where
    F: Fn(&Parts) -> R + Send + Sync + 'static,
{
    closure
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

    fn reads_peer(&self) -> bool {
        (**self).reads_peer()
    }
}

impl KeyExtractor for Arc<dyn KeyExtractor> {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        (**self).extract(head)
    }

    fn reads_peer(&self) -> bool {
        (**self).reads_peer()
    }
}
