//! [`Plan`]: the keys that a group of operations uses.

use std::collections::HashMap;

use crate::{
    domain::{
        block::{BLOCKS, STRIKES},
        charge::Charge,
        check::Check,
        key::Key,
    },
    store::{Operation, redis::key_names::Names},
};

/// The suffix of all keys. No key of the script has this suffix.
pub(super) const SUFFIX: &[u8] = b":tx";

/// The keys that some operations use, each once, and the positions of each operation's keys among them.
pub(super) struct Plan {
    /// The names of the keys: first those of blocks, then those of counts.
    pub(super) keys: Vec<Vec<u8>>,
    /// How many of them hold blocks.
    pub(super) block_count: usize,
    /// One entry for each operation.
    pub(super) places: Vec<Places>,
}

/// The positions of the keys of one operation, among the blocks or among the counts.
#[derive(Default)]
pub(super) struct Places {
    /// The blocks that a check enforces, or the block that an operation changes.
    pub(super) blocks: Vec<usize>,
    /// The counts of the charges that count, or the counts to forget.
    pub(super) charges: Vec<usize>,
    pub(super) shadows: Vec<usize>,
}

impl Plan {
    pub(super) fn new<'a>(
        names: &Names,
        operations: impl IntoIterator<Item = &'a Operation>,
    ) -> Self {
        let mut keys = Keys {
            names,
            places: HashMap::new(),
            blocks: Vec::new(),
            counts: Vec::new(),
        };
        let places = operations.into_iter().map(|operation| keys.of(operation));
        let places = places.collect();
        let block_count = keys.blocks.len();
        keys.blocks.append(&mut keys.counts);
        Self {
            keys: keys.blocks,
            block_count,
            places,
        }
    }
}

/// The identities of an operation, possibly with duplicates.
pub(super) fn identities(operation: &Operation) -> impl Iterator<Item = &Key> {
    let charges = operation.check().into_iter().flat_map(Check::all_charges);
    charges.map(Charge::key).chain(operation.key())
}

struct Keys<'a> {
    names: &'a Names,
    places: HashMap<Vec<u8>, usize>,
    blocks: Vec<Vec<u8>>,
    counts: Vec<Vec<u8>>,
}

impl Keys<'_> {
    fn of(&mut self, operation: &Operation) -> Places {
        let mut places = Places::default();
        match operation {
            Operation::Check(check) | Operation::CheckBatch { check, .. } => {
                // A check that enforces no blocks reads and watches no key for them.
                if check.enforces_blocks() {
                    places.blocks = check.keys().map(|key| self.place(BLOCKS, key)).collect();
                }
                places.charges = self.charges(check.charges());
                places.shadows = self.charges(check.shadow_charges());
            }
            Operation::Reset { policy, key } => {
                places.charges.push(self.place(policy.name(), key));
            }
            Operation::Block { key, .. } => places.blocks.push(self.place(BLOCKS, key)),
            Operation::Ban { key, .. } | Operation::Unblock { key } => {
                places.blocks.push(self.place(BLOCKS, key));
                places.charges.push(self.place(STRIKES, key));
            }
            // A settlement or a renewal.
            other => {
                let check = other.check();
                places.charges = self.charges(check.map_or(&[], Check::charges));
            }
        }
        places
    }

    fn charges(&mut self, charges: &[Charge]) -> Vec<usize> {
        let charges = charges.iter();
        charges
            .map(|charge| self.place(charge.policy().name(), charge.key()))
            .collect()
    }

    fn place(&mut self, policy: &str, key: &Key) -> usize {
        let mut name = self.names.name(policy, key);
        name.extend_from_slice(SUFFIX);
        let keys = match policy {
            BLOCKS => &mut self.blocks,
            _ => &mut self.counts,
        };
        *self.places.entry(name).or_insert_with_key(|name| {
            keys.push(name.clone());
            keys.len() - 1
        })
    }
}
