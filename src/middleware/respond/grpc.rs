//! [`Grpc`] and [`StatusOnly`]: rejections without a text.

use http::{Response, request::Parts};

use super::{MakeRejection, Rejection, grpc_answer};

/// Responds to gRPC calls with a gRPC status, and to other requests with [another](Self::or) rejection. Use this for
/// your own rejections.
///
/// [`ProblemJson`](super::ProblemJson), the default, and [`StatusOnly`] already respond to gRPC calls in this way. But
/// `ProblemJson` needs a body that can be made from a `String`, and tonic's cannot: a tonic server does not compile
/// with `ProblemJson`. Set `.rejection(Grpc::new())` there.
///
/// A gRPC client treats an HTTP 429 as `UNAVAILABLE` and tries again. A call, which is a `POST` with the `content-type`
/// `application/grpc`, `application/grpc-web` or `application/grpc-web-text`, each also with a suffix as in
/// `application/grpc+proto`, therefore gets HTTP 200, no body, and a status in the headers:
///
/// | why | status | also |
/// |---|---|---|
/// | denied | `RESOURCE_EXHAUSTED` | `grpc-retry-pushback-ms`, at most 24 days, negative if it can never pass; with the feature `tonic`, in the details `RetryInfo`, and `QuotaFailure` with the names and rules of the violated quotas |
/// | no key | `UNAUTHENTICATED`; if malformed, `INVALID_ARGUMENT`; if misconfigured, `INTERNAL` | the message names the metadata key, such as `x-api-key`, if the client is the cause |
/// | a body that could not be read | `INVALID_ARGUMENT` | the message says why |
/// | on a deny list, or blocked | `PERMISSION_DENIED` | |
/// | banned | `RESOURCE_EXHAUSTED` | as denied, without `QuotaFailure` |
/// | no slot, if [configured](crate::RateLimitLayer::unavailable_without_slot) | `UNAVAILABLE` | as denied |
/// | could not be decided, failing closed | `UNAVAILABLE` | |
/// | the layer made a check that no store can decide | `INTERNAL` | |
///
/// `Retry-After` and the quota headers are in the metadata.
///
/// A method is a path, so that [`Routes`](crate::middleware::Routes) can limit each:
/// `.route("/helloworld.Greeter/SayHello", policy)`.
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
#[must_use]
pub struct Grpc<R = StatusOnly> {
    others: R,
}

impl Grpc {
    /// Creates a rejection for gRPC calls; other requests get [`StatusOnly`].
    pub const fn new() -> Self {
        Self { others: StatusOnly }
    }

    /// Sets the rejection of requests that are not gRPC calls, for a service of both kinds.
    pub fn or<R>(self, others: R) -> Grpc<R> {
        Grpc { others }
    }
}

#[diagnostic::do_not_recommend]
impl<B: Default, R: MakeRejection<B>> MakeRejection<B> for Grpc<R> {
    fn make_rejection(&self, rejection: &Rejection, head: &Parts) -> Response<B> {
        grpc_answer::answer(rejection, head, B::default)
            .unwrap_or_else(|| self.others.make_rejection(rejection, head))
    }
}

/// Responds with the status alone, and to gRPC calls like [`Grpc`].
#[derive(Clone, Copy, Debug, Default)]
pub struct StatusOnly;

#[diagnostic::do_not_recommend]
impl<B: Default> MakeRejection<B> for StatusOnly {
    fn make_rejection(&self, rejection: &Rejection, head: &Parts) -> Response<B> {
        grpc_answer::answer(rejection, head, B::default).unwrap_or_else(|| {
            let mut response = Response::new(B::default());
            *response.status_mut() = rejection.status();
            response
        })
    }
}
