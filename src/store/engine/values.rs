//! [`Engine`]: executes operations on the values of a store.

use std::{collections::BTreeSet, fmt, hash::Hasher};

use siphasher::sip128::{Hasher128, SipHasher24};

use super::{Cells, StoreCells, execute, form};
use crate::{
    domain::{
        block::{BLOCKS, Block, BlockRequest, BlockedIdentity, HeldBlock},
        charge::Charge,
        check::Check,
        contributors::label,
        decision::{Blocked, Count},
        error::StoreError,
        key::Key,
        operation::{Operation, Reply},
        policy::Policy,
        rule::Rule,
    },
    store::entry::Entry,
};

/// The values that a store keeps by their names, within one transaction of its own.
///
/// From the begin of [`Engine::execute`] until you commit what it wrote, no other transaction may change the values of
/// the operation's [names](Engine::names).
pub trait Values {
    /// The time of the store's clock, in ms since the Unix epoch. It must be the same during an operation, and one clock
    /// for all processes that share the values.
    fn now_ms(&self) -> u64;

    /// Reads a value; `None` if there is none, or if it has expired and was deleted.
    ///
    /// # Errors
    ///
    /// If your store cannot read. The operation then fails with this error and writes nothing.
    fn read(&mut self, name: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Returns at most so many values that have not expired, and whose names begin with this text, in any order: for
    /// lists of the blocked identities. By default, the store keeps no such lists.
    ///
    /// # Errors
    ///
    /// If your store cannot read.
    fn list(&mut self, begin: &str, most: usize) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let _ = begin;
        Err(Operation::ListBlocks { most }.unsupported())
    }

    /// Writes a value. You can delete it from `expires_ms` on, in ms since the Unix epoch by the store's clock; an empty
    /// value, which means that nothing is kept, at once.
    ///
    /// # Errors
    ///
    /// If your store cannot write. The operation then fails with this error, and you take back what it wrote.
    fn write(&mut self, name: &str, value: &[u8], expires_ms: u64) -> Result<(), StoreError>;
}

/// Executes operations on [`Values`]; cheap to clone.
#[derive(Clone)]
pub struct Engine {
    hasher: SipHasher24,
}

impl Engine {
    /// Creates an engine that names values with this secret: 16 random bytes, the same for all processes that share the
    /// values. A name contains a hash by this secret in place of a value that is long, unusual or a secret.
    #[must_use]
    pub fn new(secret: [u8; 16]) -> Self {
        Self {
            hasher: SipHasher24::new_with_key(&secret),
        }
    }

    /// Returns the names of all values that an operation may read or write, sorted: for a store that locks values one by
    /// one. A name is printable ASCII without spaces. There are none for an operation that this engine does not know.
    #[must_use]
    pub fn names(&self, operation: &Operation) -> Vec<String> {
        let mut all = BTreeSet::new();
        if let Some(check) = operation.check() {
            let blocks = check.keys().filter(|_| check.enforces_blocks());
            all.extend(blocks.map(|key| self.name(BLOCKS, key)));
            let charges = check.all_charges().iter();
            all.extend(charges.map(|it| self.name_of(it.policy(), it.key())));
        }
        if let Operation::Reset { policy, key } = operation {
            all.insert(self.name_of(policy, key));
        } else if let Some(key) = operation.key() {
            let strikes = Policy::of_strikes(Rule::per_minute(1));
            all.extend([self.name(BLOCKS, key), self.name_of(&strikes, key)]);
        }
        all.into_iter().collect()
    }

    /// Executes an operation: reads the values that it needs, decides, and then writes those that have changed.
    ///
    /// # Errors
    ///
    /// [`unsupported`](Operation::unsupported) for an operation that is not about keys, such as reports;
    /// [`Protocol`](crate::error::StoreErrorKind::Protocol) for a value that this crate has not written; and the errors of
    /// `values`. After an error, take back what was written.
    pub fn execute(
        &self,
        operation: &Operation,
        values: &mut impl Values,
    ) -> Result<Reply, StoreError> {
        if let Operation::ListBlocks { most } = operation {
            return list(values, *most).map(Reply::ListBlocks);
        }
        let mut kept = Kept {
            engine: self,
            now_ms: values.now_ms(),
            values,
            stored: Vec::new(),
            cells: Vec::new(),
        };
        let reply = execute(operation, &mut kept)?;
        for (name, stored) in kept.stored.iter().filter(|(_, it)| it.is_changed) {
            let (value, expires_ms) = stored.value();
            kept.values
                .write(name, &value, expires_ms.max(kept.now_ms))?;
        }
        Ok(reply)
    }

    /// The name of the counts of a charge. Slots are apart, by their window in ms: `@` and `~` are in no policy's name.
    fn name_of(&self, policy: &Policy, key: &Key) -> String {
        let (name, form) = (policy.name(), form::FORM);
        match policy.rules() {
            [rule] if rule.is_concurrency() => {
                self.name(&format!("{name}@{}~{form}", rule.window_ms()), key)
            }
            _ => self.name(&format!("{name}~{form}"), key),
        }
    }

