//! The response to a gRPC call that was rejected: a gRPC status.

use std::{borrow::Cow, time::Duration};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header, request::Parts,
};

use super::Rejection;
#[cfg(feature = "tonic")]
use super::rejection::violated;
use crate::domain::{error::ExtractErrorKind, rule::millis};

pub(super) const STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(super) const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(super) const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
/// Written with the feature `tonic` alone.
pub(super) const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

const INVALID_ARGUMENT: u16 = 3;
const PERMISSION_DENIED: u16 = 7;
const RESOURCE_EXHAUSTED: u16 = 8;
const INTERNAL: u16 = 13;
const UNAVAILABLE: u16 = 14;
const UNAUTHENTICATED: u16 = 16;

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
    let (status, reason) = status(rejection);
    let message = match rejection {
        // It names the metadata key.
        Rejection::MissingKey(error) if rejection.status().is_client_error() => {
            Cow::Owned(error.to_string().replace('%', "%25"))
        }
        Rejection::Unread(error) => Cow::Owned(error.to_string().replace('%', "%25")),
        _ => Cow::Borrowed(reason),
    };
    // A message of your service may have other characters than gRPC allows.
    let message = HeaderValue::try_from(&*message).ok();
    let message = message.filter(|value| value.to_str().is_ok());
    let message = message.unwrap_or(HeaderValue::from_static(reason));
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(STATUS, HeaderValue::from(status));
    headers.insert(MESSAGE, message);
    let wait = match rejection {
        Rejection::Denied(denial) | Rejection::NoSlot(denial) => Some(denial.shown_retry_after()),
        Rejection::Blocked(blocked) => Some(blocked.shown_retry_after()),
        _ => None,
    };
    if let Some(wait) = wait {
        headers.insert(PUSHBACK, pushback(wait));
        #[cfg(feature = "tonic")]
        add_details(&mut headers, (status, reason), rejection, wait);
    }
    Some(headers)
}

/// The content type of the response: that of the call for gRPC-Web, since those clients expect their own. `None` if the
/// request is no call: calls are `POST`s.
///
/// A request of another kind must not get an HTTP 200 for a denial because its content type starts the same.
pub(in crate::middleware) fn answered_type(head: &Parts) -> Option<HeaderValue> {
    let asked = head.headers.get(header::CONTENT_TYPE)?;
    let name = asked.to_str().ok()?.split(['+', ';']).next()?.trim_ascii();
    let is = |kind: &str| head.method == Method::POST && name.eq_ignore_ascii_case(kind);
    if is("application/grpc-web") || is("application/grpc-web-text") {
        return Some(asked.clone());
    }
    is("application/grpc").then_some(HeaderValue::from_static("application/grpc"))
}

/// The code and the message; the message must need no percent-encoding.
fn status(rejection: &Rejection) -> (u16, &'static str) {
    match (rejection, rejection.status()) {
        (Rejection::Denied(_), _) => (RESOURCE_EXHAUSTED, "too many requests"),
        (Rejection::MissingKey(error), _) if error.kind() == ExtractErrorKind::Missing => {
            (UNAUTHENTICATED, "the request does not identify its client")
        }
        (Rejection::Unread(_), _) => (INVALID_ARGUMENT, "the body cannot be read"),
        (_, StatusCode::TOO_MANY_REQUESTS) => (RESOURCE_EXHAUSTED, "blocked for a time"),
        (_, StatusCode::UNAUTHORIZED) => (UNAUTHENTICATED, "the client has to authenticate"),
        (_, StatusCode::BAD_REQUEST) => (INVALID_ARGUMENT, "the identity cannot be read"),
        (_, StatusCode::FORBIDDEN) => (PERMISSION_DENIED, "not allowed"),
        (_, StatusCode::SERVICE_UNAVAILABLE) => (UNAVAILABLE, "try again later"),
        _ => (INTERNAL, "the request could not be limited"),
    }
}

/// Milliseconds as a signed 32-bit number; a negative one forbids a retry.
fn pushback(wait: Option<Duration>) -> HeaderValue {
    let ms = wait.map_or(-1, |wait| i32::try_from(millis(wait)).unwrap_or(i32::MAX));
    HeaderValue::from(ms)
}

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
        // Servers and proxies bound the length of headers.
        for (name, rule) in violated(denial).into_iter().take(8) {
            details.add_quota_failure_violation(name, format!("the limit is {rule}"));
        }
    }
    let status = Status::with_error_details(Code::from(i32::from(code)), message, details);
    // Clients also understand the status without details.
    let _ = status.add_header(headers);
}

#[cfg(test)]
mod tests {
    use super::*;

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
