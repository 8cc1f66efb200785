use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use crate::{
    block::{Block, BlockedIdentity},
    check::Check,
    decision::Blocked,
    error::StoreError,
    key::Key,
};

/// Who is blocked. Few are: all under one lock, which checks share.
#[derive(Debug)]
pub(super) struct Blocks {
    capacity: usize,
    by_key: RwLock<HashMap<Key, Block>>,
}

impl Blocks {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            by_key: RwLock::default(),
        }
    }

    /// The latest block of an identity that the check charges.
    pub(super) fn blocked(&self, check: &Check, now_ms: u64) -> Option<Blocked> {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        if by_key.is_empty() {
            return None;
        }
        let blocks = check.keys().filter_map(|key| {
            let block = by_key.get(key).filter(|it| it.holds(now_ms))?;
            Some((key, *block))
        });
        let latest = blocks.reduce(|one, other| {
            if one.1.or_later(other.1) == one.1 {
                one
            } else {
                other
            }
        });
        latest.map(|(key, block)| Blocked::new(key.clone(), block, now_ms))
    }

    /// Adds a block, unless one holds that ends later. Answers the one that holds.
    pub(super) fn block(&self, key: Key, block: Block, now_ms: u64) -> Result<Block, StoreError> {
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        let known = by_key.get(&key).filter(|it| it.holds(now_ms));
        let block = known.map_or(block, |known| known.or_later(block));
        if !block.holds(now_ms) {
            return Ok(block);
        }
        if by_key.len() >= self.capacity && !by_key.contains_key(&key) {
            by_key.retain(|_, it| it.holds(now_ms));
            if by_key.len() >= self.capacity {
                return Err(FULL);
            }
        }
        by_key.insert(key, block);
        Ok(block)
    }

    pub(super) fn list(&self, most: usize, now_ms: u64) -> Vec<BlockedIdentity> {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        let blocks = by_key.iter().filter(|(_, block)| block.holds(now_ms));
        let listed = blocks.map(|(key, block)| BlockedIdentity::new(identity(key), *block));
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
