//! [`ProblemJson`]: rejections as `application/problem+json`.

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};

use super::{
    MakeRejection, Rejection, grpc_answer,
    rejection::{is_too_large, violated},
};
use crate::domain::block::BlockedBy;

const TYPES: &str = "https://iana.org/assignments/http-problem-types#";

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Enough for a few names of typical length.
const ROOM: usize = 256;

/// Responds with `application/problem+json` (RFC 9457), using the problem types of the `RateLimit` draft, with the titles
/// that the draft registers: `quota-exceeded` for a denial, `abnormal-usage-detected` for a ban, and
/// `temporary-reduced-capacity` for a 503. Others have the type `about:blank` and the title of their status.
///
/// For a denial, the body names the violated quotas like `RateLimit-Policy`, and says so if the request can never pass.
/// For a 400 or a 401, `detail` is the message of the [error](crate::error::ExtractError), which names the missing
/// header or cookie, but never a key; for a body that could not be read, that of the [`BodyError`](super::BodyError). `HEAD` gets no body, but the content length of a `GET`. gRPC calls get a response
/// as from [`Grpc`](super::Grpc).
///
/// ```json
/// {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["ip/1s"]}
/// ```
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use sluicegate::{Key, MemoryStore, Policy, RateLimitLayer, middleware::ProblemJson};
/// use tower::{ServiceBuilder, ServiceExt};
///
/// # mod over_http { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/over_http.rs")); }
/// # over_http::run(async |http| {
/// let layer = RateLimitLayer::new(MemoryStore::new())
///     .limit(Policy::parse("exports", "10/1h")?, Key::new("service", "all"))
///     .cost(|_, _| 11)                                        // more than ever fits
///     .rejection(ProblemJson::default().status_if_never(StatusCode::FORBIDDEN));
/// let service = ServiceBuilder::new().layer(layer).service_fn(async |_: Request<String>| {
///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
/// });
/// # let service = http.serve(service);
/// let response = service.oneshot(Request::new(String::new())).await?;
/// assert_eq!(response.status(), StatusCode::FORBIDDEN);       // by default 413
/// assert!(!response.headers().contains_key("retry-after"));
/// assert!(response.body().contains("It will never pass"));
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ProblemJson {
    status_if_never: Option<StatusCode>,
}

impl ProblemJson {
    /// Sets the status for a request that can never pass, and so has no time to retry: its cost is above a limit, or
    /// the limit is 0. The default is [413, or 429](Rejection::status) under a limit of 0.
    #[must_use]
    pub const fn status_if_never(mut self, status: StatusCode) -> Self {
        self.status_if_never = Some(status);
        self
    }

    fn status(self, rejection: &Rejection) -> StatusCode {
        match (rejection, self.status_if_never) {
            (Rejection::Denied(denial), Some(status)) if denial.retry_after().is_none() => status,
            _ => rejection.status(),
        }
    }
}

#[diagnostic::do_not_recommend]
impl<B: From<String>> MakeRejection<B> for ProblemJson {
    fn make_rejection(&self, rejection: &Rejection, head: &Parts) -> Response<B> {
        if let Some(answer) = grpc_answer::answer(rejection, head, || B::from(String::new())) {
            return answer;
        }
        let status = self.status(rejection);
        answer_with(problem(rejection, status), PROBLEM, status, head)
    }
}

/// The response with this body, or without for a `HEAD`.
pub(super) fn answer_with<B: From<String>>(
    mut body: String,
    content_type: HeaderValue,
    status: StatusCode,
    head: &Parts,
) -> Response<B> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, content_type);
    if head.method == Method::HEAD {
        // Otherwise the server would send the length of the empty body (RFC 9110, 8.6).
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        body.clear();
    }
    let mut response = Response::new(B::from(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Only error messages need escaping: policy names are `[A-Za-z0-9._-]`.
///
/// Avoids `write!`, which would take most of the time of a rejection.
fn problem(rejection: &Rejection, status: StatusCode) -> String {
    let (kind, title) = match (rejection, status) {
        (Rejection::Denied(_), _) => ("quota-exceeded", "Quota Exceeded"),
        (Rejection::Blocked(blocked), _) if blocked.is_by(BlockedBy::Ban) => {
            ("abnormal-usage-detected", "Abnormal Usage Detected")
        }
        (_, StatusCode::SERVICE_UNAVAILABLE) => {
            ("temporary-reduced-capacity", "Temporary Reduced Capacity")
        }
        _ => ("", status.canonical_reason().unwrap_or_default()),
    };
    let types = match kind {
        "" => "about:blank",
        _ => TYPES,
    };
    // Most texts fit, so that one allocation is enough.
    let mut json = String::with_capacity(ROOM);
    json.extend([r#"{"type":""#, types, kind, r#"","title":""#, title]);
    json.extend([r#"","status":"#, status.as_str()]);
    if let Some(detail) = detail(rejection, status) {
        json.push_str(r#","detail":""#);
        match detail {
            // Letter by letter, a text of our own would cost more than the rest.
            Cow::Borrowed(plain) => json.push_str(plain),
            Cow::Owned(any) => push_escaped(&mut json, &any),
        }
        json.push('"');
    }
    if let Rejection::Denied(denial) | Rejection::NoSlot(denial) = rejection {
        json.push_str(r#","violated-policies":["#);
        // Hidden policies are not among them: clients see neither their names nor that they exist.
        for (index, (name, _)) in violated(denial).iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            json.extend([separator, "\"", name, "\""]);
        }
        json.push(']');
    }
    json.push('}');
    json
}

/// A client may learn this beyond the title: why a request can never pass, that it is blocked, or which key it lacks.
pub(super) fn detail(rejection: &Rejection, status: StatusCode) -> Option<Cow<'static, str>> {
    let text = match rejection {
        Rejection::MissingKey(error) if status.is_client_error() => {
            return Some(error.to_string().into());
        }
        Rejection::Unread(error) => return Some(error.to_string().into()),
        Rejection::Denied(denial) | Rejection::NoSlot(denial) => match denial.retry_after() {
            Some(_) => return None,
            None if is_too_large(denial) => {
                "This request costs more than a limit allows. It will never pass."
            }
            None => "A limit of 0 denies all requests at present.",
        },
        Rejection::Blocked(blocked) => match blocked.block().source() {
            BlockedBy::Operator => return None,
            BlockedBy::Ban => "Blocked for a time, after too many requests were denied.",
            BlockedBy::Pause => "Another service has asked us to wait.",
        },
        _ => return None,
    };
    Some(text.into())
}

/// The message may come from your service, with any characters.
pub(super) fn push_escaped(json: &mut String, message: &str) {
    for character in message.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            '\0'..='\x1f' => json.push(' '),
            _ => json.push(character),
        }
    }
}
