//! Warnings for operators through the crate `tracing`, with or without an observer.
//!
//! Each warning is written once for each cause. None holds a key, or any other data from a client. Without the feature
//! `tracing`, nothing is written.

#![cfg_attr(
    not(feature = "tracing"),
    expect(unused_variables, reason = "only logged")
)]

use std::{
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use crate::domain::{
    error::{ExtractError, StoreError},
    policies::Restart,
};

/// Writes a warning with these fields; without the feature `tracing`, it evaluates nothing.
macro_rules! warn {
    ($($fields:tt)*) => {{
        #[cfg(feature = "tracing")]
        tracing::warn!(target: "sluicegate", $($fields)*);
    }};
}

/// Warns about a first failure, and about no other until a success.
#[derive(Debug, Default)]
pub(crate) struct Quiet(AtomicBool);

impl Quiet {
    #[cfg(feature = "redis")]
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Notes a result, and passes the first error since a success to `warn`.
    pub(crate) fn note<E>(&self, result: &Result<(), E>, warn: impl FnOnce(&E)) {
        let had_failed = self.0.swap(result.is_err(), Relaxed);
        if let (Err(error), false) = (result, had_failed) {
            warn(error);
        }
    }
}

/// Warns that a reload has given a policy calendar rules whose counts start empty.
pub(crate) fn counts_restart(restart: &Restart) {
    warn!(
        policy = &*restart.policy,
        old = restart.old,
        new = restart.new,
        "a policy was reloaded with calendar rules of other periods, which start empty, so that clients have their \
         whole limits again: to keep what was counted, change the limit alone, or keep the old rule beside the new one \
         until its period has ended"
    );
}

/// Warns about a limit that can find no key for any request.
pub(crate) fn misconfigured(policy: Option<&str>, error: &ExtractError) {
    warn!(policy, "misconfigured: {error}");
}

/// Warns about a limit, or a block check, that uses the peer's address although the peers are proxies.
pub(crate) fn behind_proxy() {
    warn!(
        "misconfigured: a layer knows clients by `PeerIp`, but the requests have been forwarded by a proxy, whose \
         address they all share: use `ForwardedIp` with the proxy's networks, so that each has its own"
    );
}

/// A mistake in a service's configuration of its proxies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProxyMistake {
    /// The requests come from peers outside of the trusted networks, such as this one.
    Untrusted { peer: Option<IpAddr> },
    /// Trusted proxies do not send the header.
    NoHeader,
    /// The header has fewer entries than the configured number of proxies.
    TooFew,
    /// The header holds no address where the proxies write one.
    Unreadable,
    /// The address that counts as the client's is a proxy's.
    ProxyIsClient,
    /// The addresses that count as clients are those of a proxy that has many.
    ProxiesAreClients,
}

/// Warns about a `ForwardedIp` that gives all clients the same key, one client many keys, or no key.
pub(crate) fn about_proxies(header: &str, mistake: ProxyMistake) {
    // One text for each mistake, since the remedy differs.
    match mistake {
        ProxyMistake::Untrusted { peer } => warn!(
            header,
            peer = peer.map(|peer| peer.to_string()),
            "misconfigured: `ForwardedIp` does not read the header of forwarded requests, since their peers are outside \
             of its trusted networks, and their clients share one key: if the peers are your proxies, add their \
             networks to `TrustedProxies::networks`"
        ),
        ProxyMistake::NoHeader => warn!(
            header,
            "misconfigured: `ForwardedIp` finds no key, since hardly any of the first requests of trusted proxies has \
             the header: let the proxy add it, or read the header that it does add; let the layer `skip` health checks"
        ),
        ProxyMistake::TooFew => warn!(
            header,
            "misconfigured: `ForwardedIp` finds no key, since the header has fewer addresses than proxies: lower \
             `TrustedProxies::count_including_peer` to how many of your proxies add to it"
        ),
        ProxyMistake::Unreadable => warn!(
            header,
            "misconfigured: `ForwardedIp` finds no key, since the header holds no address: let the proxy write the \
             client's address, and neither `unknown` nor a name, and overwrite a header of one address"
        ),
        ProxyMistake::ProxyIsClient => warn!(
            header,
            "misconfigured: `ForwardedIp` takes one address for the client of nine tenths of the requests, though the \
             header names others beyond it: if it is a proxy of yours, raise `TrustedProxies::count_including_peer`, \
             or add its network to `TrustedProxies::networks`"
        ),
        ProxyMistake::ProxiesAreClients => warn!(
            header,
            "misconfigured: `ForwardedIp` takes many addresses in turn for the client, though the header names one and \
             the same beyond them in nine tenths of the requests, so that one client has many keys: if the addresses are \
             those of your provider's edge, read the header of one address that the edge sets, add its networks to \
             `TrustedProxies::networks`, or raise `TrustedProxies::count_including_peer`"
        ),
    }
}

