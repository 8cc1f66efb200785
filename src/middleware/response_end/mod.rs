//! The end of a response: of its head, or of its body. Costs that are known only then are settled.

use http::Response;
use http_body::Body;

mod body;
mod request_guard;

pub use body::FollowedBody;
pub(super) use request_guard::{AtEnd, Followed};
pub use request_guard::{EndOutcome, RequestGuard, ResponseEnd};

/// How far a layer follows its responses: [`AtHead`], the default, or [`ToBodyEnd`].
///
/// You need not name either: [`meter_costs`](crate::RateLimitLayer::meter_costs) and
/// [`settle_at_end`](crate::RateLimitLayer::settle_at_end) choose `ToBodyEnd`.
#[doc(hidden)]
pub trait Follow<B> {
    /// The body of the responses.
    type Body;

    /// Hands the response over to the caller.
    #[doc(hidden)]
    fn follow(response: Response<B>, ending: Option<RequestGuard>) -> Response<Self::Body>;
}

/// The layer is done with a response when it has the head; the body stays the service's own.
#[derive(Debug)]
pub enum AtHead {}

/// The layer follows each response to the end of its body, which becomes a [`FollowedBody`].
#[derive(Debug)]
pub enum ToBodyEnd {}

impl<B> Follow<B> for AtHead {
    type Body = B;

    fn follow(response: Response<B>, _ending: Option<RequestGuard>) -> Response<B> {
        response
    }
}

impl<B: Body> Follow<B> for ToBodyEnd {
    type Body = FollowedBody<B>;

    fn follow(response: Response<B>, ending: Option<RequestGuard>) -> Response<FollowedBody<B>> {
        let (head, body) = response.into_parts();
        let body = FollowedBody::new(&head, body, ending);
        Response::from_parts(head, body)
    }
}

/// Without a layer that meters costs, you get a meter that settles nothing, and the log a warning.
#[cfg(feature = "axum")]
impl<S: Send + Sync> axum::extract::FromRequestParts<S> for crate::limiter::meter::CostMeter {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        head: &mut http::request::Parts,
        _state: &S,
    ) -> Result<Self, Self::Rejection> {
        let meter = head.extensions.get().cloned();
        Ok(meter.unwrap_or_else(|| {
            crate::warning::nothing_meters();
            Self::default()
        }))
    }
}
