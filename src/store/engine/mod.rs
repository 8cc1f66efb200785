//! A store of your own with every kind of rule: buckets, slots, calendars, blocks, bans, shadows and batches.
//!
//! You write the three methods of [`Values`] over something that keeps bytes by name and has transactions. An [`Engine`]
//! then executes each [`Operation`] on them, exactly as the other stores do. `examples/sqlite` is such a store for the
//! processes of one machine, with counts that survive a restart. This one keeps its values in a map:
//!
//! ```
//! use std::{collections::HashMap, sync::Mutex};
//!
//! use sluicegate::{
//!     Charge, Decision, Key, Limiter, Policy, Store, StoreError,
//!     store::{Check, Operation, Reply, StoreFuture, engine::{Engine, Values}},
//! };
//!
//! #[derive(Debug)]
//! struct Map {
//!     engine: Engine,
//!     values: Mutex<HashMap<String, Vec<u8>>>,
//! }
//!
//! struct Locked<'a> {
//!     now_ms: u64,
//!     values: &'a mut HashMap<String, Vec<u8>>,
//! }
//!
//! impl Values for Locked<'_> {
//!     fn now_ms(&self) -> u64 {
//!         self.now_ms
//!     }
//!
//!     fn read(&mut self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
//!         Ok(self.values.get(name).cloned())
//!     }
//!
//!     fn write(&mut self, name: &str, value: &[u8], _expires_ms: u64) -> Result<(), StoreError> {
//!         self.values.insert(name.to_owned(), value.to_owned());
//!         Ok(())
//!     }
//! }
//!
//! impl Store for Map {
//!     fn check(&self, check: &Check) -> StoreFuture<Decision> {
//!         StoreFuture::ready(self.run(&Operation::Check(check.clone())).and_then(|reply| match reply {
//!             Reply::Check(decision) => Ok(decision),
//!             _ => Err(Operation::Check(check.clone()).unsupported()),
//!         }))
//!     }
//!
//!     fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
//!         StoreFuture::ready(self.run(&operation))
//!     }
//! }
//!
//! impl Map {
//!     fn run(&self, operation: &Operation) -> Result<Reply, StoreError> {
//!         let mut values = self.values.lock().unwrap();
//!         let now_ms = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
//!         self.engine.execute(operation, &mut Locked { now_ms, values: &mut values })
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let limiter = Limiter::new(Map { engine: Engine::new([7; 16]), values: Mutex::default() });
//! let policy = Policy::parse("pace", "1+1/1h@bucket")?;
//! let alice = || [Charge::new(&policy, Key::new("user", "alice"), 1)];
//! assert!(limiter.check(alice()).await?.is_allowed());
//! assert!(!limiter.check(alice()).await?.is_allowed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! # Ok::<(), std::io::Error>(())
//! ```

// The operations, each written once, over `Cells`: the memory store, the transactions over Redis, the operators' tool and
// `Values` are cells. The arithmetic is that of `Entry`.

use std::slice;

use smallvec::{SmallVec, smallvec};

use crate::{
    domain::{
        block::{Block, BlockRequest},
        charge::Charge,
        check::{Check, CheckBatch},
        decision::{BatchOutcome, Blocked, Count, Decision, RuleUsage, Usage},
        error::StoreError,
        key::Key,
        operation::{Operation, Reply},
        policy::Policy,
        rule::Rule,
        settlement::Settlement,
        slot_id::SlotId,
        slots::{HeldSlots, Slots},
        window::SlotSet,
    },
    store::entry::Entry,
};

mod kept;
mod places;
mod stored;
mod values;

#[cfg(feature = "bb8")]
pub(super) use self::kept::{Kept, Naming, Stored, names_of};
pub use self::values::{Engine, Values};
#[cfg(feature = "redis")]
pub(super) use self::{
    places::Places,
    stored::{Counts, FORM},
};

/// A count for each rule. Most checks fit on the stack.
type RuleCounts = SmallVec<[Count; 4]>;

/// The counts that an operation reads and writes: a cell for each of its charges, numbered from 0.
///
/// An operation looks at all of its cells before it writes to the first. So it fails before it has changed anything.
pub(super) trait Cells {
    /// The latest block of an identity that the check charges.
    fn blocked(&mut self, _check: &Check) -> Result<Option<Blocked>, StoreError> {
        Ok(None)
    }

