//! [`Plan`]: the keys that a group of operations uses.

use std::collections::HashMap;

use crate::{
    domain::{
        block::{BLOCKS, STRIKES},
        charge::Charge,
        key::Key,
    },
    store::{Operation, redis::key_names::Names},
};

/// The suffix of all keys. No key of the script has this suffix.
pub(super) const SUFFIX: &[u8] = b":tx";

/// The keys that some operations use, each once, and the positions of each operation's keys among them.
pub(super) struct Plan {
    pub(super) keys: Vec<StoredKey>,
    /// One entry for each operation.
    pub(super) places: Vec<Places>,
}

/// A key of the server.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct StoredKey {
    pub(super) name: Vec<u8>,
    /// Whether the key holds a block rather than counts.
    pub(super) is_block: bool,
}

/// The positions of the keys of one operation.
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
            keys: Vec::new(),
        };
        let places = operations.into_iter().map(|it| keys.of(it)).collect();
        let keys = keys.keys;
        Self { keys, places }
    }
}

/// The identities of an operation, possibly with duplicates.
pub(super) fn identities(operation: &Operation) -> impl Iterator<Item = &Key> {
    let (charges, key): (&[Charge], _) = match operation {
        Operation::Check(check) | Operation::CheckBatch { check, .. } => {
            (check.all_charges(), None)
        }
        Operation::Settle(settlement) => (settlement.check().charges(), None),
        Operation::Renew(renewal) => (renewal.check().charges(), None),
        Operation::Reset { key, .. }
        | Operation::Block { key, .. }
        | Operation::Ban { key, .. }
        | Operation::Unblock { key } => (&[], Some(key)),
        _ => (&[], None),
    };
    charges.iter().map(Charge::key).chain(key)
}

struct Keys<'a> {
    names: &'a Names,
    places: HashMap<StoredKey, usize>,
    keys: Vec<StoredKey>,
}

impl Keys<'_> {
    fn of(&mut self, operation: &Operation) -> Places {
        let mut places = Places::default();
        match operation {
            Operation::Check(check) | Operation::CheckBatch { check, .. } => {
                // A check that enforces no blocks reads and watches no key for them.
                if check.enforces_blocks() {
                    places.blocks = check.keys().map(|key| self.block(key)).collect();
                }
                places.charges = self.charges(check.charges());
                places.shadows = self.charges(check.shadow_charges());
            }
            Operation::Settle(settlement) => {
                places.charges = self.charges(settlement.check().charges());
            }
            Operation::Renew(renewal) => {
                places.charges = self.charges(renewal.check().charges());
            }
            Operation::Reset { policy, key } => {
                places.charges.push(self.counts(policy.name(), key));
            }
            Operation::Block { key, .. } => places.blocks.push(self.block(key)),
            Operation::Ban { key, .. } | Operation::Unblock { key } => {
                places.blocks.push(self.block(key));
                places.charges.push(self.counts(STRIKES, key));
            }
            _ => {}
        }
        places
    }

    fn charges(&mut self, charges: &[Charge]) -> Vec<usize> {
        let charges = charges.iter();
        charges
            .map(|it| self.counts(it.policy().name(), it.key()))
            .collect()
    }

    fn counts(&mut self, policy: &str, key: &Key) -> usize {
        self.place(policy, key, false)
    }

    fn block(&mut self, key: &Key) -> usize {
        self.place(BLOCKS, key, true)
    }

    fn place(&mut self, policy: &str, key: &Key, is_block: bool) -> usize {
        let mut name = self.names.name(policy, key);
        name.extend_from_slice(SUFFIX);
        let key = StoredKey { name, is_block };
        let next = self.keys.len();
        let place = *self.places.entry(key.clone()).or_insert(next);
        if place == next {
            self.keys.push(key);
        }
        place
    }
}
