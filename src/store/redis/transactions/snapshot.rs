//! [`Snapshot`]: the values of some keys at one time. Operations on them run in memory.
//!
//! This module knows nothing of Redis. The [engine](crate::store::engine) decides, as in the memory store, and the
//! changes are written afterwards.

use super::{
    layout::{read_block, read_counts, write_block, write_counts},
    plan::Places,
};
use crate::{
    domain::{
        block::{Block, BlockDetails, BlockRequest},
        check::Check,
        decision::{Blocked, Count},
        error::StoreError,
        key::Key,
        rule::Rule,
    },
    store::{
        engine::{Cells, StoreCells},
        entry::Entry,
    },
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

    /// The cells of an operation on the keys at these places.
    pub(super) const fn of<'a>(&'a mut self, places: &'a Places) -> Operated<'a> {
        Operated {
            snapshot: self,
            places,
        }
    }
}

/// The keys of one operation.
pub(super) struct Operated<'a> {
    snapshot: &'a mut Snapshot,
    places: &'a Places,
}

impl Operated<'_> {
    fn counts(&mut self, cell: usize) -> &mut Value<Entry> {
        let Places {
            charges, shadows, ..
        } = self.places;
        let place = charges.get(cell);
        &mut self.snapshot.counts[*place.unwrap_or_else(|| &shadows[cell - charges.len()])]
    }

    fn held_block(&self, place: usize) -> Result<Option<Block>, StoreError> {
        let held = self.snapshot.blocks[place].get()?.as_ref();
        let block = held.map(|(block, _)| *block);
        Ok(block.filter(|block| block.holds(self.snapshot.now_ms)))
    }
}

impl Cells for Operated<'_> {
    fn blocked(&mut self, check: &Check) -> Result<Option<Blocked>, StoreError> {
        let mut keys = check.keys().zip(&self.places.blocks);
        keys.try_fold(None, |latest: Option<Blocked>, (key, place)| {
            let block = self.held_block(*place)?;
            let now_ms = self.snapshot.now_ms;
            let blocked = block.map(|block| Blocked::new(key.clone(), block, now_ms));
            Ok(latest.into_iter().chain(blocked).reduce(Blocked::or_later))
        })
    }

    fn now_ms(&self) -> u64 {
        self.snapshot.now_ms
    }

    fn look<T>(&mut self, cell: usize, read: impl FnOnce(&Entry) -> T) -> Result<T, StoreError> {
        self.counts(cell).get().map(read)
    }

    fn write(
        &mut self,
        cell: usize,
        _rules: impl Iterator<Item = Rule> + Clone,
        counts: &mut [Count],
        change: impl FnOnce(&mut Entry, &mut [Count]),
    ) -> Result<(), StoreError> {
        let entry = self.counts(cell).get_mut()?;
        change(entry, counts);
        Ok(())
    }
}

impl StoreCells for Operated<'_> {
    fn block(&mut self, _key: &Key, request: &BlockRequest) -> Result<Block, StoreError> {
        let (place, now_ms) = (self.places.blocks[0], self.snapshot.now_ms);
        let block = Block::begin(request.until(), request.source(), now_ms);
        let known = self.held_block(place)?;
        if let Some(known) = known.filter(|known| known.or_later(block) == *known) {
            return Ok(known);
        }
        if block.holds(now_ms) {
            let details = request.details().clone().created_at(now_ms);
            self.snapshot.blocks[place].set(Some((block, details)));
        }
        Ok(block)
    }

    fn unblock(&mut self, _key: &Key) {
        let block = &mut self.snapshot.blocks[self.places.blocks[0]];
        if !matches!(block.content, Ok(None)) {
            block.set(None);
        }
    }

    fn forget(&mut self, _policy: &str, _key: &Key) {
        let counts = self.counts(0);
        let is_nothing = |entry: &Entry| entry.sections().is_empty();
        if !counts.content.as_ref().is_ok_and(is_nothing) {
            counts.set(Entry::new());
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
