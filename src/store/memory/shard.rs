//! [`Shard`]: a part of the keys, and the order in which they are dropped.

use std::collections::{BTreeSet, HashMap};

use super::{
    standing::{CLASSES, LIMITED, Standing},
    token::{BuildTokenHasher, Token},
};
use crate::{domain::policy::Policy, store::entry::Entry};

/// With fewer keys than this, released keys stay until their room is needed.
const SWEEP_ABOVE: usize = 64;

/// A new key sweeps this number of old ones. More than one, so that the shard shrinks again after a flood without a
/// background task.
const PER_KEY: usize = 2;

/// The entry of a key that has no place.
pub(super) static NO_ENTRY: Entry = Entry::new();

type Queue = BTreeSet<(Standing, Token)>;

/// A part of the keys, under one lock.
#[derive(Debug)]
pub(super) struct Shard {
    capacity: usize,
    entries: HashMap<Token, Queued, BuildTokenHasher>,
    /// The keys of each class by time. The first class has the most room, the last is at its limit.
    queues: [Queue; CLASSES],
}

#[derive(Debug)]
struct Queued {
    entry: Entry,
    /// `None` from the reservation until the first charge. Then the key is in no queue, so no other key can replace it.
    standing: Option<Standing>,
}

impl Shard {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            entries: HashMap::default(),
            queues: Default::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry of a key that has a place.
    pub(super) fn get(&self, token: Token) -> Option<&Entry> {
        self.entries.get(&token).map(|queued| &queued.entry)
    }

    /// Reserves a place for a key, but not by dropping a key in `spared`. Returns whether the key has a place
    /// afterwards.
    pub(super) fn reserve(&mut self, token: Token, spared: &[Token], now_ms: u64) -> bool {
        if self.get(token).is_some() {
            return true;
        }
        let has_room = self.make_room(spared, now_ms);
        if has_room {
            let entry = Entry::new();
            let standing = None;
            self.entries.insert(token, Queued { entry, standing });
        }
        has_room
    }

    /// Gives up the place of a key if the entry is empty.
    pub(super) fn cancel(&mut self, token: Token) {
        if self.get(token).is_some_and(Entry::is_empty) {
            self.remove(token);
        }
    }

    /// Lets `change` write to the entry of a key that has a place. Drops the key if the entry is empty afterwards.
    pub(super) fn write(&mut self, token: Token, change: impl FnOnce(&mut Entry) -> Standing) {
        let Some(queued) = self.entries.get_mut(&token) else {
            return;
        };
        let new = change(&mut queued.entry);
        if queued.entry.is_empty() {
            self.remove(token);
            return;
        }
        let old = queued.standing.replace(new);
        if old != Some(new) {
            if let Some(old) = old {
                self.queues[old.class()].remove(&(old, token));
            }
            self.queues[new.class()].insert((new, token));
        }
    }

    pub(super) fn remove(&mut self, token: Token) {
        if let Some(queued) = self.entries.remove(&token)
            && let Some(standing) = queued.standing
        {
            self.queues[standing.class()].remove(&(standing, token));
        }
    }

    /// Forgets the counts of a key under a policy, or its slots.
    pub(super) fn forget(&mut self, token: Token, policy: &Policy) {
        if let Some(queued) = self.entries.get_mut(&token) {
            queued.entry.forget(policy);
        }
        self.cancel(token);
    }

    /// Drops keys that no longer count, or else the key with the most room. Returns whether there is room afterwards.
    fn make_room(&mut self, spared: &[Token], now_ms: u64) -> bool {
        for _ in 0..PER_KEY {
            self.requeue_first(now_ms);
            if self.len() > SWEEP_ABOVE || self.len() >= self.capacity {
                self.drop_released(spared, now_ms);
            }
        }
        if self.len() >= self.capacity {
            let first = self.firsts(spared).next();
            if let Some((_, token)) = first {
                self.remove(token);
            }
        }
        self.len() < self.capacity
    }

    /// Moves the first key that has room again to its class with room.
    fn requeue_first(&mut self, now_ms: u64) {
        let limited = &mut self.queues[usize::from(LIMITED)];
        if let Some(&(old, token)) = limited.first()
            && old.at_ms() <= now_ms
            && let Some(queued) = self.entries.get_mut(&token)
        {
            limited.pop_first();
            let new = old.with_room(queued.entry.release_ms());
            queued.standing = Some(new);
            self.queues[new.class()].insert((new, token));
        }
    }

    /// Drops the first key that no longer counts.
    fn drop_released(&mut self, spared: &[Token], now_ms: u64) {
        let first = self.firsts(spared).min();
        if let Some((standing, token)) = first
            && standing.at_ms() <= now_ms
        {
            self.remove(token);
        }
    }

    /// The key that is released first, of each class with room.
    fn firsts(&self, spared: &[Token]) -> impl Iterator<Item = (Standing, Token)> {
        let with_room = &self.queues[..usize::from(LIMITED)];
        with_room.iter().filter_map(|queue| {
            let mut keys = queue.iter().copied();
            keys.find(|(_, token)| !spared.contains(token))
        })
    }
}
