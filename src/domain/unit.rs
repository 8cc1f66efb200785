//! [`Unit`]: the name of the unit that a policy counts.

use std::{borrow::Cow, fmt, str::FromStr};

use crate::domain::error::ConfigError;

/// Units become parts of header names.
const MAX_UNIT: usize = 32;

/// The name of the unit that a policy counts, for [`Policy::unit`](crate::Policy::unit): clients see it in the quota
/// headers.
///
/// Besides the constants, read any other from a text of 1 to 32 characters of `a-z 0-9 -`:
///
/// ```
/// use sluicegate::policies::Unit;
///
/// let pages: Unit = "pages".parse()?;
/// assert_eq!(pages.as_str(), "pages");
/// assert!("Two words".parse::<Unit>().is_err());
/// # Ok::<(), sluicegate::error::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unit(Cow<'static, str>);

impl Unit {
    /// `tokens`, of a language model.
    pub const TOKENS: Self = Self(Cow::Borrowed("tokens"));

    /// `content-bytes`: the bytes of the content of messages.
    pub const CONTENT_BYTES: Self = Self(Cow::Borrowed("content-bytes"));

    /// Returns the name.
    #[must_use]
    #[doc(hidden)]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Unit {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        let is_valid = (1..=MAX_UNIT).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if is_valid {
            Ok(Self(Cow::Owned(name.to_owned())))
        } else {
            let problem = "is no unit: write 1 to 32 characters of a-z 0-9 -, such as `tokens`";
            Err(ConfigError::of_name(name, problem))
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
