use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header, request::Parts};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::{EmptyBody, MakeRejection, Rejection};
use crate::{error::ExtractErrorKind, rule::millis};

const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Answers gRPC calls as gRPC does (feature `tonic`), and other requests with the status alone, or by
/// [another](Self::or) rejection.
///
/// A gRPC client takes an HTTP 429 for `UNAVAILABLE` and tries again. This answers a call, recognised by a
/// `content-type` that begins with `application/grpc`, with HTTP 200, no body, and a status in the headers:
///
/// | why | status | also |
/// |---|---|---|
/// | denied | `RESOURCE_EXHAUSTED` | `RetryInfo` in the details, and `grpc-retry-pushback-ms`, negative if it can never pass |
/// | no key | `UNAUTHENTICATED`; if malformed, `INVALID_ARGUMENT`; if misconfigured, `INTERNAL` | |
/// | blocked | `PERMISSION_DENIED` | |
/// | could not be decided, failing closed | `UNAVAILABLE` | |
/// | the layer made a check that no store can decide | `INTERNAL` | |
///
/// `Retry-After` and the quota headers are in the metadata.
///
/// ```
/// use http::{Request, Response};
/// use sluicegate::{Key, MemoryStore, Policy, RateLimitLayer, middleware::Grpc};
/// use tower::{ServiceBuilder, ServiceExt};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let layer = RateLimitLayer::new(MemoryStore::new())
///     .limit(Policy::parse("calls", "0/1s")?, Key::new("service", "all"))
///     .rejection(Grpc::new());
/// let service = ServiceBuilder::new().layer(layer).service_fn(async |_: Request<()>| {
///     Ok::<_, std::convert::Infallible>(Response::new(tonic::body::Body::default()))
/// });
/// let call = Request::post("/greeter/hello").header("content-type", "application/grpc").body(())?;
/// let response = service.oneshot(call).await?;
/// assert_eq!((response.status().as_u16(), &response.headers()["grpc-status"]), (200, &"8".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Grpc<R = EmptyBody> {
    others: R,
}

impl Grpc {
    /// Creates the answer to gRPC calls.
    #[must_use]
    pub const fn new() -> Self {
        Self { others: EmptyBody }
    }

    /// Sets what answers requests that are not gRPC calls, for a service of both kinds.
    #[must_use]
    pub fn or<R>(self, others: R) -> Grpc<R> {
        Grpc { others }
    }
}

impl<B: Default, R: MakeRejection<B>> MakeRejection<B> for Grpc<R> {
    fn make_rejection(&self, rejection: &Rejection, head: &Parts) -> Response<B> {
        if !is_call(head) {
            return self.others.make_rejection(rejection, head);
        }
        let mut response = status(rejection).into_http();
        if let Rejection::Denied(denial) = rejection {
            let pushback = pushback(denial.retry_after());
            response.headers_mut().insert(PUSHBACK, pushback);
        }
        response
    }
}

fn is_call(head: &Parts) -> bool {
    let kind = head.headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|it| it.as_bytes().starts_with(b"application/grpc"))
}

fn status(rejection: &Rejection) -> Status {
    let (code, message) = match (rejection, rejection.status()) {
        (Rejection::Denied(denial), _) => return exhausted(denial.retry_after()),
        (Rejection::MissingKey(error), _) if error.kind() == ExtractErrorKind::Missing => (
            Code::Unauthenticated,
            "the request does not identify its client",
        ),
        (_, StatusCode::UNAUTHORIZED) => (Code::Unauthenticated, "the client has to authenticate"),
        (_, StatusCode::BAD_REQUEST) => (Code::InvalidArgument, "the identity cannot be read"),
        (_, StatusCode::FORBIDDEN) => (Code::PermissionDenied, "not allowed"),
        (_, StatusCode::SERVICE_UNAVAILABLE) => (Code::Unavailable, "try again later"),
        _ => (Code::Internal, "the request could not be limited"),
    };
    Status::new(code, message)
}

fn exhausted(wait: Option<Duration>) -> Status {
    let (code, message) = (Code::ResourceExhausted, "too many requests");
    match wait {
        Some(_) => Status::with_error_details(code, message, ErrorDetails::with_retry_info(wait)),
        None => Status::new(code, message),
    }
}

/// Milliseconds as a signed 32-bit number; a negative one forbids a retry.
fn pushback(wait: Option<Duration>) -> HeaderValue {
    let ms = wait.map_or(-1, |wait| i32::try_from(millis(wait)).unwrap_or(i32::MAX));
    HeaderValue::from(ms)
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
