//! [`Blocks`]: the blocked identities.

use std::{
    collections::HashMap,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::domain::{
    block::{Block, BlockRequest, BlockedBy, BlockedIdentity, HeldBlock},
    check::Check,
    decision::Blocked,
    error::StoreError,
    key::Key,
};

/// The minimum time between two searches of a ban for room, in ms. Checks wait during a search.
const SWEEP_MS: u64 = 1_000;

/// The blocked identities. There are few, so one lock that checks share is enough.
#[derive(Debug)]
pub(super) struct Blocks {
    capacity: usize,
    by_key: RwLock<HashMap<Key, HeldBlock>>,
    /// Only written under the lock.
    swept_at_ms: AtomicU64,
}

impl Blocks {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            by_key: RwLock::default(),
            swept_at_ms: AtomicU64::new(0),
        }
    }

    /// The latest block of an identity that the check charges. Reads the clock only if any identity is blocked.
    pub(super) fn blocked(&self, check: &Check, now_ms: impl FnOnce() -> u64) -> Option<Blocked> {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        if by_key.is_empty() {
            return None;
        }
        let now_ms = now_ms();
        let blocks = check.keys().filter_map(|key| {
            let held = by_key.get(key).filter(|it| it.block.holds(now_ms))?;
            Some(Blocked::new(key.clone(), held.block, now_ms))
        });
        blocks.reduce(Blocked::or_later)
    }

    /// Adds a block, unless the identity has one that ends later. Returns the block that is in force.
    ///
    /// If there is no room, an operator's block replaces the ban that ends first. So a client that gets many identities
    /// banned cannot keep operators from blocking.
    pub(super) fn block(
        &self,
        key: Key,
        request: &BlockRequest,
        now_ms: u64,
    ) -> Result<Block, StoreError> {
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        let (block, held) = HeldBlock::request(by_key.get(&key), request, now_ms);
        let Some(held) = held else {
            return Ok(block);
        };
        if by_key.len() >= self.capacity && !by_key.contains_key(&key) {
            self.make_room(&mut by_key, block.source(), now_ms);
            if by_key.len() >= self.capacity {
                return Err(FULL);
            }
        }
        by_key.insert(key, held);
        Ok(block)
    }

    fn make_room(&self, by_key: &mut HashMap<Key, HeldBlock>, by: BlockedBy, now_ms: u64) {
        let is_ban = by == BlockedBy::Ban;
        let swept_ms = now_ms.abs_diff(self.swept_at_ms.load(Relaxed));
        if is_ban && swept_ms < SWEEP_MS {
            return;
        }
        self.swept_at_ms.store(now_ms, Relaxed);
        // The levels of bans that have ended make room for blocks.
        by_key.retain(|_, held| held.block.holds(now_ms));
        if is_ban || by_key.len() < self.capacity {
            return;
        }
        let bans = by_key
            .iter()
            .filter(|(_, held)| held.block.source() == BlockedBy::Ban);
        let first = bans.min_by_key(|(_, held)| held.block.until_ms());
        if let Some(key) = first.map(|(key, _)| key.clone()) {
            by_key.remove(&key);
        }
    }

    pub(super) fn list(&self, most: usize, now_ms: u64) -> Vec<BlockedIdentity> {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        let blocks = by_key.iter().filter(|(_, held)| held.block.holds(now_ms));
        let listed = blocks.map(|(key, held)| {
            BlockedIdentity::new(identity(key), held.block, held.details.clone())
        });
        listed.take(most).collect()
    }

    pub(super) fn unblock(&self, key: &Key) {
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        by_key.remove(key);
    }
}

/// The identity as text, with a secret value left out.
fn identity(key: &Key) -> String {
    match str::from_utf8(key.value()) {
        Ok(value) if !key.is_secret() => format!("{}={value}", key.kind()),
        _ => format!("{}=#", key.kind()),
    }
}

const FULL: StoreError = StoreError::invalid_request("the store has no room for another block");
