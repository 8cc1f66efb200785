use std::{
    collections::HashMap,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::domain::{
    block::{Block, BlockDetails, BlockRequest, BlockedBy, BlockedIdentity},
    check::Check,
    decision::Blocked,
    error::StoreError,
    key::Key,
};

/// Bans look for room at most once in so many ms: checks wait meanwhile.
const SWEEP_MS: u64 = 1_000;

/// Who is blocked. Few are: all under one lock, which checks share.
#[derive(Debug)]
pub(super) struct Blocks {
    capacity: usize,
    by_key: RwLock<HashMap<Key, Held>>,
    /// Written under the lock.
    swept_at_ms: AtomicU64,
}

#[derive(Debug)]
struct Held {
    block: Block,
    details: BlockDetails,
}

impl Blocks {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            by_key: RwLock::default(),
            swept_at_ms: AtomicU64::new(0),
        }
    }

    /// The latest block of an identity that the check charges. The clock is read only if any identity is blocked.
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

    /// Adds a block, unless one holds that ends later. Answers the one that holds. Where there is no room, an
    /// operator's takes that of the ban that ends first: whoever has many identities banned must not keep operators
    /// from blocking.
    pub(super) fn block(
        &self,
        key: Key,
        request: &BlockRequest,
        now_ms: u64,
    ) -> Result<Block, StoreError> {
        let block = Block::begin(request.until(), request.by(), now_ms);
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        let known = by_key.get(&key).map(|held| held.block);
        if let Some(known) = known.filter(|it| it.holds(now_ms) && it.or_later(block) == *it) {
            return Ok(known);
        }
        if !block.holds(now_ms) {
            return Ok(block);
        }
        if by_key.len() >= self.capacity && !by_key.contains_key(&key) {
            self.make_room(&mut by_key, block.by(), now_ms);
            if by_key.len() >= self.capacity {
                return Err(FULL);
            }
        }
        let details = request.details().clone().created_at(now_ms);
        by_key.insert(key, Held { block, details });
        Ok(block)
    }

    fn make_room(&self, by_key: &mut HashMap<Key, Held>, by: BlockedBy, now_ms: u64) {
        let is_ban = by == BlockedBy::Ban;
        let swept_ms = now_ms.abs_diff(self.swept_at_ms.load(Relaxed));
        if is_ban && swept_ms < SWEEP_MS {
            return;
        }
        self.swept_at_ms.store(now_ms, Relaxed);
        by_key.retain(|_, held| held.block.holds(now_ms));
        if is_ban || by_key.len() < self.capacity {
            return;
        }
        let bans = by_key
            .iter()
            .filter(|(_, held)| held.block.by() == BlockedBy::Ban);
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

/// A secret is not told.
fn identity(key: &Key) -> String {
    match str::from_utf8(key.value()) {
        Ok(value) if !key.is_secret() => format!("{}={value}", key.kind()),
        _ => format!("{}=#", key.kind()),
    }
}

const FULL: StoreError = StoreError::invalid_request("the store has no room for another block");
