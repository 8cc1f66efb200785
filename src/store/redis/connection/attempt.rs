//! [`SharedAttempt`]: one attempt, shared by all callers that need the result.

use std::{pin::Pin, sync::Arc, time::Duration};

use redis::RedisResult;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};

use crate::store::redis::error::closed;

/// A caller starts an attempt only if there is none to wait for. The attempt runs in a task, so that callers can leave
/// at their timeout without ending the attempt.
///
/// The server may be silent, so callers wait for an attempt only while it is young: the next caller starts another beside
/// it. If the older attempt succeeds first, all callers use its result.
pub(in crate::store::redis) struct SharedAttempt<T> {
    latest: watch::Sender<Latest<T>>,
    /// Between the starts of two attempts.
    pause: Duration,
    /// How long callers wait for one attempt.
    patience: Duration,
    spawn: fn(Work),
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The newest attempt, or the attempt with the newest outcome.
#[derive(Debug)]
pub(in crate::store::redis) struct Latest<T> {
    /// The start of the attempt, possibly in the future; `None` before the first attempt.
    started: Option<Instant>,
    /// Whether an earlier attempt exists.
    pub(in crate::store::redis) is_repeated: bool,
    /// `None` while the attempt is under way.
    pub(in crate::store::redis) outcome: Option<RedisResult<T>>,
}

impl<T: Clone + Send + Sync + 'static> SharedAttempt<T> {
    /// Starts no attempt yet.
    pub(in crate::store::redis) fn new(
        pause: Duration,
        patience: Duration,
        spawn: fn(Work),
    ) -> Arc<Self> {
        let (latest, _) = watch::channel(Latest {
            started: None,
            is_repeated: false,
            outcome: None,
        });
        Arc::new(Self {
            latest,
            pause,
            patience,
            spawn,
        })
    }

    /// Returns the latest attempt. The returned value holds a lock until you drop it.
    pub(in crate::store::redis) fn latest(&self) -> watch::Ref<'_, Latest<T>> {
        self.latest.borrow()
    }

    /// Starts another attempt, unless one is under way that callers can wait for, or `will_do` accepts the start and
    /// the outcome of the latest.
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
        // The check and the start are one step under the lock, so that two callers cannot both start an attempt.
        self.latest.send_if_modified(|latest| {
            let goes_on = latest.started.is_some_and(|started| match &latest.outcome {
                Some(outcome) => will_do(started, outcome),
                None => started.elapsed() < self.patience,
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
            (self.spawn)(Box::pin(async move {
                if started > Instant::now() {
                    sleep_until(started).await;
                }
                attempt.publish(work.await);
            }));
        }
    }

    /// Waits for an outcome, and returns the start of that attempt with the outcome. `None` when the newest attempt is
    /// too old to wait for.
    pub(in crate::store::redis) async fn outcome(&self) -> Option<(Instant, RedisResult<T>)> {
        let mut latest = self.latest.subscribe();
        let newest = latest.borrow().started?;
        let has_ended = latest.wait_for(|latest| latest.outcome.is_some());
        let ended = timeout_at(newest + self.patience, has_ended)
            .await
            .ok()?
            .ok()?;
        Some((ended.started?, ended.outcome.clone()?))
    }
}

/// An attempt under way. Dropping the value publishes a failure.
struct Attempt<T> {
    shared: Arc<SharedAttempt<T>>,
    started: Instant,
}

impl<T> Attempt<T> {
    /// Publishes the outcome. An older attempt counts if it succeeded, or if the server answered with an error.
    fn publish(&self, outcome: RedisResult<T>) {
        self.shared.latest.send_if_modified(|latest| {
            let has_succeeded = matches!(latest.outcome, Some(Ok(_)));
            let is_newest = latest.started == Some(self.started);
            let is_of_use = outcome
                .as_ref()
                .map_or_else(|error| !error.is_timeout(), |_| true);
            let counts = !has_succeeded && (is_newest || is_of_use);
            if counts {
                latest.started = Some(self.started);
                latest.outcome = Some(outcome);
            }
            counts
        });
    }
}

/// Publishes a failure when the runtime of the attempt shuts down.
impl<T> Drop for Attempt<T> {
    fn drop(&mut self) {
        let is_under_way =
            |latest: &Latest<T>| latest.outcome.is_none() && latest.started == Some(self.started);
        if is_under_way(&self.shared.latest.borrow()) {
            self.publish(Err(closed()));
        }
    }
}
