//! [`Key`]: the identity that is limited. [Extractors](crate::extract) make keys from requests; you can also make them
//! yourself.

use std::fmt;

use smallvec::SmallVec;

use crate::domain::Text;

/// An identity to limit: a kind (`ip`, `user`, `api-key`) and a value.
///
/// Two keys are equal when kind, value and secrecy are equal. The value may be any bytes of any length: stores keep a
/// short token instead, and two values never share a token. `Debug` shows only the kind.
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

/// The form of the value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    Plain,
    Secret,
    /// A token that stands for a value in the names of Redis: a hash.
    #[cfg(feature = "redis")]
    Token,
}

impl Key {
    /// Creates a key whose value the operators of the store may see, such as an address or a user's number. The kind is
    /// a literal, or a [`Text`] from your configuration.
    #[must_use]
    pub fn new(kind: impl Into<Text>, value: impl AsRef<[u8]>) -> Self {
        Self {
            kind: kind.into(),
            value: SmallVec::from_slice(value.as_ref()),
            form: Form::Plain,
        }
    }

    /// Creates a key whose value is a secret, such as an API key: stores keep only a keyed hash.
    #[must_use]
    pub fn secret(kind: impl Into<Text>, value: impl AsRef<[u8]>) -> Self {
        Self {
            form: Form::Secret,
            ..Self::new(kind, value)
        }
    }

    /// Makes the value a secret, which gives another key. Use this for values that your operators must not see.
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

    /// Returns the kind of the identity; you may log it and use it in metrics.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.kind.as_str()
    }

    /// Returns a key of this kind and secrecy with another value.
    pub(crate) fn with_value(&self, value: &[u8]) -> Self {
        Self {
            form: self.form,
            ..Self::new(self.kind.clone(), value)
        }
    }

    /// Returns the value. Do not use it in metrics: a client could make up any number of values. If the value [is
    /// secret](Self::is_secret), do not log it either.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Returns whether stores keep only a hash of the value.
    #[must_use]
    pub const fn is_secret(&self) -> bool {
        matches!(self.form, Form::Secret)
    }

    /// Creates the key that a store in Redis lists as `<kind>=<token>`, when the value is not known.
    #[cfg(feature = "redis")]
    pub(crate) fn of_token(kind: impl Into<Text>, token: &str) -> Self {
        Self {
            form: Form::Token,
            ..Self::new(kind, token)
        }
    }

    /// Returns whether the value is already a token.
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
