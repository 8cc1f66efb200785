//! [`Snapshot`]: the values of some keys at one time. The [engine](crate::store::engine) decides on them in memory, and
//! the changes are written afterwards.

use std::collections::{BTreeSet, HashMap};

use crate::{
    domain::{
        block::{BLOCKS, Block, BlockRequest, STRIKES},
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

/// The values of some keys, by name: each `None` for no value, or the reason why a value cannot be used.
pub(super) struct Snapshot<'a> {
    names: &'a Names,
    now_ms: u64,
    blocks: HashMap<Vec<u8>, Result<Option<Block>, StoreError>>,
    counts: HashMap<Vec<u8>, Result<Counts, StoreError>>,
    /// The names of the cells of the operation under way.
    cells: Vec<Vec<u8>>,
    changes: Changes,
}

/// The new values of keys by name, and when they expire, in ms; `None` for keys to delete.
pub(super) type Changes = HashMap<Vec<u8>, Option<(Vec<u8>, u64)>>;

/// The names of the keys that some operations use, each once.
pub(super) fn names_of<'a>(
    names: &Names,
    operations: impl Iterator<Item = &'a Operation>,
) -> Vec<Vec<u8>> {
    let mut all = BTreeSet::new();
    for operation in operations {
        let mut add = |policy: &str, key: &Key| all.insert(names.name(policy, key));
        let charges = match operation {
            Operation::Check(check) | Operation::CheckBatch { check, .. } => {
                // A check that enforces no blocks reads and watches no key for them.
                for key in check.keys().filter(|_| check.enforces_blocks()) {
                    add(BLOCKS, key);
                }
                check.all_charges()
            }
            // A settlement or a renewal.
            other => other.check().map_or(&[][..], Check::charges),
        };
        for charge in charges {
            add(charge.policy().name(), charge.key());
        }
        match (operation, operation.key()) {
            (Operation::Reset { policy, key }, _) => {
                add(policy.name(), key);
            }
            (_, Some(key)) => {
                add(BLOCKS, key);
                add(STRIKES, key);
            }
            (_, None) => {}
        }
    }
    all.into_iter().collect()
}

impl<'a> Snapshot<'a> {
    /// The values of these keys at this time.
    pub(super) fn new(
        names: &'a Names,
        now_ms: u64,
        keys: &[Vec<u8>],
        values: Vec<Result<Option<Vec<u8>>, StoreError>>,
    ) -> Self {
        let mut snapshot = Self {
            names,
            now_ms,
            blocks: HashMap::new(),
            counts: HashMap::new(),
            cells: Vec::new(),
            changes: Changes::new(),
        };
        let of_block = ["}:", BLOCKS].concat();
        for (name, value) in keys.iter().cloned().zip(values) {
            if name.ends_with(of_block.as_bytes()) {
                snapshot
                    .blocks
                    .insert(name, value.and_then(|value| block(value.as_deref())));
            } else {
                let counts = value.and_then(|value| counts_at(now_ms, value.as_deref()));
                snapshot.counts.insert(name, counts);
            }
        }
        snapshot
    }

    pub(super) fn into_changes(self) -> Changes {
        self.changes
    }

    fn held_block(&self, key: &Key) -> Result<Option<Block>, StoreError> {
        let block = self.blocks.get(&self.names.name(BLOCKS, key));
        let block = block.cloned().unwrap_or(Err(UNREADABLE))?;
        Ok(block.filter(|block| block.holds(self.now_ms)))
    }

    fn counts(&mut self, cell: usize) -> Result<&mut Counts, StoreError> {
        match self.counts.get_mut(&self.cells[cell]) {
            Some(counts) => counts.as_mut().map_err(|error| error.clone()),
            None => Err(UNREADABLE),
        }
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
        Ok(read(&self.counts(cell)?.entry))
    }

    fn write(
        &mut self,
        cell: usize,
        rules: impl Iterator<Item = Rule> + Clone,
        counts: &mut [Count],
        change: impl FnOnce(&mut Entry, &mut [Count]),
    ) -> Result<(), StoreError> {
        let now_ms = self.now_ms;
        let stored = self.counts(cell)?;
        change(&mut stored.entry, counts);
        let value = stored.write(rules, now_ms);
        let value = value.map(|value| (value, stored.expires_ms));
        self.changes.insert(self.cells[cell].clone(), value);
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
            let (name, value) = (self.names.name(BLOCKS, key), write_block(block, &details));
            let value = Some((value, block.stored_until_ms()));
            self.changes.insert(name.clone(), value);
            self.blocks.insert(name, Ok(Some(block)));
        }
        Ok(block)
    }

    fn unblock(&mut self, key: &Key) {
        let name = self.names.name(BLOCKS, key);
        if !matches!(self.blocks.get(&name), Some(Ok(None))) {
            self.blocks.insert(name.clone(), Ok(None));
            self.changes.insert(name, None);
        }
    }

    fn forget(&mut self, policy: &str, key: &Key) {
        let name = self.names.name(policy, key);
        // Without a key there is nothing to delete.
        let is_no_key = |counts: &Counts| counts.expires_ms == 0;
        if !matches!(self.counts.get(&name), Some(Ok(counts)) if is_no_key(counts)) {
            self.counts.insert(name.clone(), Ok(Counts::nothing(0)));
            self.changes.insert(name, None);
        }
    }
}

fn block(value: Option<&[u8]>) -> Result<Option<Block>, StoreError> {
    let held = value.map(read_block).transpose()?;
    Ok(held.map(|(block, _)| block))
}

/// The counts of a key, of which nothing counts any more when the key expires.
fn counts_at(now_ms: u64, value: Option<&[u8]>) -> Result<Counts, StoreError> {
    let counts = value.map(Counts::read).transpose()?;
    let counts = counts.unwrap_or_else(|| Counts::nothing(0));
    if counts.expires_ms > now_ms {
        return Ok(counts);
    }
    Ok(Counts::nothing(counts.expires_ms))
}
