//! [`Rejection`]: why a request was rejected, and [`MakeRejection`], which makes the response.

use std::fmt;

use http::{Response, StatusCode, request::Parts};

#[cfg(doc)]
use super::StatusOnly;
use super::{BodyError, draft11::item_name};
use crate::domain::{
    block::BlockedBy,
    decision::{Blocked, Denial},
    error::{ExtractError, ExtractErrorKind, StoreError, StoreErrorKind},
    rule::{DurationText, Rule},
};

/// The reason for a response by the middleware instead of the inner service.
///
/// The reason is also in the extensions of the response, for outer layers. It does not prove that a layer around this
/// service has rejected the request: a service that forwards the response of a rate-limited *client* also forwards the
/// extensions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// A limit denied the request.
    Denied(Denial),
    /// All slots of a [concurrency policy](crate::Rule::concurrent) are held, and the layer responds to this [as
    /// unavailable](crate::RateLimitLayer::unavailable_without_slot). By default, and when another rule denies the
    /// request as well, the rejection is [`Denied`](Self::Denied).
    NoSlot(Denial),
    /// The request has no key: it does not identify its client, the service could not determine the key and the failure
    /// policy is not `Open`, or the service is misconfigured.
    MissingKey(ExtractError),
    /// The request, or one of its keys, is on a deny list of the layer:
    /// [`deny`](crate::RateLimitLayer::deny), [`deny_keys`](crate::RateLimitLayer::deny_keys).
    OnDenyList,
    /// An identity is [blocked](crate::block) in the store.
    Blocked(Blocked),
    /// The store could not decide and the failure policy is `Closed`, or an extractor returned too many keys.
    Undecided(StoreError),
    /// A [`ReadBodyLayer`](crate::middleware::ReadBodyLayer) could not read or parse the body.
    Unread(BodyError),
}

impl Rejection {
    /// Returns the status: 429 for a denial, a ban or a pause, 413 for a cost that can never fit a limit, 403 for a
    /// deny list or an operator's block, 400 if the request does not identify its client, 401 if the client must
    /// authenticate for that, 503 for [`NoSlot`](Self::NoSlot) and if the service cannot identify the client or decide,
    /// and 500 if the service is [misconfigured](ExtractErrorKind::Misconfigured) or the layer made an invalid check. For a
    /// body, see [`ReadBodyLayer`](crate::middleware::ReadBodyLayer).
    ///
    /// A cost that can never fit is not a 429: without a `Retry-After`, clients would repeat the request at once. A
    /// limit of 0 denies every request, however small: a 429 without a `Retry-After`, because no request is too large,
    /// and only you know when that ends.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Denied(denial) if is_too_large(denial) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Denied(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Blocked(blocked) if !blocked.is_by(BlockedBy::Operator) => {
                StatusCode::TOO_MANY_REQUESTS
            }
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
            Self::NoSlot(_) | Self::Undecided(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unread(error) => error.status,
        }
    }
}

/// For logs: the policy and the rule, or the error, and the time to wait. The text names no key, but a policy that is
/// [hidden](crate::Policy::hidden) from clients.
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wait = match self {
            Self::Denied(denial) | Self::NoSlot(denial) => {
                let (policy, rule) = (denial.policy().name(), denial.rule().rule());
                write!(f, "denied by `{rule}` of policy `{policy}`")?;
                denial.retry_after()
            }
            Self::MissingKey(error) => return error.fmt(f),
            Self::Unread(error) => return error.fmt(f),
            Self::OnDenyList => return f.write_str("on a deny list"),
            Self::Blocked(blocked) => {
                write!(f, "blocked (source: {})", blocked.block().source().as_str())?;
                blocked.retry_after()
            }
            Self::Undecided(error) => return write!(f, "undecided: {error}"),
        };
        match wait {
            Some(wait) => write!(f, ", retry after {}", DurationText(wait)),
            None => f.write_str(", do not retry"),
        }
    }
}

/// The rules that deny, as clients may see them: the names of their items in the quota headers, each once.
pub(super) fn violated(denial: &Denial) -> Vec<(String, Rule)> {
    let mut violated: Vec<(String, Rule)> = Vec::new();
    let policies = denial.usage().policies();
    for of_policy in policies.filter(|usage| !usage.policy().is_hidden()) {
        for usage in of_policy.rules().iter().filter(|usage| usage.is_exceeded()) {
            let name = item_name(of_policy.policy(), &usage.rule());
            if !violated.iter().any(|(other, _)| *other == name) {
                violated.push((name, usage.rule()));
            }
        }
    }
    violated
}

/// Whether a smaller request could pass.
pub(super) fn is_too_large(denial: &Denial) -> bool {
    denial.retry_after().is_none() && denial.rule().rule().limit() > 0
}

/// Makes the response to a rejected request, in the body type of the inner service.
///
/// You can use a closure `Fn(&Rejection, &Parts) -> Response<B>`; [`ProblemJson`](super::ProblemJson) or
/// [`StatusOnly`], which both respond to gRPC calls like [`Grpc`](super::Grpc); or, with the feature `axum`,
/// [`AxumRejection`](super::AxumRejection).
///
/// The middleware adds `Cache-Control: no-store` to the response, and for a denial `Retry-After` and the quota headers.
/// A request rejected with a 503 gets a `Retry-After`, if the response has none.
#[diagnostic::on_unimplemented(
    message = "`{Self}` makes no response with a body of type `{B}`",
    note = "`ProblemJson`, the default, needs `{B}: From<String>`; `StatusOnly` needs `{B}: Default`",
    note = "in a tonic server: `.rejection(Grpc::new())`, with `sluicegate::middleware::Grpc`",
    note = "a closure needs its arguments' types: `|rejection: &Rejection, head: &http::request::Parts| Response::new(…)`",
    note = "in axum, `RateLimitLayer::reject_with` takes a closure that answers anything that is `IntoResponse`"
)]
pub trait MakeRejection<B> {
    /// Makes the response to the request with this head.
    fn make_rejection(&self, rejection: &Rejection, head: &Parts) -> Response<B>;
}

// Otherwise an error would name the trait that the closure or `ProblemJson` lacks, without the notes of
// `MakeRejection`.
#[diagnostic::do_not_recommend]
impl<F, B> MakeRejection<B> for F
where
    F: Fn(&Rejection, &Parts) -> Response<B>,
{
    fn make_rejection(&self, rejection: &Rejection, head: &Parts) -> Response<B> {
        self(rejection, head)
    }
}
