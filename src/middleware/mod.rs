#![doc = include_str!("../../docs/guide/middleware.md")]
#![doc = include_str!("../../docs/guide/order.md")]
#![doc = include_str!("../../docs/guide/around_a_client.md")]

mod admit;
mod future;
mod layer;
pub mod migration {
    //! Migrating from the crate `tower_governor`: its settings and their counterparts here.
    //!
    #![doc = include_str!("../../docs/guide/migration.md")]
}
mod respond;
mod service;
mod settle;
mod shared;
pub mod testing {
    //! How to test a rate-limited service.
    //!
    #![doc = include_str!("../../docs/guide/testing.md")]
}

pub use crate::limiter::ActualCost;
#[doc(hidden)]
pub use admit::{IntoPolicy, IntoPolicySelector};
pub use admit::{PolicySelector, Route, Routes};
pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
#[cfg(feature = "axum")]
pub use respond::AxumRejection;
pub use respond::{
    Decisions, EXPOSED_HEADERS, EmptyBody, Grpc, HeaderStyle, MakeRejection, ProblemJson, Rejection,
};
pub use service::RateLimit;
