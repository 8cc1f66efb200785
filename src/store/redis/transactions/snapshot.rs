//! [`Snapshot`]: the values of some keys at one time. Operations on them run in memory.
//!
//! This module knows nothing of Redis. Each operation is decided as in the [`MemoryStore`](crate::MemoryStore), by the
//! same [`Entry`], and the changes are written afterwards.

use super::{
    layout::{read_block, read_counts, write_block, write_counts},
    plan::Places,
};
use crate::{
    domain::{
        block::{Block, BlockDetails, BlockRequest},
        charge::Charge,
        check::Check,
        decision::{BatchOutcome, Blocked, Count, Usage},
        error::StoreError,
        key::Key,
        operation::{Operation, Reply},
        policy::Policy,
        rule::Rule,
        settlement::Settlement,
        slots::{Renewal, Renewed},
    },
    store::entry::{Entry, by_charge},
};

/// The values of some keys.
pub(super) struct Snapshot {
    now_ms: u64,
    blocks: Vec<Value<Option<(Block, BlockDetails)>>>,
    counts: Vec<Value<Entry>>,
}

struct Value<T> {
    content: Result<T, StoreError>,
    is_changed: bool,
}

/// A change to write to a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Set { value: Vec<u8>, expires_ms: u64 },
    Delete,
}

impl Snapshot {
    /// The values of some keys at this time, of which the first `block_count` hold blocks: `None` for no value, or the
    /// reason why a value cannot be used.
    pub(super) fn new(
        now_ms: u64,
        mut blocks: Vec<Result<Option<Vec<u8>>, StoreError>>,
        block_count: usize,
    ) -> Self {
        let counts = blocks.split_off(block_count).into_iter();
        Self {
            now_ms,
            blocks: blocks.into_iter().map(Value::of_block).collect(),
            counts: counts.map(Value::of_counts).collect(),
        }
    }

    /// The changes, and the places of their keys among all.
    pub(super) fn changes(&self) -> impl Iterator<Item = (usize, Change)> {
        let blocks = self.blocks.iter().map(Value::block_change);
        let counts = self.counts.iter().map(Value::counts_change);
        let all = blocks.chain(counts).enumerate();
        all.filter_map(|(place, change)| Some((place, change?)))
    }

    /// Executes one operation on the keys at these places.
    ///
    /// # Errors
    ///
    /// If the operation cannot be done. Then nothing has changed.
    pub(super) fn execute(
        &mut self,
        operation: &Operation,
        places: &Places,
    ) -> Result<Reply, StoreError> {
        match operation {
            Operation::Check(check) => self
                .decide(check, 1, places, |filled, shadows| filled.decision(shadows))
                .map(Reply::Check),
            Operation::CheckBatch { check, count } => self
                .decide(check, *count, places, |filled, shadows| {
                    filled.decisions(shadows)
                })
                .map(Reply::CheckBatch),
            Operation::Settle(settlement) => self.settle(settlement, places).map(Reply::Settle),
            Operation::Renew(renewal) => self.renew(renewal, places).map(Reply::Renew),
            Operation::Reset { .. } => {
                self.forget(places);
                Ok(Reply::Reset)
            }
            Operation::Block { request, .. } => self.block(request, places).map(Reply::Block),
            Operation::Ban {
                key,
                strikes,
                request,
            } => self.ban(key, *strikes, request, places).map(Reply::Ban),
            Operation::Unblock { .. } => {
                self.forget(places);
                Ok(Reply::Unblock)
            }
            other => Err(other.unsupported()),
        }
    }

