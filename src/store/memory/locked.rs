use std::{
    array,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{MAX_SHARDS, shard::Shard, token::Token};

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
        let wanted = tokens
            .iter()
            .fold(0_u32, |wanted, token| wanted | 1 << index(*token, count));
        let guards = array::from_fn(|index| {
            let is_wanted = wanted >> index & 1 == 1;
            is_wanted.then(|| shards[index].lock().unwrap_or_else(PoisonError::into_inner))
        });
        Self { count, guards }
    }

    pub(super) fn shard(&mut self, token: Token) -> &mut Shard {
        match &mut self.guards[index(token, self.count)] {
            Some(shard) => shard,
            None => unreachable!("the shard of every token was locked"),
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
