//! [`Sent`]: a request to another service, and what its answer says about pauses.

use std::{
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
    time::Duration,
};

use tokio::time::Instant;

use super::{ANSWER, Account, Pauses};
use crate::{
    domain::{block::BlockRequest, key::Key},
    limiter::Limiter,
};

/// How long accounts are paused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    /// The first pause of an account that was refused without a time. Each further one doubles it.
    pub(crate) first: Duration,
    /// The longest pause without a time.
    pub(crate) most: Duration,
    /// The longest pause.
    pub(crate) max_pause: Duration,
}

/// A request that is under way. When dropped, the next request may leave.
#[derive(Debug)]
pub(crate) struct Sent {
    limiter: Limiter,
    key: Key,
    at: Instant,
}

impl Limiter {
    /// Promises that the end of each request under its keys will be reported.
    pub(crate) fn follow_answers(&self) {
        self.inner.pauses.is_followed.store(true, Relaxed);
    }

    /// Whether pauses can be stored.
    pub(crate) fn enforces_blocks(&self) -> bool {
        self.inner.enforces_blocks
    }

    /// Notes that a request leaves now.
    pub(crate) fn send(&self, key: Key) -> Sent {
        let at = Instant::now();
        self.inner.pauses.update(&key, |account| {
            if account.probed_until.is_some() {
                account.probed_until = Some(at + ANSWER);
            }
        });
        Sent {
            limiter: self.clone(),
            key,
            at,
        }
    }
}

impl Sent {
    /// The other service has served the request.
    pub(crate) fn succeeded(&self) {
        self.limiter.inner.pauses.update(&self.key, |account| {
            if !self.is_late(account) {
                account.recovers = false;
                account.doublings = account.doublings.saturating_sub(1);
            }
        });
    }

    /// The other service asks to wait, for a time or for as long as the backoff says. Returns the call that stores the
    /// pause, if the pause is news.
    pub(crate) fn refused(
        &self,
        wait: Option<Duration>,
        reason: &str,
        backoff: &Backoff,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let now = Instant::now();
        let (mut news, mut is_new) = (None, false);
        let is_known = self.limiter.inner.pauses.change(&self.key, now, |account| {
            let length = match wait {
                Some(wait) => wait,
                // All requests of one burst are refused: they count once.
                None if self.is_late(account) => return,
                None => account.next_backoff(backoff),
            };
            let length = length.min(backoff.max_pause);
            let (changes, begins) = account.lengthen(now + length, now);
            (news, is_new) = (changes.then_some(length), begins);
        });
        if !is_known {
            (news, is_new) = (
                Some(wait.unwrap_or(backoff.first).min(backoff.max_pause)),
                true,
            );
        }
        let request = BlockRequest::pause(news?).reason(reason);
        if is_new {
            self.limiter.report_pause(&self.key, &request);
        }
        let (limiter, key) = (self.limiter.clone(), self.key.clone());
        Some(async move {
            // The limiter has reported an error, and the pause holds here all the same.
            let _ = limiter.store_pause(&key, request).await;
        })
    }

    /// Whether the request left before the end of the last pause, so that its answer says nothing about the time after.
    fn is_late(&self, account: &Account) -> bool {
        account.recovers && self.at < account.ends
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let pauses = &self.limiter.inner.pauses;
        pauses.update(&self.key, |account| account.probed_until = None);
    }
}

impl Pauses {
    /// Changes what is known of an account, if anything is, and forgets an account of which nothing is left.
    fn update(&self, key: &Key, change: impl FnOnce(&mut Account)) {
        if self.known.load(Acquire) == 0 {
            return;
        }
        let mut accounts = self.lock();
        let Some(account) = accounts.get_mut(key) else {
            return;
        };
        change(account);
        if !account.recovers && account.doublings == 0 {
            accounts.remove(key);
            self.known.store(accounts.len(), Release);
        }
        drop(accounts);
        self.changed.notify_waiters();
    }
}

impl Account {
    fn next_backoff(&mut self, backoff: &Backoff) -> Duration {
        let factor = 1u32.checked_shl(self.doublings).unwrap_or(u32::MAX);
        let length = backoff.first.saturating_mul(factor);
        if length >= backoff.most {
            return backoff.most;
        }
        self.doublings += 1;
        length
    }
}
