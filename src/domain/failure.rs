//! [`FailurePolicy`]: the answer to a request that the store cannot decide.

use crate::domain::words::words;

/// The answer to a request that the store cannot decide.
///
/// A [limiter](crate::Limiter::on_failure) or a layer has one for all policies, and you can set another for a
/// [policy](crate::Policy::on_failure). If several policies are checked together, the strictest applies to all:
/// `Closed`, else `Local`, else `Open`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
// From the least strict to the strictest: the limiter compares them in this order.
pub enum FailurePolicy {
    /// Let the request pass, unlimited: the service stays up when the store does not. The default.
    #[default]
    Open,
    /// Let the memory of this process decide, within this process's [share](crate::Limiter::replicas) of the limits:
    /// see [`limiter`](crate::limiter#when-the-store-cannot-decide). A new key for which that memory
    /// [has no room](crate::MemoryStore) is rejected.
    Local,
    /// Reject the request. Use this if an unlimited request is worse than no answer, for instance at a login.
    Closed,
}

words!(
    /// Returns one lower-case word: `open`, `local`, `closed`.
    FailurePolicy: Open "open", Local "local", Closed "closed"
);
