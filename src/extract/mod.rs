//! Who is asking: a [`KeyExtractor`] sees the head of a request and answers with [`Keys`], *skip*, or an error.
//!
//! ```
//! use http::request::Parts;
//! use sluicegate::{ExtractError, Key, KeyExtractor, extract::Keys};
//!
//! // A closure over the head is an extractor. `None` means that the request does not say who is asking.
//! let tenant = |head: &Parts| {
//!     let host = head.uri.host()?;
//!     Some(Key::new("tenant", host.split('.').next()?))
//! };
//! let head = |uri: &str| http::Request::get(uri).body(()).unwrap().into_parts().0;
//!
//! assert_eq!(tenant.extract(&head("http://acme.example.com/"))?, Keys::from(Key::new("tenant", "acme")));
//! assert!(tenant.extract(&head("/")).is_err());
//!
//! // What happens then is the user's choice; the default is to refuse the request.
//! assert_eq!(tenant.or_skip().extract(&head("/"))?, Keys::skip());
//! # Ok::<(), ExtractError>(())
//! ```
//!
//! # Which one, and where its layer goes
//!
//! | extractor | who | where the layer goes |
//! |---|---|---|
//! | [`PeerIp`](struct@PeerIp) | the address at the other end of the connection | outside authentication, which it protects; not behind a proxy |
//! | [`Header`] | whatever the client writes there | anywhere; says nothing about whether the value is genuine |
//! | [`Extension`] | whom an outer layer has identified | *inside* the layer that puts it there, or every request is refused |
//! | a [`Key`] | everybody together | anywhere |
//! | a closure | what you read from the head | where what it reads is there |
//! | an [`AsyncKeyExtractor`] | whom you look up | as a closure |
//!
//! # Never a shared key by accident
//!
//! A request without an identity has no key: not an empty one, not `unknown`, not the proxy's. Otherwise all such requests
//! would share one limit, and one client could use it up for all. So [`ExtractErrorKind::Missing`] refuses the request with
//! a 400 unless the user has chosen [`or_skip`](KeyExtractor::or_skip), which limits such requests by the *other* limits of
//! the layer only, or [`or_shared`](KeyExtractor::or_shared), which names the key that they share.
//! [`Malformed`](ExtractErrorKind::Malformed) always refuses the request, since a client could otherwise choose to be skipped.
//! [`Unavailable`](ExtractErrorKind::Unavailable) follows the failure policy, as a store that cannot decide does.

use std::sync::Arc;

use http::request::Parts;

use crate::{
    error::{ExtractError, ExtractErrorKind},
    key::Key,
};

mod extension;
mod header;
mod keys;
mod look_up;
mod peer_ip;

pub use extension::Extension;
pub use header::Header;
pub use keys::{IntoKeys, Keys};
pub use look_up::{AsyncKeyExtractor, LookUp};
pub use peer_ip::{PeerIp, PeerNetwork};

/// Sees the head of a request and answers who is to be charged.
///
/// Closures `Fn(&Parts) -> R` are extractors, where `R` is a [`Key`], an `Option<Key>`, [`Keys`], or a `Result` of a key or
/// keys; so is a [`Key`], which everybody shares. It runs for every request: it must not block.
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
    /// When the request does not say who is asking, says it badly, or when that cannot be found out now.
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError>;

    /// Lets requests pass this limit when they do not say who is asking.
    fn or_skip(self) -> OnMissing<Self>
    where
        Self: Sized,
    {
        OnMissing {
            extractor: self,
            keys: Keys::skip(),
        }
    }

    /// Charges `key` for all requests that do not say who is asking: they share one limit.
    fn or_shared(self, key: Key) -> OnMissing<Self>
    where
        Self: Sized,
    {
        OnMissing {
            extractor: self,
            keys: key.into(),
        }
    }
}

/// Everybody together: each request is charged to this key.
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

/// An extractor with an answer for requests that do not say who is asking.
///
/// Made by [`KeyExtractor::or_skip`] and [`KeyExtractor::or_shared`].
#[derive(Clone, Debug)]
pub struct OnMissing<E> {
    extractor: E,
    keys: Keys,
}

impl<E: KeyExtractor> KeyExtractor for OnMissing<E> {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        match self.extractor.extract(head) {
            Err(error) if error.kind() == ExtractErrorKind::Missing => Ok(self.keys.clone()),
            result => result,
        }
    }
}
