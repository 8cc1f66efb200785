//! [`Leases`]: units of hot identities, charged at once and spent here.

use std::{
    fmt, mem,
    panic::catch_unwind,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{sleep, timeout},
};

use self::{
    clock::{Clock, Moment},
    entry::{Entry, Fetch},
    lease::Spent,
    table::Table,
    transfer::{Transfer, Unspent},
};
#[cfg(feature = "test-util")]
use crate::test_util::TestClock;
use crate::{
    block::{Block, BlockedBy, BlockedIdentity, Until},
    charge::Charge,
    check::Check,
    contributors::{Contribution, Contributors},
    decision::{Decision, RuleUsage, Usage},
    error::StoreError,
    key::Key,
    operation::{Operation, Reply},
    policy::Policy,
    rule::{Rule, millis},
    settlement::Settlement,
    store::{CallFuture, ContributeFuture, Store, StoreFuture, sync},
    warning,
};

mod balance;
mod clock;
mod entry;
mod hot;
mod lease;
mod table;
mod transfer;

/// How often overdue leases are returned, and identities that are no longer hot are dropped.
const SWEEP: Duration = Duration::from_millis(250);

/// How many returns of overdue leases are under way at a time.
const MAX_TOGETHER: usize = 32;

/// How long an answer of the store is waited for, in the background.
const PATIENCE: Duration = Duration::from_secs(10);

/// A store around a store that answers most checks of hot identities without a call; cheap to clone.
#[doc = include_str!("leases.md")]
#[derive(Clone)]
pub struct Leases {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    clock: Clock,
    table: Table,
    /// Whether the last check that was passed on could not be decided: then all are, so that the caller notices.
    is_failing: AtomicBool,
    /// How long the caller waits, in ms.
    timeout_ms: AtomicU64,
    /// Whether a runtime was met whose timers are not enabled: then nothing is leased any more.
    lacks_timers: AtomicBool,
}

impl Leases {
    /// Leases what is charged in `store`.
    pub fn new(store: impl Store) -> Self {
        Self::build(Arc::new(store), Clock::system())
    }