    /// Decides `count` identical checks, then the shadows of the admitted ones, and passes both results to `answer`.
    fn decide<T>(
        &mut self,
        check: &Check,
        count: u16,
        places: &Places,
        answer: impl FnOnce(BatchOutcome<'_>, Option<BatchOutcome<'_>>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let now_ms = self.now_ms;
        if let Some(blocked) = self.blocked(check, places)? {
            let blocked = BatchOutcome {
                blocked: Some(blocked),
                ..BatchOutcome::new(check, count, 0, now_ms, &[])
            };
            return answer(blocked, None);
        }
        let (admitted, counts) = self.check_batch(check.charges(), &places.charges, count)?;
        let shadows = check.shadow_check();
        let shadows = shadows.as_ref().and_then(|shadows| {
            // An error of the shadows changes nothing else.
            let batch = self.check_batch(shadows.charges(), &places.shadows, admitted);
            batch.ok().map(|batch| (shadows, batch))
        });
        let shadows = shadows.as_ref().map(|(check, (fitting, counts))| {
            BatchOutcome::new(check, admitted, *fitting, now_ms, counts)
        });
        let filled = BatchOutcome::new(check, count, admitted, now_ms, &counts);
        answer(filled, shadows)
    }

    /// The current block that ends last, among those of the check's identities.
    fn blocked(&self, check: &Check, places: &Places) -> Result<Option<Blocked>, StoreError> {
        let mut keys = check.keys().zip(&places.blocks);
        keys.try_fold(None, |latest: Option<Blocked>, (key, place)| {
            let block = self.held_block(*place)?;
            let blocked = block.map(|block| Blocked::new(key.clone(), block, self.now_ms));
            Ok(latest.into_iter().chain(blocked).reduce(Blocked::or_later))
        })
    }

    fn held_block(&self, place: usize) -> Result<Option<Block>, StoreError> {
        let held = self.blocks[place].get()?.as_ref();
        let block = held.map(|(block, _)| *block);
        Ok(block.filter(|block| block.holds(self.now_ms)))
    }

    /// Charges as many of `count` identical checks as fit, and returns their number. The counts are taken after the
    /// charge; if some checks did not fit, the counts show when one more does.
    fn check_batch(
        &mut self,
        charges: &[Charge],
        places: &[usize],
        count: u16,
    ) -> Result<(u16, Vec<Count>), StoreError> {
        let (fitting, mut counts) = self.look(charges, places)?;
        let admitted = fitting.min(count);
        if admitted > 0 {
            self.charge(charges, places, admitted, &mut counts)?;
            if admitted < count {
                counts = self.look(charges, places)?.1;
            }
        }
        Ok((admitted, counts))
    }

    /// How many of the checks fit, and the count under each rule.
    fn look(&self, charges: &[Charge], places: &[usize]) -> Result<(u16, Vec<Count>), StoreError> {
        let (mut fitting, mut counts) = (u16::MAX, Vec::new());
        for (charge, place) in charges.iter().zip(places) {
            let mut own = vec![Count::default(); charge.policy().rules().len()];
            let entry = self.counts[*place].get()?;
            fitting = fitting.min(entry.look(charge, self.now_ms, &mut own));
            counts.append(&mut own);
        }
        Ok((fitting, counts))
    }

    /// Adds each cost `times` times, and updates the counts that this changes. Cannot fail after `look` has succeeded
    /// for these charges.
    fn charge(
        &mut self,
        charges: &[Charge],
        places: &[usize],
        times: u16,
        counts: &mut [Count],
    ) -> Result<(), StoreError> {
        let now_ms = self.now_ms;
        for (charge, place, counts) in by_charge(charges, places, counts) {
            let units = charge.cost() * u64::from(times); // all of them fit a limit
            if units > 0 {
                let (entry, policy) = (self.counts[place].get_mut()?, charge.policy());
                entry.charge(policy, units, now_ms, counts);
            }
        }
        Ok(())
    }

    fn settle(&mut self, settlement: &Settlement, places: &Places) -> Result<Usage, StoreError> {
        let check = settlement.check().without_shadows();
        let (_, mut counts) = self.look(check.charges(), &places.charges)?;
        let now_ms = self.now_ms;
        let charged = settlement.usage().policies().zip(settlement.costs());
        let charges = by_charge(check.charges(), &places.charges, &mut counts);
        for ((charge, place, counts), (usage, cost)) in charges.zip(charged) {
            let difference = cost.cast_signed() - charge.cost().cast_signed();
            if self.counts[place]
                .get()?
                .would_settle(usage, now_ms, difference)
            {
                let entry = self.counts[place].get_mut()?;
                entry.settle(usage, now_ms, difference, counts);
            }
        }
        Usage::settled(&check, now_ms, &counts)
    }

    fn renew(&mut self, renewal: &Renewal, places: &Places) -> Result<Renewed, StoreError> {
        let (check, usage, now_ms) = (renewal.check(), renewal.usage(), self.now_ms);
        let (_, mut counts) = self.look(check.charges(), &places.charges)?;
        let mut is_renewed = true;
        let slots = check.charges().iter().zip(&places.charges);
        for ((charge, place), usage) in slots.zip(usage.policies()) {
            is_renewed &= self.counts[*place].get()?.has(usage, now_ms, charge.cost());
        }
        if is_renewed {
            let charges = by_charge(check.charges(), &places.charges, &mut counts);
            for ((charge, place, counts), usage) in charges.zip(usage.policies()) {
                let entry = self.counts[place].get_mut()?;
                entry.renew(usage, now_ms, charge.cost(), counts);
            }
        }
        renewal.reply(is_renewed, now_ms, &counts)
    }

    /// Adds a block, unless a current one ends later. Returns the block that applies.
    fn block(&mut self, request: &BlockRequest, places: &Places) -> Result<Block, StoreError> {
        let (place, now_ms) = (places.blocks[0], self.now_ms);
        let block = Block::begin(request.until(), request.source(), now_ms);
        let known = self.held_block(place)?;
        if let Some(known) = known.filter(|known| known.or_later(block) == *known) {
            return Ok(known);
        }
        if block.holds(now_ms) {
            let details = request.details().clone().created_at(now_ms);
            self.blocks[place].set(Some((block, details)));
        }
        Ok(block)
    }

    fn ban(
        &mut self,
        key: &Key,
        strikes: Rule,
        request: &BlockRequest,
        places: &Places,
    ) -> Result<Option<Block>, StoreError> {
        let look = Charge::new(&Policy::of_strikes(strikes), key.clone(), 0);
        let (_, counts) = self.look(&[look], &places.charges)?;
        if counts[0].used < strikes.limit() {
            return Ok(None);
        }
        let block = self.block(request, places)?;
        self.forget_counts(places);
        Ok(Some(block))
    }

    /// Removes the values of these keys, whatever they hold.
    fn forget(&mut self, places: &Places) {
        self.forget_counts(places);
        for place in &places.blocks {
            let block = &mut self.blocks[*place];
            if !matches!(block.content, Ok(None)) {
                block.set(None);
            }
        }
    }

    fn forget_counts(&mut self, places: &Places) {
        for place in &places.charges {
            let counts = &mut self.counts[*place];
            let is_nothing = |entry: &Entry| entry.sections().is_empty();
            if !counts.content.as_ref().is_ok_and(is_nothing) {
                counts.set(Entry::new());
            }
        }
    }
}

impl<T> Value<T> {
    const fn unchanged(content: Result<T, StoreError>) -> Self {
        Self {
            content,
            is_changed: false,
        }
    }

