//! [`Leases`]: charges units of hot identities in advance, and spends them in this process.

use std::{
    fmt, slice,
    sync::{Arc, Weak},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};

use self::{
    ending::EndsLeases,
    hot::{Fetch, HotIdentity},
    table::{HotOfCheck, Table},
};
#[cfg(feature = "manual-clock")]
use crate::manual_clock::ManualClock;
use crate::{
    background::{BackRoom, Background},
    clock,
    domain::{
        check::Check,
        decision::{Decision, Facts, Origin},
        error::StoreError,
        operation::{Operation, Reply},
    },
    store::{CallFuture, Store, StoreFuture},
    timer::within,
};

mod ending;
mod hot;
mod lease;
mod table;

/// The interval at which overdue leases are returned, and identities dropped that are no longer hot.
const SWEEP: Duration = Duration::from_millis(250);

/// The maximum number of leases that a sweep returns.
const MAX_TOGETHER: usize = 256;

/// How long a background task waits for the store.
const PATIENCE: Duration = Duration::from_secs(10);

/// A layer that answers most checks of hot identities without a call of the store; cheap to clone.
///
#[doc = concat!(include_str!("../../../docs/links.md"), include_str!("../../../docs/guide/leases.md"))]
#[derive(Clone)]
pub struct Leases {
    core: Arc<LeasesCore>,
}

/// Says the time since some moment.
type Now = Arc<dyn Fn() -> Duration + Send + Sync>;

struct LeasesCore {
    store: Arc<dyn Store>,
    now: Now,
    table: Table,
    /// Its permit is free while no task sweeps the hot identities.
    sweeper: Arc<Semaphore>,
    background: Arc<BackRoom>,
}

impl Leases {
    /// Creates a layer around `store`.
    pub fn new(store: impl Store) -> Self {
        Self::build(Arc::new(store), Arc::new(clock::now), Arc::default())
    }

    fn build(store: Arc<dyn Store>, now: Now, background: Arc<BackRoom>) -> Self {
        Self {
            core: Arc::new(LeasesCore {
                store,
                now,
                table: Table::new(),
                sweeper: Arc::new(Semaphore::new(1)),
                background,
            }),
        }
    }

    /// Returns a layer without leases that uses `clock` instead of the process's clocks. Pass the clock of the wrapped
    /// store, so that time passes equally in both.
    #[cfg(feature = "manual-clock")]
    #[must_use]
    pub fn clock(self, clock: ManualClock) -> Self {
        let core = &self.core;
        let (store, background) = (core.store.clone(), core.background.clone());
        Self::build(store, Arc::new(move || clock.now()), background)
    }

    /// Sets where leases are fetched and returned: see [`Limiter::background`](crate::Limiter::background).
    #[must_use]
    pub fn background(self, place: Background) -> Self {
        self.core.background.set(place);
        self
    }

    /// Ends all leases and returns the unspent units. Call this before your process ends, or the units stay charged
    /// until they are released.
    ///
    /// This method waits for units on their way and for the store, ten seconds at most. Units that could not be
    /// returned by then stay charged, since nothing is tried again. Checks during this call can lease units again.
    pub async fn return_unspent(&self) {
        self.core.end(self.core.table.all().into_iter());
        within(PATIENCE, self.core.background.ended()).await;
    }
}

impl LeasesCore {
    fn now(&self) -> Duration {
        (self.now)()
    }

    fn check(self: &Arc<Self>, check: &Check) -> StoreFuture<Decision> {
        if !check.shadow_charges().is_empty() {
            return self.store.check(check);
        }
        let hot = self.table.find_all(check, || self.now());
        if hot.iter().all(Option::is_none) {
            return self.store.check(check);
        }
        if self.sweeper.available_permits() > 0 {
            self.start_sweeping();
        }
        if let Some(decision) = self.spend(check, &hot) {
            return StoreFuture::ready(decision);
        }
        let answer = self.ask(check, hot.clone());
        self.fetch_all(check, &hot);
        answer
    }

    /// Pays the whole check with leased units. `None` if a charge is not leased, or has not enough units.
    fn spend(&self, check: &Check, hot: &HotOfCheck) -> Option<Result<Decision, StoreError>> {
        let mut places = SmallVec::<[_; 1]>::new();
        for identity in hot {
            places.push(identity.as_ref()?.spendable(!places.is_empty())?);
        }
        // Read after the leases were found, so that none is younger.
        let now = self.now();
        let leases = places.iter_mut().zip(check.charges());
        let leases = leases.map(|(place, charge)| place.lease_for(charge.cost(), now));
        let leases: SmallVec<[_; 1]> = leases.collect::<Option<_>>()?;
        let (mut now_ms, mut rules) = (0, Vec::with_capacity(check.rule_count()));
        for (lease, charge) in leases.into_iter().zip(check.charges()) {
            now_ms = now_ms.max(lease.spend(charge.cost(), now, &mut rules));
        }
        let origin = Origin::Leased;
        let facts = Facts {
            origin,
            ..Facts::default()
        };
        Some(Decision::joined(check, true, now_ms, rules, facts))
    }

