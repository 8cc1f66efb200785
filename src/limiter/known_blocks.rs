//! [`KnownBlocks`]: blocks that this process has made or seen. They apply here while the store cannot decide.
//!
//! The store stays the only source: its answers add and remove blocks, and while the store answers, nothing here
//! denies.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        PoisonError, RwLock, RwLockWriteGuard,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
    time::{Duration, UNIX_EPOCH},
};

use tokio::time::Instant;

use crate::domain::{
    block::{Block, BlockedBy},
    check::Check,
    decision::{Blocked, Decision},
    key::Key,
    rule::millis,
};

/// More are blocked only under attack, and then mostly by bans, which leave first. About 700 kB.
const MAX_KNOWN: usize = 10_000;

/// How many leave together, so that a flood of bans does not sort the whole map each time.
const LEAVE_TOGETHER: usize = MAX_KNOWN / 4;

#[derive(Debug, Default)]
pub(super) struct KnownBlocks {
    /// How many blocks were ever noted or ended here. Written under the lock.
    noted: AtomicU64,
    /// The value of `noted` after a block was last ended here.
    ended: AtomicU64,
    /// Keyed by a hash that clients cannot predict, since keys may be long.
    by_identity: RwLock<HashMap<u64, KnownBlock>>,
    hasher: RandomState,
}

#[derive(Clone, Copy, Debug)]
struct KnownBlock {
    block: Block,
    /// The end by the clock of this process; `None` for a permanent block.
    ends: Option<Instant>,
    /// The value of `noted` after this block.
    number: u64,
}

/// The number of blocks known when a store call began: its answer can revoke only those.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownBefore(u64);

impl KnownBlocks {
    /// Read this before calling the store.
    pub(super) fn before_call(&self) -> KnownBefore {
        KnownBefore(self.noted.load(Acquire))
    }

    /// Learns from the store's answer.
    pub(super) fn learn(&self, check: &Check, decision: &Decision, before: KnownBefore) {
        let usage = decision.usage();
        if let Decision::Blocked(blocked) = decision {
            // The store may have seen the block before this process ended the block. If still there, the next answer
            // says so.
            if before.0 < self.ended.load(Acquire) {
                return;
            }
            let (key, block, left) = (blocked.key(), blocked.block(), blocked.retry_after());
            if usage.spares_call() {
                self.note_made(key, block, left, Instant::now());
            } else {
                self.note(key, block, left, Instant::now());
            }
            return;
        }
        let is_of_store = !usage.spares_call() && !usage.has_unseen_blocks();
        if before.0 > 0 && check.enforces_blocks() && is_of_store {
            self.revoke(check, before);
        }
    }

    /// Notes a block that lasts for `lasts` from `now` on; permanent if `None`.
    pub(super) fn note(&self, key: &Key, block: Block, lasts: Option<Duration>, now: Instant) {
        let ends = lasts.and_then(|lasts| now.checked_add(lasts));
        if ends.is_some_and(|ends| ends <= now) {
            return;
        }
        let identity = self.hasher.hash_one(key);
        let mut by_identity = self.write();
        if by_identity.len() >= MAX_KNOWN && !by_identity.contains_key(&identity) {
            make_room(&mut by_identity, now);
        }
        let number = self.noted.load(Acquire) + 1;
        let known = KnownBlock {
            block,
            ends,
            number,
        };
        by_identity.insert(identity, known);
        self.noted.store(number, Release);
    }

    /// Notes a block that the store may not have, unless a known one holds for longer.
    pub(super) fn note_longer(&self, key: &Key, block: Block, lasts: Duration, now: Instant) {
        let identity = self.hasher.hash_one(key);
        let known = self.read(|by_identity| by_identity.get(&identity).copied());
        let is_longer = |known: KnownBlock| known.ends.is_none_or(|ends| ends > now + lasts);
        if !known.is_some_and(is_longer) {
            self.note(key, block, Some(lasts), now);
        }
    }

    /// Notes the block that the store returned for a request of `asked` from `now` on: that one, or another that never
    /// ends. A block already known keeps its end.
    pub(super) fn note_made(&self, key: &Key, block: Block, asked: Option<Duration>, now: Instant) {
        let identity = self.hasher.hash_one(key);
        let known = self.read(|by_identity| by_identity.get(&identity).copied());
        if known.is_none_or(|known| known.block != block) {
            self.note(
                key,
                block,
                asked.filter(|_| block.until_ms().is_some()),
                now,
            );
        }
    }

    pub(super) fn forget(&self, key: &Key) {
        let identity = self.hasher.hash_one(key);
        let mut by_identity = self.write();
        by_identity.remove(&identity);
        let number = self.noted.load(Acquire) + 1;
        self.ended.store(number, Release);
        self.noted.store(number, Release);
    }

    /// Finds the block of the check's identities that ends last.
    pub(super) fn find(&self, check: &Check) -> Option<Blocked> {
        if !check.enforces_blocks() || self.before_call().0 == 0 {
            return None;
        }
        let now = Instant::now();
        let known = self.read(|by_identity| {
            let known = check.deniable_keys().filter_map(|key| {
                let known = by_identity.get(&self.hasher.hash_one(key))?;
                known.holds(now).then_some((key, *known))
            });
            known.max_by_key(|(_, known)| (known.ends.is_none(), known.ends))
        });
        known.map(|(key, known)| Blocked::new(key.clone(), known.block, known.store_now_ms(now)))
    }

