//! Settling: sets the final costs of an admitted check.

use std::{cell::Cell, pin::Pin, time::Duration};

use tokio::time::Instant;

use super::{
    Limiter, SETTLING,
    guarded_store::{Answer, Calling, To},
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
    store::{Store, StoreFuture},
    timer::LazySleep,
};

type Settled = Vec<Result<Usage, StoreError>>;

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
        let (parts, settled) = self.settle_within(parts).await;
        for (part, result) in parts.iter().zip(&settled) {
            // The other part may have been settled.
            if unsent(result).is_some() {
                part.give_up();
            }
        }
        joined(usage, &parts, settled)
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
        let (parts, settled) = self.settle_within(parts).await;
        joined(usage, &parts, settled)
    }

    /// Settles these parts of one check within the timeout, and returns their results one by one. If the caller leaves,
    /// that goes on in the background.
    async fn settle_within(&self, parts: Vec<Settlement>) -> Ended {
        let (limiter, timeout) = (self.clone(), self.call_timeout());
        let settling = async move { limiter.settle_once(parts, timeout).await };
        let mut goes_on = GoesOn {
            limiter: self,
            settling: Some(Box::pin(settling)),
        };
        let Some(settling) = &mut goes_on.settling else {
            return Ended::default();
        };
        let (parts, mut settled) = settling.await;
        goes_on.settling = None;
        if let [Err(one), Err(other)] = &settled[..] {
            // The error of a part that was possibly sent wins: that part must not be made again.
            let sent = if one.is_unsent() { other } else { one }.clone();
            settled.fill(Err(sent));
        }
        (parts, settled)
    }

    /// Settles these parts of a check, each within `each`. An error goes to the observer, and the charge stays.
    pub(crate) fn settle_in_background(&self, parts: Vec<Settlement>, each: Duration) {
        if !parts.is_empty() {
            let limiter = self.clone();
            self.in_background(async move { limiter.settle_patiently(parts, each).await });
        }
    }

    /// Settles these parts of one check, for which no request waits, and tries again while the store has certainly done
    /// nothing. Each try takes at most `each`, all together [`SETTLING`]. Others are not repeated, as the store may have
    /// done them.
    pub(super) async fn settle_patiently(&self, mut parts: Vec<Settlement>, each: Duration) {
        use StoreErrorKind::{AccessDenied, InvalidRequest, Protocol, Refused};
        let end = Instant::now() + SETTLING;
        let mut slower = 1_u32;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let settled;
            (parts, settled) = self.settle_once(parts, each.min(left)).await;
            retain_unsent(&mut parts, &settled);
            // Time hardly mends these, or not soon, so ask less and less often.
            let lasts = |kind| matches!(kind, InvalidRequest | Protocol | Refused | AccessDenied);
            let mut unsent = settled.iter().filter_map(unsent);
            if unsent.any(|error| lasts(error.kind())) {
                slower = slower.saturating_mul(2);
            }
            // A long interval of the breaker must leave time for several tries.
            let pause = self
                .inner
                .guarded
                .breaker
                .retry_pause()
                .saturating_mul(slower);
            let next = Instant::now() + pause.min(SETTLING / 12);
            if parts.is_empty() || next > end {
                return;
            }
            LazySleep::new(next.saturating_duration_since(Instant::now())).await;
        }
    }

    /// Does work that [`finish`](Self::finish) waits for, from here on or in the back room.
    pub(crate) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.inner.jobs.background.finish(work);
    }

    /// Settles all parts in the one place that decided them.
    async fn settle_once(&self, parts: Vec<Settlement>, timeout: Duration) -> Ended {
        let Some(first) = parts.first() else {
            return Ended::default();
        };
        let local = first.usage().is_local();
        let ending = self.inner.memory.refusals.settling(&parts);
        let settle = |store: &dyn Store| {
            let settled = |part: &Settlement| {
                let settle = Operation::Settle(part.clone());
                store.execute(settle).read(answer_of!(Settle))
            };
            let settled = match parts.get(1) {
                Some(second) => StoreFuture::all(vec![settled(first), settled(second)])
                    .then(|settled| as_one_failure(settled?)),
                None => settled(first).map(|usage| vec![Ok(usage)]),
            };
            settled.map(move |usages| {
                let usages = usages.into_iter();
                let as_decided = |usage: Usage| match local {
                    true => usage.made_by(Origin::Local),
                    false => usage,
                };
                usages.map(|usage| usage.map(as_decided)).collect()
            })
        };
        let to = self.where_decided(local, timeout);
        let answer = match self.inner.guarded.call(to, || info(first), settle) {
            Calling::Ready(answer) => answer,
            Calling::Waits(call) => call.await,
        };
        drop(ending);
        let settled = self.settled(&parts, answer);
        (parts, settled)
    }

    /// Notes the results one by one.
    fn settled(&self, parts: &[Settlement], answer: Answer<Settled>) -> Settled {
        let Answer { result, timing } = answer;
        let results = result.unwrap_or_else(|error| vec![Err(error); parts.len()]);
        for (place, (settlement, result)) in parts.iter().zip(&results).enumerate() {
            let facts = settlement.usage().facts();
            let call = CallInfo {
                shares_call: place > 0,
                ..info(settlement)
            };
            match result {
                _ if facts.origin == Origin::Late => {} // the decision was not reported
                Ok(usage) => {
                    let reports = &self.inner.jobs.reports;
                    reports.contribute_settled(settlement, usage);
                    let is_local = settlement.usage().is_local();
                    self.events().completion(call, is_local, timing);
                    self.notice(usage);
                }
                Err(error) => {
                    let outcome = RequestOutcome::Failed;
                    self.events().error(call, error, outcome, timing);
                }
            }
            // Wake even after an error: the store may have settled the check.
            self.inner.memory.queues.wake_settled(settlement);
        }
        results
    }

    /// The one place that decided a check, for a call that no request waits for.
    pub(super) fn where_decided(&self, is_local: bool, timeout: Duration) -> To<'_> {
        match is_local {
            true => To::Local(&self.inner.fallback.local),
            false => To::StoreFor(timeout),
        }
    }
}