    /// Finds the cells of these charges. Until the end, no other operation changes them.
    fn begin(&mut self, _charges: &[Charge]) {}

    /// The store's time, in ms, from the beginning on.
    fn now_ms(&self) -> u64;

    fn look<T>(&mut self, cell: usize, read: impl FnOnce(&Entry) -> T) -> Result<T, StoreError>;

    /// Makes room for each of these cells, or for none.
    fn reserve(&mut self, _cells: impl Iterator<Item = usize> + Clone) -> Result<(), StoreError> {
        Ok(())
    }

    /// Changes a cell that has room. `counts` are those of `rules`, and the change replaces them.
    fn write(
        &mut self,
        cell: usize,
        rules: impl Iterator<Item = Rule> + Clone,
        counts: &mut [Count],
        change: impl FnOnce(&mut Entry, &mut [Count]),
    ) -> Result<(), StoreError>;

    /// Lets other operations change the cells.
    fn end(&mut self) {}
}

/// Cells of a store, which also keeps blocks.
pub(super) trait StoreCells: Cells {
    /// Adds a block, unless the identity has one that ends later. Returns the block that is in force, and whether it is
    /// new.
    fn block(&mut self, key: &Key, request: &BlockRequest) -> Result<(Block, bool), StoreError>;

    fn unblock(&mut self, key: &Key);

    /// Forgets the counts of a key under this policy, whatever the rules, or its slots of this expiry.
    fn forget(&mut self, policy: &Policy, key: &Key);
}

pub(super) fn check(check: &Check, cells: &mut impl Cells) -> Result<Decision, StoreError> {
    decide(Checks(check, None), cells, |filled, shadows| {
        filled.decision(shadows)
    })
}

/// Executes an operation about keys.
///
/// # Errors
///
/// If the operation cannot be done. Then nothing has changed.
pub(super) fn execute(
    operation: &Operation,
    cells: &mut impl StoreCells,
) -> Result<Reply, StoreError> {
    match operation {
        Operation::Check(check) => self::check(check, cells).map(Reply::Check),
        Operation::CheckBatch(batch) => {
            let checks = Checks(batch.check(), Some(batch));
            let decisions = decide(checks, cells, |filled, shadows| {
                filled.decisions(batch, shadows)
            });
            decisions.map(Reply::CheckBatch)
        }
        Operation::Settle(settlement) => settle(settlement, cells).map(Reply::Settle),
        Operation::Renew(slots) => {
            let renew = |set: &mut SlotSet, now_ms, id| set.renew(now_ms, id);
            change_slots(slots, cells, renew).map(Reply::Renew)
        }
        Operation::Return(slots) => {
            let give_back = |set: &mut SlotSet, _, id| set.forget(id);
            change_slots(slots, cells, give_back).map(Reply::Return)
        }
        Operation::Reset { policy, key } => {
            cells.forget(policy, key);
            Ok(Reply::Reset)
        }
        Operation::Block { key, request } => {
            let (block, _) = cells.block(key, request)?;
            Ok(Reply::Block(block))
        }
        Operation::Ban {
            key,
            strikes,
            request,
        } => ban(key, *strikes, request, cells).map(Reply::Ban),
        Operation::Unblock { key } => {
            cells.unblock(key);
            cells.forget(&Policy::of_strikes(Rule::per_minute(1)), key);
            Ok(Reply::Unblock)
        }
        other => Err(other.unsupported()),
    }
}

/// Identical checks, each with slots of its own: the first, and the batch if there are several.
#[derive(Clone, Copy)]
struct Checks<'a>(&'a Check, Option<&'a CheckBatch>);

impl<'a> Checks<'a> {
    fn count(self) -> u16 {
        self.1.map_or(1, CheckBatch::count)
    }

    /// The charge of this cell in each check.
    fn charges(self, cell: usize) -> impl Iterator<Item = &'a Charge> {
        let nth = move |place| self.1.map_or(self.0, |batch| batch.nth(place));
        (0..self.count()).map(move |place| &nth(place).all_charges()[cell])
    }
}

