//! Decides a check with alternatives: tries one after the other until one is admitted.
//!
//! ```text
//! try ──▶ admitted, blocked or undecided ──────────────▶ that is the answer
//!   ▲        │ denied by a charge with a further alternative
//!   └────────┘ otherwise ──▶ wait for the denial that ends first, or answer with it
//! ```
//!
//! Each try is an ordinary check, so that a store needs to know nothing of alternatives. A denial that is not the answer
//! is not reported, and is no strike.

use std::time::Duration;

use tokio::time::Instant;

use super::{Limiter, Resolution, WhereOpen, decide::Ask, late::Unserved, wait_queue::waits_after};
use crate::{
    domain::{
        charge::Charge,
        check::Check,
        decision::{Decision, Denial},
        error::StoreError,
        first_of::{Choice, FirstOf},
    },
    observe::{CallKind, Timing},
};

/// A denied try.
struct Denied {
    check: Check,
    denial: Denial,
}

/// The tries of one request.
struct Tries<'a> {
    limiter: &'a Limiter,
    first_of: FirstOf,
    begun: Instant,
    max_wait: Option<Duration>,
    /// Whether the memory of this process has decided. If so, the limiter does not ask the store again.
    is_local: bool,
}

/// A store in memory answers within this time, however late a busy process asks it.
const LEAST_TIME: Duration = Duration::from_millis(1);

impl Limiter {
    /// Decides lists of charges in order, and charges the first that fits: the plan, or else the credits. Each list is
    /// one check, all or nothing; no unit is charged under two of them.
    ///
    /// The next list is tried if the store denies, unless it has all charges that deny: the limiter passes over such a
    /// list. You find in the [usage](Decision::usage) which list was charged. If all are denied, the denial
    /// with the shortest [`retry_after`](Denial::retry_after) is the answer, and only this one is observed, counts as a
    /// denial and strikes. A [blocked](crate::block) identity gets [`Decision::Blocked`] at once. An empty list admits
    /// everything. Charges of [shadows](crate::Policy::shadow) go with their list.
    ///
    /// The tries are not one step: units that are released meanwhile may leave a later list charged although an earlier
    /// one has room again.
    ///
    /// ```
    /// use sluicegate::{Charge, Decision, Key, Limiter, MemoryStore, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let plan = Policy::parse("plan", "2/month@UTC")?;
    /// let credits = Policy::parse("credits", "100/36500d@fixed")?;
    /// let alice = |policy| [Charge::new(policy, Key::new("user", "alice"), 1)];
    ///
    /// for charged in ["plan", "plan", "credits"] {
    ///     let decision = limiter.check_first([alice(&plan), alice(&credits)]).await?;
    ///     assert_eq!(decision.usage().policies().next().unwrap().policy().name(), charged);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`check`](Self::check), if a try could not be decided: the limiter then makes no other, except after a
    /// [local](crate::FailurePolicy::Local) denial. The timeout is for all tries together.
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) also when some lists have charges that count,
    /// and others have none.
    pub async fn check_first<L>(
        &self,
        lists: impl IntoIterator<Item = L>,
    ) -> Result<Decision, StoreError>
    where
        L: IntoIterator<Item = Charge>,
    {
        let lists = lists.into_iter().map(|list| list.into_iter().collect());
        let choice = Choice::new(lists.collect())?;
        let first_of = FirstOf::new(self.begin_check(), vec![choice]);
        self.decide_first(first_of, None).await.into_result()
    }

    /// Decides a check with alternatives; waits for the one that is free first, if there is a time to wait.
    pub(crate) async fn decide_first(
        &self,
        first_of: FirstOf,
        max_wait: Option<Duration>,
    ) -> Resolution {
        let tries = Tries {
            limiter: self,
            first_of,
            begun: Instant::now(),
            max_wait,
            is_local: false,
        };
        tries.decide().await
    }
}

