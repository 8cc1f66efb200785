//! [`Leases`]: charges units of hot identities in advance, and spends them in this process.

use std::{
    fmt,
    panic::catch_unwind,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::OwnedSemaphorePermit,
    time::{sleep, timeout},
};

use self::{
    clock::{Clock, Moment},
    entry::{Entry, Fetch},
    revocation::{Revocation, Target},
    several::Several,
    table::{Table, Units},
    transfer::Unspent,
};
#[cfg(feature = "manual-clock")]
use crate::manual_clock::ManualClock;
use crate::{
    background::BackRoom,
    domain::{
        charge::Charge,
        check::Check,
        decision::Decision,
        error::{StoreError, StoreErrorKind},
        key::Key,
        operation::{Operation, Reply},
        rule::millis,
    },
    store::{CallFuture, Properties, Store, StoreExt, StoreFuture, layers::sync},
    warning,
};

mod balance;
mod clock;
mod entry;
mod hot;
mod lease;
mod revocation;
mod several;
mod table;
mod transfer;

/// The interval at which overdue leases are returned, and entries dropped that are no longer hot.
const SWEEP: Duration = Duration::from_millis(250);

/// The maximum number of leases that a sweep returns.
const MAX_TOGETHER: usize = 256;

/// How long a background task waits for the store.
const PATIENCE: Duration = Duration::from_secs(10);

/// A layer that answers most checks of hot identities without a call of the store; cheap to clone.
#[doc = include_str!("../../../../docs/guide/leases.md")]
#[derive(Clone)]
pub struct Leases {
    inner: Arc<Inner>,
}

/// The entry of each charge of a check; `None` for a charge that is not hot.
type Entries = Arc<[Option<Arc<Entry>>]>;

struct Inner {
    store: Arc<dyn Store>,
    clock: Clock,
    table: Table,
    /// The shortest timeout of the limiters, in ms: a store that takes longer is too slow for one of them.
    shortest_timeout_ms: AtomicU64,
    /// Whether a runtime without timers was seen. Then leasing is off.
    lacks_timers: AtomicBool,
    background: Arc<BackRoom>,
}

impl Leases {
    /// Creates a layer around `store`.
    pub fn new(store: impl Store) -> Self {
        Self::build(Arc::new(store), Clock::system())
    }

    fn build(store: Arc<dyn Store>, clock: Clock) -> Self {
        let inner = Inner {
            store,
            clock,
            table: Table::new(),
            shortest_timeout_ms: AtomicU64::new(u64::MAX),
            lacks_timers: AtomicBool::new(false),
            background: Arc::default(),
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
        Self::build(Arc::clone(&self.inner.store), Clock::Test(clock))
    }

    /// Ends all leases and returns the unspent units. Call this before your process ends, or the units stay charged
    /// until they are released.
    ///
    /// This method waits for transfers under way and for the store, ten seconds at most. Units that could not be
    /// returned by then stay charged, since nothing is tried again. Checks during this call can lease units again.
    pub async fn return_unspent(&self) {
        if self.inner.has_timers() {
            let entries = self.inner.table.entries(|_| true);
            self.inner
                .give_back(entries.iter().filter_map(|entry| entry.end()));
            let _ = timeout(PATIENCE, self.inner.table.transfers_ended()).await;
        }
    }
}

impl Inner {
    fn check(self: &Arc<Self>, check: &Check) -> StoreFuture<Decision> {
        if !check.shadow_charges().is_empty() {
            return self.ask(check);
        }
        match check.charges() {
            [charge] => match self.find(charge) {
                None => self.ask(check),
                Some(entry) => self.check_one(check, charge, &entry),
            },
            charges => {
                let entries: Entries = charges.iter().map(|charge| self.find(charge)).collect();
                if entries.iter().all(Option::is_none) {
                    self.ask(check)
                } else {
                    self.check_several(check, &entries)
                }
            }
        }
    }

    /// The entry of a charge if it is hot. Makes sure that a task sweeps the entries.
    fn find(self: &Arc<Self>, charge: &Charge) -> Option<Arc<Entry>> {
        let may_lease = || self.has_timers();
        let entry = self.table.find(charge, &self.clock, may_lease)?;
        entry.count(charge.cost());
        if self.table.sweeper.available_permits() > 0 {
            self.start_sweeping();
        }
        Some(entry)
    }

    /// Whether the caller is in a runtime that has timers.
    fn has_timers(&self) -> bool {
        if Handle::try_current().is_err() || self.lacks_timers.load(Relaxed) {
            return false;
        }
        // A runtime cannot be asked whether its timers are enabled, so try one.
        if catch_unwind(|| drop(sleep(Duration::ZERO))).is_err() {
            if !self.lacks_timers.swap(true, Relaxed) {
                warning::nothing_leased();
            }
            return false;
        }
        true
    }

