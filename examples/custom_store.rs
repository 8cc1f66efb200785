//! A store from scratch, which keeps each step of each rule in a map and adds the steps up at each check; and a layer
//! around a store, which counts the checks.
//!
//!     cargo run --example custom_store
//!     # allowed
//!     # allowed
//!     # denied
//!     # 3 checks
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add tokio -F tokio/full
//!     cargo add --path ../sluicegate

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    iter::repeat,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use sluicegate::{
    Charge, Decision, Key, Limiter, Policy, Rule, Store, StoreError, Usage,
    error::StoreErrorKind,
    store::{CallFuture, Check, Count, Operation, Reply, Settlement, StoreFuture},
};

/// By the policy's name, the key, and how the rule counts time (its limit may change): the units of each step, by the
/// end of the step in ms.
type Counts = HashMap<(String, Key, String), BTreeMap<u64, u64>>;

pub(crate) struct MapStore {
    counts: Mutex<Counts>,
    now_ms: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl Store for MapStore {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        StoreFuture::ready(self.decide(check))
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        StoreFuture::ready(match &operation {
            Operation::Check(check) => self.decide(check).map(Reply::Check),
            Operation::CheckBatch(batch) => {
                let decisions = (0..batch.count()).map(|place| self.decide(batch.nth(place)));
                decisions.collect::<Result<_, _>>().map(Reply::CheckBatch)
            }
            Operation::Settle(settlement) => self.settle(settlement).map(Reply::Settle),
            Operation::Reset { policy, key } => {
                let is_kept = |name: &str, other: &Key| name != policy.name() || other != key;
                self.lock().retain(|(name, key, _), _| is_kept(name, key));
                Ok(Reply::Reset)
            }
            // Blocks, contributors and the like: a store need not know them.
            other => Err(other.unsupported()),
        })
    }
}

impl MapStore {
    /// With a clock that returns the ms since the Unix epoch and never steps back.
    pub(crate) fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let (counts, now_ms) = (Mutex::default(), Box::new(now_ms));
        Self { counts, now_ms }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(&self, check: &Check) -> Result<Decision, StoreError> {
        // One lock around everything: a check is all or nothing.
        charge(&mut self.lock(), check, (self.now_ms)())
    }

    fn settle(&self, settlement: &Settlement) -> Result<Usage, StoreError> {
        let (mut counts, now_ms) = (self.lock(), (self.now_ms)());
        let check = settlement.usage().check();
        let costs = check.charges().iter().zip(settlement.costs());
        for ((charge, cost), usage) in costs.zip(settlement.usage().policies()) {
            for rule in usage.rules() {
                // Further units count from now on. Others go back to the step that was charged, which may be released.
                let end_ms = match *cost > charge.cost() {
                    true => rule.rule().step_end_ms(now_ms),
                    false => settlement.end_ms(rule),
                };
                let steps = counts.entry(place(charge, &rule.rule())).or_default();
                let units = steps.entry(end_ms).or_default();
                *units = (*units + cost).saturating_sub(charge.cost());
            }
        }
        Usage::settled(check, now_ms, &count(&mut counts, check, now_ms))
    }
}

/// Charges every rule of every charge, or nothing.
fn charge(counts: &mut Counts, check: &Check, now_ms: u64) -> Result<Decision, StoreError> {
    if rules(check).any(|(_, rule)| rule.refill().is_some() || rule.is_concurrency()) {
        let problem = "the store has no buckets and no slots";
        return Err(StoreError::new(StoreErrorKind::InvalidRequest, problem));
    }
    let mut all = rules(check).zip(count(counts, check, now_ms));
    let fits = all.all(|((charge, rule), count)| count.used + charge.cost() <= rule.limit());
    for (charge, rule) in rules(check).filter(|_| fits) {
        let steps = counts.entry(place(charge, rule)).or_default();
        *steps.entry(rule.step_end_ms(now_ms)).or_default() += charge.cost();
    }
    let decision = Decision::new(check, fits, now_ms, &count(counts, check, now_ms))?;
    // Shadows are decided after the others, and only if those were admitted.
    match check.shadow_check().filter(|_| fits) {
        Some(shadows) => Ok(decision.with_shadow(charge(counts, &shadows, now_ms)?)),
        None => Ok(decision),
    }
}

/// Forgets released steps; returns a count for each rule of each charge, in their order.
fn count(counts: &mut Counts, check: &Check, now_ms: u64) -> Vec<Count> {
    let count = |(charge, rule): (&Charge, &Rule)| {
        let mut count = Count::default();
        let steps = counts.entry(place(charge, rule)).or_default();
        steps.retain(|end, units| rule.release_ms(*end) > now_ms && *units > 0);
        count.used = steps.values().sum();
        let mut left = count.used;
        for (end, units) in steps {
            count.newest_end_ms = *end;
            // The cost fits when enough of the oldest steps are released.
            if left + charge.cost() > rule.limit() {
                left -= *units;
                count.fits_at_ms = rule.release_ms(*end);
            }
        }
        count
    };
    rules(check).map(count).collect()
}

fn rules(check: &Check) -> impl Iterator<Item = (&Charge, &Rule)> {
    let charges = check.charges().iter();
    charges.flat_map(|charge| repeat(charge).zip(charge.policy().rules()))
}

fn place(charge: &Charge, rule: &Rule) -> (String, Key, String) {
    let time = rule.with_limit(0).to_string();
    (charge.policy().name().into(), charge.key().clone(), time)
}

impl fmt::Debug for MapStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapStore").finish_non_exhaustive()
    }
}

/// A layer around a store, which counts the checks and changes nothing else.
#[derive(Debug)]
pub(crate) struct Counting<S> {
    pub(crate) store: S,
    pub(crate) checks: Arc<AtomicU64>,
}

impl<S: Store> Store for Counting<S> {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.checks.fetch_add(1, Relaxed);
        self.store.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        self.checks.fetch_add(checks(&operation), Relaxed);
        self.store.execute(operation)
    }

    // Forwarded, since the store within may execute operations together.
    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        let checks = operations.iter().map(checks).sum();
        self.checks.fetch_add(checks, Relaxed);
        self.store.call(operations)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }
}

fn checks(operation: &Operation) -> u64 {
    match operation {
        Operation::Check(_) => 1,
        Operation::CheckBatch(batch) => batch.count().into(),
        _ => 0,
    }
}

#[allow(
    dead_code,
    reason = "the tests of the crate use the store and not this"
)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let now_ms = move || u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (store, checks) = (MapStore::new(now_ms), Arc::default());
    let limiter = Limiter::new(Counting {
        store,
        checks: Arc::clone(&checks),
    });
    let policy = Policy::parse("api", "2/1h")?;
    let alice = || [Charge::new(&policy, Key::new("user", "alice"), 1)];
    tokio::runtime::Builder::new_current_thread()
        .build()?
        .block_on(async {
            for _ in 0..3 {
                let is_allowed = limiter.check(alice()).await?.is_allowed();
                println!("{}", if is_allowed { "allowed" } else { "denied" });
            }
            println!("{} checks", checks.load(Relaxed));
            Ok(())
        })
}
