//! [`BodyError`]: why a body could not be read, or parsed.

use std::fmt;

use http::StatusCode;

use crate::domain::Text;

/// Why your function could not parse a body, or why a layer could not read it: see
/// [`Rejection::Unread`](super::Rejection::Unread). The client sees this text: leave out what the body holds.
#[derive(Clone, Debug)]
pub struct BodyError {
    pub(super) status: StatusCode,
    detail: Text,
}

impl BodyError {
    /// Creates an error with this text, a sentence for the client.
    #[must_use]
    pub fn new(detail: impl Into<Text>) -> Self {
        Self::of(StatusCode::BAD_REQUEST, detail)
    }

    pub(in crate::middleware) fn of(status: StatusCode, detail: impl Into<Text>) -> Self {
        Self {
            status,
            detail: detail.into(),
        }
    }

    /// The text of serde's error would show a part of the body.
    #[cfg(feature = "json")]
    pub(in crate::middleware) fn of_json(error: &serde_json::Error) -> Self {
        let what = match error.classify() {
            serde_json::error::Category::Data => "JSON, but not as expected",
            _ => "not JSON",
        };
        Self::new(match (error.line(), error.column()) {
            (0, _) => format!("The body is {what}."), // serde lost the place, as for untagged enums
            (line, column) => format!("The body is {what}, at line {line}, column {column}."),
        })
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.detail.as_str())
    }
}

impl std::error::Error for BodyError {}
