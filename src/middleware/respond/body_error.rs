//! [`Refusal`]: why a body was not read, and the response that says so.

use std::fmt;

use http::{HeaderMap, HeaderValue, Response, StatusCode, Version, header, request::Parts};

use crate::{domain::Text, middleware::respond::plain_problem};

/// Why your function could not parse a body. The client sees this text: leave out what the body holds.
#[derive(Clone, Debug)]
pub struct BodyError(Text);

impl BodyError {
    /// Creates an error with this text, a sentence for the client.
    #[must_use]
    pub fn new(detail: impl Into<Text>) -> Self {
        Self(detail.into())
    }

    /// The text of serde's error would show a part of the body.
    #[cfg(feature = "json")]
    pub(super) fn of_json(error: &serde_json::Error) -> Self {
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
        f.write_str(self.0.as_str())
    }
}

impl std::error::Error for BodyError {}

pub(super) enum Refusal {
    /// More bytes than this.
    TooLarge(usize),
    /// More bytes than a layer outside allows.
    CutOff,
    Encoded,
    Slow,
    BrokenOff,
    Unparsed(BodyError),
}

impl Refusal {
    const fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge(_) | Self::CutOff => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Encoded => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::BrokenOff | Self::Unparsed(_) => StatusCode::BAD_REQUEST,
        }
    }

    pub(super) fn response<B: From<String>>(&self, head: &Parts) -> Response<B> {
        let detail = match self {
            Self::TooLarge(most) => format!("The body has more than {most} bytes."),
            Self::CutOff => "The body has too many bytes.".to_owned(),
            Self::Encoded => "The body must have no content coding.".to_owned(),
            Self::Slow => "The body took too long.".to_owned(),
            Self::BrokenOff => "The body broke off.".to_owned(),
            Self::Unparsed(error) => error.to_string(),
        };
        let mut response = plain_problem(self.status(), &detail, head);
        self.add_headers(response.headers_mut(), head.version);
        response
    }

    fn add_headers(&self, headers: &mut HeaderMap, version: Version) {
        match self {
            // RFC 9110, 12.5.3: the response to an unsupported coding names those that are supported.
            Self::Encoded => {
                let none = HeaderValue::from_static("identity");
                headers.insert(header::ACCEPT_ENCODING, none);
            }
            // RFC 9110, 15.5.9. HTTP/2 has no such header.
            Self::Slow if version < Version::HTTP_2 => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
    }
}
