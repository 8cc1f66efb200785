use http::{Response, StatusCode, request::Parts};

use super::grpc;
use crate::domain::{
    decision::{Blocked, Denial},
    error::{ExtractError, ExtractErrorKind, StoreError, StoreErrorKind},
};

/// Why the middleware answers instead of the inner service.
///
/// It is also in the extensions of the response, for layers further out. That it is there does not mean that a layer
/// around this service has rejected the request: a service that passes on the response of a limited *client* passes
/// its extensions on, too.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// A limit denied the request.
    Denied(Denial),
    /// No key could be extracted from the request: it does not identify its client, the service could not find out and
    /// the failure policy is not `Open`, or the service is misconfigured.
    MissingKey(ExtractError),
    /// The request, or one of its keys, is on a deny list of the layer:
    /// [`block`](crate::RateLimitLayer::block), [`block_keys`](crate::RateLimitLayer::block_keys).
    OnDenyList,
    /// An identity is [blocked](crate::block) in the store.
    Blocked(Blocked),
    /// The store could not decide and the failure policy is `Closed`, or an extractor answered too many keys.
    Undecided(StoreError),
}

impl Rejection {
    /// 429 when a limit or a ban denied it, 413 when its cost can never fit a limit, 403 when a deny list or an
    /// operator's block did, 400 when it does not identify its client, 401 when the client has to authenticate for that, 503 when the service cannot identify
    /// the client or decide, 500 when the service is [misconfigured](ExtractErrorKind::Misconfigured), or the layer
    /// made a check that no store can decide.
    ///
    /// A cost that can never fit is not a 429: without a `Retry-After`, clients would send the same request again at
    /// once. A limit of 0 is a switch that denies every request, however small: a 429 without a `Retry-After`, since
    /// no request is too large for it, and only you know when it ends.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Denied(denial) if is_too_large(denial) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Denied(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Blocked(blocked) if blocked.is_ban() => StatusCode::TOO_MANY_REQUESTS,
            Self::Blocked(_) | Self::OnDenyList => StatusCode::FORBIDDEN,
            Self::MissingKey(error) => match error.kind() {
                ExtractErrorKind::Missing | ExtractErrorKind::Malformed => StatusCode::BAD_REQUEST,
                ExtractErrorKind::Unauthenticated => StatusCode::UNAUTHORIZED,
                ExtractErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
                ExtractErrorKind::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
            },
            Self::Undecided(error) if error.kind() == StoreErrorKind::InvalidRequest => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::Undecided(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Whether a smaller request could pass.
pub(super) fn is_too_large(denial: &Denial) -> bool {
    denial.retry_after().is_none() && denial.rule().rule().limit() > 0
}

/// Makes the response to a request that is not passed on, in the body type of the inner service.
///
/// Implemented by closures `Fn(&Rejection, &Parts) -> Response<B>`, [`ProblemJson`](super::ProblemJson) and
/// [`EmptyBody`], which both answer gRPC calls as [`Grpc`](super::Grpc) does, and with the feature `axum` by
/// [`AxumRejection`](super::AxumRejection).
///
/// `Cache-Control: no-store` is set on whatever response is made, for a denial also `Retry-After` and the quota
/// headers. The response to a request that is rejected with a 503 gets a `Retry-After`, if it has none.
#[diagnostic::on_unimplemented(
    message = "`{Self}` makes no response with a body of type `{B}`",
    note = "`ProblemJson`, the default, needs `{B}: From<String>`; `EmptyBody` needs `{B}: Default`",
    note = "in a tonic server: `.rejection(Grpc::new())`, with `sluicegate::middleware::Grpc`",
    note = "a closure needs its arguments' types: `|rejection: &Rejection, head: &http::request::Parts| Response::new(…)`",
    note = "in axum, `RateLimitLayer::reject_with` takes a closure that answers anything that is `IntoResponse`"
)]
pub trait MakeRejection<B> {
    /// Makes the response to the request with this head.
    fn make_rejection(&self, rejection: &Rejection, head: &Parts) -> Response<B>;
}

// Otherwise an error would name what the closure or `ProblemJson` lacks, and leave the notes of `MakeRejection` out.
#[diagnostic::do_not_recommend]
impl<F, B> MakeRejection<B> for F
where
    F: Fn(&Rejection, &Parts) -> Response<B>,
{
    fn make_rejection(&self, rejection: &Rejection, head: &Parts) -> Response<B> {
        self(rejection, head)
    }
}

/// Answers with the status alone, and gRPC calls as [`Grpc`](super::Grpc) does.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmptyBody;

#[diagnostic::do_not_recommend]
impl<B: Default> MakeRejection<B> for EmptyBody {
    fn make_rejection(&self, rejection: &Rejection, head: &Parts) -> Response<B> {
        grpc::answer(rejection, head, B::default).unwrap_or_else(|| {
            let mut response = Response::new(B::default());
            *response.status_mut() = rejection.status();
            response
        })
    }
}
