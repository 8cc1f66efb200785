//! The usage of one identity: a report, and a reset of everything.

use super::{Limiter, decide::Ask, guarded_store::To};
use crate::{
    domain::{
        charge::Charge,
        check::{Check, CheckBuilder},
        decision::{Decision, Report},
        error::StoreError,
        key::Key,
        operation::{Operation, Reply},
        policies::CurrentPolicy,
        policy::Policy,
    },
    observe::{CallInfo, CallKind},
    store::Store,
};

const TOO_MANY: StoreError = StoreError::invalid_request(
    "the limiter has checked more policies than it remembers, and reset only these",
);

impl Limiter {
    /// Reports the usage of `key` under these policies, without charging, and whether the key is blocked. A report is made
    /// to be shown: see [a user's own usage](crate::quotas#a-users-own-usage).
    ///
    /// The limiter asks the store once, and twice if the key is blocked. The observer sees [peeks](crate::observe::CallKind::Peek).
    ///
    /// ```
    /// use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let plan = Policy::parse("plan", "100/1h")?;
    /// let alice = Key::new("user", "alice");
    /// limiter.check([Charge::new(&plan, alice.clone(), 30)]).await?;
    ///
    /// let report = limiter.report([&plan], &alice).await?;
    /// assert_eq!((report.limits[0].limit, report.limits[0].remaining), (100, 70));
    /// assert_eq!(report.blocked, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`peek`](Self::peek).
    pub async fn report<'a, P>(
        &self,
        policies: impl IntoIterator<Item = &'a P>,
        key: &Key,
    ) -> Result<Report, StoreError>
    where
        P: CurrentPolicy + ?Sized + 'a,
    {
        let mut builder = CheckBuilder::default();
        for policy in policies {
            builder.add(Charge::new(policy, key.clone(), 0))?;
        }
        if self.inner.enforces_blocks {
            builder.look_up(key.clone())?;
        }
        let check = builder.build().unwrap_or_else(|| Check::counting([]));
        let decision = self.peek_at(check.clone()).await?;
        if !matches!(decision, Decision::Blocked(_)) {
            return Ok(Report::of([&decision]));
        }
        let usage = self.peek_at(check.without_cost()).await?;
        Ok(Report::of([&decision, &usage]))
    }

    pub(super) async fn peek_at(&self, check: Check) -> Result<Decision, StoreError> {
        let resolution = self.ask(CallKind::Peek, check, Ask::Once).await;
        resolution.into_result()
    }

    /// Deletes everything charged to `key` under every policy that this limiter or a clone has checked, those among them
    /// that a closure or a look-up has chosen: bought credits, too.
    ///
    /// **Credits that were bought and spent come back**, if a policy [counts them](crate::quotas#the-plan-else-the-credits):
    /// [`reset`](Self::reset) the other policies alone to spare them.
    ///
    /// Blocks and strikes stay: see [`unblock`](Self::unblock). A process that has just started knows few policies; to
    /// delete what any process has charged, use the operators' tool.
    ///
    /// # Errors
    ///
    /// When the store could not answer within the timeout, or could not delete some of it.
    /// [`InvalidRequest`](crate::error::StoreErrorKind::InvalidRequest) if this limiter has checked more than the 256
    /// policies that it remembers: it has reset these, and you reset the others by [`reset`](Self::reset).
    pub async fn reset_all(&self, key: &Key) -> Result<(), StoreError> {
        let (policies, are_all) = self.inner.shared.reports.policies.all_known();
        self.reset_each(&policies, key).await?;
        if are_all { Ok(()) } else { Err(TOO_MANY) }
    }

    /// Deletes everything charged to `key` under these policies.
    pub(super) async fn reset_each(
        &self,
        policies: &[Policy],
        key: &Key,
    ) -> Result<(), StoreError> {
        let charge = |policy: &Policy| Charge::new(policy, key.clone(), 0);
        let charges: Vec<Charge> = policies.iter().map(charge).collect();
        let reset = |policy: &Policy| Operation::Reset {
            policy: policy.clone(),
            key: key.clone(),
        };
        let resets: Vec<Operation> = policies.iter().map(reset).collect();
        // The memory store answers at once, and its result does not matter.
        drop(self.inner.fallback.local.call(resets.clone()));
        let _given_back = self.giving_back(&charges, usize::MAX);
        let info = CallInfo::of(CallKind::Reset, &charges);
        let call = |store: &dyn Store| {
            let replies = store.call(resets);
            let last = |_, reply| reply;
            replies.then(move |replies| replies?.into_iter().try_fold(Reply::Reset, last))
        };
        let (guarded, to) = (&self.inner.guarded, To::Store(self.call_timeout()));
        guarded.ask(to, info, call, |_| Some(())).await
    }
}