    fn build(store: Arc<dyn Store>, clock: Clock) -> Self {
        let inner = Inner {
            store,
            clock,
            table: Table::new(),
            is_failing: AtomicBool::new(false),
            timeout_ms: AtomicU64::new(u64::MAX),
            lacks_timers: AtomicBool::new(false),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Makes it one without leases that goes by `clock` instead of the process's clocks. Give it the clock of the store
    /// within: otherwise the time of one passes faster than that of the other.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn clock(self, clock: TestClock) -> Self {
        Self::build(Arc::clone(&self.inner.store), Clock::Test(clock))
    }

    /// Ends all leases and returns what is unspent, before a process ends. Without it, that stays charged until it is
    /// released.
    ///
    /// What cannot be returned stays charged, too: nothing is tried again. It waits for the store as long as that
    /// takes, ten seconds at most for each part.
    pub async fn return_unspent(&self) {
        let entries = self.inner.table.entries(|_| true);
        let unspent = entries.iter().filter_map(|it| it.end()).collect();
        return_all(&self.inner.store, unspent).await;
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
                let entries: Vec<_> = charges.iter().map(|it| self.find(it)).collect();
                if entries.iter().all(Option::is_none) {
                    self.ask(check)
                } else {
                    self.check_several(check, &entries)
                }
            }
        }
    }

    /// The entry of a charge if it is hot, and a task that looks after it.
    fn find(self: &Arc<Self>, charge: &Charge) -> Option<Arc<Entry>> {
        let may_lease = || self.runtime().is_some();
        let entry = self.table.find(charge, &self.clock, may_lease)?;
        entry.count(charge.cost());
        if !self.table.has_task() {
            self.start_sweeping();
        }
        Some(entry)
    }

    /// Where what is leased can be fetched, returned and looked after.
    fn runtime(&self) -> Option<Handle> {
        let runtime = Handle::try_current().ok()?;
        if self.lacks_timers.load(Relaxed) {
            return None;
        }
        // By no other way does a runtime tell whether it has timers.
        if catch_unwind(|| drop(sleep(Duration::ZERO))).is_err() {
            if !self.lacks_timers.swap(true, Relaxed) {
                warning::nothing_leased();
            }
            return None;
        }
        Some(runtime)
    }

    fn spend(&self, entry: &Entry, cost: u64) -> Option<Spent> {
        if self.is_failing.load(Relaxed) {
            return None;
        }
        entry.spend(cost, || self.clock.now())
    }

    /// Spends units that may be put back.
    fn hold(&self, entry: &Arc<Entry>, cost: u64) -> Option<(Spent, Transfer)> {
        let transfer = Transfer::begin(entry);
        match self.spend(entry, cost) {
            Some(spent) => Some((spent, transfer)),
            None => {
                transfer.gives_nothing_back();
                None
            }
        }
    }

    fn check_one(
        self: &Arc<Self>,
        check: &Check,
        charge: &Charge,
        entry: &Arc<Entry>,
    ) -> StoreFuture<Decision> {
        if let Some(spent) = self.spend(entry, charge.cost()) {
            let mut rules = Vec::with_capacity(check.rule_count());
            rules.extend(spent.rules());
            return StoreFuture::ready(Decision::leased(check, spent.now_ms(), rules));
        }
        let answer = self.pass_on(check, vec![Some(Arc::clone(entry))]);
        self.fetch(entry, charge.cost());
        answer
    }

    fn check_several(
        self: &Arc<Self>,
        check: &Check,
        entries: &[Option<Arc<Entry>>],
    ) -> StoreFuture<Decision> {
        let charges = check.charges().iter().zip(entries);
        let mut held = Held(
            charges
                .map(|(charge, entry)| self.hold(entry.as_ref()?, charge.cost()))
                .collect(),
        );
        let rest = held.missing();
        if rest.is_empty() {
            return StoreFuture::ready(join_spent(check, &held.keep()));
        }
        let entries_of_rest: Vec<_> = rest.iter().map(|it| entries[*it].clone()).collect();
        let answer = if rest.len() == entries.len() {
            self.pass_on(check, entries_of_rest)
        } else {
            let answer = self.pass_on(&check.pick(&rest), entries_of_rest);
            join_later(check.clone(), held, answer)
        };
        for place in rest {
            if let Some(entry) = &entries[place] {
                self.fetch(entry, check.charges()[place].cost());
            }
        }
        answer
    }

    /// Lets the store decide.
    fn ask(self: &Arc<Self>, check: &Check) -> StoreFuture<Decision> {
        let (this, given_back) = (Arc::clone(self), self.table.given_back());
        self.store.check(check).map(move |decision| {
            this.table.forbid_early_repeats(&decision, given_back);
            decision
        })
    }

    /// Lets the store decide, and learns from it about the charges that are hot.
    fn pass_on(
        self: &Arc<Self>,
        check: &Check,
        entries: Vec<Option<Arc<Entry>>>,
    ) -> StoreFuture<Decision> {
        let mut watch = Watch {
            inner: Arc::clone(self),
            sent: self.clock.now(),
            is_answered: false,
        };
        self.ask(check).then(move |result| {
            watch.answered(result.as_ref(), &entries);
            result
        })
    }

    /// Fetches a lease, if there is none and it is worth it.
    fn fetch(self: &Arc<Self>, entry: &Arc<Entry>, cost: u64) {
        if self.is_failing.load(Relaxed) {
            return;
        }
        let Some(fetch) = entry.begin(cost, self.clock.now()) else {
            return;
        };
        let Some(runtime) = self.runtime() else {
            return;
        };
        // What is unspent is returned in the same call. It is never returned twice: if that fails, it stays charged.
        let unspent = entry.close();
        let returned = unspent
            .iter()
            .map(|it| Operation::Settle(it.settlement.clone()));
        let operations = returned.chain([Operation::Check(fetch.check())]);
        let call = self.store.call(operations.collect());
        // A caller who leaves must not make units get lost.
        let this = Arc::clone(self);
        drop(runtime.spawn(async move {
            this.install(&fetch, call).await;
            drop((unspent, fetch));
        }));
    }

    async fn install(&self, fetch: &Fetch, call: CallFuture) {
        let replies = timeout(PATIENCE, call).await.ok().and_then(Result::ok);
        let now = self.clock.now();
        let Some(Ok(Reply::Check(decision))) = replies.and_then(|mut it| it.pop()) else {
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

    /// Ends what was leased of this key, and returns it.
    fn end(&self, key: &Key) {
        let entries = self.table.entries(|it| it.is_of_key(key));
        let unspent: Vec<Unspent> = entries.iter().filter_map(|it| it.end()).collect();
        if !unspent.is_empty()
            && let Some(runtime) = self.runtime()
        {
            let store = Arc::clone(&self.store);
            drop(runtime.spawn(async move { return_all(&store, unspent).await }));
        }
    }

    #[cold]
    fn start_sweeping(self: &Arc<Self>) {
        if let Some(runtime) = self.runtime()
            && !self.table.set_task(true)
        {
            let sweeper = Sweeper(Arc::downgrade(self));
            drop(runtime.spawn(sweeper.run()));
        }
    }

    /// Returns what is overdue, and drops what is no longer hot.
    async fn sweep(&self) {
        let now = self.clock.now();
        let entries = self.table.entries(|_| true);
        let overdue = entries.iter().filter_map(|it| it.close_overdue(now));
        let overdue = overdue.collect();
        self.table.retain(|it| !it.cool(now));
        return_all(&self.store, overdue).await;
    }
}

/// Returns what was unspent, each by a call of its own: a proxy may have the identities on several servers.
async fn return_all(store: &Arc<dyn Store>, unspent: Vec<Unspent>) {
    let mut tasks = JoinSet::new();
    for unspent in unspent {
        if tasks.len() == MAX_TOGETHER {
            tasks.join_next().await;
        }
        let settled = timeout(PATIENCE, store.settle(&unspent.settlement));
        tasks.spawn(async move {
            let _ = settled.await;
            drop(unspent);
        });
    }
    while tasks.join_next().await.is_some() {}
}

/// The task that looks after the entries. When it is ended from outside, the next check starts another.
struct Sweeper(Weak<Inner>);

impl Sweeper {
    async fn run(self) {
        loop {
            sleep(SWEEP).await;
            let Some(inner) = self.0.upgrade() else {
                return;
            };
            inner.sweep().await;
            if inner.table.is_empty() {
                return;
            }
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.table.set_task(false);
        }
    }
}

/// Notices what comes of a check that was passed on.
struct Watch {
    inner: Arc<Inner>,
    sent: Moment,
    is_answered: bool,
}

impl Watch {
    fn answered(&mut self, result: Result<&Decision, &StoreError>, entries: &[Option<Arc<Entry>>]) {
        self.is_answered = true;
        // What was repeated says nothing about the store, and may tell of some of the charges only.
        if result.is_ok_and(|it| it.usage().is_repeated()) {
            return;
        }
        self.inner.is_failing.store(result.is_err(), Relaxed);
        let Ok(decision) = result else {
            return;
        };
        let now = self.inner.clock.now();
        let usage = decision.usage();
        for (entry, of_policy) in entries.iter().zip(usage.policies()) {
            if let Some(entry) = entry {
                entry.learn(of_policy, usage.decided_at_ms(), self.sent, now);
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let timeout_ms = self.inner.timeout_ms.load(Relaxed);
        let waited = self.inner.clock.now().since(self.sent);
        if !self.is_answered && millis(waited) >= timeout_ms {
            self.inner.is_failing.store(true, Relaxed);
        }
    }
}

/// Units that were spent for a check which the store has yet to decide, for each charge that there were any for.
///
/// They are put back when it is not admitted, and when its caller leaves: otherwise who is denied elsewhere could use
/// up what others share, by leaving.
struct Held(Vec<Option<(Spent, Transfer)>>);

impl Held {
    /// The places of the charges that the store has to decide.
    fn missing(&self) -> Vec<usize> {
        let places = self.0.iter().enumerate();
        let missing = places.filter(|(_, it)| it.is_none());
        missing.map(|(place, _)| place).collect()
    }

    /// They are not put back any more.
    fn keep(&mut self) -> Vec<Option<Spent>> {
        let parts = mem::take(&mut self.0).into_iter();
        let kept = parts.map(|part| {
            let (spent, transfer) = part?;
            transfer.gives_nothing_back();
            Some(spent)
        });
        kept.collect()
    }

    fn put_back(&mut self) -> Vec<Option<Spent>> {
        let parts = mem::take(&mut self.0).into_iter();
        let put_back = parts.map(|part| {
            let (mut spent, _transfer) = part?;
            spent.put_back();
            Some(spent)
        });
        put_back.collect()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// The decision about all charges when the store has answered about those that no units were leased for.
fn join_later(
    check: Check,
    mut held: Held,
    answer: StoreFuture<Decision>,
) -> StoreFuture<Decision> {
    answer.then(move |result| match result? {
        Decision::Allowed(usage) => join(&check, true, &held.keep(), &usage),
        Decision::Denied(denial) if denial.usage().is_repeated() => {
            // It may tell of some of the charges only.
            let known = denial.usage().check().clone();
            Ok(Decision::Denied(denial).repeated(&known, 0, true))
        }
        Decision::Denied(denial) => {
            let joined = join(&check, false, &held.put_back(), denial.usage())?;
            if !denial.usage().may_be_repeated() {
                joined.usage().forbid_repeats();
            }
            Ok(joined)
        }
        Decision::Blocked(blocked) => Ok(Decision::Blocked(blocked)),
    })
}

/// In the order of the check: what was spent here, and what the store told about the rest.
fn join(
    check: &Check,
    is_admitted: bool,
    parts: &[Option<Spent>],
    rest: &Usage,
) -> Result<Decision, StoreError> {
    let mut rules: Vec<RuleUsage> = Vec::with_capacity(check.rule_count());
    let mut policies = rest.policies();
    for part in parts {
        match part {
            Some(spent) => rules.extend(spent.rules()),
            None => rules.extend(policies.next().into_iter().flat_map(|it| it.rules())),
        }
    }
    Decision::joined(check, is_admitted, rest.decided_at_ms(), rules)
}

/// The admission where all was spent here.
fn join_spent(check: &Check, parts: &[Option<Spent>]) -> Result<Decision, StoreError> {
    let spent = || parts.iter().flatten();
    let now_ms = spent().map(Spent::now_ms).max().unwrap_or(0);
    Decision::leased(check, now_ms, spent().flat_map(Spent::rules).collect())
}

/// Ends what was leased of a key whose counts are reset or which is blocked: before it is asked for, and when it was
/// done, or nobody waits for it any more.
struct Ending {
    inner: Arc<Inner>,
    what: Ended,
}

enum Ended {
    Reset(Policy, Key),
    Blocked(Key),
}

impl Ending {
    fn new(inner: &Arc<Inner>, what: Ended) -> Self {
        let ending = Self {
            inner: Arc::clone(inner),
            what,
        };
        ending.end();
        ending
    }

    fn of(inner: &Arc<Inner>, operation: &Operation) -> Option<Self> {
        let what = match operation {
            Operation::Reset { policy, key } => Ended::Reset(policy.clone(), key.clone()),
            Operation::Block { key, .. } | Operation::Ban { key, .. } => {
                Ended::Blocked(key.clone())
            }
            _ => return None,
        };
        Some(Self::new(inner, what))
    }

    fn end(&self) {
        match &self.what {
            Ended::Reset(policy, key) => self.inner.table.forget(policy, key),
            Ended::Blocked(key) => self.inner.end(key),
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.end();
    }
}

impl Store for Leases {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.inner.check(check)
    }

    fn settle(&self, settlement: &Settlement) -> StoreFuture<Usage> {
        self.inner.store.settle(settlement)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let ending = Ending::new(&self.inner, Ended::Reset(policy.clone(), key.clone()));
        self.inner.store.reset(policy, key).holding(ending)
    }

    fn block(&self, key: &Key, until: Until, by: BlockedBy) -> StoreFuture<Block> {
        let ending = Ending::new(&self.inner, Ended::Blocked(key.clone()));
        self.inner.store.block(key, until, by).holding(ending)
    }

    fn ban(&self, key: &Key, strikes: Rule, until: Until) -> StoreFuture<Option<Block>> {
        let ending = Ending::new(&self.inner, Ended::Blocked(key.clone()));
        self.inner.store.ban(key, strikes, until).holding(ending)
    }

    fn unblock(&self, key: &Key) -> StoreFuture<()> {
        self.inner.store.unblock(key)
    }

    fn blocks(&self, most: usize) -> StoreFuture<Vec<BlockedIdentity>> {
        self.inner.store.blocks(most)
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        let endings = operations.iter();
        let endings: Vec<Ending> = endings
            .filter_map(|it| Ending::of(&self.inner, it))
            .collect();
        let (inner, given_back) = (Arc::clone(&self.inner), self.inner.table.given_back());
        self.inner.store.call(operations).then(move |result| {
            let decided = result
                .iter()
                .flatten()
                .flatten()
                .filter_map(Reply::last_decision);
            decided.for_each(|it| inner.table.forbid_early_repeats(it, given_back));
            drop(endings);
            result
        })
    }

    fn single_failure_domain(&self) -> bool {
        self.inner.store.single_failure_domain()
    }

    fn contribute(&self, contributions: &[Contribution]) -> ContributeFuture {
        self.inner.store.contribute(contributions)
    }

    fn contributors(&self, policy: &Policy, key: &Key) -> StoreFuture<Contributors> {
        self.inner.store.contributors(policy, key)
    }

    fn set_timeout(&self, timeout: Duration) {
        self.inner.timeout_ms.store(millis(timeout), Relaxed);
        self.inner.store.set_timeout(timeout);
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("store", &self.inner.store)
            .finish_non_exhaustive()
    }
}
