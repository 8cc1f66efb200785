//! [`Grpc`]: rejections of gRPC calls.

use std::time::Duration;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header, request::Parts,
};

use super::{EmptyBody, MakeRejection, Rejection};
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

/// Responds to gRPC calls with a gRPC status, and to other requests with [another](Self::or) rejection. Use this for
/// your own rejections.
///
/// [`ProblemJson`](super::ProblemJson), the default, and [`EmptyBody`] already respond to gRPC calls in this way. But
/// `ProblemJson` needs a body that can be made from a `String`, and tonic's cannot: a tonic server does not compile
/// with `ProblemJson`. Set `.rejection(Grpc::new())` there.
///
/// A gRPC client treats an HTTP 429 as `UNAVAILABLE` and tries again. A call, which is a `POST` with the `content-type`
/// `application/grpc`, `application/grpc-web` or `application/grpc-web-text`, each also with a suffix as in
/// `application/grpc+proto`, therefore gets HTTP 200, no body, and a status in the headers:
///
/// | why | status | also |
/// |---|---|---|
/// | denied | `RESOURCE_EXHAUSTED` | `grpc-retry-pushback-ms`, at most 24 days, negative if it can never pass; with the feature `tonic`, `RetryInfo` in the details |
/// | no key | `UNAUTHENTICATED`; if malformed, `INVALID_ARGUMENT`; if misconfigured, `INTERNAL` | |
/// | on a deny list, or blocked | `PERMISSION_DENIED` | |
/// | banned | `RESOURCE_EXHAUSTED` | as denied |
/// | no slot, if [configured](crate::RateLimitLayer::unavailable_without_slot) | `UNAVAILABLE` | as denied |
/// | could not be decided, failing closed | `UNAVAILABLE` | |
/// | the layer made a check that no store can decide | `INTERNAL` | |
///
/// `Retry-After` and the quota headers are in the metadata.
///
/// ```
/// use http::{Request, Response, request::Parts};
/// use sluicegate::{Key, MemoryStore, Policy, RateLimitLayer, middleware::{Grpc, Rejection}};
/// use tower::{ServiceBuilder, ServiceExt};
///
/// # mod over_http { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/over_http.rs")); }
/// # over_http::run(async |http| {
/// let teapot = |_: &Rejection, _: &Parts| Response::builder().status(418).body(String::new()).unwrap();
/// let layer = RateLimitLayer::new(MemoryStore::new())
///     .limit(Policy::parse("calls", "0/1s")?, Key::new("service", "all"))
///     .rejection(Grpc::new().or(teapot));
/// let service = ServiceBuilder::new().layer(layer).service_fn(async |_: Request<String>| {
///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
/// });
/// # let service = http.serve(service);
/// let call = Request::post("/greeter/hello").header("content-type", "application/grpc").body(String::new())?;
/// let response = service.clone().oneshot(call).await?;
/// assert_eq!((response.status().as_u16(), &response.headers()["grpc-status"]), (200, &"8".parse()?));
///
/// let response = service.oneshot(Request::get("/").body(String::new())?).await?;
/// assert_eq!(response.status(), 418);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Grpc<R = EmptyBody> {
    others: R,
}

impl Grpc {
    /// Creates a rejection for gRPC calls; other requests get [`EmptyBody`].
    #[must_use]
    pub const fn new() -> Self {
        Self { others: EmptyBody }
    }

    /// Sets the rejection of requests that are not gRPC calls, for a service of both kinds.
    #[must_use]
    pub fn or<R>(self, others: R) -> Grpc<R> {
        Grpc { others }
    }
}

#[diagnostic::do_not_recommend]
impl<B: Default, R: MakeRejection<B>> MakeRejection<B> for Grpc<R> {
    fn make_rejection(&self, rejection: &Rejection, head: &Parts) -> Response<B> {
        answer(rejection, head, B::default)
            .unwrap_or_else(|| self.others.make_rejection(rejection, head))
    }
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
    headers.insert(MESSAGE, HeaderValue::from_static(message));
    let wait = match rejection {
        Rejection::Denied(denial) | Rejection::NoSlot(denial) => Some(denial.retry_after()),
        Rejection::Blocked(blocked) => Some(blocked.told_retry_after()),
        _ => None,
    };
    if let Some(wait) = wait {
        headers.insert(PUSHBACK, pushback(wait));
        #[cfg(feature = "tonic")]
        add_retry_info(&mut headers, (status, message), wait);
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

/// The code and the message; the message must need no percent-encoding.
fn status(rejection: &Rejection) -> (u16, &'static str) {
    match (rejection, rejection.status()) {
        (Rejection::Denied(_), _) => (RESOURCE_EXHAUSTED, "too many requests"),
        (Rejection::MissingKey(error), _) if error.kind() == ExtractErrorKind::Missing => {
            (UNAUTHENTICATED, "the request does not identify its client")
        }
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

/// Repeats the status, with the retry delay in its details.
#[cfg(feature = "tonic")]
fn add_retry_info(headers: &mut HeaderMap, (code, message): (u16, &str), wait: Option<Duration>) {
    use tonic::{Code, Status};
    use tonic_types::{ErrorDetails, StatusExt};

    if wait.is_some() {
        let details = ErrorDetails::with_retry_info(wait);
        let status = Status::with_error_details(Code::from(i32::from(code)), message, details);
        // Clients also understand the status without details.
        let _ = status.add_header(headers);
    }
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
