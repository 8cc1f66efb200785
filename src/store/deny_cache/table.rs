//! [`Table`]: the refusals that are remembered, in bounded memory.
//!
//! ```text
//! subject ──▶ hash ──▶ set ──▶ at most 8 entries, each compared in full
//!             64 bits  a lock
//! ```

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{subject::Subject, validity::Validity};
use crate::decision::Decision;

const SETS: usize = 2_048;

/// In a set.
const MAX_ENTRIES: usize = 8;

/// A refusal that the store has made.
#[derive(Debug)]
pub(super) struct Entry {
    /// Of the subject.
    pub(super) hash: u64,
    pub(super) subject: Subject,
    pub(super) refusal: Decision,
    pub(super) validity: Validity,
    /// What had been given back when it was asked for, and the slots that would end it.
    pub(super) given_back: u64,
    pub(super) slots: Box<[usize]>,
}

/// Locked set by set.
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

    /// Calls `read` with the entry of this hash whose subject is the right one.
    pub(super) fn read<T>(
        &self,
        hash: u64,
        is_subject: impl Fn(&Subject) -> bool,
        read: impl FnOnce(&Entry) -> Option<T>,
    ) -> Option<T> {
        let set = self.set(hash);
        let entry = set
            .iter()
            .find(|it| it.hash == hash && is_subject(&it.subject));
        entry.and_then(read)
    }

    /// Takes the place of what is known of the same subject; in a full set, of what ends first.
    pub(super) fn insert(&self, entry: Entry) {
        let mut set = self.set(entry.hash);
        let known = set.iter().position(|it| it.is_about(&entry));
        let place = known.or_else(|| {
            let ends = set.iter().map(|it| it.validity.until()).enumerate();
            let first: Option<(usize, Duration)> = ends.min_by_key(|(_, until)| *until);
            first
                .map(|(place, _)| place)
                .filter(|_| set.len() >= MAX_ENTRIES)
        });
        let replaced = match place {
            Some(place) => Some(std::mem::replace(&mut set[place], entry)),
            None => {
                set.push(entry);
                None
            }
        };
        drop(set);
        // Freed without the lock.
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
    pub(super) fn len(&self) -> usize {
        let sets = self.sets.iter();
        sets.map(|set| set.lock().unwrap().len()).sum()
    }
}

impl Entry {
    fn is_about(&self, other: &Self) -> bool {
        self.hash == other.hash && self.subject.is_same(&other.subject)
    }
}
