//! The warnings of a layer: one for each mistake, however many requests meet it.

use std::{
    mem,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use http::request::Parts;
use tokio::time::Instant;

use super::similar::most_similar;
use crate::{
    domain::{error::ExtractError, policy::Policy},
    extract::forwarded::is_forwarded_for_other,
    warning,
    watch::Watch,
};

/// How many requests limited by peer address are compared.
const WINDOW: u32 = 100;

/// Not all: a proxy's own health checks lack the header.
const MOST_OF_THEM: u32 = 90;

/// How long no limit must be left out before look-ups count as recovered. Limits warnings to one pair in that time.
const RECOVERED_AFTER: Duration = Duration::from_secs(10);

/// More mistakes than a layer is likely to have.
const MAX_WARNED: usize = 16;

/// Shared by the services of a layer. A layer derived from another one warns separately.
#[derive(Default)]
pub(in crate::middleware) struct Warnings {
    warned: Mutex<Vec<ExtractError>>,
    peers: Watch<Peers>,
    /// Whether limits were left out recently; all other requests cost only this load.
    leaves_out: AtomicBool,
    /// Whether a cost has named an unknown policy.
    misnames: AtomicBool,
    returns_slots_early: AtomicBool,
    /// When a limit was last left out.
    left_out_at: Mutex<Option<Instant>>,
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
        let mut left_out_at = self.left_out_at();
        let begins = left_out_at.replace(Instant::now()).is_none();
        self.leaves_out.store(true, Relaxed);
        drop(left_out_at);
        if begins {
            warning::limit_left_out(policy.map(Policy::name), error);
        }
    }

    /// Notes that all look-ups of a request have ended.
    pub(super) fn found_out(&self) {
        if self.leaves_out.load(Relaxed) {
            self.note_recovery();
        }
    }

    #[cold]
    fn note_recovery(&self) {
        let mut left_out_at = self.left_out_at();
        if left_out_at.is_some_and(|at| at.elapsed() >= RECOVERED_AFTER) {
            *left_out_at = None;
            self.leaves_out.store(false, Relaxed);
            drop(left_out_at);
            warning::limits_found_again();
        }
    }

    fn left_out_at(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.left_out_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Warns that slots are returned with the head of a response.
    pub(super) fn slots_at_head(&self) {
        if !self.returns_slots_early.swap(true, Relaxed) {
            warning::slots_at_head();
        }
    }

    /// Whether an unknown policy has been warned about.
    pub(super) fn has_misnamed(&self) -> bool {
        self.misnames.load(Relaxed)
    }

    /// Warns that a response has set its cost under an unknown policy.
    pub(super) fn unknown_policy<'a>(&self, name: &str, known: impl Iterator<Item = &'a str>) {
        if !self.misnames.swap(true, Relaxed) {
            warning::unknown_policy(name, most_similar(name, known));
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