    /// Lets the store decide, and learns from its decision.
    fn ask(&self, check: &Check, hot: HotOfCheck) -> StoreFuture<Decision> {
        let (sent, now) = (self.now(), Arc::clone(&self.now));
        self.store.check(check).map(move |decision| {
            let usage = decision.usage();
            for (hot, of_policy) in hot.iter().zip(usage.policies()) {
                if let Some(hot) = hot {
                    hot.learn(of_policy, usage.decided_at_ms(), sent, now());
                }
            }
            decision
        })
    }

    /// Fetches the leases that are missing to pay such a check, each if it is worth a call; none if one cannot be had.
    fn fetch_all(self: &Arc<Self>, check: &Check, hot: &HotOfCheck) {
        let now = self.now();
        let each = || hot.iter().flatten().zip(check.charges());
        let all_can = hot.iter().all(Option::is_some)
            && each().all(|(hot, charge)| charge.cost() > 0 && !hot.is_paused(now));
        for (hot, charge) in each().filter(|_| all_can) {
            if let Some(fetch) = hot.begin(charge.cost(), now) {
                let (this, call) = (Arc::clone(self), self.store.call(fetch.operations()));
                // In the background, because a caller that leaves must not lose the units.
                let install = async move { this.install(fetch, call).await };
                self.background.finish(install);
            }
        }
    }

    async fn install(self: &Arc<Self>, fetch: Fetch, call: CallFuture) {
        let replies = within(PATIENCE, call).await.and_then(Result::ok);
        let now = self.now();
        let Some(Ok(Reply::Check(decision))) = replies.and_then(|mut replies| replies.pop()) else {
            fetch.of.pause(now);
            return;
        };
        match decision {
            Decision::Allowed(usage) => {
                if let Some(unspent) = fetch.install(&usage, now) {
                    within(PATIENCE, self.store.execute(unspent)).await;
                }
            }
            Decision::Denied(_) | Decision::Blocked(_) => fetch.of.pause(now),
        }
    }

    /// Ends the leases of these identities.
    fn end(&self, all: impl Iterator<Item = Arc<HotIdentity>>) {
        self.give_back(all.filter_map(|hot| hot.end()));
    }

    /// Returns unspent units in the background, one call for each: behind a proxy, identities may be on different
    /// servers.
    fn give_back(&self, all: impl Iterator<Item = Operation>) {
        for unspent in all {
            let settled = self.store.execute(unspent);
            let settled = async { drop(within(PATIENCE, settled).await) };
            self.background.finish(settled);
        }
    }

    #[cold]
    fn start_sweeping(self: &Arc<Self>) {
        if let Ok(task) = Arc::clone(&self.sweeper).try_acquire_owned() {
            self.background.spawn(sweep(Arc::downgrade(self), task));
        }
    }

    /// Returns overdue leases, and drops identities that are no longer hot. Does not wait for the store, which may hang.
    /// Returns whether there are others.
    fn sweep(&self) -> bool {
        let now = self.now();
        let all = self.table.all();
        let overdue = all.iter().filter_map(|hot| hot.close_overdue(now));
        self.give_back(overdue.take(MAX_TOGETHER));
        self.table.retain(|hot| !hot.cool(now))
    }
}

/// The task that sweeps the hot identities. If it is dropped with its runtime, the next check starts another.
async fn sweep(core: Weak<LeasesCore>, _task: OwnedSemaphorePermit) {
    loop {
        sleep(SWEEP).await;
        match core.upgrade() {
            Some(core) if core.sweep() => {}
            _ => return,
        }
    }
}

impl Store for Leases {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.core.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        if let Operation::Check(check) = &operation {
            return self.core.check(check).map(Reply::Check);
        }
        let ending = EndsLeases::of(&self.core, slice::from_ref(&operation));
        ending.until(self.core.store.execute(operation))
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        let ending = EndsLeases::of(&self.core, &operations);
        ending.until(self.core.store.call(operations))
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&*self.core.store)
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("store", &self.core.store)
            .finish_non_exhaustive()
    }
}
