//! [`SharedAttempt`]: one attempt at something that all callers need, made for all of them.

use std::{sync::Arc, time::Duration};

use redis::RedisResult;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};

use super::timeout::LOST_AFTER;
use crate::store::redis::error::closed;

/// Callers start an attempt only where there is none to wait for. It runs in a task of its own, so that it outlives
/// callers who leave at their timeout.
///
/// That task is one of the runtime of the caller who started it, and this runtime may be parked, or the server silent.
/// So no caller waits for an attempt that is older than [`LOST_AFTER`], and the next caller starts another beside
/// it. If the older one succeeds first, that will do for all.
pub(in crate::store::redis) struct SharedAttempt<T> {
    latest: watch::Sender<Latest<T>>,
    /// From one attempt to the next.
    pause: Duration,
}

/// The newest attempt, or the one whose outcome is the newest.
#[derive(Debug)]
pub(in crate::store::redis) struct Latest<T> {
    /// When it began, or will; `None` when there was none yet.
    started: Option<Instant>,
    /// Whether there was another before it.
    #[cfg_attr(
        not(feature = "cluster"),
        expect(dead_code, reason = "only a cluster asks for it")
    )]
    pub(in crate::store::redis) is_repeated: bool,
    /// `None` while it is under way.
    pub(in crate::store::redis) outcome: Option<RedisResult<T>>,
}

impl<T: Clone + Send + Sync + 'static> SharedAttempt<T> {
    /// Attempts nothing yet.
    pub(in crate::store::redis) fn new(pause: Duration) -> Arc<Self> {
        let (latest, _) = watch::channel(Latest {
            started: None,
            is_repeated: false,
            outcome: None,
        });
        Arc::new(Self { latest, pause })
    }

    /// Holds a lock until it is dropped.
    pub(in crate::store::redis) fn latest(&self) -> watch::Ref<'_, Latest<T>> {
        self.latest.borrow()
    }

    /// Starts another attempt, unless one is under way that can be waited for, or `will_do` says so of when the latest
    /// was started and what came of it.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub(in crate::store::redis) fn start_unless<F>(
        self: &Arc<Self>,
        will_do: impl FnOnce(Instant, &RedisResult<T>) -> bool,
        work: impl FnOnce() -> F,
    ) where
        F: Future<Output = RedisResult<T>> + Send + 'static,
    {
        let mut start = None;
        self.latest.send_if_modified(|latest| {
            let goes_on = latest.started.is_some_and(|started| match &latest.outcome {
                Some(outcome) => will_do(started, outcome),
                None => started.elapsed() < LOST_AFTER,
            });
            if !goes_on {
                let now = Instant::now();
                let began = latest
                    .started
                    .map_or(now, |last| now.max(last + self.pause));
                *latest = Latest {
                    started: Some(began),
                    is_repeated: latest.started.is_some(),
                    outcome: None,
                };
                start = Some(began);
            }
            false
        });
        if let Some(started) = start {
            let attempt = Attempt {
                shared: Arc::clone(self),
                started,
            };
            let work = work();
            tokio::spawn(async move {
                if started > Instant::now() {
                    sleep_until(started).await;
                }
                attempt.publish(work.await);
            });
        }
    }

    /// Waits until there is an outcome; answers when that attempt was started as well. `None` when the newest attempt
    /// is too old to be waited for.
    pub(in crate::store::redis) async fn outcome(&self) -> Option<(Instant, RedisResult<T>)> {
        let mut latest = self.latest.subscribe();
        let newest = latest.borrow().started?;
        let has_ended = latest.wait_for(|latest| latest.outcome.is_some());
        let ended = timeout_at(newest + LOST_AFTER, has_ended)
            .await
            .ok()?
            .ok()?;
        Some((ended.started?, ended.outcome.clone()?))
    }
}

/// An attempt under way. It fails when it is dropped.
struct Attempt<T> {
    shared: Arc<SharedAttempt<T>>,
    started: Instant,
}

impl<T> Attempt<T> {
    /// The outcome of an older attempt is of use, too: a success, or an answer that is an error.
    fn publish(&self, outcome: RedisResult<T>) {
        self.shared.latest.send_if_modified(|latest| {
            let has_succeeded = matches!(latest.outcome, Some(Ok(_)));
            let is_newest = latest.started == Some(self.started);
            let is_of_use = outcome
                .as_ref()
                .map_or_else(|it| !it.is_timeout(), |_| true);
            let counts = !has_succeeded && (is_newest || is_of_use);
            if counts {
                latest.started = Some(self.started);
                latest.outcome = Some(outcome);
            }
            counts
        });
    }
}

/// The result where its runtime was shut down.
impl<T> Drop for Attempt<T> {
    fn drop(&mut self) {
        let is_under_way =
            |it: &Latest<T>| it.outcome.is_none() && it.started == Some(self.started);
        if is_under_way(&self.shared.latest.borrow()) {
            self.publish(Err(closed()));
        }
    }
}
