//! What an operator has to know, whether there is an observer or not: warnings of the crate `tracing`.
//!
//! Each is written once for its cause, and none holds a key or anything else that a client has sent. Without the
//! feature `tracing`, nothing is written.

use crate::error::{ExtractError, StoreError};

/// A limit that can find no key for any request.
pub(crate) fn misconfigured(policy: Option<&str>, error: &ExtractError) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "sluicegate", policy, "misconfigured: {error}");
    #[cfg(not(feature = "tracing"))]
    let _ = (policy, error);
}

/// A limit, or a look-up of blocks, by the peer's address whose peers are proxies.
pub(crate) fn behind_proxy() {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "sluicegate",
        "misconfigured: a layer knows clients by `PeerIp`, but the requests have been forwarded by a proxy, whose \
         address they all share: use `ForwardedIp` with the proxy's networks, so that each has its own"
    );
}

/// Requests pass without a limit whose key, policy or cost could not be looked up.
pub(crate) fn limit_left_out(policy: Option<&str>, error: &ExtractError) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "sluicegate",
        policy,
        %error,
        "requests pass without a limit, since its look-up fails and its failure policy is open: make the look-up \
         faster, raise `look_up_timeout`, or choose `FailurePolicy::Closed`"
    );
    #[cfg(not(feature = "tracing"))]
    let _ = (policy, error);
}

/// No limit was left out for a while.
pub(crate) fn limits_found_again() {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "sluicegate", "look-ups have recovered: all limits apply again");
}

/// The store is not called any more.
pub(crate) fn breaker_opened(error: &StoreError) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "sluicegate",
        kind = error.kind().as_str(),
        %error,
        cause = std::error::Error::source(error).map(ToString::to_string),
        "breaker opened: the store has failed five times in a row; the failure policy applies until it answers"
    );
    #[cfg(not(feature = "tracing"))]
    let _ = error;
}

/// The store is called again.
pub(crate) fn breaker_closed() {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "sluicegate", "breaker closed: the store decides again");
}

/// A memory store has no place for a new key; it is told again when it had places for a minute.
pub(crate) fn memory_full() {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "sluicegate",
        "a memory store is full of keys at their limits: the failure policy applies to new ones; give it a greater \
         `capacity`, or limit what makes up keys by something that cannot be made up"
    );
}

/// Leases are of no use in this runtime.
pub(crate) fn nothing_leased() {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "sluicegate",
        "misconfigured: `Leases` needs a tokio runtime whose timers are enabled; nothing is leased any more"
    );
}

/// Blocks hold, and are not among those that are listed; it is told again after the next that is.
#[cfg(feature = "redis")]
pub(crate) fn blocks_not_indexed(error: &StoreError) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "sluicegate",
        kind = error.kind().as_str(),
        %error,
        code = error.code(),
        "the store does not list all blocks, since their index cannot be written; the blocks hold all the same"
    );
    #[cfg(not(feature = "tracing"))]
    let _ = error;
}

/// The policies were not published; it is told again after the next time that they are.
pub(crate) fn policies_not_published(error: &StoreError) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "sluicegate",
        kind = error.kind().as_str(),
        %error,
        code = error.code(),
        "the store does not publish the policies for the operators' tool; checks are not affected"
    );
    #[cfg(not(feature = "tracing"))]
    let _ = error;
}

/// The store was not told who contributes; it is told again with the next contributions, and the warning is then new.
pub(crate) fn contributors_lost(error: &StoreError) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "sluicegate",
        kind = error.kind().as_str(),
        %error,
        code = error.code(),
        "the store does not keep who contributes to a limit; checks are not affected"
    );
    #[cfg(not(feature = "tracing"))]
    let _ = error;
}
