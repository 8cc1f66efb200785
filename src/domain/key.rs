//! [`Key`]: who is limited. [Extractors](crate::extract) make keys from requests; other code makes them by hand.

use std::fmt;

use smallvec::SmallVec;

use crate::domain::Text;

/// Who is limited: a kind (`ip`, `user`, `api-key`) and a value.
///
/// Two keys are equal when kind, value and secrecy are. The value may be any bytes of any length: stores keep a short
/// token of it, and two values never share one. `Debug` shows only the kind.
///
/// ```
/// use sluicegate::Key;
///
/// let key = Key::new("user", "alice");
/// assert_eq!(key.kind(), "user");
/// assert_eq!(format!("{key:?}"), "Key(user=…)");          // the value is never shown
/// assert_ne!(key, Key::new("tenant", "alice"));
/// assert_ne!(key, Key::secret("user", "alice"));          // a secret value and a plain one are different keys
/// assert_eq!(key.into_secret(), Key::secret("user", "alice"));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    kind: Text,
    /// Most addresses and numbers fit without an allocation.
    value: SmallVec<[u8; 24]>,
    form: Form,
}

/// What the value is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    Plain,
    Secret,
    /// What stands for a value in the names of Redis: its hash.
    #[cfg(feature = "redis")]
    Token,
}

impl Key {
    /// Creates a key whose value the operators of the store may see, such as an address or a user's number. The kind is
    /// a literal, or a [`Text`] that your configuration holds.
    #[must_use]
    pub fn new(kind: impl Into<Text>, value: impl AsRef<[u8]>) -> Self {
        Self {
            kind: kind.into(),
            value: SmallVec::from_slice(value.as_ref()),
            form: Form::Plain,
        }
    }

    /// Creates a key whose value is a secret, such as an API key: stores keep only a keyed hash of it.
    #[must_use]
    pub fn secret(kind: impl Into<Text>, value: impl AsRef<[u8]>) -> Self {
        Self {
            form: Form::Secret,
            ..Self::new(kind, value)
        }
    }

    /// The same identity with its value as a secret, which is another key. For values that your operators are not to see.
    #[must_use]
    pub fn into_secret(self) -> Self {
        if self.form != Form::Plain {
            return self;
        }
        Self {
            form: Form::Secret,
            ..self
        }
    }

    /// The kind of the identity; may be logged and used in metrics.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.kind.as_str()
    }

    /// The kind, for another key of it.
    pub(crate) const fn kind_text(&self) -> &Text {
        &self.kind
    }

    /// The value itself, from which stores make a token. Not for metrics: anybody could make up as many as they like. If
    /// it [is secret](Self::is_secret), not for logs either.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Whether the value must be hashed before it is kept.
    #[must_use]
    pub const fn is_secret(&self) -> bool {
        matches!(self.form, Form::Secret)
    }

    /// The key that a store in Redis lists as `<kind>=<token>`, of a value that is not known.
    #[cfg(feature = "redis")]
    pub(crate) fn of_token(kind: impl Into<Text>, token: &str) -> Self {
        Self {
            form: Form::Token,
            ..Self::new(kind, token)
        }
    }

    /// Whether the value is the token itself.
    #[cfg(feature = "redis")]
    pub(crate) const fn is_token(&self) -> bool {
        matches!(self.form, Form::Token)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}=…)", self.kind)
    }
}
