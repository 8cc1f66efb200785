//! Warnings for operators, of the crate `tracing`, whether there is an observer or not.
//!
//! Each is written once for its cause, and none holds a key or anything else that a client has sent. Without the
//! feature `tracing`, nothing is written.

use std::net::IpAddr;

use crate::domain::error::{ExtractError, StoreError};

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

/// How a service is wrong about its proxies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProxyMistake {
    /// The requests come from peers outside of the trusted networks, such as this one.
    Untrusted {
        #[cfg_attr(not(feature = "tracing"), expect(dead_code, reason = "only logged"))]
        peer: Option<IpAddr>,
    },
    /// Trusted proxies do not send the header.
    NoHeader,
    /// The header has fewer entries than proxies were counted.
    TooFew,
    /// The header holds no address where the proxies write one.
    Unreadable,
    /// The address that counts as the client is a proxy's.
    ProxyIsClient,
}

/// A `ForwardedIp` that gives all clients one key, or none of them any.
pub(crate) fn about_proxies(header: &str, mistake: ProxyMistake) {
    #[cfg(feature = "tracing")]
    match mistake {
        ProxyMistake::Untrusted { peer } => tracing::warn!(
            target: "sluicegate",
            header,
            peer = peer.map(|peer| peer.to_string()),
            "misconfigured: `ForwardedIp` does not read the header of forwarded requests, since their peers are outside \
             of its trusted networks, and their clients share one key: if the peers are your proxies, add their \
             networks to `TrustedProxies::networks`"
        ),
        ProxyMistake::NoHeader => tracing::warn!(
            target: "sluicegate",
            header,
            "misconfigured: `ForwardedIp` finds no key, since hardly any of the first requests of trusted proxies has \
             the header: let the proxy add it, or read the header that it does add; let the layer `skip` health checks"
        ),
        ProxyMistake::TooFew => tracing::warn!(
            target: "sluicegate",
            header,
            "misconfigured: `ForwardedIp` finds no key, since the header has fewer addresses than proxies: lower \
             `TrustedProxies::count_including_peer` to how many of your proxies add to it"
        ),
        ProxyMistake::Unreadable => tracing::warn!(
            target: "sluicegate",
            header,
            "misconfigured: `ForwardedIp` finds no key, since the header holds no address: let the proxy write the \
             client's address, and neither `unknown` nor a name, and overwrite a header of one address"
        ),
        ProxyMistake::ProxyIsClient => tracing::warn!(
            target: "sluicegate",
            header,
            "misconfigured: `ForwardedIp` takes one address for the client of nine tenths of the requests, though the \
             header names others beyond it: if it is a proxy of yours, raise `TrustedProxies::count_including_peer`, \
             or add its network to `TrustedProxies::networks`"
        ),
    }
    #[cfg(not(feature = "tracing"))]
    let _ = (header, mistake);
}

/// A response's `ActualCost` names a policy that does not exist.
pub(crate) fn unknown_policy(name: &str, similar: Option<&str>) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "sluicegate",
        policy = name,
        similar,
        "misconfigured: a response has its `ActualCost` under a policy that does not exist, so that it keeps what was \
         charged: name a policy of the layer"
    );
    #[cfg(not(feature = "tracing"))]
    let _ = (name, similar);
}

/// Entries of a table of routes that may be written wrongly, after so many requests.
pub(crate) fn unmet_routes(entries: &[String], requests: u32) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "sluicegate",
        requests,
        entries = entries.join(", "),
        "no request has met these entries of `Routes`: write each path as the router has it, with the names of its \
         captures and the prefix of a nested router; leave those as they are that are seldom asked for"
    );
    #[cfg(not(feature = "tracing"))]
    let _ = (entries, requests);
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

/// A memory store has no place for a new key; the warning is new when it had places for a minute.
pub(crate) fn memory_full() {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "sluicegate",
        "a memory store is full of keys at their limits: the failure policy applies to new ones; give it a greater \
         `capacity`, or limit the clients that make up keys by something that they cannot make up"
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

/// Blocks hold, and are not among those that are listed. The warning is new after the next one that is listed.
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

/// The policies were not published. The warning is new after the next time that they are.
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

/// The store did not take a report of contributors. The next report is tried all the same; once one succeeds, the
/// warning is new.
pub(crate) fn contributors_lost(error: &StoreError) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "sluicegate",
        kind = error.kind().as_str(),
        %error,
        code = error.code(),
        "the store does not keep the contributors to a limit; checks are not affected"
    );
    #[cfg(not(feature = "tracing"))]
    let _ = error;
}

/// The store did not take a report of denials. The next report is tried all the same; once one succeeds, the warning is
/// new.
pub(crate) fn denials_lost(error: &StoreError) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "sluicegate",
        kind = error.kind().as_str(),
        %error,
        code = error.code(),
        "the store does not keep which identities are denied, so that operators cannot see them; checks are not \
         affected: give its user the rights, or switch it off by `count_denials(false)`"
    );
    #[cfg(not(feature = "tracing"))]
    let _ = error;
}
