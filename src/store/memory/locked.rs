use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{MAX_SHARDS, shard::Shard, token::Token};
use crate::{charge::Check, decision::Count};

/// All the shards that one call needs, locked together: so a check over several keys is atomic.
pub(super) struct Locked<'a> {
    count: usize,
    guards: [Option<MutexGuard<'a, Shard>>; MAX_SHARDS],
}

impl<'a> Locked<'a> {
    /// Locks in the order of the shards, so that two calls never wait for each other in a circle.
    ///
    /// Poison is ignored: half a check of one key is worth less than the counts of all others.
    pub(super) fn new(shards: &'a [Mutex<Shard>], tokens: &[Token]) -> Self {
        let count = shards.len();
        let mut wanted = tokens
            .iter()
            .fold(0_u32, |wanted, token| wanted | 1 << index(*token, count));
        let mut guards = [const { None }; MAX_SHARDS];
        while wanted != 0 {
            let index = wanted.trailing_zeros() as usize;
            let shard = shards[index].lock();
            guards[index] = Some(shard.unwrap_or_else(PoisonError::into_inner));
            wanted &= wanted - 1;
        }
        Self { count, guards }
    }

    pub(super) fn shard(&mut self, token: Token) -> &mut Shard {
        match &mut self.guards[index(token, self.count)] {
            Some(shard) => shard,
            None => unreachable!("the shard of every token was locked"),
        }
    }

    /// Counts under each rule, and answers whether every cost fits.
    pub(super) fn look(
        &mut self,
        check: &Check,
        tokens: &[Token],
        now_ms: u64,
        mut counts: &mut [Count],
    ) -> bool {
        let mut fits = true;
        for (charge, token) in check.charges().iter().zip(tokens) {
            let own;
            (own, counts) = counts.split_at_mut(charge.policy().rules().len());
            let entry = self.shard(*token).entry(*token);
            fits &= entry.look(charge, now_ms, own);
        }
        fits
    }

    /// Adds every cost, and replaces the counts that this changes.
    pub(super) fn charge(
        &mut self,
        check: &Check,
        tokens: &[Token],
        now_ms: u64,
        mut counts: &mut [Count],
    ) {
        for (charge, token) in check.charges().iter().zip(tokens) {
            let own;
            (own, counts) = counts.split_at_mut(charge.policy().rules().len());
            if charge.cost() > 0 {
                let shard = self.shard(*token);
                shard.write(*token, now_ms, |entry| entry.charge(charge, now_ms, own));
            }
        }
    }
}

/// The shard of a token, from the half that does not choose the place within the shard.
fn index(token: Token, count: usize) -> usize {
    (token.0 & 0xFFFF) as usize % count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_under_a_lock_does_not_end_the_store() {
        let shards = [Mutex::new(Shard::new(1))];
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _locked = Locked::new(&shards, &[(0, 0)]);
                panic!("on purpose");
            });
            assert!(panics.join().is_err());
        });
        assert!(shards[0].is_poisoned());
        assert_eq!(Locked::new(&shards, &[(0, 0)]).shard((0, 0)).len(), 0);
    }
}
