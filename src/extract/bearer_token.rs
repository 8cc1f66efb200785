//! [`BearerToken`]: keys from the bearer token of a request.

use http::{header::AUTHORIZATION, request::Parts};

use super::{KeyExtractor, Keys};
use crate::domain::{error::ExtractError, key::Key};

/// The bearer token of a request (RFC 6750), as in `Authorization: Bearer mF_9.B5f-4.1JqM`: a secret, so stores keep
/// only a hash.
///
/// Each token has one key, however a client writes the header: the name of the scheme is case-insensitive, and white
/// space around the token is ignored. A [`Header`](super::Header) with the name `authorization` would give
/// `Bearer abc`, `bearer abc` and `Bearer  abc` a quota each.
///
/// - No header, another scheme, or nothing after the scheme: the key is missing.
/// - Two headers, or a token with a blank, a comma, or characters other than visible ASCII: malformed.
///
/// **The token is not verified**, as with `Header`: a client that makes up a new token for each request is never
/// limited, unless an outer layer rejects unknown ones. A user can have many tokens: if your tokens name a user, limit
/// by the user, with a [`FromExtension`](super::FromExtension).
///
/// ```
/// use sluicegate::{KeyExtractor, extract::{BearerToken, Keys}};
///
/// let with = |value: &str| http::Request::get("/").header("authorization", value).body(()).unwrap().into_parts().0;
/// for value in ["Bearer mF_9.B5f-4.1JqM", "bearer  mF_9.B5f-4.1JqM"] {
///     assert_eq!(BearerToken.extract(&with(value))?, Keys::from(BearerToken.key("mF_9.B5f-4.1JqM")));
/// }
/// assert!(BearerToken.extract(&with("Basic YWxpY2U6")).is_err());
/// # Ok::<(), sluicegate::error::ExtractError>(())
/// ```
///
/// With [`or_unauthorized`](KeyExtractor::or_unauthorized), a request without a token gets a 401 instead of a 400:
///
/// ```
/// # use http::HeaderValue;
/// # use sluicegate::{KeyExtractor, extract::BearerToken};
/// let by_token = BearerToken.or_unauthorized(HeaderValue::from_static("Bearer"));
/// # let _ = by_token;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct BearerToken;

const ABSENT: ExtractError = ExtractError::missing("the request has no bearer token");

const UNREADABLE: ExtractError = ExtractError::malformed("the bearer token cannot be read");

const TWICE: ExtractError = ExtractError::malformed("the header `authorization` was sent twice");

impl BearerToken {
    /// Returns the key of requests with this token. You use it to reset, peek or block from code.
    #[must_use]
    #[allow(clippy::unused_self, reason = "as of every extractor that has a key")]
    pub fn key(&self, token: impl AsRef<[u8]>) -> Key {
        Key::secret("bearer", token.as_ref().trim_ascii())
    }
}

impl KeyExtractor for BearerToken {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        let mut lines = head.headers.get_all(AUTHORIZATION).iter();
        let value = lines.next().ok_or(ABSENT)?.as_bytes().trim_ascii();
        if lines.next().is_some() {
            return Err(TWICE);
        }
        match credentials(value).ok_or(ABSENT)? {
            b"" => Err(ABSENT),
            token if is_token(token) => Ok(self.key(token).into()),
            _ => Err(UNREADABLE),
        }
    }
}

/// Returns the text after the scheme; `None` for another scheme. A tab separates the two as well, since most services
/// accept one.
fn credentials(value: &[u8]) -> Option<&[u8]> {
    let end = value.iter().position(u8::is_ascii_whitespace);
    let (scheme, token) = value.split_at(end.unwrap_or(value.len()));
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer");
    is_bearer.then(|| token.trim_ascii_start())
}

/// Accepts more than the `b64token` of RFC 6750, 2.1, since services issue other tokens, such as `1|s3cret`. Without
/// blanks and commas, no client can write one token in two ways.
fn is_token(token: &[u8]) -> bool {
    let is_of_token = |byte: &u8| byte.is_ascii_graphic() && *byte != b',';
    token.iter().all(is_of_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_visible_ascii_without_blanks_and_commas() {
        for good in ["mF_9.B5f-4.1JqM", "a~+/==", "eyJh.eyJz.c2ln"] {
            assert!(is_token(good.as_bytes()), "{good}");
        }
        for issued in [
            "1|f4SwPYmyi0",
            "Atza|IwEBIP_aN-yCg",
            "123456:ABC",
            "a=b",
            "\"a\"",
        ] {
            assert!(is_token(issued.as_bytes()), "{issued}");
        }
        for bad in ["a b", "a\tb", "a,b", "\u{e4}", "a\u{7f}"] {
            assert!(!is_token(bad.as_bytes()), "{bad}");
        }
    }
}