    fn check_one(
        self: &Arc<Self>,
        check: &Check,
        charge: &Charge,
        entry: &Arc<Entry>,
    ) -> StoreFuture<Decision> {
        if let Some(spent) = entry.spend(charge.cost(), || self.clock.now()) {
            let mut rules = Vec::with_capacity(check.rule_count());
            rules.extend(spent.rules());
            return StoreFuture::ready(Decision::leased(check, spent.now_ms(), rules));
        }
        let answer = self.pass_on(check, Arc::new([Some(Arc::clone(entry))]));
        self.fetch(entry, charge.cost());
        answer
    }

    fn check_several(self: &Arc<Self>, check: &Check, entries: &Entries) -> StoreFuture<Decision> {
        let several = Several::new(self, check, Arc::clone(entries));
        let rest = several.rest().to_vec();
        let answer = if rest.is_empty() {
            return several.decide_here();
        } else if rest.len() == entries.len() {
            self.pass_on(check, Arc::clone(entries))
        } else {
            let entries_of_rest = rest.iter().map(|place| entries[*place].clone()).collect();
            several.decide_after(self.pass_on(&check.pick(&rest), entries_of_rest))
        };
        for place in rest {
            if let Some(entry) = &entries[place] {
                self.fetch(entry, check.charges()[place].cost());
            }
        }
        answer
    }

    /// Lets the store decide. Its answer counts as used the units that lie here unspent.
    fn ask(self: &Arc<Self>, check: &Check) -> StoreFuture<Decision> {
        let (this, given_back) = (Arc::clone(self), self.table.given_back());
        let unspent = self.table.unspent(check, self.clock.now());
        self.store.check(check).map(move |mut decision| {
            this.table.forbid_early_repeats(&decision, given_back);
            decision.add_unspent(&unspent);
            decision
        })
    }

    /// The same for the reply to any operation.
    fn note_reply(&self, reply: &mut Reply, given_back: u64, unspent: &[u64]) {
        if let Some(decision) = reply.last_decision() {
            self.table.forbid_early_repeats(decision, given_back);
        }
        reply.add_unspent(unspent);
    }

    fn unspent(&self, operation: &Operation) -> Units {
        let unspent = |check| self.table.unspent(check, self.clock.now());
        operation.check().map_or_else(Units::new, unspent)
    }

    /// Lets the store decide, and updates the entries of the hot charges with the answer.
    fn pass_on(self: &Arc<Self>, check: &Check, entries: Entries) -> StoreFuture<Decision> {
        let mut outcome = OutcomeGuard {
            inner: Arc::clone(self),
            sent: self.clock.now(),
            entries: Some(entries),
        };
        self.ask(check).then(move |result| {
            outcome.answered(result.as_ref());
            result
        })
    }

    /// Records that a caller left without an answer. This is a failure if the caller has waited as long as a timeout.
    fn note_left(&self, entries: &Entries, sent: Moment) {
        if millis(self.clock.now().since(sent)) >= self.shortest_timeout_ms() {
            set_failing(entries, true);
        }
    }

    fn shortest_timeout_ms(&self) -> u64 {
        self.shortest_timeout_ms.load(Relaxed)
    }

    /// Fetches a lease if there is none, and one is worth a call.
    fn fetch(self: &Arc<Self>, entry: &Arc<Entry>, cost: u64) {
        let Some(fetch) = entry.begin(cost, self.clock.now()) else {
            return;
        };
        if !self.has_timers() {
            return;
        }
        // The same call returns unspent units. They are never returned twice: if the call fails, they stay charged.
        let unspent = entry.close();
        let returned = unspent
            .iter()
            .map(|unspent| Operation::Settle(unspent.settlement.clone()));
        let operations = returned.chain([Operation::Check(fetch.check())]);
        let call = self.store.call(operations.collect());
        // Spawned, because a caller that leaves must not lose the units.
        let this = Arc::clone(self);
        self.background.spawn(async move {
            this.install(&fetch, call).await;
            drop((unspent, fetch));
        });
    }

    async fn install(&self, fetch: &Fetch, call: CallFuture) {
        let replies = timeout(PATIENCE, call).await.ok().and_then(Result::ok);
        let now = self.clock.now();
        let Some(Ok(Reply::Check(decision))) = replies.and_then(|mut replies| replies.pop()) else {
            fetch.entry().pause(now);
            return;
        };
        match decision {
            Decision::Allowed(usage) => {
                if let Some(unspent) = fetch.install(&usage, now) {
                    let _ = timeout(PATIENCE, self.store.settle(&unspent)).await;
                }
            }
            Decision::Denied(_) | Decision::Blocked(_) => fetch.entry().pause(now),
        }
    }

    /// Ends these leases, and returns them in the background.
    fn end(&self, target: &Target) {
        let entries = match target {
            Target::All(key) => self.table.entries(|entry| entry.is_of_key(key)),
            Target::Metered(entry) => {
                // The next settlement would end another lease, too.
                entry.pause(self.clock.now());
                vec![Arc::clone(entry)]
            }
        };
        self.give_back(entries.iter().filter_map(|entry| entry.end()));
    }

