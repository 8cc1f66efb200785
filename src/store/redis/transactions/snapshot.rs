//! [`Snapshot`]: the values of some keys at one time. The [engine](crate::store::engine) decides on them in memory, and
//! the changes are written afterwards.

use std::collections::{BTreeSet, HashMap};

use crate::{
    domain::{
        block::{BLOCKS, Block, BlockDetails, BlockRequest, STRIKES},
        charge::Charge,
        check::Check,
        decision::{Blocked, Count},
        error::StoreError,
        key::Key,
        rule::Rule,
    },
    store::{
        Operation,
        engine::{Cells, StoreCells},
        entry::Entry,
        redis::{
            error::UNREADABLE,
            key_names::Names,
            value::{Counts, read_block, write_block},
        },
    },
};

/// The values of some keys, by name.
pub(super) struct Snapshot<'a> {
    names: &'a Names,
    now_ms: u64,
    blocks: HashMap<Vec<u8>, Value<Option<(Block, BlockDetails)>>>,
    counts: HashMap<Vec<u8>, Value<Counts>>,
    /// The names of the cells of the operation under way.
    cells: Vec<Vec<u8>>,
}

struct Value<T> {
    content: Result<T, StoreError>,
    is_changed: bool,
    /// The rules of the last change.
    rules: Vec<Rule>,
}

/// A change to write to a key.
pub(super) enum Change {
    Set { value: Vec<u8>, expires_ms: u64 },
    Delete,
}

/// The names of the keys that some operations use, each once.
pub(super) fn names_of<'a>(
    names: &Names,
    operations: impl Iterator<Item = &'a Operation>,
) -> Vec<Vec<u8>> {
    let mut all = BTreeSet::new();
    let mut add = |policy: &str, key: &Key| {
        all.insert(names.name(policy, key));
    };
    for operation in operations {
        let charges = match operation {
            Operation::Check(check) | Operation::CheckBatch { check, .. } => {
                // A check that enforces no blocks reads and watches no key for them.
                if check.enforces_blocks() {
                    check.keys().for_each(|key| add(BLOCKS, key));
                }
                check.all_charges()
            }
            Operation::Reset { policy, key } => {
                add(policy.name(), key);
                &[]
            }
            Operation::Block { key, .. } => {
                add(BLOCKS, key);
                &[]
            }
            Operation::Ban { key, .. } | Operation::Unblock { key } => {
                add(BLOCKS, key);
                add(STRIKES, key);
                &[]
            }
            // A settlement or a renewal.
            other => other.check().map_or(&[][..], Check::charges),
        };
        for charge in charges {
            add(charge.policy().name(), charge.key());
        }
    }
    all.into_iter().collect()
}

impl<'a> Snapshot<'a> {
    /// The values of keys of these names at this time: `None` for no value, or the reason why a value cannot be used.
    pub(super) fn new(
        names: &'a Names,
        now_ms: u64,
        values: impl Iterator<Item = (Vec<u8>, Result<Option<Vec<u8>>, StoreError>)>,
    ) -> Self {
        let (mut blocks, mut counts) = (HashMap::new(), HashMap::new());
        let of_block = ["}:", BLOCKS].concat();
        for (name, value) in values {
            if name.ends_with(of_block.as_bytes()) {
                blocks.insert(name, Value::new(value.and_then(block)));
            } else {
                let value = value.and_then(|value| counts_at(now_ms, value));
                counts.insert(name, Value::new(value));
            }
        }
        Self {
            names,
            now_ms,
            blocks,
            counts,
            cells: Vec::new(),
        }
    }

    /// The changes, by the names of their keys.
    pub(super) fn changes(&self) -> Vec<(&[u8], Change)> {
        let blocks = self.blocks.iter().filter(|(_, value)| value.is_changed);
        let blocks = blocks.map(|(name, value)| match &value.content {
            Ok(Some((block, details))) => {
                let change = Change::Set {
                    value: write_block(*block, details),
                    expires_ms: block.stored_until_ms(),
                };
                (&**name, change)
            }
            _ => (&**name, Change::Delete),
        });
        let counts = self.counts.iter().filter(|(_, value)| value.is_changed);
        let counts = counts.map(|(name, value)| {
            let counts = value.content.as_ref().ok();
            let written = counts.and_then(|counts| counts.write(&value.rules, self.now_ms));
            let change = written.map_or(Change::Delete, |(value, expires_ms)| Change::Set {
                value,
                expires_ms,
            });
            (&**name, change)
        });
        blocks.chain(counts).collect()
    }