/// Warns that a layer or a response sets a cost under a policy that does not exist: `ActualCost`, or another setter.
pub(crate) fn unknown_policy(setter: &str, name: &str, similar: Option<&str>) {
    warn!(
        policy = name,
        similar,
        "misconfigured: `{setter}` names a policy that does not exist, so that requests keep what they were charged: \
         name a policy of the layer, or of the check"
    );
}

/// Warns about costs that are all 0.
pub(crate) fn costs_nothing() {
    warn!(
        "misconfigured: the `cost` of a layer was 0 for its first 1000 charges, and nothing settles them later, so that \
         everybody passes: if the cost stands in the body, put `ReadBodyLayer` around this layer, and read `ParsedBody` \
         as the type that it parses; if these requests cost nothing, ignore this"
    );
}

/// Warns about a handler that meters a cost which no layer settles.
#[cfg(feature = "axum")]
pub(crate) fn nothing_meters() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        warn!(
            "misconfigured: a handler takes a `CostMeter`, but no layer around it meters costs, so that nothing is \
             settled: add `meter_costs()` to the `RateLimitLayer`, and add the layer after the route"
        );
    });
}

/// Warns about entries of a table of routes that no request has matched: they may have typing errors.
pub(crate) fn unmet_routes(entries: &[String], requests: u32) {
    warn!(
        requests,
        entries = entries.join(", "),
        "no request has met these entries of `Routes`: write each path as the router has it, with the names of its \
         captures and the prefix of a nested router; leave those as they are that are seldom asked for"
    );
}

/// Warns that requests pass a limit whose key, policy or cost could not be looked up.
pub(crate) fn limit_left_out(policy: Option<&str>, error: &ExtractError) {
    warn!(
        policy,
        %error,
        "requests pass without a limit, since its look-up fails and its failure policy is open: make the look-up \
         faster, raise `look_up_timeout`, or choose `FailurePolicy::Closed`"
    );
}

/// Reports that look-ups have not failed for a while.
pub(crate) fn limits_found_again() {
    warn!("look-ups have recovered: all limits apply again");
}

/// Warns of a denial for which clients of language models do not wait.
pub(crate) fn ignored_wait(policy: &str) {
    warn!(
        policy,
        "a layer that sends `retry-after-ms` has denied a request for 60 s or longer: many clients of language models \
         ignore such waits, ask again soon and give up: use rules whose window and step are shorter together, such as `50/50s`, or \
         a bucket, such as `60+60/1m@bucket`; if the rule is a quota of hours or days, ignore this"
    );
}

/// Warns that slots are returned with the head of a response.
pub(crate) fn slots_at_head() {
    warn!(
        "misconfigured: a limit has chosen a concurrency policy for a request, but its layer does not follow responses \
         to the end of their bodies, so that slots are returned with the head: add the limit by `limit_concurrent`"
    );
}

/// Warns that slots are not renewed.
pub(crate) fn slots_expire_too_early() {
    warn!(
        "misconfigured: a request has chosen a concurrency policy whose slots expire in less than six timeouts of the \
         limiter, so that they are not renewed: let them expire later, or set a shorter timeout"
    );
}

