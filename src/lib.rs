//! Rate limiting for tower, axum and hyper: several sliding-window rules decided in one atomic step.
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod charge;
pub mod decision;
pub mod error;
pub mod extract;
pub mod key;
pub mod limiter;
pub mod middleware;
pub mod policy;
pub mod rule;
pub mod store;
#[cfg(feature = "test-util")]
pub mod test_util;
mod window;

pub use charge::{Charge, Check, Settlement};
pub use decision::{Count, Decision, Denial, PolicyUsage, RuleUsage, Usage};
pub use error::{
    ExtractError, ExtractErrorKind, PolicyError, RuleError, StoreError, StoreErrorKind,
};
pub use extract::{Header, KeyExtractor, PeerIp};
pub use key::Key;
pub use limiter::{FailurePolicy, Limiter};
pub use middleware::RateLimitLayer;
pub use policy::Policy;
pub use rule::Rule;
#[cfg(feature = "redis")]
pub use store::redis::RedisStore;
pub use store::{Answer, MemoryStore, Store};