type Ended = (Vec<Settlement>, Settled);

/// A settlement that goes on in the background if its caller leaves.
struct GoesOn<'a> {
    limiter: &'a Limiter,
    /// `None` when it has ended.
    settling: Option<Pin<Box<dyn Future<Output = Ended> + Send>>>,
}

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        let Some(settling) = self.settling.take() else {
            return;
        };
        let limiter = self.limiter.clone();
        self.limiter.in_background(async move {
            let (mut parts, settled) = settling.await;
            retain_unsent(&mut parts, &settled);
            let each = limiter.call_timeout();
            limiter.settle_patiently(parts, each).await;
        });
    }
}

/// If both parts have failed alike, neither sent or both perhaps, that is one failure.
fn as_one_failure(settled: Settled) -> Result<Settled, StoreError> {
    match &settled[..] {
        [Err(one), Err(other)] if one.is_unsent() == other.is_unsent() => Err(one.clone()),
        _ => Ok(settled),
    }
}

/// The error of a settlement that was surely not sent.
fn unsent(settled: &Result<Usage, StoreError>) -> Option<&StoreError> {
    settled.as_ref().err().filter(|error| error.is_unsent())
}

/// Keeps the parts that were surely not sent.
fn retain_unsent(parts: &mut Vec<Settlement>, settled: &[Result<Usage, StoreError>]) {
    let mut settled = settled.iter();
    parts.retain(|_| settled.next().is_some_and(|it| unsent(it).is_some()));
}

/// The usage after these parts of a check were settled, with that of the shadows.
fn joined(usage: &Usage, parts: &[Settlement], settled: Settled) -> Result<Usage, StoreError> {
    let counts = parts
        .first()
        .is_some_and(|settlement| settlement.usage().is_same(usage));
    let mut settled = settled.into_iter();
    let (counting, shadow) = if counts {
        let counting = settled.next().unwrap_or_else(|| Ok(usage.clone()))?;
        (counting, settled.next().and_then(Result::ok))
    } else {
        (usage.clone(), settled.next().transpose()?)
    };
    let shadow = shadow.map(Decision::Allowed);
    Ok(match shadow.or_else(|| usage.shadow().cloned()) {
        Some(shadow) => counting.with_shadow(shadow),
        None => counting,
    })
}

fn info(settlement: &Settlement) -> CallInfo<'_> {
    CallInfo {
        final_costs: settlement.costs(),
        ..CallInfo::new(CallKind::Settle, settlement.check())
    }
}
