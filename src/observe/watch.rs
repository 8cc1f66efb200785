//! One call of the store, as an observer is told of it.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use tokio::time::Instant;

use super::{Asked, Call, Decided, Done, Failed, Observer, Outcome};
use crate::{check::Check, decision::Decision, error::StoreError, policy::Policy};

/// Measures one call, and tells how it went.
pub(crate) struct Watch<'a> {
    observer: &'a dyn Observer,
    asked: Asked<'a>,
    start: Instant,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(observer: &'a dyn Observer, call: Call, check: &'a Check) -> Self {
        Self {
            observer,
            asked: Asked::new(call, check),
            start: Instant::now(),
        }
    }

    /// A check that was never asked.
    pub(crate) fn of(observer: &'a dyn Observer, policy: Option<&'a Policy>) -> Self {
        let asked = Asked {
            call: Call::Check,
            policies: policy.into_iter().collect(),
        };
        Self {
            observer,
            asked,
            start: Instant::now(),
        }
    }

    /// Waits within the observer's span.
    pub(crate) async fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        let Some(mut span) = self.observer.asks(&self.asked) else {
            return answer.await;
        };
        let mut answer = pin!(answer);
        poll_fn(|cx| {
            let mut poll = Poll::Pending;
            span.enter(&mut || {
                if poll.is_pending() {
                    poll = answer.as_mut().poll(cx);
                }
            });
            poll
        })
        .await
    }

    pub(crate) fn decided(&self, decision: &Decision) {
        self.observer.decided(&Decided {
            asked: &self.asked,
            latency: self.latency(),
            decision,
        });
    }

    pub(crate) fn shadow_decided(&self, decision: &Decision) {
        let asked = Asked::new(self.asked.call(), decision.usage().check());
        self.observer.decided(&Decided {
            asked: &asked,
            latency: self.latency(),
            decision,
        });
    }

    pub(crate) fn done(&self, local: bool) {
        self.observer.done(&Done {
            asked: &self.asked,
            latency: self.latency(),
            local,
        });
    }

    /// The store has failed, and the memory of this process answers instead.
    pub(crate) fn replaced(&self, error: &StoreError) {
        self.tell(error, Outcome::Local);
    }

    /// `passes` is what the failure policy says of a request that counts.
    pub(crate) fn failed(&self, error: &StoreError, passes: bool) {
        let outcome = match self.asked.call() {
            Call::Check => Outcome::of(passes || self.asked.is_shadow()),
            _ => Outcome::Lost,
        };
        self.tell(error, outcome);
    }

    fn tell(&self, error: &StoreError, outcome: Outcome) {
        self.observer.failed(&Failed {
            asked: &self.asked,
            latency: self.latency(),
            error,
            outcome,
        });
    }

    fn latency(&self) -> Duration {
        self.start.elapsed()
    }
}
