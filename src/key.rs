//! [`Key`]: who is limited.
//!
//! ```
//! use sluicegate::Key;
//!
//! let key = Key::new("user", "alice");
//! assert_eq!(key.kind(), "user");
//! assert_eq!(format!("{key:?}"), "Key(user=…)");          // a value is never shown
//! assert_ne!(key, Key::new("tenant", "alice"));
//! assert_ne!(key, Key::secret("user", "alice"));          // secret and plain values never meet
//! ```

use std::fmt;

/// Who is limited: a kind (`ip`, `user`, `api-key`) and a value.
///
/// Two keys are the same when kind, value and secrecy are. The value may be any bytes of any length: stores keep a short
/// token of it, and two values never share one. `Debug` shows the kind alone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    kind: &'static str,
    value: Box<[u8]>,
    secret: bool,
}

impl Key {
    /// Creates a key whose value may be seen by those who run the store: an address, a user's number.
    #[must_use]
    pub fn new(kind: &'static str, value: impl AsRef<[u8]>) -> Self {
        Self {
            kind,
            value: value.as_ref().into(),
            secret: false,
        }
    }

    /// Creates a key whose value is a secret, such as an API key: stores keep only a keyed hash of it.
    #[must_use]
    pub fn secret(kind: &'static str, value: impl AsRef<[u8]>) -> Self {
        Self {
            kind,
            value: value.as_ref().into(),
            secret: true,
        }
    }

    /// What sort of identity this is; fit for logs and metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        self.kind
    }

    /// The value itself, for stores to make a token of; not fit for logs, metrics or anything that is kept.
    #[must_use]
    pub const fn value(&self) -> &[u8] {
        &self.value
    }

    /// Whether the value must be hashed before it is kept.
    #[must_use]
    pub const fn is_secret(&self) -> bool {
        self.secret
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}=…)", self.kind)
    }
}
