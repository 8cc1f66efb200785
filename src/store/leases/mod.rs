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
    ending::Ending,
    entry::{Fetch, HotIdentity, Unspent},
    seen::Seen,
    table::Table,
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
mod entry;
mod lease;
mod seen;
mod table;

/// The interval at which overdue leases are returned, and entries dropped that are no longer hot.
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
    inner: Arc<Inner>,
}

/// The time since some moment.
type Uptime = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The entry of each charge of a check; `None` for a charge that is not hot.
type Entries = SmallVec<[Option<Arc<HotIdentity>>; 1]>;

struct Inner {
    store: Arc<dyn Store>,
    clock: Uptime,
    table: Table,
    /// Its permit is free while no task sweeps the entries.
    sweeper: Arc<Semaphore>,
    background: Arc<BackRoom>,
}

impl Leases {
    /// Creates a layer around `store`.
    pub fn new(store: impl Store) -> Self {
        Self::build(Arc::new(store), Arc::new(clock::now), Arc::default())
    }

    fn build(store: Arc<dyn Store>, clock: Uptime, background: Arc<BackRoom>) -> Self {
        let inner = Inner {
            store,
            clock,
            table: Table::new(),
            sweeper: Arc::new(Semaphore::new(1)),
            background,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Returns a layer without leases that uses `clock` instead of the process's clocks. Pass the clock of the wrapped
    /// store, so that time passes equally in both.
    #[cfg(feature = "manual-clock")]
    #[must_use]
    pub fn clock(self, clock: ManualClock) -> Self {
        let inner = &self.inner;
        let (store, background) = (inner.store.clone(), inner.background.clone());
        Self::build(store, Arc::new(move || clock.now()), background)
    }

    /// Sets where leases are fetched and returned: see [`Limiter::background`](crate::Limiter::background).
    #[must_use]
    pub fn background(self, place: Background) -> Self {
        self.inner.background.set(place);
        self
    }

    /// Ends all leases and returns the unspent units. Call this before your process ends, or the units stay charged
    /// until they are released.
    ///
    /// This method waits for units on their way and for the store, ten seconds at most. Units that could not be
    /// returned by then stay charged, since nothing is tried again. Checks during this call can lease units again.
    pub async fn return_unspent(&self) {
        let entries = self.inner.table.all(|_| true);
        let unspent = entries.iter().filter_map(HotIdentity::end);
        self.inner.give_back(unspent);
        within(PATIENCE, self.inner.background.ended()).await;
    }
}

impl Inner {
    fn now(&self) -> Duration {
        (self.clock)()
    }

    fn check(self: &Arc<Self>, check: &Check) -> StoreFuture<Decision> {
        if !check.shadow_charges().is_empty() {
            return self.ask(check, self.table.known(check));
        }
        let charges = check.charges().iter();
        let entries: Entries = charges
            .map(|charge| self.table.find(charge, || self.now()))
            .collect();
        let is_hot = entries.iter().any(Option::is_some);
        if !is_hot {
            return self.store.check(check);
        }
        if self.sweeper.available_permits() > 0 {
            self.start_sweeping();
        }
        if let Some(decision) = self.spend(check, &entries) {
            return StoreFuture::ready(decision);
        }
        let answer = self.ask(check, entries.clone());
        self.fetch_all(check, &entries);
        answer
    }

    /// Pays the whole check with leased units. `None` if a charge is not leased, or has not enough units.
    fn spend(&self, check: &Check, entries: &Entries) -> Option<Result<Decision, StoreError>> {
        let places = entries.iter().map(|entry| entry.as_ref()?.spendable());
        let places: SmallVec<[_; 1]> = places.collect::<Option<_>>()?;
        let leases = || places.iter().flat_map(|place| place.as_ref());
        // Read after the leases were found, so that none is younger.
        let now = self.now();
        let (mut now_ms, mut rules) = (0, Vec::with_capacity(check.rule_count()));
        for (index, (lease, charge)) in leases().zip(check.charges()).enumerate() {
            let Some(spent) = lease.spend(charge.cost(), now) else {
                let spent = leases().zip(check.charges()).take(index);
                spent.for_each(|(lease, charge)| lease.put_back(charge.cost()));
                return None;
            };
            now_ms = now_ms.max(spent.now_ms());
            rules.extend(spent.rules());
        }
        let origin = Origin::Leased;
        let facts = Facts {
            origin,
            ..Facts::default()
        };
        Some(Decision::joined(check, true, now_ms, rules, facts))
    }

    /// Lets the store decide.
    fn ask(&self, check: &Check, entries: Entries) -> StoreFuture<Decision> {
        if entries.iter().all(Option::is_none) {
            return self.store.check(check);
        }
        let (seen, sent) = (Seen::new(entries), self.now());
        let clock = Arc::clone(&self.clock);
        self.store.check(check).map(move |mut decision| {
            seen.decided(&mut decision, sent, clock());
            decision
        })
    }

    /// Fetches the leases that are missing to pay such a check, each if it is worth a call; none if one cannot be had.
    fn fetch_all(self: &Arc<Self>, check: &Check, entries: &Entries) {
        let now = self.now();
        let mut each = entries.iter().zip(check.charges());
        let all_can = each.clone().all(|(entry, charge)| {
            charge.cost() > 0 && entry.as_ref().is_some_and(|entry| !entry.is_paused(now))
        });
        while let Some((Some(entry), charge)) = each.next().filter(|_| all_can) {
            if let Some(fetch) = entry.begin(charge.cost(), now) {
                self.fetch(fetch);
            }
        }
    }

    fn fetch(self: &Arc<Self>, fetch: Fetch) {
        let call = self.store.call(fetch.operations());
        // In the background, because a caller that leaves must not lose the units.
        let this = Arc::clone(self);
        self.background
            .finish(async move { this.install(fetch, call).await });
    }

    async fn install(self: &Arc<Self>, fetch: Fetch, call: CallFuture) {
        let replies = within(PATIENCE, call).await.and_then(Result::ok);
        let now = self.now();
        let Some(Ok(Reply::Check(decision))) = replies.and_then(|mut replies| replies.pop()) else {
            fetch.entry().pause(now);
            return;
        };
        match decision {
            Decision::Allowed(usage) => {
                if let Some(unspent) = fetch.install(&usage, now) {
                    within(PATIENCE, self.store.execute(unspent.settle.clone())).await;
                }
            }
            Decision::Denied(_) | Decision::Blocked(_) => fetch.entry().pause(now),
        }
    }

    /// Returns unspent units in the background, one call for each: behind a proxy, identities may be on different
    /// servers.
    fn give_back(&self, all: impl Iterator<Item = Unspent>) {
        for unspent in all {
            let settled = self.store.execute(unspent.settle.clone());
            self.background.finish(async move {
                within(PATIENCE, settled).await;
                drop(unspent);
            });
        }
    }

    #[cold]
    fn start_sweeping(self: &Arc<Self>) {
        if let Ok(task) = Arc::clone(&self.sweeper).try_acquire_owned() {
            self.background.spawn(sweep(Arc::downgrade(self), task));
        }
    }

    /// Returns overdue leases, and drops entries that are no longer hot. Does not wait for the store, which may hang.
    /// Returns whether there are others.
    fn sweep(&self) -> bool {
        let now = self.now();
        let entries = self.table.all(|_| true);
        let overdue = entries.iter().filter_map(|entry| entry.close_overdue(now));
        self.give_back(overdue.take(MAX_TOGETHER));
        self.table.retain(|entry| !entry.cool(now))
    }
}

/// The task that sweeps the entries. If it is dropped with its runtime, the next check starts another.
async fn sweep(inner: Weak<Inner>, _task: OwnedSemaphorePermit) {
    loop {
        sleep(SWEEP).await;
        let Some(inner) = inner.upgrade() else {
            return;
        };
        if !inner.sweep() {
            return;
        }
    }
}

impl Store for Leases {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.inner.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        if let Operation::Check(check) = &operation {
            return self.inner.check(check).map(Reply::Check);
        }
        let Inner { store, table, .. } = &*self.inner;
        let seen = Seen::of(&operation, table);
        let ending = Ending::of(&self.inner, slice::from_ref(&operation));
        store.execute(operation).map(move |mut reply| {
            seen.note(&mut reply);
            drop(ending);
            reply
        })
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        let Inner { store, table, .. } = &*self.inner;
        let seen: Vec<_> = operations.iter().map(|it| Seen::of(it, table)).collect();
        let ending = Ending::of(&self.inner, &operations);
        store.call(operations).map(move |mut results| {
            for (result, seen) in results.iter_mut().zip(seen) {
                if let Ok(reply) = result {
                    seen.note(reply);
                }
            }
            drop(ending);
            results
        })
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&*self.inner.store)
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("store", &self.inner.store)
            .finish_non_exhaustive()
    }
}
