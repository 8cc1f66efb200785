//! [`Backoff`]: how long accounts are paused that a service has refused without a time.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{bounded::Sets, domain::key::Key};

/// How many accounts have pauses that double. With more, an account begins again with the first pause.
const MAX_KNOWN: usize = 10_000;

#[derive(Clone, Debug)]
pub(super) struct Backoff {
    pub(super) first: Duration,
    /// The longest pause without a time.
    pub(super) most: Duration,
    doubled: Arc<Sets<Doubled>>,
}

#[derive(Clone, Copy, Debug)]
struct Doubled {
    /// How often, less the successes since.
    times: u32,
    last: Instant,
    /// The end of the last pause.
    ends: Instant,
}

impl Backoff {
    pub(super) fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            doubled: Arc::new(Sets::new(MAX_KNOWN)),
        }
    }

    /// How long a refusal without a time pauses. `None` if the request left before the last of them: all requests of one
    /// burst are refused, and count once.
    /// No pause is longer than `max`.
    pub(super) fn next(&self, key: &Key, left: Instant, max: Duration) -> Option<Duration> {
        let (now, most, mut length) = (Instant::now(), self.most.min(max), None);
        self.update(key, |known| {
            if known.is_some_and(|it| left <= it.last) {
                return None;
            }
            let times = known.map_or(0, |it| it.times);
            let factor = 1u32.checked_shl(times).unwrap_or(u32::MAX);
            let next = self.first.saturating_mul(factor).min(most);
            length = Some(next);
            Some(Doubled {
                times: times + u32::from(next < most),
                last: now,
                ends: now + next,
            })
        });
        length
    }

    /// Notes a pause with a time.
    pub(super) fn paused(&self, key: &Key, length: Duration) {
        let ends = Instant::now() + length;
        self.update(key, |known| {
            known.map(|it| Doubled {
                ends: ends.max(it.ends),
                ..*it
            })
        });
    }

    /// The service has not refused a request that left then. It takes a doubling back, unless a pause began since.
    pub(super) fn served(&self, key: &Key, left: Instant) {
        self.update(key, |known| {
            let known = known.filter(|it| left >= it.ends)?;
            let times = known.times.saturating_sub(1);
            Some(Doubled { times, ..*known })
        });
    }

    fn update(&self, key: &Key, next: impl FnOnce(Option<&Doubled>) -> Option<Doubled>) {
        self.doubled
            .update(self.doubled.hash(key), |it| it.ends, next);
    }
}
