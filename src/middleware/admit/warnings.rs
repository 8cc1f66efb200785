//! The warnings of a layer: one for each mistake, however many requests meet it.

use std::{
    mem,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use http::request::Parts;

use crate::{
    domain::{decision::Denial, error::ExtractError, policy::Policy, similar::most_similar},
    extract::{forwarded::is_forwarded_for_other, watch::Watch},
    limiter::outage::Outage,
    warning,
};

/// How many requests limited by peer address are compared.
const WINDOW: u32 = 100;

/// Not all: a proxy's own health checks lack the header.
const MOST_OF_THEM: u32 = 90;

/// Many client libraries of OpenAI ignore `Retry-After` and `retry-after-ms` from here on: those for JavaScript from 60 s,
/// those for Python above.
const LEAST_IGNORED: Duration = Duration::from_secs(60);

/// If this many charges are all 0, the cost is probably read from the wrong place.
const FREE: u32 = 1_000;

/// More mistakes than a layer is likely to have.
const MAX_WARNED: usize = 16;

/// Shared by the services of a layer. A layer derived from another one warns separately.
#[derive(Default)]
pub(in crate::middleware) struct Warnings {
    warned: Mutex<Vec<ExtractError>>,
    peers: Watch<Peers>,
    /// Limits that were left out because look-ups failed.
    look_ups: Outage,
    /// Whether a cost has named an unknown policy.
    misnames: AtomicBool,
    returns_slots_early: AtomicBool,
    denies_for_long: AtomicBool,
    /// How many of the first charges were 0, all of them; or `FREE`, when no more are counted.
    free: AtomicU32,
}

/// The latest requests limited by peer address.
#[derive(Default)]
struct Peers {
    requests: u32,
    forwarded: u32,
    are_proxies: bool,
}

impl Clone for Warnings {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Warnings {
    /// Warns that a limit can find no key or policy for any request.
    pub(super) fn misconfigured(&self, policy: Option<&Policy>, error: &ExtractError) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() < MAX_WARNED && !warned.contains(error) {
            warned.push(error.clone());
            drop(warned);
            warning::misconfigured(policy.map(Policy::name), error);
        }
    }

    /// Notes that a request passes without a limit, because a look-up failed.
    pub(super) fn left_out(&self, policy: Option<&Policy>, error: &ExtractError) {
        if self.look_ups.begins() {
            warning::limit_left_out(policy.map(Policy::name), error);
        }
    }

    /// Notes that all look-ups of a request have ended.
    pub(super) fn found_out(&self) {
        if self.look_ups.ends() {
            warning::limits_found_again();
        }
    }

    /// Warns that slots are returned with the head of a response.
    pub(in crate::middleware) fn slots_at_head(&self) {
        if !self.returns_slots_early.swap(true, Relaxed) {
            warning::slots_at_head();
        }
    }

    /// Warns of a denial for which clients of language models do not wait.
    pub(in crate::middleware) fn see_wait(&self, denial: &Denial) {
        let is_ignored = |wait| wait >= LEAST_IGNORED;
        if denial.shown_retry_after().is_some_and(is_ignored)
            && !self.denies_for_long.swap(true, Relaxed)
        {
            warning::ignored_wait(denial.policy().name());
        }
    }

    /// Warns if the first charges under your cost are all 0, and nothing settles them later.
    pub(super) fn see_cost(&self, cost: u64, learns_costs: bool) {
        if self.free.load(Relaxed) >= FREE {
            return;
        }
        if cost > 0 || learns_costs {
            self.free.store(FREE, Relaxed);
        } else if self.free.fetch_add(1, Relaxed) == FREE - 1 {
            warning::costs_nothing();
        }
    }

    /// Warns that a cost is set under an unknown policy.
    pub(super) fn unknown_policy<'a>(
        &self,
        setter: &str,
        name: &str,
        known: impl Iterator<Item = &'a str>,
    ) {
        if !self.misnames.swap(true, Relaxed) {
            warning::unknown_policy(setter, name, most_similar(name, known));
        }
    }

    /// Notes whether a request limited by peer address was forwarded.
    pub(super) fn watch(&self, head: &Parts, reads_peer: bool) {
        let note =
            |peers: &mut Peers, _| reads_peer.then(|| peers.add(is_forwarded_for_other(head)));
        if self.peers.note(note) == Some(true) {
            warning::behind_proxy();
        }
    }
}

impl Peers {
    /// Whether this request is the first to show that the peers are proxies. Windows with few forwarded requests, as
    /// with only health checks, do not count against a later window.
    fn add(&mut self, is_forwarded: bool) -> bool {
        self.requests += 1;
        self.forwarded += u32::from(is_forwarded);
        if self.requests < WINDOW {
            return false;
        }
        let are_proxies = self.forwarded >= MOST_OF_THEM;
        (self.requests, self.forwarded) = (0, 0);
        are_proxies && !mem::replace(&mut self.are_proxies, true)
    }
}
