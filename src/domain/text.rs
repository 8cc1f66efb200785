//! [`Text`]: a short text from the program or from its configuration.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

/// A short text, such as the kind of a [`Key`](crate::Key): a literal, or a text from a configuration that all clones
/// share.
///
/// You seldom name this type: functions that take an `impl Into<Text>` take a `&'static str`, a `String` or an
/// `Arc<str>`. A clone never allocates, nor does a `Text` from a literal or from an `Arc`. If you need a text from your
/// configuration for each request, keep a `Text` or an `Arc<str>` and clone that.
///
/// ```
/// use sluicegate::{Key, Text};
///
/// let kind = Text::from(String::from("customer"));               // read from a file
/// assert_eq!(Key::new(kind.clone(), "alice"), Key::new("customer", "alice"));
/// ```
#[derive(Clone)]
pub struct Text(Source);

#[derive(Clone)]
enum Source {
    Literal(&'static str),
    Shared(Arc<str>),
}

impl Text {
    pub(crate) const fn literal(text: &'static str) -> Self {
        Self(Source::Literal(text))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Source::Literal(text) => text,
            Source::Shared(text) => text,
        }
    }
}

impl From<&'static str> for Text {
    fn from(text: &'static str) -> Self {
        Self::literal(text)
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(Source::Shared(text.into()))
    }
}

impl From<Arc<str>> for Text {
    fn from(text: Arc<str>) -> Self {
        Self(Source::Shared(text))
    }
}

/// Compares the characters: a literal and a shared text can be equal.
impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Text {}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
