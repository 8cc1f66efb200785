//! The headers of responses, and the responses to rejected requests.

#[cfg(feature = "axum")]
mod axum;
mod body_error;
mod decisions;
mod draft11;
mod grpc;
pub(super) mod grpc_answer;
mod headers;
mod openai;
mod problem;
mod rejection;
mod responder;
mod seconds;
mod single_rule;

#[cfg(feature = "axum")]
pub use self::axum::AxumRejection;
pub use body_error::BodyError;
pub use decisions::Decisions;
pub use grpc::{Grpc, StatusOnly};
pub use headers::{EXPOSED_HEADERS, HeaderStyle};
pub(super) use headers::{Headers, is_denial};
pub use openai::OpenAiJson;
pub use problem::ProblemJson;
pub use rejection::{MakeRejection, Rejection};
pub(super) use responder::Answers;
pub(super) use single_rule::Shown;
