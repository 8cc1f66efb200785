//! [`Sent`]: a request to another service, which its answer ends.

use std::{
    sync::{
        PoisonError,
        atomic::Ordering::{Acquire, Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{ALL, ANSWER, Account, MAX_KNOWN, Pauses, Stage, report_pause, store_pause};
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
    /// Its number among the few that are under way after a pause.
    number: Option<u64>,
}

/// How the other service asks to wait.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// For a time, or for as long as the backoff says.
    pub(crate) wait: Option<Duration>,
    pub(crate) reason: &'a str,
    /// The user's name for the account.
    pub(crate) label: Option<&'a str>,
    /// Whether this request was served all the same.
    pub(crate) is_served: bool,
}

impl Sent {
    /// Promises this limiter that the end of each request under these keys will be reported.
    pub(crate) fn follow(limiter: &Limiter) {
        limiter.inner.memory.pauses.is_followed.store(true, Relaxed);
    }

    /// Notes that a request leaves now.
    pub(crate) fn begin(limiter: &Limiter, key: Key) -> Self {
        let at = Instant::now();
        let pauses = &limiter.inner.memory.pauses;
        pauses.note_followed(&key);
        let mut number = None;
        pauses.update(&key, |account| {
            let mut under_way = account.under_way.iter_mut();
            if let Some(first) = under_way.find(|request| request.stage == Stage::Admitted) {
                first.stage = Stage::Left;
                first.until = at + ANSWER;
                number = Some(first.number);
            }
        });
        Self {
            limiter: limiter.clone(),
            key,
            at,
            number,
        }
    }

    /// The other service has served the request. A pause that began since goes on.
    pub(crate) fn succeeded(&self) {
        self.limiter
            .inner
            .memory
            .pauses
            .update(&self.key, |account| {
                if !self.is_late(account) {
                    account.served += 1;
                    account.recovers &= account.served < ALL;
                    account.doublings = account.doublings.saturating_sub(1);
                }
            });
    }

    /// The other service asks to wait. Returns the call that stores the pause, if the pause is news.
    pub(crate) fn asked_to_wait(
        &self,
        ask: Ask<'_>,
        backoff: &Backoff,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let now = Instant::now();
        let pauses = &self.limiter.inner.memory.pauses;
        let news = pauses.change(&self.key, now, |account| {
            if ask.is_served && !self.is_late(account) {
                account.doublings = account.doublings.saturating_sub(1);
            }
            let length = match ask.wait {
                Some(wait) => wait,
                // All requests of one burst are refused: they count once.
                None if self.is_late(account) => return None,
                None => account.next_backoff(backoff),
            };
            let length = length.min(backoff.max_pause);
            let (changes, is_new) = account.lengthen(now + length, now);
            changes.then_some((length, is_new))
        });
        // Without room for another account, the store gets each pause.
        let unknown = || {
            Some((
                ask.wait.unwrap_or(backoff.first).min(backoff.max_pause),
                true,
            ))
        };
        let (length, is_new) = news.unwrap_or_else(unknown)?;
        pauses.paused.notify_waiters();
        let request = BlockRequest::pause_up_to(length, backoff.max_pause).reason(ask.reason);
        if is_new {
            report_pause(&self.limiter, &self.key, ask.label, &request);
        }
        let (limiter, key) = (self.limiter.clone(), self.key.clone());
        Some(async move {
            // The limiter has reported an error, and the pause holds here all the same.
            let _ = store_pause(&limiter, &key, request).await;
        })
    }

    /// Whether the request left before the end of the last pause, so that its answer says nothing about the time after.
    fn is_late(&self, account: &Account) -> bool {
        account.recovers && self.at < account.ends
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let pauses = &self.limiter.inner.memory.pauses;
            pauses.update(&self.key, |account| account.end(number));
        }
    }
}

impl Pauses {
    fn note_followed(&self, key: &Key) {
        if self.has_followed(key) {
            return;
        }
        let followed = self.followed.write();
        let mut followed = followed.unwrap_or_else(PoisonError::into_inner);
        if followed.len() < MAX_KNOWN {
            followed.insert(key.clone());
        }
    }

    /// Changes a known account, and forgets it if it neither recovers nor has doublings.
    fn update(&self, key: &Key, change: impl FnOnce(&mut Account)) {
        if self.known.load(Acquire) == 0 {
            return;
        }
        self.edit(|accounts| {
            if let Some(account) = accounts.get_mut(key) {
                change(account);
                if !account.recovers && account.doublings == 0 {
                    accounts.remove(key);
                }
            }
        });
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
