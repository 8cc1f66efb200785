//! [`Keys`]: the keys that one request is charged to.

use crate::domain::{check::MAX_CHARGES, error::ExtractError, key::Key};

/// The keys of one request: none (this limit does not apply), one, or several.
///
/// A single key needs no list on the heap. A key that you list twice is charged twice. If there are more than 64 keys,
/// the check fails; only the first 65 are kept.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    first: Option<Key>,
    others: Vec<Key>,
    /// Whether the keys are those of the address at the other end of the connection.
    of_peer: bool,
}

impl Keys {
    /// No key: this limit does not apply to the request.
    #[must_use]
    pub fn skip() -> Self {
        Self::default()
    }

    /// Marks keys made from the address at the other end of the connection: behind a proxy, all clients share that
    /// address.
    pub(crate) fn of_peer(mut self, of_peer: bool) -> Self {
        self.of_peer = of_peer;
        self
    }

    pub(crate) const fn are_of_peer(&self) -> bool {
        self.of_peer
    }

    /// Returns whether the list is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Returns the keys in the order in which they are charged.
    pub fn iter(&self) -> impl Iterator<Item = &Key> {
        self.first.iter().chain(&self.others)
    }
}

impl From<Key> for Keys {
    fn from(key: Key) -> Self {
        Self {
            first: Some(key),
            ..Self::skip()
        }
    }
}

impl<const N: usize> From<[Key; N]> for Keys {
    fn from(keys: [Key; N]) -> Self {
        keys.into_iter().collect()
    }
}

/// An empty list is [`Keys::skip`].
impl From<Vec<Key>> for Keys {
    fn from(keys: Vec<Key>) -> Self {
        keys.into_iter().collect()
    }
}

impl FromIterator<Key> for Keys {
    fn from_iter<I: IntoIterator<Item = Key>>(keys: I) -> Self {
        // Keep one key too many, so that the check fails instead of silently ignoring the rest.
        let mut keys = keys.into_iter().take(MAX_CHARGES + 1);
        Self {
            first: keys.next(),
            others: keys.collect(),
            ..Self::skip()
        }
    }
}

/// Compares the keys alone; `of_peer` does not count.
impl PartialEq for Keys {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Keys {}

impl IntoIterator for Keys {
    type Item = Key;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Key>, std::vec::IntoIter<Key>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.others)
    }
}

/// The return types that closures can have instead of a `Result<Keys, ExtractError>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no answer of an extractor",
    note = "answer a `Key`, several as an array, a `Vec<Key>` or `Keys`, an `Option` of one of them, or a `Result`, whose \
            error is an `ExtractError`"
)]
pub trait IntoKeys {
    /// Converts the returned value.
    ///
    /// # Errors
    ///
    /// When the value is an error, or `None`, which becomes [`Missing`](crate::error::ExtractErrorKind::Missing).
    fn into_keys(self) -> Result<Keys, ExtractError>;
}

#[diagnostic::do_not_recommend]
impl<K: Into<Keys>> IntoKeys for K {
    fn into_keys(self) -> Result<Keys, ExtractError> {
        Ok(self.into())
    }
}

impl<K: Into<Keys>> IntoKeys for Option<K> {
    fn into_keys(self) -> Result<Keys, ExtractError> {
        self.map(Into::into)
            .ok_or_else(|| ExtractError::missing("the extractor found no key"))
    }
}

impl<K: Into<Keys>> IntoKeys for Result<K, ExtractError> {
    fn into_keys(self) -> Result<Keys, ExtractError> {
        self.map(Into::into)
    }
}
