//! Slots that a check takes although its caller has left, or has had its timeout: they are returned at once.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::timeout;

use super::Limiter;
use crate::{
    domain::{check::Check, decision::Decision, error::StoreError},
    limiter::FOR_EVER,
    store::{Pending, StoreFuture, sent::Sent},
};

/// The answer to a check that takes slots. If the caller leaves first, a task waits for the answer in its place, unless
/// the check is never sent.
struct Claim {
    /// `None` after the caller has the answer.
    answer: Option<Pending<Decision>>,
    sent: Option<Sent>,
    limiter: Limiter,
    asked_at_ms: u64,
    /// Slots that were asked for longer ago have expired.
    give_up_after: Duration,
}

impl Future for Claim {
    type Output = Result<Decision, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(answer) = &mut self.answer else {
            panic!("polled after completion");
        };
        let result = answer.as_mut().poll(cx);
        if result.is_ready() {
            self.answer = None;
        }
        result
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else {
            return;
        };
        if self.sent.as_ref().is_some_and(Sent::leave) {
            return; // dropping the answer takes the check out of the queue
        }
        let (limiter, give_up_after) = (self.limiter.clone(), self.give_up_after);
        let asked_at_ms = self.asked_at_ms;
        self.limiter.in_background(async move {
            if let Ok(Ok(decision)) = timeout(give_up_after, answer).await {
                decision.usage().asked_at(asked_at_ms);
                drop(limiter.hold(&decision));
            }
        });
    }
}

/// The same answer. If the caller leaves, a task returns the slots; without a runtime, they expire.
pub(in crate::limiter) fn claimed(
    limiter: &Limiter,
    answer: StoreFuture<Decision>,
    check: &Check,
    asked_at_ms: u64,
) -> StoreFuture<Decision> {
    if !limiter.has_background() {
        return answer;
    }
    answer.relayed(|answer, sent| Claim {
        answer: Some(answer),
        sent,
        limiter: limiter.clone(),
        asked_at_ms,
        give_up_after: time_for(check, limiter.call_timeout()),
    })
}

fn time_for(check: &Check, timeout: Duration) -> Duration {
    let charges = check.all_charges().iter();
    let rules = charges.flat_map(|charge| charge.policy().rules());
    let slots = rules.filter(|rule| rule.is_concurrency());
    let longest = slots.map(|rule| rule.window()).max().unwrap_or_default();
    longest.max(timeout).min(FOR_EVER)
}
