use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header, request::Parts};
use tonic::{Code, Status};

use super::{EmptyBody, MakeRejection, Rejection};
use crate::{error::ExtractErrorKind, rule::millis};

const PUSHBACK: &str = "grpc-retry-pushback-ms";
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// Answers gRPC calls as gRPC does (feature `tonic`), and other requests with the status alone, or as [told](Self::or).
///
/// A client takes an HTTP 429 for `UNAVAILABLE` and tries again. This answers a call, known by a `content-type` that begins with
/// `application/grpc`, with HTTP 200, no body, and a status in the headers:
///
/// | why | status | also |
/// |---|---|---|
/// | refused | `RESOURCE_EXHAUSTED` | `RetryInfo` in the details, and `grpc-retry-pushback-ms`, negative if it can never pass |
/// | not identified | `UNAUTHENTICATED`; if malformed, `INVALID_ARGUMENT` | |
/// | blocked | `PERMISSION_DENIED` | |
/// | could not be decided, failing closed | `UNAVAILABLE` | |
/// | the layer asked the store for nonsense | `INTERNAL` | |
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

    /// Sets what answers requests that are no gRPC calls, for a service of both kinds.
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
        (Rejection::Denied(denial), _) => {
            let details = denial.retry_after().map(details).unwrap_or_default();
            let message = "too many requests";
            return Status::with_details(Code::ResourceExhausted, message, details.into());
        }
        (Rejection::MissingKey(error), _) if error.kind() == ExtractErrorKind::Missing => (
            Code::Unauthenticated,
            "the request does not say who is asking",
        ),
        (_, StatusCode::BAD_REQUEST) => (Code::InvalidArgument, "the identity cannot be read"),
        (_, StatusCode::FORBIDDEN) => (Code::PermissionDenied, "not allowed"),
        (_, StatusCode::SERVICE_UNAVAILABLE) => (Code::Unavailable, "try again later"),
        _ => (Code::Internal, "the request could not be limited"),
    };
    Status::new(code, message)
}

/// Milliseconds in 32 bits with a sign; a negative number forbids to try again.
fn pushback(wait: Option<Duration>) -> HeaderValue {
    let ms = wait.map_or(-1, |wait| i32::try_from(millis(wait)).unwrap_or(i32::MAX));
    HeaderValue::from(ms)
}

/// A `google.rpc.Status` with a `RetryInfo`, in protocol buffers: three messages within each other, for which a whole library
/// would be much.
fn details(wait: Duration) -> Vec<u8> {
    let mut duration = Vec::new();
    push_number(&mut duration, 1, wait.as_secs());
    push_number(&mut duration, 2, wait.subsec_nanos().into());
    let mut retry_info = Vec::new();
    push_bytes(&mut retry_info, 1, &duration);
    let mut any = Vec::new();
    push_bytes(&mut any, 1, RETRY_INFO.as_bytes());
    push_bytes(&mut any, 2, &retry_info);
    let mut status = Vec::new();
    push_number(&mut status, 1, 8);
    push_bytes(&mut status, 3, &any);
    status
}

fn push_number(message: &mut Vec<u8>, field: u8, number: u64) {
    message.push(field << 3);
    push_varint(message, number);
}

fn push_bytes(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    message.push(field << 3 | 2);
    push_varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

/// Seven bits in each byte, the lowest first; the eighth says that there are more.
fn push_varint(message: &mut Vec<u8>, mut rest: u64) {
    while rest > 0x7f {
        message.push(rest.to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    message.push(rest.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt;

    use super::*;

    #[test]
    fn the_details_are_read_by_others() {
        for ms in [1, 999, 1_000, 90_061_001, 400 * 86_400_000] {
            let wait = Duration::from_millis(ms);
            let status = Status::with_details(Code::ResourceExhausted, "", details(wait).into());
            let details = status.check_error_details().unwrap();
            assert_eq!(details.retry_info().unwrap().retry_delay, Some(wait));
        }
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
