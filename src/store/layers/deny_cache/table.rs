//! [`Table`]: the cached refusals, in bounded memory.
//!
//! ```text
//! check ──▶ hash ──▶ set ──▶ at most 8 entries, each compared in full
//!           64 bits  a lock
//! ```

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{subject::are_same, validity::Validity};
use crate::domain::{check::Check, decision::Decision};

const SETS: usize = 2_048;

/// The maximum of each set.
const MAX_ENTRIES: usize = 8;

/// A refusal by the store.
#[derive(Debug)]
pub(super) struct Entry {
    /// The hash of the check.
    pub(super) hash: u64,
    pub(super) check: Check,
    pub(super) refusal: Decision,
    pub(super) validity: Validity,
    /// The number of the last refund before the question, and the slots whose later refunds end this entry.
    pub(super) given_back: u64,
    pub(super) slots: Box<[usize]>,
}

/// Each set has its own lock.
#[derive(Debug)]
pub(super) struct Table {
    sets: Box<[Mutex<Vec<Entry>>]>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Calls `read` with the entry of this check. `hash` is the hash of the check.
    pub(super) fn read<T>(
        &self,
        hash: u64,
        check: &Check,
        read: impl FnOnce(&Entry) -> Option<T>,
    ) -> Option<T> {
        let set = self.set(hash);
        let entry = set
            .iter()
            .find(|entry| entry.hash == hash && are_same(&entry.check, check));
        entry.and_then(read)
    }

    /// Replaces the entry of the same check. In a full set, replaces the entry that ends first.
    pub(super) fn insert(&self, entry: Entry) {
        let mut set = self.set(entry.hash);
        let known = set.iter().position(|known| known.is_about(&entry));
        let place = known.or_else(|| {
            let first = (0..set.len()).min_by_key(|place| set[*place].validity.until());
            first.filter(|_| set.len() >= MAX_ENTRIES)
        });
        let replaced = match place {
            Some(place) => Some(std::mem::replace(&mut set[place], entry)),
            None => {
                set.push(entry);
                None
            }
        };
        drop(set);
        // Free the memory after the lock is released.
        drop(replaced);
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low bits are as good as all"
    )]
    fn set(&self, hash: u64) -> MutexGuard<'_, Vec<Entry>> {
        let set = &self.sets[hash as usize % SETS];
        set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let sets = self.sets.iter();
        sets.map(|set| set.lock().unwrap().len()).sum()
    }
}

impl Entry {
    fn is_about(&self, other: &Self) -> bool {
        self.hash == other.hash && are_same(&self.check, &other.check)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        hash::{BuildHasher, RandomState},
        time::Duration,
    };

    use super::*;
    use crate::domain::{charge::Charge, decision::Count, key::Key, policy::Policy};

    /// The entry of a denial of this identity.
    fn entry(hasher: &RandomState, policy: &Policy, identity: u64) -> Entry {
        let key = Key::new("user", identity.to_be_bytes());
        let check = Check::of_one(Charge::new(policy, key, 2));
        Entry {
            hash: hasher.hash_one(identity),
            refusal: Decision::new(&check, false, 0, &[Count::default()]).unwrap(),
            check,
            validity: Validity::new(Duration::from_millis(identity), Duration::ZERO, None),
            given_back: 0,
            slots: [].into(),
        }
    }

    #[test]
    fn any_number_of_identities_takes_bounded_room_and_the_last_are_known() {
        let (table, hasher) = (Table::new(), RandomState::new());
        let policy = Policy::parse("p", "1/1h").unwrap();
        for identity in 0..200_000 {
            table.insert(entry(&hasher, &policy, identity));
            let last = entry(&hasher, &policy, identity);
            assert!(
                table
                    .set(last.hash)
                    .iter()
                    .any(|entry| entry.is_about(&last))
            );
            table.insert(last);
        }
        assert_eq!(table.len(), SETS * MAX_ENTRIES);
        for set in &table.sets {
            assert!(set.lock().unwrap().capacity() <= MAX_ENTRIES);
        }
    }
}