    fn block_of(
        &mut self,
        key: &Key,
    ) -> Result<&mut Value<Option<(Block, BlockDetails)>>, StoreError> {
        let name = self.names.name(BLOCKS, key);
        self.blocks.get_mut(&name).ok_or(UNREADABLE)
    }

    /// The block of an identity that holds now.
    fn held_block(&mut self, key: &Key) -> Result<Option<Block>, StoreError> {
        let now_ms = self.now_ms;
        let held = self.block_of(key)?.get()?.as_ref().map(|(block, _)| *block);
        Ok(held.filter(|block| block.holds(now_ms)))
    }

    fn counts_of(&mut self, cell: usize) -> Result<&mut Value<Counts>, StoreError> {
        let counts = self.counts.get_mut(&self.cells[cell]);
        counts.ok_or(UNREADABLE)
    }
}

impl Cells for Snapshot<'_> {
    fn blocked(&mut self, check: &Check) -> Result<Option<Blocked>, StoreError> {
        check.keys().try_fold(None, |latest: Option<Blocked>, key| {
            let block = self.held_block(key)?;
            let blocked = block.map(|block| Blocked::new(key.clone(), block, self.now_ms));
            Ok(latest.into_iter().chain(blocked).reduce(Blocked::or_later))
        })
    }

    fn begin(&mut self, charges: &[Charge]) {
        let names = self.names;
        let name = |charge: &Charge| names.name(charge.policy().name(), charge.key());
        self.cells = charges.iter().map(name).collect();
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn look<T>(&mut self, cell: usize, read: impl FnOnce(&Entry) -> T) -> Result<T, StoreError> {
        Ok(read(&self.counts_of(cell)?.get()?.entry))
    }

    fn write(
        &mut self,
        cell: usize,
        rules: impl Iterator<Item = Rule> + Clone,
        counts: &mut [Count],
        change: impl FnOnce(&mut Entry, &mut [Count]),
    ) -> Result<(), StoreError> {
        let value = self.counts_of(cell)?;
        let held = value.content.as_mut().map_err(|error| error.clone())?;
        change(&mut held.entry, counts);
        value.is_changed = true;
        value.rules = rules.collect();
        Ok(())
    }
}

impl StoreCells for Snapshot<'_> {
    fn block(&mut self, key: &Key, request: &BlockRequest) -> Result<Block, StoreError> {
        let now_ms = self.now_ms;
        let block = Block::begin(request.until(), request.source(), now_ms);
        let known = self.held_block(key)?;
        if let Some(known) = known.filter(|known| known.or_later(block) == *known) {
            return Ok(known);
        }
        if block.holds(now_ms) {
            let details = request.details().clone().created_at(now_ms);
            self.block_of(key)?.set(Some((block, details)));
        }
        Ok(block)
    }

    fn unblock(&mut self, key: &Key) {
        if let Ok(block) = self.block_of(key)
            && !matches!(block.content, Ok(None))
        {
            block.set(None);
        }
    }

    fn forget(&mut self, policy: &str, key: &Key) {
        let name = self.names.name(policy, key);
        let is_no_key = |counts: &Counts| counts.expires_ms == 0;
        if let Some(counts) = self.counts.get_mut(&name)
            && (counts.is_changed || !counts.content.as_ref().is_ok_and(is_no_key))
        {
            counts.set(Counts::nothing(0));
        }
    }
}

impl<T> Value<T> {
    const fn new(content: Result<T, StoreError>) -> Self {
        Self {
            content,
            is_changed: false,
            rules: Vec::new(),
        }
    }

    fn get(&self) -> Result<&T, StoreError> {
        self.content.as_ref().map_err(Clone::clone)
    }

    fn set(&mut self, content: T) {
        self.content = Ok(content);
        self.is_changed = true;
    }
}

fn block(value: Option<Vec<u8>>) -> Result<Option<(Block, BlockDetails)>, StoreError> {
    Ok(value.as_deref().map(read_block).transpose()?)
}

/// The counts of a key, of which nothing counts any more when the key expires.
fn counts_at(now_ms: u64, value: Option<Vec<u8>>) -> Result<Counts, StoreError> {
    let counts = value.as_deref().map(Counts::read).transpose()?;
    let counts = counts.unwrap_or_else(|| Counts::nothing(0));
    if counts.expires_ms > now_ms {
        return Ok(counts);
    }
    Ok(Counts::nothing(counts.expires_ms))
}
