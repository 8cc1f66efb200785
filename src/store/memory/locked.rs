//! [`Locked`]: the cells of one operation, under the locks of their shards.

use std::sync::{MutexGuard, atomic::Ordering::Relaxed};

use smallvec::SmallVec;

use super::{
    MemoryCore,
    shard::{NO_ENTRY, Shard},
    token::Token,
};
use crate::{
    domain::{
        block::{Block, BlockRequest},
        charge::Charge,
        check::Check,
        decision::{Blocked, Count},
        error::{StoreError, StoreErrorKind},
        key::Key,
        policy::Policy,
        rule::Rule,
    },
    lock::lock,
    store::{
        engine::{Cells, StoreCells},
        entry::Entry,
    },
    warning,
};

/// All shards of one operation, locked together, so that a check over several keys is atomic.
pub(super) struct Locked<'a> {
    store: &'a MemoryCore,
    /// Read under the locks, so that the time of a key never steps back.
    now_ms: u64,
    /// The tokens of all keys of the operation. None of these keys is dropped to make room for another.
    tokens: SmallVec<[Token; 2]>,
    /// In the order of the shards.
    guards: Guards<'a>,
    /// Whether each key that was looked at has a place.
    are_known: bool,
    /// Whether a key found no place.
    is_full: bool,
}

/// A call that finds no place logs a warning if no other did for this time.
const QUIET_MS: u64 = 60_000;

type Guards<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>;

impl<'a> Locked<'a> {
    /// Locks nothing yet.
    pub(super) fn new(store: &'a MemoryCore) -> Self {
        Self {
            store,
            now_ms: 0,
            tokens: SmallVec::new(),
            guards: SmallVec::new(),
            are_known: true,
            is_full: false,
        }
    }

    /// Locks in the order of the shards, so that two operations never wait for each other.
    ///
    /// Ignores poison: after a panic, the counts of all other keys are worth more than the half-done check of one.
    fn lock(&mut self) {
        let shards = &self.store.shards;
        let count = shards.len();
        let mut wanted = self
            .tokens
            .iter()
            .fold(0_u32, |wanted, token| wanted | 1 << index(*token, count));
        while wanted != 0 {
            let index = wanted.trailing_zeros() as usize;
            self.guards.push((index, lock(&shards[index])));
            wanted &= wanted - 1;
        }
        self.now_ms = self.store.clock.now_ms();
    }

    fn shard(&mut self, token: Token) -> &mut Shard {
        shard(&mut self.guards, index(token, self.store.shards.len()))
    }
}

impl Cells for Locked<'_> {
    fn blocked(&mut self, check: &Check) -> Result<Option<Blocked>, StoreError> {
        let store = self.store;
        Ok(store.blocks.blocked(check, || store.clock.now_ms()))
    }

    fn begin(&mut self, charges: &[Charge]) {
        for charge in charges {
            let (policy, key) = (charge.policy().name(), charge.key());
            self.tokens.push(self.store.tokens.token(policy, key));
        }
        self.lock();
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn look<T>(&mut self, cell: usize, read: impl FnOnce(&Entry) -> T) -> Result<T, StoreError> {
        let token = self.tokens[cell];
        let known = self.shard(token).get(token);
        let (is_known, found) = (known.is_some(), read(known.unwrap_or(&NO_ENTRY)));
        self.are_known &= is_known;
        Ok(found)
    }

    fn reserve(&mut self, cells: impl Iterator<Item = usize> + Clone) -> Result<(), StoreError> {
        if self.are_known {
            return Ok(());
        }
        let (now_ms, count) = (self.now_ms, self.store.shards.len());
        let (tokens, guards) = (&*self.tokens, &mut self.guards);
        let places = cells.map(|cell| (tokens[cell], index(tokens[cell], count)));
        let mut wanted = places.clone();
        if wanted.all(|(token, index)| shard(guards, index).reserve(token, tokens, now_ms)) {
            return Ok(());
        }
        for (token, index) in places {
            shard(guards, index).cancel(token);
        }
        self.is_full = true;
        Err(FULL)
    }

    fn write(
        &mut self,
        cell: usize,
        rules: impl Iterator<Item = Rule> + Clone,
        counts: &mut [Count],
        change: impl FnOnce(&mut Entry, &mut [Count]),
    ) -> Result<(), StoreError> {
        let (token, now_ms) = (self.tokens[cell], self.now_ms);
        self.shard(token).write(token, |entry| {
            change(entry, counts);
            entry.standing(rules, counts, now_ms)
        });
        Ok(())
    }

    fn end(&mut self) {
        self.guards.clear();
        if self.is_full {
            let last_ms = self.store.full_at_ms.swap(self.now_ms, Relaxed);
            if last_ms.abs_diff(self.now_ms) > QUIET_MS {
                warning::memory_full();
            }
        }
    }
}

impl StoreCells for Locked<'_> {
    fn block(&mut self, key: &Key, request: &BlockRequest) -> Result<(Block, bool), StoreError> {
        let now_ms = self.store.clock.now_ms();
        self.store.blocks.block(key, request, now_ms)
    }

    fn unblock(&mut self, key: &Key) {
        self.store.blocks.unblock(key);
    }

    fn forget(&mut self, policy: &Policy, key: &Key) {
        let token = self.store.tokens.token(policy.name(), key);
        let shards = &self.store.shards;
        lock(&shards[index(token, shards.len())]).forget(token, policy);
    }
}

fn shard<'a>(guards: &'a mut Guards<'_>, wanted: usize) -> &'a mut Shard {
    match guards.iter_mut().find(|(index, _)| *index == wanted) {
        Some((_, shard)) => shard,
        None => unreachable!("the shard of every token was locked"),
    }
}

/// The shard of a token. The map within the shard uses the other half of the token. `count` is a power of two.
fn index(token: Token, count: usize) -> usize {
    (token.0 & 0xFFFF) as usize & (count - 1)
}

const FULL: StoreError = StoreError::new(
    StoreErrorKind::Full,
    "the store has no room for another key: all others are at their limits",
)
.unsent();

#[cfg(test)]
mod tests {
    use crate::{
        domain::{key::Key, policy::Policy},
        store::memory::MemoryStore,
    };

    use super::*;

    #[test]
    fn a_panic_under_a_lock_does_not_end_the_store() {
        let store = MemoryStore::new().capacity(1);
        let policy = Policy::parse("p", "1/1s").unwrap();
        let charge = [Charge::new(&policy, Key::new("user", "alice"), 1)];
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let mut locked = Locked::new(&store.inner);
                locked.begin(&charge);
                panic!("on purpose");
            });
            assert!(panics.join().is_err());
        });
        assert!(store.inner.shards[0].is_poisoned());
        let mut locked = Locked::new(&store.inner);
        locked.begin(&charge);
        assert!(locked.look(0, Entry::is_empty).unwrap());
    }
}
