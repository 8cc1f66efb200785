//! Late decisions: checks that may have been sent, and whose answer did not come in time or whose caller has left.
//!
//! ```text
//! timeout, or a caller that leaves ──▶ the store's future, in the back room ──▶ admitted ─┐
//!                                                                                         ├──▶ settled
//!                        the request goes on without an answer, or does not ──▶ its cost ─┘
//! ```

use std::time::Duration;

use tokio::sync::oneshot::{self, Receiver};

use super::Limiter;
use crate::{
    domain::{
        check::Check,
        decision::{Decision, Origin, Usage},
        late::{Late, LateCost},
        settlement::Settlement,
    },
    observe::Event,
    store::{StoreFuture, TIMED_OUT},
    timer::within,
};

/// How long an answer can come.
const LATEST: Duration = Duration::from_secs(60);

impl Limiter {
    /// Waits for the answer in the back room, and gives it the final cost of the request.
    #[cold]
    pub(super) fn keep_late(&self, answer: StoreFuture<Decision>, check: &Check) -> Late {
        let (end, cost) = oneshot::channel();
        let unanswered = Unanswered {
            limiter: self.clone(),
            check: check.clone(),
            may_be_taken: true,
        };
        let late = self.clone().settle_late(answer, unanswered, cost);
        self.inner.shared.background.finish_late(late);
        Late::new(|cost| {
            let _ = end.send(cost); // fails if there is nothing to settle
        })
    }

    /// The answer has no timer.
    async fn settle_late(
        self,
        answer: StoreFuture<Decision>,
        mut unanswered: Unanswered,
        cost: Receiver<LateCost>,
    ) {
        let answer = within(LATEST, answer).await.unwrap_or(Err(TIMED_OUT));
        unanswered.may_be_taken = match &answer {
            Ok(decision) => decision.is_allowed(),
            Err(error) => !error.is_unsent(),
        };
        drop(unanswered);
        let Ok(Decision::Allowed(usage)) = answer else {
            return;
        };
        let usage = usage.made_by(Origin::Late);
        self.events().report_safely(|| Event::LateAnswer);
        let parts = match cost.await.unwrap_or(LateCost::Nothing) {
            LateCost::AsCharged => return,
            LateCost::Nothing => back(&usage),
            LateCost::Of(costs) => parts(&usage, &costs),
        };
        self.settle_in_background(parts, self.call_timeout());
    }

    /// Refunds an admission that is not served, and returns its slots.
    pub(super) fn undo(&self, usage: &Usage) {
        drop(self.hold_usage(usage));
        self.settle_in_background(back(usage), self.call_timeout());
    }
}

/// The settlements of an admission that is not served.
fn back(usage: &Usage) -> Vec<Settlement> {
    let parts = Limiter::changed_parts(usage, |_| 0).into_iter();
    parts.map(Settlement::taking_back).collect()
}

/// The settlements at these costs of the charges that count, and then of the shadows.
fn parts(usage: &Usage, costs: &[u64]) -> Vec<Settlement> {
    let shadow = usage.shadow().map(Decision::usage);
    let (counting, shadows) = costs.split_at(usage.check().ruled().len().min(costs.len()));
    let parts = [(Some(usage), counting), (shadow, shadows)].into_iter();
    let parts = parts.filter_map(|(part, costs)| Settlement::of_costs(part?, costs));
    parts.collect()
}

/// A check that may have taken slots, for no caller: when this is dropped, they are returned.
struct Unanswered {
    limiter: Limiter,
    check: Check,
    may_be_taken: bool,
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if self.may_be_taken {
            self.limiter.return_unheld(&self.check);
        }
    }
}

/// An admission that its caller does not have yet. If this is dropped before, because the caller of several tries has left
/// or an observer has panicked, its slots are returned, and its charges refunded if the layer does that.
pub(super) struct Unserved {
    limiter: Limiter,
    admitted: Option<Usage>,
}

impl Unserved {
    pub(super) fn new(limiter: &Limiter, decision: &Decision) -> Self {
        let limiter = limiter.clone();
        let admitted = decision.is_allowed().then(|| decision.usage().clone());
        Self { limiter, admitted }
    }

    pub(super) fn answered(mut self) {
        self.admitted = None;
    }
}

impl Drop for Unserved {
    fn drop(&mut self) {
        match self.admitted.take() {
            None => {}
            Some(usage) if self.limiter.inner.refunds_left => self.limiter.undo(&usage),
            Some(usage) => drop(self.limiter.hold_usage(&usage)),
        }
    }
}
