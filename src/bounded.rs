//! [`Sets`]: values by the identity that they are about, in bounded memory.
//!
//! ```text
//! identity ──▶ hash ──▶ set ──▶ at most 8 values
//!              64 bits  a lock
//! ```

use std::{
    hash::{BuildHasher, Hash, RandomState},
    mem,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

/// The most values of a set.
const MOST: usize = 8;

/// The values of a set, each with its hash.
type Set<V> = Vec<(u64, V)>;

/// Remembers a value for each of a bounded number of identities. Each set has its own lock.
#[derive(Debug)]
pub(crate) struct Sets<V> {
    /// Clients cannot predict its hashes, so they cannot choose a set, or two identities of one hash.
    hasher: RandomState,
    /// Allocated with the first value.
    sets: OnceLock<Box<[Mutex<Set<V>>]>>,
    number: usize,
}

impl<V> Sets<V> {
    /// Creates a table of at most `capacity` values, a multiple of 8.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            hasher: RandomState::new(),
            sets: OnceLock::new(),
            number: capacity / MOST,
        }
    }

    pub(crate) fn hash(&self, identity: impl Hash) -> u64 {
        self.hasher.hash_one(identity)
    }

    /// Calls `read` with the value of this hash, if there is one.
    pub(crate) fn read<T>(&self, hash: u64, read: impl FnOnce(&V) -> T) -> Option<T> {
        let set = self.set(self.sets.get()?, hash);
        let value = set.iter().find(|(of, _)| *of == hash);
        value.map(|(_, value)| read(value))
    }

    /// Puts the value of this hash in the place of the last one. A full set gives up its value of the lowest rank.
    pub(crate) fn insert<R: Ord>(&self, hash: u64, value: V, rank: impl Fn(&V) -> R) {
        self.update(hash, rank, |_| Some(value));
    }

    /// Calls `next` with the last value of this hash, and [inserts](Self::insert) what it returns. Returns whether it
    /// returned a value.
    pub(crate) fn update<R: Ord>(
        &self,
        hash: u64,
        rank: impl Fn(&V) -> R,
        next: impl FnOnce(Option<&V>) -> Option<V>,
    ) -> bool {
        let sets = self.sets.get_or_init(|| new_sets(self.number));
        let mut set = self.set(sets, hash);
        let known = set.iter().position(|(of, _)| *of == hash);
        let Some(value) = next(known.map(|place| &set[place].1)) else {
            return false;
        };
        let place = known.or_else(|| {
            let lowest = (0..set.len()).min_by_key(|place| rank(&set[*place].1));
            lowest.filter(|_| set.len() >= MOST)
        });
        let replaced = match place {
            Some(place) => Some(mem::replace(&mut set[place], (hash, value))),
            None => {
                set.push((hash, value));
                None
            }
        };
        // Frees the memory after the lock.
        drop(set);
        drop(replaced);
        true
    }

    /// Returns the value of this hash, or else a new one; `None` if the set is full.
    pub(crate) fn get_or_insert(&self, hash: u64, new: impl FnOnce() -> V) -> Option<V>
    where
        V: Clone,
    {
        let sets = self.sets.get_or_init(|| new_sets(self.number));
        let mut set = self.set(sets, hash);
        if let Some((_, value)) = set.iter().find(|(of, _)| *of == hash) {
            return Some(value.clone());
        }
        (set.len() < MOST).then(|| {
            let value = new();
            set.push((hash, value.clone()));
            value
        })
    }

    /// Calls `is_kept` with each value, and drops the others.
    pub(crate) fn retain(&self, mut is_kept: impl FnMut(&V) -> bool) {
        for set in self.sets.get().into_iter().flatten() {
            let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
            set.retain(|(_, value)| is_kept(value));
        }
    }

    /// Removes the value of this hash, if `is_over` says so.
    pub(crate) fn remove_if(&self, hash: u64, is_over: impl FnOnce(&V) -> bool) {
        let Some(sets) = self.sets.get() else {
            return;
        };
        let mut set = self.set(sets, hash);
        let place = set.iter().position(|(of, _)| *of == hash);
        let over = place.filter(|place| is_over(&set[*place].1));
        let removed = over.map(|place| set.swap_remove(place));
        drop(set);
        drop(removed);
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low bits are as good as all"
    )]
    fn set<'a>(&self, sets: &'a [Mutex<Set<V>>], hash: u64) -> MutexGuard<'a, Set<V>> {
        let set = &sets[hash as usize % self.number];
        set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let sets = self.sets.get().into_iter().flatten();
        sets.map(|set| set.lock().unwrap().len()).sum()
    }
}

fn new_sets<V>(number: usize) -> Box<[Mutex<Set<V>>]> {
    (0..number).map(|_| Mutex::default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_identities_takes_bounded_room_and_the_last_are_known() {
        let sets = Sets::new(1_024);
        for identity in 0..50_000_u32 {
            let hash = sets.hash(identity);
            sets.insert(hash, identity, |rank| *rank);
            assert_eq!(sets.read(hash, |it| *it), Some(identity));
        }
        assert_eq!(sets.len(), 1_024);
        for set in sets.sets.get().unwrap() {
            assert!(set.lock().unwrap().capacity() <= MOST);
        }
    }

    #[test]
    fn a_full_set_gives_up_the_lowest_rank() {
        let sets = Sets::new(MOST);
        for rank in [5, 3, 4, 9, 7, 8, 6, 2] {
            sets.insert(rank, rank, |rank| *rank);
        }
        assert!(!sets.update(1, |rank| *rank, |known| known.copied()));
        sets.insert(3, 10, |rank| *rank);
        sets.insert(1, 1, |rank| *rank);
        assert_eq!(sets.read(2, |it| *it), None);
        assert_eq!(sets.read(3, |it| *it), Some(10));
        sets.remove_if(3, |it| *it > 10);
        assert_eq!(sets.len(), MOST);
        sets.remove_if(3, |it| *it == 10);
        assert_eq!(sets.read(3, |it| *it), None);
        assert_eq!(sets.get_or_insert(3, || 11), Some(11));
        assert_eq!(sets.get_or_insert(3, || 12), Some(11));
        assert_eq!(sets.get_or_insert(12, || 12), None, "the set is full");
        sets.retain(|it| *it == 11);
        assert_eq!((sets.read(3, |it| *it), sets.len()), (Some(11), 1));
    }
}