    /// Forgets blocks that the store no longer has, after an answer that did not block the check.
    fn revoke(&self, check: &Check, before: KnownBefore) {
        let is_revoked = |known: &KnownBlock| known.number <= before.0;
        let identities = check.deniable_keys().map(|key| self.hasher.hash_one(key));
        let is_known = self.read(|by_identity| {
            let mut known = identities
                .clone()
                .filter_map(|identity| by_identity.get(&identity));
            known.any(is_revoked)
        });
        if is_known {
            let mut by_identity = self.write();
            for identity in identities {
                if by_identity.get(&identity).is_some_and(is_revoked) {
                    by_identity.remove(&identity);
                }
            }
        }
    }

    fn read<T>(&self, read: impl FnOnce(&HashMap<u64, KnownBlock>) -> T) -> T {
        read(
            &self
                .by_identity
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u64, KnownBlock>> {
        self.by_identity
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops bans and pauses before operators' blocks, and those that end first before the others.
fn make_room(by_identity: &mut HashMap<u64, KnownBlock>, now: Instant) {
    by_identity.retain(|_, known| known.holds(now));
    if by_identity.len() <= MAX_KNOWN - LEAVE_TOGETHER {
        return;
    }
    let mut ranks: Vec<_> = by_identity.values().map(KnownBlock::rank).collect();
    let (_, first_to_stay, _) = ranks.select_nth_unstable(LEAVE_TOGETHER);
    let first_to_stay = *first_to_stay;
    by_identity.retain(|_, known| known.rank() >= first_to_stay);
}

impl KnownBlock {
    fn holds(&self, now: Instant) -> bool {
        self.ends.is_none_or(|ends| ends > now)
    }

    fn rank(&self) -> (bool, bool, Option<Instant>, u64) {
        let is_operators = self.block.source() == BlockedBy::Operator;
        (is_operators, self.ends.is_none(), self.ends, self.number)
    }

    /// The store's time, as far as this process can compute.
    fn store_now_ms(&self, now: Instant) -> u64 {
        match (self.block.until_ms(), self.ends) {
            (Some(until_ms), Some(ends)) => until_ms.saturating_sub(millis(ends - now)),
            _ => millis(UNIX_EPOCH.elapsed().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(number: usize) -> Key {
        Key::new("user", number.to_string())
    }

    fn is_known(known: &KnownBlocks, key: &Key) -> bool {
        known.read(|it| it.contains_key(&known.hasher.hash_one(key)))
    }

    #[test]
    fn a_block_that_the_store_may_not_have_replaces_only_one_that_ends_earlier() {
        let known = KnownBlocks::default();
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let ends = |known: &KnownBlocks| {
            known.read(|it| it[&known.hasher.hash_one(user(1))].ends.map(|it| it - now))
        };
        let pause = Block::new(1, BlockedBy::Pause);
        known.note_longer(&user(1), pause, 2 * second, now);
        assert_eq!(ends(&known), Some(2 * second));
        known.note_longer(&user(1), pause, second, now);
        assert_eq!(ends(&known), Some(2 * second));
        known.note_longer(&user(1), pause, 3 * second, now);
        assert_eq!(ends(&known), Some(3 * second));
        known.note(&user(1), Block::new(1, BlockedBy::Operator), None, now);
        known.note_longer(&user(1), pause, 3 * second, now);
        assert_eq!(ends(&known), None);
    }

    #[test]
    fn of_too_many_the_bans_leave_first_and_of_these_those_that_end_first() {
        let known = KnownBlocks::default();
        let now = Instant::now();
        let lasts = |seconds: usize| Some(Duration::from_secs(seconds as u64 + 1));
        let by = |by| Block::new(1, by);
        for number in 0..MAX_KNOWN {
            // The operator's ends first of all.
            let by = by(match number {
                0 => BlockedBy::Operator,
                _ => BlockedBy::Ban,
            });
            known.note(&user(number), by, lasts(number), now);
        }
        assert_eq!(known.read(HashMap::len), MAX_KNOWN);
        known.note(&user(MAX_KNOWN), by(BlockedBy::Ban), lasts(0), now);
        assert_eq!(known.read(HashMap::len), MAX_KNOWN - LEAVE_TOGETHER + 1);
        assert!(is_known(&known, &user(0)), "an operator's stays");
        assert!(!is_known(&known, &user(LEAVE_TOGETHER)));
        assert!(is_known(&known, &user(LEAVE_TOGETHER + 1)));
    }

    #[test]
    fn blocks_that_never_end_leave_room_too() {
        let known = KnownBlocks::default();
        let block = Block::new(u64::MAX, BlockedBy::Operator);
        for number in 0..=MAX_KNOWN {
            known.note(&user(number), block, None, Instant::now());
        }
        assert!(known.read(HashMap::len) < MAX_KNOWN);
        assert!(!is_known(&known, &user(0)), "the oldest has left");
        assert!(is_known(&known, &user(MAX_KNOWN)));
    }
}
