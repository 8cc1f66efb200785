//! Settling: sets the final costs of an admitted check.

use std::{cell::Cell, pin::Pin, time::Duration};

use tokio::time::Instant;

use super::{
    Limiter, SETTLING,
    guarded_store::{Answer, To},
};
use crate::{
    domain::{
        charge::Charge,
        decision::{Decision, Origin, Usage},
        error::{StoreError, StoreErrorKind},
        operation::{Operation, answer_of},
        settlement::Settlement,
    },
    observe::{CallInfo, CallKind, RequestOutcome},
    store::{Store, maybe_ready::join_all},
    timer::LazySleep,
};

/// A part of a check, and how its settlement has ended.
type Ended = (Settlement, Result<Usage, StoreError>);

impl Limiter {
    /// Sets the final cost of each charge of an admitted check: the actual cost of the work, or 0 to refund the charge.
    ///
    /// The limiter calls `cost` with each charge, including those of [shadows](Usage::shadow), and you return the final
    /// cost: [`Charge::cost`] for no change. With an [`ActualCost`], use policy names: `|charge| cost.under(charge)`.
    /// The check has added up charges of one policy and key, so you see them as one.
    ///
    /// A lower cost takes the difference from the step that was charged, if that step still counts, and never below
    /// zero. A higher cost charges the difference now, whatever the limit: units count when they are known to be used.
    /// A check that you do not settle keeps its cost. If you drop the future, the settlement goes on in the background.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout. If the error [is unsent](StoreError::is_unsent), as when the
    /// breaker is open, or the time was over while the settlement waited for other calls, you can settle the check
    /// again; otherwise the settlement may have been done, and cannot be retried.
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) when the check was denied or is already
    /// settled. When other charges are settled, an error about shadows alone goes only to the observer.
    ///
    /// [`ActualCost`]: crate::limiter::ActualCost
    pub async fn settle(
        &self,
        usage: &Usage,
        cost: impl Fn(&Charge) -> u64,
    ) -> Result<Usage, StoreError> {
        let shadow = usage.admitted_parts().nth(1);
        let parts = match shadow {
            Some(shadow) if usage.check().ruled().is_empty() => {
                vec![Settlement::new(shadow, &cost)?]
            }
            _ => {
                let mut parts = vec![Settlement::new(usage, &cost)?];
                parts.extend(shadow.and_then(|shadow| Settlement::of_change(shadow, &cost)));
                parts
            }
        };
        usage.end_late(|charge| Some(cost(charge)));
        let ended = self.settle_within(parts).await;
        let failed = || ended.iter().filter(|(_, settled)| settled.is_err());
        // One that was possibly sent must not be made again, and the caller repeats all or none.
        if failed().all(|(_, settled)| unsent(settled).is_some()) {
            failed().for_each(|(part, _)| part.give_up());
        }
        joined(usage, ended)
    }

    /// The settlements that the changed costs need: one for the charges that count, and one for the shadows.
    pub(crate) fn changed_parts(usage: &Usage, cost: impl Fn(&Charge) -> u64) -> Vec<Settlement> {
        Self::final_parts(usage, |charge| {
            Some(cost(charge)).filter(|it| *it != charge.cost())
        })
    }

    /// The settlements that costs known at the end need. A part of which any cost is known is settled, if only in name:
    /// it is not refunded later.
    pub(crate) fn final_parts(
        usage: &Usage,
        cost: impl Fn(&Charge) -> Option<u64>,
    ) -> Vec<Settlement> {
        usage.end_late(&cost);
        let parts = usage.admitted_parts().filter_map(|part| {
            let is_known = Cell::new(false);
            let settlement = Settlement::of_change(part, |charge| {
                let cost = cost(charge);
                is_known.set(is_known.get() || cost.is_some());
                cost.unwrap_or_else(|| charge.cost())
            });
            if settlement.is_none() && is_known.get() {
                part.take_settlement();
            }
            settlement
        });
        parts.collect()
    }

    /// Settles these parts of one check at the same time; returns the usage afterwards, with that of the shadows.
    pub(crate) async fn settle_parts(
        &self,
        usage: &Usage,
        parts: Vec<Settlement>,
    ) -> Result<Usage, StoreError> {
        joined(usage, self.settle_within(parts).await)
    }

    /// Settles these parts of one check within the timeout. If the caller leaves, that goes on in the background.
    async fn settle_within(&self, parts: Vec<Settlement>) -> Vec<Ended> {
        let settling = parts.into_iter().enumerate().map(|(place, part)| {
            let (limiter, timeout) = (self.clone(), self.call_timeout());
            Box::pin(async move {
                let settled = limiter.settle_once(&part, place, timeout).await;
                (part, settled)
            })
        });
        let mut goes_on = GoesOn {
            limiter: self,
            settling: Some(Box::pin(join_all(settling.collect()))),
        };
        let Some(settling) = &mut goes_on.settling else {
            return Vec::new();
        };
        let ended = settling.await;
        goes_on.settling = None;
        ended
    }

    /// Settles these parts of a check, each within `each`. An error goes to the observer, and the charge stays.
    pub(crate) fn settle_in_background(&self, parts: Vec<Settlement>, each: Duration) {
        for (place, part) in parts.into_iter().enumerate() {
            let limiter = self.clone();
            self.in_background(async move { limiter.settle_patiently(part, place, each).await });
        }
    }

    /// Settles a part, for which no request waits, and tries again while the store has certainly done nothing. Each try
    /// takes at most `each`, all together [`SETTLING`]. Others are not repeated, as the store may have done them.
    async fn settle_patiently(&self, part: Settlement, place: usize, each: Duration) {
        use StoreErrorKind::{AccessDenied, InvalidRequest, Protocol, Refused};
        let end = Instant::now() + SETTLING;
        let (breaker, mut slower) = (&self.inner.guarded.breaker, 1_u32);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let settled = self.settle_once(&part, place, each.min(left)).await;
            let Some(error) = unsent(&settled) else {
                return;
            };
            // Time hardly mends these, or not soon, so ask less and less often.
            if let InvalidRequest | Protocol | Refused | AccessDenied = error.kind() {
                slower = slower.saturating_mul(2);
            }
            // A long interval of the breaker must leave time for several tries.
            let pause = breaker.retry_pause().saturating_mul(slower);
            let next = Instant::now() + pause.min(SETTLING / 12);
            if next > end {
                return;
            }
            LazySleep::new(next.saturating_duration_since(Instant::now())).await;
        }
    }

    /// Does work that [`finish`](Self::finish) waits for, from here on or in the back room.
    pub(crate) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.inner.shared.background.finish(work);
    }

    /// Settles the part of a check at this place, where it was decided, and notes the result.
    async fn settle_once(
        &self,
        part: &Settlement,
        place: usize,
        timeout: Duration,
    ) -> Result<Usage, StoreError> {
        let (inner, is_local) = (&self.inner, part.usage().is_local());
        let charges = part.check().charges().iter().zip(part.costs());
        let lowered = charges.filter(|(charge, cost)| **cost < charge.cost());
        // Held until the answer, or until the caller leaves: denials may end then, whatever the answer says.
        let _given_back = self.giving_back(lowered.map(|(charge, _)| charge), 0);
        let settle = |store: &dyn Store| store.execute(Operation::Settle(part.clone()));
        let call = CallInfo {
            final_costs: part.costs(),
            shares_call: place > 0,
            ..CallInfo::new(CallKind::Settle, part.check())
        };
        let to = self.where_decided(is_local, timeout);
        let answer = inner.guarded.answer(to, call, settle, answer_of!(Settle));
        let Answer { result, timing } = answer.await;
        let result = result.map(|usage| match is_local {
            true => usage.made_by(Origin::Local),
            false => usage,
        });
        match &result {
            _ if part.usage().facts().origin == Origin::Late => {} // the decision was not reported
            Ok(usage) => {
                inner.shared.reports.contribute_settled(part, usage);
                self.events().completion(call, is_local, timing);
                self.notice(usage);
            }
            Err(error) => {
                let outcome = RequestOutcome::Failed;
                self.events().error(call, error, outcome, timing);
            }
        }
        result
    }

    /// The one place that decided a check, for a call that no request waits for.
    pub(super) fn where_decided(&self, is_local: bool, timeout: Duration) -> To<'_> {
        match is_local {
            true => To::Local(&self.inner.fallback.local),
            false => To::Store(timeout),
        }
    }
}