/// Decides identical checks, then the shadows of the admitted ones, and passes both results to `answer`.
fn decide<T>(
    checks: Checks<'_>,
    cells: &mut impl Cells,
    answer: impl FnOnce(BatchOutcome<'_>, Option<BatchOutcome<'_>>) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let (check, count) = (checks.0, checks.count());
    if check.enforces_blocks()
        && let Some(blocked) = cells.blocked(check)?
    {
        let now_ms = blocked.decided_at_ms();
        let filled = BatchOutcome {
            blocked: Some(blocked),
            ..BatchOutcome::new(check, count, 0, now_ms, &[])
        };
        return answer(filled, None);
    }
    let shadows = check.shadow_check();
    let mut counts = counts(check.all_charges());
    let (counts, shadow_counts) = counts.split_at_mut(check.rule_count());
    let (admitted, shadow_admitted) = within(cells, check.all_charges(), |cells| {
        let admitted = Part::new(0, check.charges(), counts).fill(cells, checks, count)?;
        let first = check.charges().len();
        let mut shadows = Part::new(first, check.shadow_charges(), shadow_counts);
        // An error of the shadows changes nothing else.
        Ok((admitted, shadows.fill(cells, checks, admitted).ok()))
    })?;
    let now_ms = cells.now_ms();
    let filled = BatchOutcome::new(check, count, admitted, now_ms, counts);
    let shadows = shadows.as_ref().zip(shadow_admitted);
    let shadows = shadows.map(|(check, shadow_admitted)| {
        BatchOutcome::new(check, admitted, shadow_admitted, now_ms, shadow_counts)
    });
    answer(filled, shadows)
}

/// Charges of an operation, with a count for each of their rules: the cell of the first charge is `first`.
struct Part<'a> {
    first: usize,
    charges: &'a [Charge],
    counts: &'a mut [Count],
}

impl<'a> Part<'a> {
    const fn new(first: usize, charges: &'a [Charge], counts: &'a mut [Count]) -> Self {
        Self {
            first,
            charges,
            counts,
        }
    }

    /// Each charge with its cell and the counts of its rules.
    fn each(&mut self) -> impl Iterator<Item = (usize, &'a Charge, &mut [Count])> {
        let mut counts = &mut *self.counts;
        self.charges
            .iter()
            .zip(self.first..)
            .map(move |(charge, cell)| {
                let rules = charge.policy().rules().len();
                let own;
                (own, counts) = std::mem::take(&mut counts).split_at_mut(rules);
                (cell, charge, own)
            })
    }

    /// Charges as many of `count` identical checks as fit, and returns how many. The counts are then those after the
    /// charge. If some checks did not fit, the counts also say when one more fits.
    fn fill(
        &mut self,
        cells: &mut impl Cells,
        checks: Checks<'_>,
        count: u16,
    ) -> Result<u16, StoreError> {
        if self.charges.is_empty() {
            return Ok(count);
        }
        let admitted = self.look(cells, checks)?.min(count);
        if admitted > 0 {
            // A charge without cost changes no counts, so its cell needs no room.
            let charged = self.charges.iter().zip(self.first..);
            let charged = charged.filter(|(charge, _)| charge.cost() > 0);
            cells.reserve(charged.map(|(_, cell)| cell))?;
            self.charge(cells, checks, admitted)?;
            if admitted < count {
                // A charge returns no time at which more fits, so look for it.
                self.look(cells, checks)?;
            }
        }
        Ok(admitted)
    }

    /// RuleCounts under each rule. Returns how many times the costs fit.
    fn look(&mut self, cells: &mut impl Cells, checks: Checks<'_>) -> Result<u16, StoreError> {
        let (mut fitting, now_ms) = (u16::MAX, cells.now_ms());
        for (cell, charge, counts) in self.each() {
            let fits = cells.look(cell, |entry| {
                let fits = entry.look(charge, now_ms, counts);
                match charge.takes_slots() {
                    true => entry.fitting_slots(checks.charges(cell), now_ms),
                    false => fits,
                }
            })?;
            fitting = fitting.min(fits);
        }
        Ok(fitting)
    }

    /// Adds each cost `times` times, and replaces the counts that this changes.
    fn charge(
        &mut self,
        cells: &mut impl Cells,
        checks: Checks<'_>,
        times: u16,
    ) -> Result<(), StoreError> {
        let now_ms = cells.now_ms();
        for (cell, charge, counts) in self.each() {
            let units = charge.cost() * u64::from(times); // all of them fit a limit
            if units > 0 {
                let policy = charge.policy();
                let rules = policy.rules().iter().copied();
                cells.write(cell, rules, counts, |entry, counts| {
                    if !charge.takes_slots() {
                        return entry.charge(policy, units, now_ms, counts);
                    }
                    for charge in checks.charges(cell).take(times.into()) {
                        let take = |set: &mut SlotSet| set.take(now_ms, charge.slots());
                        entry.change_slots(policy, now_ms, counts, take);
                    }
                })?;
            }
        }
        Ok(())
    }
}

