//! [`Text`]: a short text that is fixed in the program, or comes from its configuration.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

/// A short text, such as the kind of a [`Key`](crate::Key): a literal of the program, or one that its configuration
/// holds and that all clones share.
///
/// You seldom name it: what takes an `impl Into<Text>` takes a `&'static str`, a `String` or an `Arc<str>`. A clone
/// never allocates, nor does a `Text` of a literal or of an `Arc`; where a text from the configuration is needed for each
/// request, keep a `Text` or an `Arc<str>` and clone that.
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

    /// The text.
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

/// Two texts are equal wherever they come from.
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
