use std::collections::{BTreeSet, HashMap};

use super::{
    entry::Entry,
    token::{BuildTokenHasher, Token},
};

/// Fewer keys than this are not worth giving back before room is needed.
const SWEEP_ABOVE: usize = 64;

/// A part of the keys, under one lock.
#[derive(Debug)]
pub(super) struct Shard {
    capacity: usize,
    entries: HashMap<Token, Queued, BuildTokenHasher>,
    /// Every key by the time at which its last unit is released: the first is the one to drop.
    queue: BTreeSet<(u64, Token)>,
}

#[derive(Debug)]
struct Queued {
    entry: Entry,
    release_ms: u64,
}

impl Shard {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            entries: HashMap::default(),
            queue: BTreeSet::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry of a key, an empty one if there is none.
    pub(super) fn entry(&self, token: Token) -> &Entry {
        static EMPTY: Entry = Entry::new();
        self.entries
            .get(&token)
            .map_or(&EMPTY, |queued| &queued.entry)
    }

    /// Lets `change` write to the entry of a key, makes room for it if it is new, and drops it if nothing is left.
    pub(super) fn write(&mut self, token: Token, now_ms: u64, change: impl FnOnce(&mut Entry)) {
        let queued = match self.entries.get_mut(&token) {
            Some(queued) => queued,
            None => {
                self.make_room(now_ms);
                self.entries.entry(token).or_insert(Queued {
                    entry: Entry::new(),
                    release_ms: 0,
                })
            }
        };
        change(&mut queued.entry);
        let release_ms = queued.entry.release_ms();
        if release_ms == 0 {
            self.remove(token);
        } else if release_ms != queued.release_ms {
            self.queue.remove(&(queued.release_ms, token));
            self.queue.insert((release_ms, token));
            queued.release_ms = release_ms;
        }
    }

    pub(super) fn remove(&mut self, token: Token) {
        if let Some(queued) = self.entries.remove(&token) {
            self.queue.remove(&(queued.release_ms, token));
        }
    }

    /// Drops up to two keys that count no more, or the one that is the first to do so. Two for each that comes: so
    /// the shard shrinks again after a flood without anything running in the background.
    fn make_room(&mut self, now_ms: u64) {
        for _ in 0..2 {
            let Some(&(release_ms, token)) = self.queue.first() else {
                return;
            };
            let is_full = self.len() >= self.capacity;
            let is_over = self.len() > SWEEP_ABOVE && release_ms <= now_ms;
            if is_full || is_over {
                self.remove(token);
            }
        }
    }
}
