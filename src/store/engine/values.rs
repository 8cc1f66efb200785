//! [`Engine`]: executes operations on the values of a store.

use std::{fmt, hash::Hasher, slice};

use siphasher::sip128::{Hasher128, SipHasher24};

use super::{
    execute,
    kept::{Kept, Naming, Stored, names_of},
    stored::{Counts, FORM},
};
use crate::domain::{
    block::{BLOCKS, BlockedIdentity, HeldBlock},
    contributors::label,
    error::StoreError,
    key::Key,
    numbers::{number, push_number},
    operation::{Operation, Reply},
    policy::Policy,
    slot_id::SlotId,
    window::{Section, SlotSet},
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

    /// Returns at most `most` values with names that begin with this text, in any order, and none that has expired: for
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
        names_of(self, slice::from_ref(operation))
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
        let now_ms = values.now_ms();
        let mut kept = Kept::new(self, now_ms, |name: &String| {
            let value = values.read(name)?.unwrap_or_default();
            read(name, &value, now_ms).ok_or(UNREADABLE)
        });
        let reply = execute(operation, &mut kept)?;
        let changes: Vec<_> = kept.into_changes().collect();
        for (name, stored) in changes {
            let (value, expires_ms) = bytes_of(&stored).unwrap_or_default();
            values.write(&name, &value, expires_ms.max(now_ms))?;
        }
        Ok(reply)
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

impl Naming for Engine {
    type Name = String;

    fn of_block(&self, key: &Key) -> String {
        self.name(BLOCKS, key)
    }

    /// Slots are apart, by their window in ms: `@` and `~` are in no policy's name.
    fn of_charge(&self, policy: &Policy, key: &Key) -> String {
        let name = policy.name();
        match policy.rules() {
            [rule] if rule.is_concurrency() => {
                self.name(&format!("{name}{SLOTS}{}~{FORM}", rule.window_ms()), key)
            }
            _ => self.name(&format!("{name}~{FORM}"), key),
        }
    }
}

/// Stands before the window in the names of slots.
const SLOTS: char = '@';

/// The bytes of a slot: when it expires, and its id.
const SLOT: usize = 6 + 16;

/// Reads the value of this name; `None` for bytes that this crate has not written.
fn read(name: &str, value: &[u8], now_ms: u64) -> Option<Stored> {
    let (policy, _) = name.split_once(':')?;
    if let Some((_, window)) = policy.split_once(SLOTS) {
        let window_ms = window.split_once('~')?.0.parse().ok()?;
        let slots = value.chunks(SLOT).map(|mut slot| {
            let expiry_ms = number(&mut slot, 6)?;
            Some((expiry_ms, SlotId::from_bytes(slot.try_into().ok()?)))
        });
        let slots: Option<Vec<_>> = slots.collect();
        return Some(Stored::of(Counts::of_slots(SlotSet::of(window_ms, slots?))));
    }
    match value {
        [_, ..] if policy == BLOCKS => HeldBlock::from_bytes(value).map(Stored::of_block),
        value => Stored::of_bytes(value, now_ms),
    }
}

/// The bytes of a value, and when it expires; `None` if nothing is kept.
fn bytes_of(stored: &Stored) -> Option<(Vec<u8>, u64)> {
    if let Some(held) = &stored.block {
        return Some((held.to_bytes(), held.expires_ms()));
    }
    let Some(slots) = stored
        .counts
        .entry
        .sections()
        .iter()
        .find_map(Section::slots)
    else {
        return stored.counts.write();
    };
    let mut bytes = Vec::new();
    for (expiry_ms, id) in slots.slots() {
        push_number(&mut bytes, *expiry_ms, 6);
        bytes.extend(id.to_bytes());
    }
    Some((bytes, slots.slots().back()?.0))
}

/// The identities that are blocked now.
fn list(values: &mut impl Values, most: usize) -> Result<Vec<BlockedIdentity>, StoreError> {
    let (now_ms, begin) = (values.now_ms(), format!("{BLOCKS}:"));
    let listed = values.list(&begin, most)?.into_iter();
    let blocks = listed.filter_map(|(name, value)| {
        let held = HeldBlock::from_bytes(&value)?;
        let identity = name.strip_prefix(&begin)?;
        let is_held = held.block.holds(now_ms);
        is_held.then(|| BlockedIdentity::new(identity, held))
    });
    Ok(blocks.collect())
}

/// Without the secret.
impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

const UNREADABLE: StoreError =
    StoreError::protocol("the store holds a value that this crate has not written").unsent();
