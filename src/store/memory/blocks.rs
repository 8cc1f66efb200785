//! [`Blocks`]: the blocked identities.

use std::{
    collections::HashMap,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
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
#[derive(Debug)]
pub(super) struct Blocks {
    capacity: usize,
    tokens: Tokens,
    by_token: RwLock<ByToken>,
    /// Only written under the lock.
    swept_at_ms: AtomicU64,
}

type ByToken = HashMap<Token, Listed, BuildTokenHasher>;

/// A block, and the identity as text for lists: short, and a hash in place of a secret.
#[derive(Debug)]
struct Listed {
    held: HeldBlock,
    identity: Box<str>,
}

impl Blocks {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            tokens: Tokens::default(),
            by_token: RwLock::default(),
            swept_at_ms: AtomicU64::new(0),
        }
    }

    /// The latest block of an identity that the check charges. Reads the clock only if any identity is blocked.
    pub(super) fn blocked(&self, check: &Check, now_ms: impl FnOnce() -> u64) -> Option<Blocked> {
        let by_token = self.by_token.read().unwrap_or_else(PoisonError::into_inner);
        if by_token.is_empty() {
            return None;
        }
        let now_ms = now_ms();
        let blocks = check.keys().filter_map(|key| {
            let block = by_token.get(&self.token(key))?.held.block;
            let holds = block.holds(now_ms);
            holds.then(|| Blocked::new(key.clone(), block, now_ms))
        });
        blocks.reduce(Blocked::or_later)
    }

    fn token(&self, key: &Key) -> Token {
        self.tokens.token(BLOCKS, key)
    }

    /// Adds a block, unless the identity has one that ends later. Returns the block that is in force.
    ///
    /// If there is no room, an operator's block replaces the ban that ends first. So a client that gets many identities
    /// banned cannot keep operators from blocking.
    pub(super) fn block(
        &self,
        key: &Key,
        request: &BlockRequest,
        now_ms: u64,
    ) -> Result<Block, StoreError> {
        let token = self.token(key);
        let mut by_token = self
            .by_token
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let known = by_token.get(&token).map(|known| &known.held);
        let (is_known, (block, held)) =
            (known.is_some(), HeldBlock::request(known, request, now_ms));
        let Some(held) = held else {
            return Ok(block);
        };
        if by_token.len() >= self.capacity && !is_known {
            self.make_room(&mut by_token, block.source(), now_ms);
            if by_token.len() >= self.capacity {
                return Err(FULL);
            }
        }
        let identity = label::text(key, |_| format!("{:016x}{:016x}", token.0, token.1)).into();
        by_token.insert(token, Listed { held, identity });
        Ok(block)
    }

    fn make_room(&self, by_token: &mut ByToken, by: BlockedBy, now_ms: u64) {
        let is_ban = by == BlockedBy::Ban;
        let swept_ms = now_ms.abs_diff(self.swept_at_ms.load(Relaxed));
        if is_ban && swept_ms < SWEEP_MS {
            return;
        }
        self.swept_at_ms.store(now_ms, Relaxed);
        // The levels of bans that have ended make room for blocks.
        by_token.retain(|_, it| it.held.block.holds(now_ms));
        if is_ban || by_token.len() < self.capacity {
            return;
        }
        let blocks = by_token.iter().map(|(token, it)| (*token, it.held.block));
        let bans = blocks.filter(|(_, block)| block.source() == BlockedBy::Ban);
        let first = bans.min_by_key(|(_, block)| block.until_ms());
        if let Some((token, _)) = first {
            by_token.remove(&token);
        }
    }

    pub(super) fn list(&self, most: usize, now_ms: u64) -> Vec<BlockedIdentity> {
        let by_token = self.by_token.read().unwrap_or_else(PoisonError::into_inner);
        let listed = by_token.values().filter(|it| it.held.block.holds(now_ms));
        let listed = listed.map(|Listed { held, identity }| {
            BlockedIdentity::new(identity.clone(), held.block, held.details.clone())
        });
        listed.take(most).collect()
    }

    pub(super) fn unblock(&self, key: &Key) {
        let mut by_token = self
            .by_token
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        by_token.remove(&self.token(key));
    }
}

const FULL: StoreError = StoreError::invalid_request("the store has no room for another block");
