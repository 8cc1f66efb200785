//! Extractors made of other extractors: `or`, `and`, `only_when`, and the answers to a missing key.

use std::fmt;

use http::request::Parts;

use super::{KeyExtractor, Keys};
use crate::domain::{
    error::{ExtractError, ExtractErrorKind},
    key::Key,
};

/// An extractor with a different answer for requests that do not identify a client.
///
/// Made by [`KeyExtractor::or_skip`], [`KeyExtractor::or_shared`] and [`KeyExtractor::or_unauthorized`].
pub type OnMissing<E> = Or<E, Result<Keys, ExtractError>>;

/// Returns these keys, or this error, for all requests.
impl KeyExtractor for Result<Keys, ExtractError> {
    fn extract(&self, _head: &Parts) -> Self {
        self.clone()
    }
}

/// Uses the second extractor when the first one finds no client. Made by [`KeyExtractor::or`].
#[derive(Clone, Debug)]
pub struct Or<A, B> {
    pub(super) first: A,
    pub(super) second: B,
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        match self.first.extract(head) {
            Err(error) if error.kind() == ExtractErrorKind::Missing => self.second.extract(head),
            result => result,
        }
    }
}

/// Combines the keys of two extractors into one. Made by [`KeyExtractor::and`].
///
/// The kind of the key is `both`. When the extractors return several keys, each of the first is combined with each of
/// the second.
#[derive(Clone, Debug)]
pub struct And<A, B> {
    pub(super) first: A,
    pub(super) second: B,
}

impl<A, B> And<A, B> {
    /// Returns the key of requests in which the two extractors find these keys. You use it to reset, peek or block from
    /// code.
    ///
    /// ```
    /// use sluicegate::{Header, KeyExtractor, PeerIp, extract::Keys};
    ///
    /// let (user, who) = (Header::new("x-user"), Header::new("x-user").and(PeerIp));
    /// let mut head = http::Request::get("/").header("x-user", "alice").body(())?.into_parts().0;
    /// head.extensions.insert(std::net::SocketAddr::from(([203, 0, 113, 7], 50000)));
    /// let key = who.key(&user.key("alice"), &PeerIp.key([203, 0, 113, 7].into()));
    /// assert_eq!(who.extract(&head)?, Keys::from(key));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[allow(clippy::unused_self, reason = "as of every extractor that has a key")]
    pub fn key(&self, first: &Key, second: &Key) -> Key {
        both(first, second)
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for And<A, B> {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        let firsts = self.first.extract(head)?;
        let seconds = self.second.extract(head)?;
        let are_of_peer = firsts.are_of_peer() || seconds.are_of_peer();
        let pairs = firsts.into_iter().flat_map(|first| {
            let pair = move |second| both(&first, second);
            seconds.iter().map(pair)
        });
        Ok(pairs.collect::<Keys>().of_peer(are_of_peer))
    }
}

fn both(first: &Key, second: &Key) -> Key {
    let mut value = Vec::new();
    for part in [first, second] {
        // Lengths come before texts, so that two different pairs never have the same value.
        let secrecy = if part.is_secret() { '@' } else { ':' };
        let (kind, text) = (part.kind(), part.value());
        let front = format!("{}:{kind}{secrecy}{}:", kind.len(), text.len());
        value.extend_from_slice(front.as_bytes());
        value.extend_from_slice(text);
    }
    if first.is_secret() || second.is_secret() {
        Key::secret("both", value)
    } else {
        Key::new("both", value)
    }
}

/// Limits some requests only. Made by [`KeyExtractor::only_when`].
#[derive(Clone)]
pub struct OnlyWhen<E, F> {
    pub(super) extractor: E,
    pub(super) condition: F,
}

impl<E, F> KeyExtractor for OnlyWhen<E, F>
where
    E: KeyExtractor,
    F: Fn(&Parts) -> bool + Send + Sync + 'static,
{
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        if (self.condition)(head) {
            self.extractor.extract(head)
        } else {
            Ok(Keys::skip())
        }
    }
}

impl<E: fmt::Debug, F> fmt::Debug for OnlyWhen<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnlyWhen")
            .field("extractor", &self.extractor)
            .finish_non_exhaustive()
    }
}
