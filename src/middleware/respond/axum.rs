//! [`AxumRejection`]: rejections made by an axum handler.

use axum::{body::Body, response::IntoResponse};
use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE, request::Parts};

use super::{MakeRejection, Rejection};

/// Responds like an axum handler, with any [`IntoResponse`] (feature `axum`).
///
/// A 200, as from a plain `Json`, becomes [`Rejection::status`]: a rejection must not look like a success. Responses to
/// gRPC calls keep the 200.
///
/// You create one with [`RateLimitLayer::reject_with`](crate::RateLimitLayer::reject_with), or use this type in
/// [`Grpc::or`](super::Grpc::or).
///
/// ```
/// use axum::{Json, Router, body::Body, http::Request, routing::get};
/// use serde_json::json;
/// use sluicegate::{Key, MemoryStore, Policy, RateLimitLayer, middleware::{AxumRejection, Grpc}};
/// use tower::ServiceExt;
///
/// # mod over_http { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/over_http.rs")); }
/// # over_http::run(async |http| {
/// let layer = RateLimitLayer::new(MemoryStore::new())
///     .limit(Policy::parse("reports", "0/1h")?, Key::new("service", "reports"))
///     .rejection(Grpc::new().or(AxumRejection::new(|rejection, head| {
///         let error = format!("{} is closed", head.uri.path());
///         (rejection.status(), Json(json!({ "error": error })))
///     })));
/// let app: Router = Router::new().route("/reports", get(async || "a report")).layer(layer);
/// # let app = http.serve(app);
///
/// let response = app.oneshot(Request::get("/reports").body(Body::empty())?).await?;
/// assert_eq!(response.status(), 429);
/// assert_eq!(response.headers()["content-type"], "application/json");
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AxumRejection<F> {
    handler: F,
}

impl<F, T> AxumRejection<F>
where
    F: Fn(&Rejection, &Parts) -> T,
    T: IntoResponse,
{
    /// Creates a rejection from a closure.
    pub const fn new(handler: F) -> Self {
        Self { handler }
    }
}

#[diagnostic::do_not_recommend]
impl<F, T> MakeRejection<Body> for AxumRejection<F>
where
    F: Fn(&Rejection, &Parts) -> T,
    T: IntoResponse,
{
    fn make_rejection(&self, rejection: &Rejection, head: &Parts) -> Response<Body> {
        let mut response = (self.handler)(rejection, head).into_response();
        if looks_like_success(&response) {
            *response.status_mut() = rejection.status();
        }
        response
    }
}

/// A response without an explicit status is a 200; but so is every response to a gRPC call, with its status elsewhere.
fn looks_like_success(response: &Response<Body>) -> bool {
    let content_type = response.headers().get(CONTENT_TYPE);
    let content_type = content_type.map_or(&b""[..], HeaderValue::as_bytes);
    response.status() == StatusCode::OK && !content_type.starts_with(b"application/grpc")
}
