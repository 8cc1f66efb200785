#![doc = concat!(include_str!("../../docs/links.md"), include_str!("../../docs/guide/middleware.md"))]
#![doc = include_str!("../../docs/guide/order.md")]
#![doc = include_str!("../../docs/guide/around_a_client.md")]

mod admit;
#[cfg(feature = "json")]
pub mod bodies {
    //! Limits by what is in the body of a request.
    //!
    #![doc = concat!(include_str!("../../docs/links.md"), include_str!("../../docs/guide/bodies.md"))]
}
pub mod concurrency {
    //! Limit concurrent requests, over all replicas.
    //!
    #![doc = concat!(include_str!("../../docs/links.md"), include_str!("../../docs/guide/concurrency.md"))]
}
pub mod costs {
    //! Limit tokens and money: costs that are known when a response ends.
    //!
    #![doc = concat!(include_str!("../../docs/links.md"), include_str!("../../docs/guide/costs.md"))]
}
mod future;
mod layer;
pub mod migration {
    //! Migrating from the crate `tower_governor`: its settings and their counterparts here.
    //!
    #![doc = concat!(include_str!("../../docs/links.md"), include_str!("../../docs/guide/migration.md"))]
    #![doc = include_str!("../../docs/guide/which_crate.md")]
}
#[cfg(feature = "obey")]
pub mod obey;
mod read_body;
mod respond;
mod response_end;
mod service;
mod shared;
pub mod testing {
    //! How to test a rate-limited service.
    //!
    #![doc = concat!(include_str!("../../docs/links.md"), include_str!("../../docs/guide/testing.md"))]
}

pub use crate::limiter::{
    ActualCost,
    meter::{CostMeter, EndGuard, PolicyMeter},
};
#[doc(hidden)]
pub use admit::{IntoPolicy, IntoPolicySelector};
pub use admit::{PolicySelector, Route, Routes};
#[doc(hidden)]
pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
#[cfg(feature = "obey")]
pub use obey::ObeyLayer;
#[doc(hidden)]
pub use read_body::ReadBodyFuture;
pub use read_body::{ParsedBody, ReadBody, ReadBodyLayer};
#[cfg(feature = "axum")]
pub use respond::AxumRejection;
pub use respond::{
    BodyError, Decisions, EXPOSED_HEADERS, Grpc, HeaderStyle, MakeRejection, OpenAiJson,
    ProblemJson, Rejection, StatusOnly,
};
#[doc(hidden)]
pub use response_end::{AtHead, Follow, RequestGuard};
pub use response_end::{EndOutcome, FollowedBody, ResponseEnd, ToBodyEnd};
pub use service::RateLimit;