/// The settlements of a check, which go on in the background if their caller leaves.
struct GoesOn<'a> {
    limiter: &'a Limiter,
    /// `None` when all have ended.
    settling: Option<Pin<Box<dyn Future<Output = Vec<Ended>> + Send>>>,
}

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        let Some(settling) = self.settling.take() else {
            return;
        };
        let limiter = self.limiter.clone();
        self.limiter.in_background(async move {
            let ended = settling.await.into_iter();
            let unsent = ended.filter(|(_, settled)| unsent(settled).is_some());
            let parts = unsent.map(|(part, _)| part).collect();
            limiter.settle_in_background(parts, limiter.call_timeout());
        });
    }
}

/// The error of a settlement that was surely not sent.
fn unsent(settled: &Result<Usage, StoreError>) -> Option<&StoreError> {
    settled.as_ref().err().filter(|error| error.is_unsent())
}

/// The usage after these parts of a check were settled, with that of the shadows.
fn joined(usage: &Usage, ended: Vec<Ended>) -> Result<Usage, StoreError> {
    // An error about shadows alone counts only if nothing else is settled. That of a part that was possibly sent wins: that
    // part must not be made again.
    let errors = ended
        .iter()
        .map_while(|(_, settled)| settled.as_ref().err());
    if let Some(error) = errors.min_by_key(|error| error.is_unsent()) {
        return Err(error.clone());
    }
    let (mut counting, mut shadow) = (usage.clone(), usage.shadow().cloned());
    for (part, settled) in ended {
        match settled {
            Ok(settled) if part.usage().is_same(usage) => counting = settled,
            Ok(settled) => shadow = Some(Decision::Allowed(settled)),
            Err(_) => {}
        }
    }
    Ok(match shadow {
        Some(shadow) => counting.with_shadow(shadow),
        None => counting,
    })
}
