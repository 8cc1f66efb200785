//! A store from scratch: every step of every rule is kept in a map and added up at each check.
//!
//!     cargo run --example own_store
//!     # allowed
//!     # allowed
//!     # denied
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add tokio -F tokio/full
//!     cargo add --path ../sluicegate

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use sluicegate::{
    Charge, Decision, Key, Limiter, Policy, Rule, Store, StoreError, Usage,
    error::StoreErrorKind,
    store::{Check, Count, Settlement, StoreFuture},
};

/// The key of one count: the policy's name, the limited key, and how the rule counts time. The limit is not part of it,
/// and may change.
type Place = (String, Key, String);

/// The units of each step, by the end of the step in ms.
type Steps = BTreeMap<u64, u64>;

pub(crate) struct MapStore {
    counts: Mutex<HashMap<Place, Steps>>,
    now_ms: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl MapStore {
    /// With a clock that returns the ms since the Unix epoch and never steps back.
    pub(crate) fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self {
            counts: Mutex::default(),
            now_ms: Box::new(now_ms),
        }
    }
}

impl fmt::Debug for MapStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapStore").finish_non_exhaustive()
    }
}

impl Store for MapStore {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        // One lock around everything makes a check all or nothing.
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ms = (self.now_ms)();
        let decision = decide(&mut counts, check, now_ms).and_then(|decision| {
            // Shadows are decided after the others, and only if those were admitted.
            match check.shadow_check() {
                Some(shadows) if decision.is_allowed() => {
                    Ok(decision.with_shadow(decide(&mut counts, &shadows, now_ms)?))
                }
                _ => Ok(decision),
            }
        });
        StoreFuture::ready(decision)
    }

    fn settle(&self, settlement: &Settlement) -> StoreFuture<Usage> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ms = (self.now_ms)();
        let check = settlement.check();
        let costs = check.charges().iter().zip(settlement.costs());
        for ((charge, cost), usage) in costs.zip(settlement.usage().policies()) {
            for rule in usage.rules() {
                // The difference goes to the step that was charged, if that step still counts.
                let step_end = rule.step_end_ms();
                if rule.rule().release_ms(step_end) > now_ms {
                    let steps = counts.entry(place(charge, &rule.rule())).or_default();
                    let units = steps.entry(step_end).or_default();
                    *units = (*units + cost).saturating_sub(charge.cost());
                }
            }
        }
        StoreFuture::ready(Usage::settled(
            check,
            now_ms,
            &count(&counts, check, now_ms),
        ))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> StoreFuture<()> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.retain(|(of, whose, _), _| of != policy.name() || whose != key);
        StoreFuture::ready(Ok(()))
    }
}

const NO_BUCKETS: StoreError =
    StoreError::new(StoreErrorKind::InvalidRequest, "the store has no buckets");

/// Charges every rule of every charge, or nothing.
fn decide(
    counts: &mut HashMap<Place, Steps>,
    check: &Check,
    now_ms: u64,
) -> Result<Decision, StoreError> {
    if rules(check).any(|(_, rule)| rule.refill().is_some()) {
        return Err(NO_BUCKETS);
    }
    let before = count(counts, check, now_ms);
    let mut places = rules(check).zip(&before);
    if places.any(|((charge, rule), count)| count.used + charge.cost() > rule.limit()) {
        return Decision::new(check, false, now_ms, &before);
    }
    for (charge, rule) in rules(check) {
        let steps = counts.entry(place(charge, rule)).or_default();
        steps.retain(|step_end, _| rule.release_ms(*step_end) > now_ms);
        *steps.entry(rule.step_end_ms(now_ms)).or_default() += charge.cost();
    }
    Decision::new(check, true, now_ms, &count(counts, check, now_ms))
}

/// A count for each rule of each charge, in their order.
fn count(counts: &HashMap<Place, Steps>, check: &Check, now_ms: u64) -> Vec<Count> {
    let count = |(charge, rule): (&Charge, &Rule)| {
        let steps = counts.get(&place(charge, rule)).into_iter().flatten();
        let live = steps.filter(|(end, units)| rule.release_ms(**end) > now_ms && **units > 0);
        let mut count = Count::default();
        for (end, units) in live.clone() {
            count.used += units;
            count.newest_end_ms = *end;
        }
        // The wait until enough of the oldest steps are released for the cost to fit.
        let mut left = count.used;
        for (end, units) in live {
            if left + charge.cost() > rule.limit() {
                left -= units;
                count.fits_at_ms = rule.release_ms(*end);
            }
        }
        count
    };
    rules(check).map(count).collect()
}

fn rules(check: &Check) -> impl Iterator<Item = (&Charge, &Rule)> {
    let charges = check.charges().iter();
    charges.flat_map(|charge| {
        charge
            .policy()
            .rules()
            .iter()
            .map(move |rule| (charge, rule))
    })
}

fn place(charge: &Charge, rule: &Rule) -> Place {
    let time = format!("{:?} {:?} {}", rule.window(), rule.step(), rule.is_fixed());
    (
        charge.policy().name().to_owned(),
        charge.key().clone(),
        time,
    )
}

#[allow(
    dead_code,
    reason = "the tests of the crate use the store and not this"
)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let now_ms = move || u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    let limiter = Limiter::new(MapStore::new(now_ms));
    let policy = Policy::parse("api", "2/1h")?;
    let alice = || [Charge::new(&policy, Key::new("user", "alice"), 1)];
    tokio::runtime::Builder::new_current_thread()
        .build()?
        .block_on(async {
            for _ in 0..3 {
                let is_allowed = limiter.check(alice()).await?.is_allowed();
                println!("{}", if is_allowed { "allowed" } else { "denied" });
            }
            Ok(())
        })
}
