//! [`Locked`]: the shards of one call, under their locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::{
    clock::Clock,
    shard::{NO_ENTRY, Shard},
    token::Token,
};
use crate::{
    domain::{charge::Charge, decision::Count},
    store::entry::by_charge,
};

/// There is no place for a new key: all others are at their limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Full;

/// All shards of one call, locked together, so that a check over several keys is atomic.
pub(super) struct Locked<'a> {
    /// Read under the locks, so that the time of a key never steps back.
    pub(super) now_ms: u64,
    count: usize,
    /// The tokens of all keys of the call. None of these keys is dropped to make room for another.
    tokens: &'a [Token],
    /// In the order of the shards.
    guards: SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>,
}

impl<'a> Locked<'a> {
    /// Locks in the order of the shards, so that two calls never wait for each other.
    ///
    /// Ignores poison: after a panic, the counts of all other keys are worth more than the half-done check of one.
    pub(super) fn new(shards: &'a [Mutex<Shard>], tokens: &'a [Token], clock: &Clock) -> Self {
        let count = shards.len();
        let mut wanted = tokens
            .iter()
            .fold(0_u32, |wanted, token| wanted | 1 << index(*token, count));
        let mut locked = Self {
            now_ms: 0,
            count,
            tokens,
            guards: SmallVec::new(),
        };
        while wanted != 0 {
            let index = wanted.trailing_zeros() as usize;
            let shard = shards[index].lock();
            let shard = shard.unwrap_or_else(PoisonError::into_inner);
            locked.guards.push((index, shard));
            wanted &= wanted - 1;
        }
        locked.now_ms = clock.now_ms();
        locked
    }

    pub(super) fn shard(&mut self, token: Token) -> &mut Shard {
        let wanted = index(token, self.count);
        match self.guards.iter_mut().find(|(index, _)| *index == wanted) {
            Some((_, shard)) => shard,
            None => unreachable!("the shard of every token was locked"),
        }
    }

    /// Charges as many of `count` identical checks as fit, and returns how many. `counts` then hold the usage after the
    /// charge. If some checks did not fit, `counts` also say when one more fits.
    pub(super) fn fill(
        &mut self,
        charges: &[Charge],
        tokens: &[Token],
        count: u16,
        counts: &mut [Count],
    ) -> Result<u16, Full> {
        if charges.is_empty() {
            return Ok(count);
        }
        let (fitting, are_known) = self.look(charges, tokens, counts);
        let admitted = fitting.min(count);
        if admitted > 0 {
            if !are_known {
                // A charge without cost changes no counts, so its key needs no place.
                let charged = charges.iter().zip(tokens).filter(|(it, _)| it.cost() > 0);
                self.reserve(charged.map(|(_, token)| *token))?;
            }
            self.charge(charges, tokens, admitted, counts);
            if admitted < count {
                // A charge returns no time at which more fits, so look for it.
                self.look(charges, tokens, counts);
            }
        }
        Ok(admitted)
    }

    /// Reserves a place for each of these keys, all or none.
    pub(super) fn reserve(
        &mut self,
        tokens: impl Iterator<Item = Token> + Clone,
    ) -> Result<(), Full> {
        let (spared, now_ms) = (self.tokens, self.now_ms);
        let mut wanted = tokens.clone();
        if wanted.all(|token| self.shard(token).reserve(token, spared, now_ms)) {
            return Ok(());
        }
        tokens.for_each(|token| self.shard(token).cancel(token));
        Err(Full)
    }

    /// Counts under each rule. Returns how many times the costs fit, and whether each key has a place.
    fn look(&mut self, charges: &[Charge], tokens: &[Token], counts: &mut [Count]) -> (u16, bool) {
        let (mut fitting, mut are_known, now_ms) = (u16::MAX, true, self.now_ms);
        for (charge, token, counts) in by_charge(charges, tokens, counts) {
            let known = self.shard(token).get(token);
            are_known &= known.is_some();
            let entry = known.unwrap_or(&NO_ENTRY);
            fitting = fitting.min(entry.look(charge, now_ms, counts));
        }
        (fitting, are_known)
    }

    /// Adds each cost `times` times, and replaces the counts that this changes.
    fn charge(&mut self, charges: &[Charge], tokens: &[Token], times: u16, counts: &mut [Count]) {
        let now_ms = self.now_ms;
        for (charge, token, counts) in by_charge(charges, tokens, counts) {
            let units = charge.cost() * u64::from(times); // all of them fit a limit
            if units > 0 {
                let (shard, policy) = (self.shard(token), charge.policy());
                shard.write(token, |entry| {
                    entry.charge(policy, units, now_ms, counts);
                    entry.standing(policy.rules().iter().copied(), counts, now_ms)
                });
            }
        }
    }
}

/// The shard of a token. The map within the shard uses the other half of the token. `count` is a power of two.
fn index(token: Token, count: usize) -> usize {
    (token.0 & 0xFFFF) as usize & (count - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_under_a_lock_does_not_end_the_store() {
        let shards = [Mutex::new(Shard::new(1))];
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _locked = Locked::new(&shards, &[(0, 0)], &Clock::system());
                panic!("on purpose");
            });
            assert!(panics.join().is_err());
        });
        assert!(shards[0].is_poisoned());
        let mut locked = Locked::new(&shards, &[(0, 0)], &Clock::system());
        assert_eq!(locked.shard((0, 0)).len(), 0);
    }
}
