//! [`Blocks`]: the blocked identities.

use std::{
    collections::HashMap,
    sync::{
        PoisonError, RwLock,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use super::token::{BuildTokenHasher, Token, Tokens};
use crate::domain::{
    block::{BLOCKS, Block, BlockRequest, BlockedBy, BlockedIdentity, HeldBlock},
    check::Check,
    contributors::label,
    decision::Blocked,
    error::StoreError,
    key::Key,
};

/// The minimum time between two searches of a ban for room, in ms. Checks wait during a search.
const SWEEP_MS: u64 = 1_000;

/// The blocked identities. There are few, so one lock that checks share is enough.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    capacity: usize,
    tokens: Tokens,
    by_key: RwLock<ByKey>,
    /// Whether there may be one. Only written under the lock.
    has_some: AtomicBool,
    /// Only written under the lock.
    swept_at_ms: AtomicU64,
}

/// Each block, and the identity as text for lists: short, and a hash in place of a secret.
type ByKey = HashMap<Token, (HeldBlock, Box<str>), BuildTokenHasher>;

impl Blocks {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    /// The latest block of an identity that the check charges. Reads the clock only if any identity is blocked.
    pub(super) fn blocked(&self, check: &Check, now_ms: impl FnOnce() -> u64) -> Option<Blocked> {
        if !self.has_some.load(Acquire) {
            return None;
        }
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        let now_ms = now_ms();
        let blocks = check.keys().filter_map(|key| {
            let block = by_key.get(&self.token(key))?.0.block;
            let holds = block.holds(now_ms);
            holds.then(|| Blocked::new(key.clone(), block, now_ms))
        });
        blocks.reduce(Blocked::or_later)
    }

    fn token(&self, key: &Key) -> Token {
        self.tokens.token(BLOCKS, key)
    }

    /// Adds a block, unless the identity has one that ends later. Returns the block that is in force, and whether it is
    /// new.
    ///
    /// If there is no room, an operator's block replaces the ban that ends first. So a client that gets many identities
    /// banned cannot keep operators from blocking.
    pub(super) fn block(
        &self,
        key: &Key,
        request: &BlockRequest,
        now_ms: u64,
    ) -> Result<(Block, bool), StoreError> {
        let token = self.token(key);
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        let known = by_key.get(&token).map(|(held, _)| held);
        let (block, held) = HeldBlock::request(known, request, now_ms);
        let Some(held) = held else {
            return Ok((block, false));
        };
        if by_key.len() >= self.capacity && !by_key.contains_key(&token) {
            self.make_room(&mut by_key, block.source(), now_ms);
            if by_key.len() >= self.capacity {
                return Err(FULL);
            }
        }
        let identity = label::text(key, |_| format!("{:016x}{:016x}", token.0, token.1)).into();
        by_key.insert(token, (held, identity));
        self.has_some.store(true, Release);
        Ok((block, true))
    }

    fn make_room(&self, by_key: &mut ByKey, by: BlockedBy, now_ms: u64) {
        let is_ban = by == BlockedBy::Ban;
        let swept_ms = now_ms.abs_diff(self.swept_at_ms.load(Relaxed));
        if is_ban && swept_ms < SWEEP_MS {
            return;
        }
        self.swept_at_ms.store(now_ms, Relaxed);
        // The levels of bans that have ended make room for blocks.
        by_key.retain(|_, (held, _)| held.block.holds(now_ms));
        if is_ban || by_key.len() < self.capacity {
            return;
        }
        let blocks = by_key.iter().map(|(token, (held, _))| (*token, held.block));
        let bans = blocks.filter(|(_, block)| block.source() == BlockedBy::Ban);
        if let Some((token, _)) = bans.min_by_key(|(_, block)| block.until_ms()) {
            by_key.remove(&token);
        }
    }

    pub(super) fn list(&self, most: usize, now_ms: u64) -> Vec<BlockedIdentity> {
        let by_key = self.by_key.read().unwrap_or_else(PoisonError::into_inner);
        let listed = by_key.values().filter(|(held, _)| held.block.holds(now_ms));
        let listed =
            listed.map(|(held, identity)| BlockedIdentity::new(identity.clone(), held.clone()));
        listed.take(most).collect()
    }

    pub(super) fn unblock(&self, key: &Key) {
        let mut by_key = self.by_key.write().unwrap_or_else(PoisonError::into_inner);
        by_key.remove(&self.token(key));
        self.has_some.store(!by_key.is_empty(), Release);
    }
}

const FULL: StoreError = StoreError::invalid_request("the store has no room for another block");