    fn get(&self) -> Result<&T, StoreError> {
        self.content.as_ref().map_err(Clone::clone)
    }

    /// The content, marked as changed.
    fn get_mut(&mut self) -> Result<&mut T, StoreError> {
        self.is_changed |= self.content.is_ok();
        self.content.as_mut().map_err(|error| error.clone())
    }

    fn set(&mut self, content: T) {
        self.content = Ok(content);
        self.is_changed = true;
    }
}

impl Value<Option<(Block, BlockDetails)>> {
    fn of_block(stored: Result<Option<Vec<u8>>, StoreError>) -> Self {
        let block = |value: Option<Vec<u8>>| value.as_deref().map(read_block).transpose();
        Self::unchanged(stored.and_then(block))
    }

    fn block_change(&self) -> Option<Change> {
        self.is_changed.then(|| match &self.content {
            Ok(Some((block, details))) => Change::Set {
                value: write_block(*block, details),
                expires_ms: block.stored_until_ms(),
            },
            _ => Change::Delete,
        })
    }
}

impl Value<Entry> {
    fn of_counts(stored: Result<Option<Vec<u8>>, StoreError>) -> Self {
        let counts = |value: Option<Vec<u8>>| value.as_deref().map(read_counts).transpose();
        let counts = stored.and_then(counts);
        Self::unchanged(counts.map(|entry| entry.unwrap_or_else(Entry::new)))
    }

    fn counts_change(&self) -> Option<Change> {
        self.is_changed.then(|| match &self.content {
            Ok(entry) if entry.release_ms() > 0 => Change::Set {
                value: write_counts(entry),
                expires_ms: entry.release_ms(),
            },
            _ => Change::Delete,
        })
    }
}
