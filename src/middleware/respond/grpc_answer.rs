//! The response to a gRPC call that was rejected: a gRPC status.

use std::{borrow::Cow, fmt::Write, time::Duration};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header, request::Parts,
};

use super::Rejection;
#[cfg(feature = "tonic")]
use super::rejection::violated;
use crate::domain::{error::ExtractErrorKind, rule::millis};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

const INVALID_ARGUMENT: u16 = 3;
const PERMISSION_DENIED: u16 = 7;
const RESOURCE_EXHAUSTED: u16 = 8;
const INTERNAL: u16 = 13;
const UNAVAILABLE: u16 = 14;
const UNAUTHENTICATED: u16 = 16;

/// Whether the request is a gRPC call.
#[cfg(feature = "axum")]
pub(super) fn is_call(head: &Parts) -> bool {
    answered_type(head).is_some()
}

/// The response to a gRPC call, with the status 200 and no body; `None` if the request is no such call.
pub(super) fn answer<B>(
    rejection: &Rejection,
    head: &Parts,
    no_body: impl FnOnce() -> B,
) -> Option<Response<B>> {
    let headers = headers(rejection, head)?;
    let mut response = Response::new(no_body());
    *response.headers_mut() = headers;
    Some(response)
}

fn headers(rejection: &Rejection, head: &Parts) -> Option<HeaderMap> {
    let content_type = answered_type(head)?;
    let (status, message) = status(rejection);
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(STATUS, HeaderValue::from(status));
    headers.insert(MESSAGE, encoded(&message));
    let wait = match rejection {
        Rejection::Denied(denial) | Rejection::NoSlot(denial) => Some(denial.retry_after()),
        Rejection::Blocked(blocked) => Some(blocked.shown_retry_after()),
        _ => None,
    };
    if let Some(wait) = wait {
        headers.insert(PUSHBACK, pushback(wait));
        #[cfg(feature = "tonic")]
        add_details(&mut headers, (status, &message), rejection, wait);
    }
    Some(headers)
}

/// The content type of the response: that of the call for gRPC-Web, since those clients expect their own. `None` if the
/// request is no call: calls are `POST`s.
///
/// A request of another kind must not get an HTTP 200 for a denial because its content type starts the same.
fn answered_type(head: &Parts) -> Option<HeaderValue> {
    let asked = head.headers.get(header::CONTENT_TYPE)?;
    let name = asked.to_str().ok()?.split(['+', ';']).next()?.trim_ascii();
    let is = |kind: &str| head.method == Method::POST && name.eq_ignore_ascii_case(kind);
    if is("application/grpc-web") || is("application/grpc-web-text") {
        return Some(asked.clone());
    }
    is("application/grpc").then_some(HeaderValue::from_static("application/grpc"))
}

/// The code and the message. If the client is the cause, it is that of the error, which names the metadata key.
fn status(rejection: &Rejection) -> (u16, Cow<'static, str>) {
    let (code, message) = match (rejection, rejection.status()) {
        (Rejection::MissingKey(error), status) if status.is_client_error() => {
            let code = match error.kind() {
                ExtractErrorKind::Malformed => INVALID_ARGUMENT,
                _ => UNAUTHENTICATED,
            };
            return (code, error.to_string().into());
        }
        (Rejection::Denied(_), _) => (RESOURCE_EXHAUSTED, "too many requests"),
        (_, StatusCode::TOO_MANY_REQUESTS) => (RESOURCE_EXHAUSTED, "blocked for a time"),
        (_, StatusCode::FORBIDDEN) => (PERMISSION_DENIED, "not allowed"),
        (_, StatusCode::SERVICE_UNAVAILABLE) => (UNAVAILABLE, "try again later"),
        _ => (INTERNAL, "the request could not be limited"),
    };
    (code, message.into())
}

/// The message as a value of the metadata, which gRPC encodes by percent signs: your service may use any characters.
fn encoded(message: &str) -> HeaderValue {
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(byte.into()),
            _ => _ = write!(text, "%{byte:02X}"),
        }
    }
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

/// Milliseconds as a signed 32-bit number; a negative one forbids a retry.
fn pushback(wait: Option<Duration>) -> HeaderValue {
    let ms = wait.map_or(-1, |wait| i32::try_from(millis(wait)).unwrap_or(i32::MAX));
    HeaderValue::from(ms)
}

/// The most violations in the details: servers and proxies bound the length of headers.
#[cfg(feature = "tonic")]
const MAX_VIOLATIONS: usize = 8;

/// Repeats the status, with the retry delay and the violated quotas in its details.
#[cfg(feature = "tonic")]
fn add_details(
    headers: &mut HeaderMap,
    (code, message): (u16, &str),
    rejection: &Rejection,
    wait: Option<Duration>,
) {
    use tonic::{Code, Status};
    use tonic_types::{ErrorDetails, StatusExt};

    let mut details = ErrorDetails::new();
    if wait.is_some() {
        details.set_retry_info(wait);
    }
    if let Rejection::Denied(denial) | Rejection::NoSlot(denial) = rejection {
        for (name, rule) in violated(denial).into_iter().take(MAX_VIOLATIONS) {
            details.add_quota_failure_violation(name, format!("the limit is {rule}"));
        }
    }
    if details.retry_info().is_none() && details.quota_failure().is_none() {
        return;
    }
    let status = Status::with_error_details(Code::from(i32::from(code)), message, details);
    // Clients also understand the status without details.
    let _ = status.add_header(headers);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_percent_encoded() {
        let message = "100 % of `x-api-key` is \u{e4}\n";
        assert_eq!(encoded(message), "100 %25 of `x-api-key` is %C3%A4%0A");
    }

    #[test]
    fn a_pushback_fits_32_bits_and_never_is_negative() {
        for (wait, expected) in [
            (Some(Duration::from_millis(1)), "1"),
            (Some(Duration::from_secs(40 * 86_400)), "2147483647"),
            (None, "-1"),
        ] {
            assert_eq!(pushback(wait), expected);
        }
    }
}
