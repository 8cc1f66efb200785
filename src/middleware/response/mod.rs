//! What clients get: the headers of a response, and the responses to requests that are not passed on.

mod draft11;
#[cfg(feature = "tonic")]
mod grpc;
mod headers;
mod problem;
mod rejection;
mod seconds;
mod x_rate_limit;

#[cfg(feature = "tonic")]
pub use grpc::Grpc;
pub(super) use headers::Headers;
pub use headers::{EXPOSED_HEADERS, HeaderStyle};
pub use problem::ProblemJson;
pub use rejection::{EmptyBody, MakeRejection, Rejection};