impl Tries<'_> {
    async fn decide(mut self) -> Resolution {
        let answer = self.try_each().await;
        let (mut resolution, check) = match answer {
            Ok(answer) => answer,
            Err(error) => return self.invalid(error),
        };
        let max_wait = self.max_wait.unwrap_or_default();
        let rest = max_wait.saturating_sub(self.begun.elapsed());
        if !rest.is_zero() && waits_after(self.limiter, &resolution, rest) {
            resolution = self.wait(&check, rest, self.limiter.call_timeout()).await;
        }
        match resolution {
            Resolution::Decided(decision) => {
                Resolution::Decided(self.conclude(decision, check).await)
            }
            undecided => undecided,
        }
    }

    /// Answers a request of which no check can be built.
    fn invalid(&self, error: StoreError) -> Resolution {
        let passes = self.limiter.inner.fallback.passes_undecided;
        self.limiter.events().invalid(None, passes, &error);
        match passes {
            true => Resolution::Open(error, None),
            false => Resolution::Closed(error),
        }
    }

    /// Tries the alternatives of shadows, and then reports the decision.
    async fn conclude(&mut self, mut decision: Decision, check: Check) -> Decision {
        let usage = decision.usage_mut();
        usage.note(|facts| facts.has_alternatives = true);
        self.is_local = decision.usage().is_local();
        // The caller may leave meanwhile, or an observer panic.
        let (limiter, kind) = (self.limiter, CallKind::Check);
        let admitted = Unserved::new(limiter, &decision);
        let (decision, check) = self.try_shadows(decision, check).await;
        if !check.is_empty() {
            let is_observed = limiter.events().is_observed();
            let timing = is_observed.then(|| Timing::since(self.begun));
            limiter.report_decision(kind, &decision, &check, timing);
            limiter.count_refusal(&decision);
        }
        admitted.answered();
        decision
    }

    /// Makes the tries; returns the answer with its check. If all deny, that is the denial that ends first.
    async fn try_each(&mut self) -> Result<(Resolution, Check), StoreError> {
        let (mut denied, mut is_sure) = (None::<Denied>, false);
        loop {
            let check = self.first_of.check()?;
            let denial = match (self.try_one(&check).await, denied.take()) {
                (Resolution::Decided(Decision::Denied(denial)), earlier) => {
                    denied = earlier;
                    denial
                }
                // A further try could only shorten the wait: no failure policy lifts the denial.
                (answer, Some(Denied { check, denial })) if is_sure && !is_of_store(&answer) => {
                    if let Resolution::Decided(Decision::Allowed(usage)) = &answer {
                        self.limiter.undo(usage);
                    }
                    return Ok((Resolution::Decided(Decision::Denied(denial)), check));
                }
                (answer, _) => return Ok((answer, check)),
            };
            is_sure |= self.first_of.denies_each(denial.usage());
            self.is_local = denial.usage().is_local();
            let (soonest, goes_on) = self.replace(denied, Denied { check, denial });
            if !goes_on {
                let denial = Decision::Denied(soonest.denial);
                return Ok((Resolution::Decided(denial), soonest.check));
            }
            denied = Some(soonest);
        }
    }

    /// A caller that may wait enters the queue of each try, so that it does not overtake those that wait there.
    async fn try_one(&self, check: &Check) -> Resolution {
        let rest = self.rest();
        match self.max_wait {
            Some(_) => self.wait(check, Duration::ZERO, rest).await,
            None => {
                let ask = Ask::Try(rest);
                self.limiter.ask(CallKind::Check, check.clone(), ask).await
            }
        }
    }

    async fn wait(&self, check: &Check, max_wait: Duration, timeout: Duration) -> Resolution {
        let (limiter, ask) = (self.limiter, Ask::Try(timeout));
        limiter.wait(check, max_wait, WhereOpen::Pass, ask).await
    }

    /// Replaces the alternatives that this denial shows to deny. Returns the denial that ends first, and whether there is a
    /// next try.
    fn replace(&mut self, earlier: Option<Denied>, last: Denied) -> (Denied, bool) {
        let goes_on = self.first_of.replace_denying(last.denial.usage());
        let wait = |denied: &Denied| denied.denial.retry_after().unwrap_or(Duration::MAX);
        // The earlier of equals. A denial for ever ends last.
        let soonest = earlier.filter(|earlier| wait(earlier) <= wait(&last));
        (soonest.unwrap_or(last), goes_on)
    }

    /// The rest of the time for all tries.
    fn rest(&self) -> Duration {
        if self.is_local {
            return Duration::ZERO;
        }
        let timeout = self.limiter.call_timeout();
        timeout.saturating_sub(self.begun.elapsed()).max(LEAST_TIME)
    }

    /// Tries alternatives that are shadows, after the charges that count were admitted.
    async fn try_shadows(&mut self, mut decision: Decision, mut check: Check) -> (Decision, Check) {
        let mut denied: Option<Denied> = None;
        while let Some(Decision::Denied(denial)) = decision.usage().shadow() {
            let last = Denied {
                check: check.clone(),
                denial: denial.clone(),
            };
            let (soonest, goes_on) = self.replace(denied.take(), last);
            let next = self.first_of.check().ok().filter(|_| goes_on);
            let Some((next, shadow)) = self.try_shadows_of(next).await else {
                check = soonest.check;
                decision = decision.with_shadow(Decision::Denied(soonest.denial));
                break;
            };
            check = next;
            decision = decision.with_shadow(shadow);
            denied = Some(soonest);
        }
        (decision, check)
    }

    /// The decision about the shadows of the next try; `None` if there is none, or no decision.
    async fn try_shadows_of(&self, next: Option<Check>) -> Option<(Check, Decision)> {
        let next = next?;
        let shadows = next.shadow_charges().iter().cloned();
        let (limiter, ask) = (self.limiter, Ask::Try(self.rest()));
        let shadows = limiter.begin_check().with(shadows).ok()?;
        let asked = limiter.ask(CallKind::Check, shadows, ask);
        let Resolution::Decided(decision) = asked.await else {
            return None;
        };
        if decision.usage().shadow().is_none() {
            limiter.undo(decision.usage()); // it may be admitted late
        }
        Some((next, decision.usage().shadow()?.clone()))
    }
}

/// Whether the store has decided.
fn is_of_store(answer: &Resolution) -> bool {
    matches!(answer, Resolution::Decided(decision) if !decision.usage().is_local())
}
