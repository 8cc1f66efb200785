//! What a layer warns of: each mistake once, however many requests meet it.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{HeaderName, header::FORWARDED, request::Parts};
use tokio::time::Instant;

use crate::{error::ExtractError, policy::Policy, warning};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// How many requests are looked at, so that those after them cost one load.
const WATCHED: u32 = 100;

/// Not all: a health check of the proxy itself has no such header.
const MOST_OF_THEM: u32 = 90;

/// So long no limit is left out before look-ups count as recovered: at most one pair of warnings in that time.
const RECOVERED_AFTER: Duration = Duration::from_secs(10);

/// More mistakes than one layer has.
const MAX_TOLD: usize = 16;

/// Shared by the services of a layer. A layer that is derived from another one warns for itself.
#[derive(Default)]
pub(in crate::middleware) struct Warnings {
    told: Mutex<Vec<ExtractError>>,
    watched: AtomicU32,
    forwarded: AtomicU32,
    /// Whether limits have been left out lately, so that other requests cost one load.
    leaves_out: AtomicBool,
    /// When one was left out last.
    left_out_at: Mutex<Option<Instant>>,
}

impl Clone for Warnings {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Warnings {
    /// A limit can find no key or no policy for any request.
    pub(super) fn misconfigured(&self, policy: Option<&Policy>, error: &ExtractError) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < MAX_TOLD && !told.contains(error) {
            told.push(error.clone());
            drop(told);
            warning::misconfigured(policy.map(Policy::name), error);
        }
    }

    /// Notes that a request passes without a limit, since nothing could be found out for it.
    pub(super) fn left_out(&self, policy: Option<&Policy>, error: &ExtractError) {
        let mut left_out_at = self.left_out_at();
        let begins = left_out_at.replace(Instant::now()).is_none();
        self.leaves_out.store(true, Relaxed);
        drop(left_out_at);
        if begins {
            warning::limit_left_out(policy.map(Policy::name), error);
        }
    }

    /// Notes that all limits of a request were found out, or left out.
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

    /// Notes whether a request that is limited by its peer's address was forwarded.
    pub(super) fn watch(&self, head: &Parts) {
        if self.watched.load(Relaxed) < WATCHED {
            self.note(head);
        }
    }

    #[cold]
    fn note(&self, head: &Parts) {
        let headers = &head.headers;
        if headers.contains_key(X_FORWARDED_FOR) || headers.contains_key(FORWARDED) {
            self.forwarded.fetch_add(1, Relaxed);
        }
        // One request alone is the last of them.
        let is_last = self.watched.fetch_add(1, Relaxed) + 1 == WATCHED;
        if is_last && self.forwarded.load(Relaxed) >= MOST_OF_THEM {
            warning::behind_proxy();
        }
    }
}