    fn name(&self, policy: &str, key: &Key) -> String {
        let identity = label::text(key, |key| {
            let mut hasher = self.hasher;
            hasher.write(&(key.kind().len() as u64).to_le_bytes());
            hasher.write(key.kind().as_bytes());
            hasher.write(&[key.is_secret().into()]);
            hasher.write(key.value());
            format!("{:032x}", hasher.finish128().as_u128())
        });
        format!("{policy}:{identity}")
    }
}

/// The identities that are blocked now.
fn list(values: &mut impl Values, most: usize) -> Result<Vec<BlockedIdentity>, StoreError> {
    let (now_ms, begin) = (values.now_ms(), format!("{BLOCKS}:"));
    let listed = values.list(&begin, most)?.into_iter();
    let blocks = listed.filter_map(|(name, value)| {
        let held = HeldBlock::from_bytes(&value)?;
        let identity = name.strip_prefix(&begin)?;
        let is_held = held.block.holds(now_ms);
        is_held.then(|| BlockedIdentity::new(identity, held.block, held.details))
    });
    Ok(blocks.collect())
}

/// Without the secret.
impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// The values that one operation has read so far, each once, and what it changes.
struct Kept<'a, V> {
    engine: &'a Engine,
    values: &'a mut V,
    now_ms: u64,
    /// By name. There are few.
    stored: Vec<(String, Stored)>,
    /// The names of the cells.
    cells: Vec<String>,
}

/// A block, or else counts.
struct Stored {
    block: Option<HeldBlock>,
    entry: Entry,
    is_changed: bool,
}

impl Stored {
    const fn nothing() -> Self {
        Self {
            block: None,
            entry: Entry::new(),
            is_changed: false,
        }
    }

    fn read(name: &str, value: &[u8]) -> Option<Self> {
        let mut stored = Self::nothing();
        if value.is_empty() {
            return Some(stored);
        }
        match name.split_once(':') {
            Some((BLOCKS, _)) => stored.block = Some(HeldBlock::from_bytes(value)?),
            _ => stored.entry = form::read(value)?,
        }
        Some(stored)
    }

    /// The value, and when it expires.
    fn value(&self) -> (Vec<u8>, u64) {
        match &self.block {
            Some(held) => (held.to_bytes(), held.expires_ms()),
            None => (form::write(&self.entry), self.entry.release_ms()),
        }
    }
}

impl<V: Values> Kept<'_, V> {
    fn at(&mut self, name: String) -> Result<&mut Stored, StoreError> {
        let known = self.stored.iter().position(|it| it.0 == name);
        let place = match known {
            Some(place) => place,
            None => {
                let value = self.values.read(&name)?.unwrap_or_default();
                let stored = Stored::read(&name, &value).ok_or(UNREADABLE)?;
                self.stored.push((name, stored));
                self.stored.len() - 1
            }
        };
        Ok(&mut self.stored[place].1)
    }

    fn block_of(&mut self, key: &Key) -> Result<&mut Stored, StoreError> {
        self.at(self.engine.name(BLOCKS, key))
    }

    fn forget_value(&mut self, name: String) {
        self.stored.retain(|it| it.0 != name);
        let mut stored = Stored::nothing();
        stored.is_changed = true;
        self.stored.push((name, stored));
    }
}

impl<V: Values> Cells for Kept<'_, V> {
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
        let names = names.map(|it| self.engine.name_of(it.policy(), it.key()));
        self.cells = names.collect();
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn look<T>(&mut self, cell: usize, read: impl FnOnce(&Entry) -> T) -> Result<T, StoreError> {
        Ok(read(&self.at(self.cells[cell].clone())?.entry))
    }

    fn write(
        &mut self,
        cell: usize,
        _rules: impl Iterator<Item = Rule> + Clone,
        counts: &mut [Count],
        change: impl FnOnce(&mut Entry, &mut [Count]),
    ) -> Result<(), StoreError> {
        let stored = self.at(self.cells[cell].clone())?;
        change(&mut stored.entry, counts);
        stored.is_changed = true;
        Ok(())
    }
}

impl<V: Values> StoreCells for Kept<'_, V> {
    fn block(&mut self, key: &Key, request: &BlockRequest) -> Result<Block, StoreError> {
        let now_ms = self.now_ms;
        let stored = self.block_of(key)?;
        let (block, held) = HeldBlock::request(stored.block.as_ref(), request, now_ms);
        if let Some(held) = held {
            stored.block = Some(held);
            stored.is_changed = true;
        }
        Ok(block)
    }

    fn unblock(&mut self, key: &Key) {
        self.forget_value(self.engine.name(BLOCKS, key));
    }

    fn forget(&mut self, policy: &Policy, key: &Key) {
        self.forget_value(self.engine.name_of(policy, key));
    }
}

const UNREADABLE: StoreError =
    StoreError::protocol("the store holds a value that this crate has not written").unsent();