    /// Returns unspent units in the background, one call for each: behind a proxy, identities may be on different
    /// servers.
    fn give_back(&self, all: impl Iterator<Item = Unspent>) {
        for unspent in all {
            if !self.has_timers() {
                return;
            }
            let settled = self.store.settle(&unspent.settlement);
            self.background.spawn(async move {
                let _ = timeout(PATIENCE, settled).await;
                drop(unspent);
            });
        }
    }

    /// Drops the leases of this key that are being fetched.
    fn forget_fetches(&self, key: &Key) {
        let entries = self.table.entries(|entry| entry.is_of_key(key));
        entries.iter().for_each(|entry| entry.forget_fetch());
    }

    #[cold]
    fn start_sweeping(self: &Arc<Self>) {
        if self.has_timers()
            && let Ok(task) = Arc::clone(&self.table.sweeper).try_acquire_owned()
        {
            self.background.spawn(sweep(Arc::downgrade(self), task));
        }
    }

    /// Returns overdue leases, and drops entries that are no longer hot. Does not wait for the store, which may hang.
    fn sweep(&self) {
        let now = self.clock.now();
        let entries = self.table.entries(|_| true);
        let overdue = entries.iter().filter_map(|entry| entry.close_overdue(now));
        self.give_back(overdue.take(MAX_TOGETHER));
        self.table.retain(|entry| !entry.cool(now));
    }
}

/// The task that sweeps the entries. If it is dropped with its runtime, the next check starts another.
async fn sweep(inner: Weak<Inner>, _task: OwnedSemaphorePermit) {
    loop {
        sleep(SWEEP).await;
        let Some(inner) = inner.upgrade() else {
            return;
        };
        inner.sweep();
        if inner.table.is_empty() {
            return;
        }
    }
}

/// Records for these identities that the store could not decide. An error about one request, such as a value that
/// cannot be read, does not count: it says nothing about the store.
fn note_failure(entries: &Entries, error: &StoreError) {
    let kind = error.kind();
    if matches!(kind, StoreErrorKind::Timeout | StoreErrorKind::Unavailable) {
        set_failing(entries, true);
    }
}

fn set_failing(entries: &Entries, is_failing: bool) {
    let hot = entries.iter().flatten();
    hot.for_each(|entry| entry.set_failing(is_failing));
}

/// Waits for the outcome of a check that was passed on, and notices when the caller leaves before.
struct OutcomeGuard {
    inner: Arc<Inner>,
    sent: Moment,
    /// `None` after the store has answered.
    entries: Option<Entries>,
}

impl OutcomeGuard {
    fn answered(&mut self, result: Result<&Decision, &StoreError>) {
        let Some(entries) = self.entries.take() else {
            return;
        };
        let usage = match result {
            // A repeated denial says nothing about the store, and may cover only some of the charges.
            Ok(decision) if decision.usage().is_cached() => return,
            Ok(decision) => decision.usage(),
            Err(error) => return note_failure(&entries, error),
        };
        let now = self.inner.clock.now();
        set_failing(&entries, false);
        for (entry, of_policy) in entries.iter().zip(usage.policies()) {
            if let Some(entry) = entry {
                entry.learn(of_policy, usage.decided_at_ms(), self.sent, now);
            }
        }
    }
}

impl Drop for OutcomeGuard {
    fn drop(&mut self) {
        if let Some(entries) = self.entries.take() {
            self.inner.note_left(&entries, self.sent);
        }
    }
}

impl Store for Leases {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.inner.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        let inner = Arc::clone(&self.inner);
        if let Operation::Check(check) = &operation {
            return inner.check(check).map(Reply::Check);
        }
        let revocations = Revocation::of(&inner, &operation);
        let unspent = inner.unspent(&operation);
        Revocation::call(revocations, move || {
            let given_back = inner.table.given_back();
            inner.store.execute(operation).map(move |mut reply| {
                inner.note_reply(&mut reply, given_back, &unspent);
                reply
            })
        })
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        let inner = Arc::clone(&self.inner);
        let each = operations.iter();
        let revocations = each.clone().flat_map(|it| Revocation::of(&inner, it));
        let revocations = revocations.collect();
        let unspent: Vec<Units> = each.map(|it| inner.unspent(it)).collect();
        Revocation::call(revocations, move || {
            let given_back = inner.table.given_back();
            inner.store.call(operations).map(move |mut results| {
                for (result, unspent) in results.iter_mut().zip(unspent) {
                    if let Ok(reply) = result {
                        inner.note_reply(reply, given_back, &unspent);
                    }
                }
                results
            })
        })
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&*self.inner.store)
    }

    fn properties(&self) -> Properties<'_> {
        Properties {
            shortest_timeout_ms: Some(&self.inner.shortest_timeout_ms),
            ..Properties::default()
        }
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("store", &self.inner.store)
            .finish_non_exhaustive()
    }
}
