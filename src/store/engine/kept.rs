//! [`Kept`]: the values that operations read by their names, and what they change.

use std::collections::{BTreeMap, BTreeSet, btree_map};

use super::{Cells, StoreCells, stored::Counts};
use crate::{
    domain::{
        block::{Block, BlockRequest, HeldBlock},
        charge::Charge,
        check::Check,
        decision::{Blocked, Count},
        error::StoreError,
        key::Key,
        operation::Operation,
        policy::Policy,
        rule::Rule,
    },
    store::entry::Entry,
};

/// Names the values of a store.
pub(in crate::store) trait Naming {
    type Name: Clone + Ord;

    fn of_block(&self, key: &Key) -> Self::Name;

    /// The name of the counts, or the slots, of a charge.
    fn of_charge(&self, policy: &Policy, key: &Key) -> Self::Name;
}

/// The names of the values that some operations use, each once, in their order.
pub(in crate::store) fn names_of<N: Naming>(naming: &N, operations: &[Operation]) -> Vec<N::Name> {
    let mut all = BTreeSet::new();
    for operation in operations {
        if let Some(check) = operation.check() {
            // A check that enforces no blocks reads and locks no value for them.
            let blocks = check.keys().filter(|_| check.enforces_blocks());
            all.extend(blocks.map(|key| naming.of_block(key)));
            let charges = check.all_charges().iter();
            all.extend(charges.map(|it| naming.of_charge(it.policy(), it.key())));
        }
        if let Operation::Reset { policy, key } = operation {
            all.insert(naming.of_charge(policy, key));
        } else if let Some(key) = operation.key() {
            let strikes = Policy::of_strikes(Rule::per_minute(1));
            all.extend([naming.of_block(key), naming.of_charge(&strikes, key)]);
        }
    }
    all.into_iter().collect()
}

/// A value: a block, or counts or slots.
pub(in crate::store) struct Stored {
    pub(in crate::store) block: Option<HeldBlock>,
    pub(in crate::store) counts: Counts,
    /// A changed value is written once, however many operations change it.
    pub(in crate::store) is_changed: bool,
}

impl Stored {
    pub(in crate::store) const fn of(counts: Counts) -> Self {
        Self {
            block: None,
            counts,
            is_changed: false,
        }
    }

    pub(in crate::store) const fn of_block(block: HeldBlock) -> Self {
        Self {
            block: Some(block),
            counts: Counts::nothing(),
            is_changed: false,
        }
    }

    /// Reads counts; `None` for bytes that this crate has not written. As for the script, an empty value is none, and
    /// nothing counts any more when the value expires.
    pub(in crate::store) fn of_bytes(value: &[u8], now_ms: u64) -> Option<Self> {
        let counts = match value {
            [] => Counts::nothing(),
            value => Counts::read(value)?,
        };
        let counts = (counts.expires_ms > now_ms).then_some(counts);
        Some(Self::of(counts.unwrap_or_else(Counts::nothing)))
    }
}

/// The values of a store at one time: each is read once, or the reason kept why it cannot be used.
pub(in crate::store) struct Kept<'a, N: Naming, R> {
    naming: &'a N,
    now_ms: u64,
    stored: BTreeMap<N::Name, Result<Stored, StoreError>>,
    read: R,
    /// The names of the cells of the operation under way.
    cells: Vec<N::Name>,
}

impl<'a, N: Naming, R> Kept<'a, N, R>
where
    R: FnMut(&N::Name) -> Result<Stored, StoreError>,
{
    pub(in crate::store) const fn new(naming: &'a N, now_ms: u64, read: R) -> Self {
        Self {
            naming,
            now_ms,
            stored: BTreeMap::new(),
            read,
            cells: Vec::new(),
        }
    }

    /// The values that were changed.
    pub(in crate::store) fn into_changes(self) -> impl Iterator<Item = (N::Name, Stored)> {
        let stored = self.stored.into_iter();
        let stored = stored.filter_map(|(name, stored)| Some((name, stored.ok()?)));
        stored.filter(|(_, stored)| stored.is_changed)
    }

    fn at(&mut self, name: N::Name) -> Result<&mut Stored, StoreError> {
        let stored = match self.stored.entry(name) {
            btree_map::Entry::Occupied(stored) => stored.into_mut(),
            btree_map::Entry::Vacant(place) => {
                let stored = (self.read)(place.key());
                place.insert(stored)
            }
        };
        stored.as_mut().map_err(|error| error.clone())
    }

    fn block_of(&mut self, key: &Key) -> Result<&mut Stored, StoreError> {
        self.at(self.naming.of_block(key))
    }

    fn forget_value(&mut self, name: N::Name) {
        let mut stored = Stored::of(Counts::nothing());
        stored.is_changed = true;
        self.stored.insert(name, Ok(stored));
    }
}

impl<N: Naming, R> Cells for Kept<'_, N, R>
where
    R: FnMut(&N::Name) -> Result<Stored, StoreError>,
{
    fn blocked(&mut self, check: &Check) -> Result<Option<Blocked>, StoreError> {
        let now_ms = self.now_ms;
        check.keys().try_fold(None, |latest: Option<Blocked>, key| {
            let block = self.block_of(key)?.block.as_ref().map(|held| held.block);
            let block = block.filter(|block| block.holds(now_ms));
            let blocked = block.map(|block| Blocked::new(key.clone(), block, now_ms));
            Ok(latest.into_iter().chain(blocked).reduce(Blocked::or_later))
        })
    }

    fn begin(&mut self, charges: &[Charge]) {
        let names = charges.iter();
        let names = names.map(|it| self.naming.of_charge(it.policy(), it.key()));
        self.cells = names.collect();
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn look<T>(&mut self, cell: usize, read: impl FnOnce(&Entry) -> T) -> Result<T, StoreError> {
        Ok(read(&self.at(self.cells[cell].clone())?.counts.entry))
    }

    fn write(
        &mut self,
        cell: usize,
        _rules: impl Iterator<Item = Rule> + Clone,
        counts: &mut [Count],
        change: impl FnOnce(&mut Entry, &mut [Count]),
    ) -> Result<(), StoreError> {
        let stored = self.at(self.cells[cell].clone())?;
        change(&mut stored.counts.entry, counts);
        stored.is_changed = true;
        Ok(())
    }
}

impl<N: Naming, R> StoreCells for Kept<'_, N, R>
where
    R: FnMut(&N::Name) -> Result<Stored, StoreError>,
{
    fn block(&mut self, key: &Key, request: &BlockRequest) -> Result<(Block, bool), StoreError> {
        let now_ms = self.now_ms;
        let stored = self.block_of(key)?;
        let (block, held) = HeldBlock::request(stored.block.as_ref(), request, now_ms);
        let is_new = held.is_some();
        if let Some(held) = held {
            stored.block = Some(held);
            stored.is_changed = true;
        }
        Ok((block, is_new))
    }

    fn unblock(&mut self, key: &Key) {
        self.forget_value(self.naming.of_block(key));
    }

    fn forget(&mut self, policy: &Policy, key: &Key) {
        self.forget_value(self.naming.of_charge(policy, key));
    }
}