/// Warns that work goes on without its slots.
pub(crate) fn slot_lost() {
    warn!(
        "slots were lost while they were held, so that more work than the limit may run at a time: the store did not \
         answer for too long, the key was reset, or this process or its machine was stopped; let them expire later, or stop the work \
         by `lost()`"
    );
}

/// Warns that another service has asked us to wait.
pub(crate) fn paused(kind: &str, label: Option<&str>, reason: Option<&str>, length: Duration) {
    warn!(
        kind,
        label,
        reason,
        length_ms = crate::domain::rule::millis(length),
        "paused: another service has asked us to wait; all replicas wait, or deny requests, until the pause ends"
    );
}

/// Warns that the store cannot decide, so that failure policies do.
pub(crate) fn undecided(error: &StoreError) {
    warn!(
        kind = error.kind().as_str(),
        %error,
        code = error.code(),
        cause = std::error::Error::source(error).map(ToString::to_string),
        "the store could not decide about a request: failure policies apply as long as it cannot"
    );
}

/// Reports that the store has decided everything for a while.
pub(crate) fn decides_again() {
    warn!("the store decides about all requests again");
}

/// Warns that a memory store has no room for a new key; warns again only after the store has had room for a minute.
pub(crate) fn memory_full() {
    warn!(
        "a memory store is full of keys at their limits: the failure policy applies to new ones; give it a greater \
         `capacity`, or limit the clients that make up keys by something that they cannot make up"
    );
}

/// Warns that the thread for background work could not be started.
pub(crate) fn no_back_room() {
    warn!(
        "the thread for settlements, slots, bans and reports cannot be started: their work is done in the runtimes of \
         requests, and ends with them"
    );
}

/// Warns that background work is dropped.
pub(crate) fn back_room_full() {
    warn!(
        "too much background work waits for the store: further settlements, returns of slots and reports are dropped"
    );
}

/// Writes a server's own words, each once, and no more than a few different ones.
#[cfg(feature = "redis")]
pub(crate) fn unknown_reply(words: &str) {
    static WRITTEN: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
    if let Ok(mut written) = WRITTEN.lock()
        && written.len() < 8
        && !written.iter().any(|it| it == words)
    {
        written.push(words.to_owned());
        warn!(
            words,
            "the Redis server answered with an error, in these words"
        );
    }
}

/// Warns of a server that evicts keys when its memory is full.
#[cfg(feature = "redis")]
pub(crate) fn evicts(policy: &str) {
    warn!(
        policy,
        "the Redis server evicts keys when its memory is full, so that counts and blocks can end too early and limits \
         are lifted: set its `maxmemory-policy` to `noeviction`"
    );
}

/// Warns of an error of the store that changes no decision.
fn of_store(error: &StoreError, message: &'static str) {
    warn!(
        kind = error.kind().as_str(),
        %error,
        code = error.code(),
        cause = std::error::Error::source(error).map(ToString::to_string),
        "{message}"
    );
}

/// Warns that blocks apply but are missing from the list; warns again only after a block has been listed.
#[cfg(feature = "redis")]
pub(crate) fn blocks_not_indexed(error: &StoreError) {
    of_store(
        error,
        "the store does not list all blocks, since their index cannot be written; the blocks hold all the same",
    );
}

/// Warns that the policies were not published; warns again only after they have been.
pub(crate) fn policies_not_published(error: &StoreError) {
    of_store(
        error,
        "the store does not publish the policies for the operators' tool; checks are not affected",
    );
}

/// Warns that the store did not accept a report. The next one is still tried; after a success, the next failure warns
/// again.
pub(crate) fn reports_lost(error: &StoreError) {
    of_store(
        error,
        "the store does not keep the contributors to a limit, or which identities are denied, so that operators cannot \
         see them; checks are not affected: give its user the rights, or switch denials off by `count_denials(false)`",
    );
}