fn settle(settlement: &Settlement, cells: &mut impl Cells) -> Result<Usage, StoreError> {
    let check = settlement.check();
    let mut counts = counts(check.charges());
    let mut part = Part::new(0, check.charges(), &mut counts);
    let usages = || settlement.usage().policies().zip(settlement.costs());
    let difference = |charge: &Charge, cost: &u64| cost.cast_signed() - charge.cost().cast_signed();
    within(cells, check.charges(), |cells| {
        let now_ms = cells.now_ms();
        // A cell needs room only if its counts change. Reserve all of them before the first change: all or nothing.
        let mut changed = SmallVec::<[bool; 8]>::new();
        for ((cell, charge, counts), (usage, cost)) in part.each().zip(usages()) {
            changed.push(cells.look(cell, |entry| {
                let changes =
                    entry.would_settle(settlement, usage, now_ms, difference(charge, cost));
                if !changes {
                    entry.look(charge, now_ms, counts);
                }
                changes
            })?);
        }
        cells.reserve((0..changed.len()).filter(|cell| changed[*cell]))?;
        let all = part.each().zip(usages());
        for ((cell, charge, counts), (usage, cost)) in all.filter(|it| changed[it.0.0]) {
            let rules = usage.rules().iter().map(RuleUsage::rule);
            cells.write(cell, rules, counts, |entry, counts| {
                entry.settle(settlement, usage, now_ms, difference(charge, cost), counts);
            })?;
        }
        Ok(())
    })?;
    Usage::settled(check, cells.now_ms(), &counts)
}

/// Changes slots, if any of these is held.
fn change_slots(
    slots: &Slots,
    cells: &mut impl Cells,
    change: impl Fn(&mut SlotSet, u64, SlotId),
) -> Result<HeldSlots, StoreError> {
    let (charge, mut counts) = (slots.charge(), counts(slots.check().charges()));
    let held = within(cells, slots.check().charges(), |cells| {
        let now_ms = cells.now_ms();
        let held = cells.look(0, |entry| {
            entry.look(charge, now_ms, &mut counts);
            entry.holds(charge.policy(), slots.ids(), now_ms)
        })?;
        if held.contains(&true) {
            let policy = charge.policy();
            let rules = policy.rules().iter().copied();
            cells.write(0, rules, &mut counts, |entry, counts| {
                entry.change_slots(policy, now_ms, counts, |set| {
                    slots.ids().iter().for_each(|id| change(set, now_ms, *id));
                });
            })?;
        }
        Ok(held)
    })?;
    slots.reply(held, cells.now_ms(), &counts)
}

fn ban(
    key: &Key,
    strikes: Rule,
    request: &BlockRequest,
    cells: &mut impl StoreCells,
) -> Result<Option<Block>, StoreError> {
    let policy = Policy::of_strikes(strikes);
    let charge = Charge::new(&policy, key.clone(), 0);
    let (charge, mut counts) = (slice::from_ref(&charge), [Count::default()]);
    let mut part = Part::new(0, charge, &mut counts);
    let look = Check::counting(charge.iter().cloned());
    within(cells, charge, |cells| part.look(cells, Checks(&look, None)))?;
    if counts[0].used < strikes.limit() {
        return Ok(None);
    }
    let (block, is_new) = cells.block(key, request)?;
    if !request.keeps_strikes {
        cells.forget(&policy, key);
    }
    Ok(is_new.then_some(block))
}

/// Does some work on the cells of these charges. Cells can hold locks until the end, so answers, which allocate, are
/// built afterwards.
fn within<C: Cells, T>(
    cells: &mut C,
    charges: &[Charge],
    work: impl FnOnce(&mut C) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    cells.begin(charges);
    let done = work(cells);
    cells.end();
    done
}

/// A count for each rule.
fn counts(charges: &[Charge]) -> RuleCounts {
    let rules = charges.iter().map(|charge| charge.policy().rules().len());
    smallvec![Count::default(); rules.sum()]
}
