use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

use crate::{key::Key, policy::Policy};

/// What stands for a policy's name and a key: 128 bits, so that no two meet, keyed so that nobody can aim at one, and
/// useless outside this process.
pub(super) type Token = (u64, u64);

/// Makes tokens, each time a process starts other ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens {
    first: RandomState,
    second: RandomState,
}

impl Tokens {
    /// Hashing the parts as separate fields keeps `("a", "bc")` and `("ab", "c")` apart.
    pub(super) fn token(&self, policy: &Policy, key: &Key) -> Token {
        let identity = (policy.name(), key);
        (
            self.first.hash_one(identity),
            self.second.hash_one(identity),
        )
    }
}

/// For maps from tokens: half of a token is as good a hash as any.
pub(super) type BuildTokenHasher = BuildHasherDefault<TokenHasher>;

#[derive(Default)]
pub(super) struct TokenHasher(u64);

impl Hasher for TokenHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, half: u64) {
        self.0 = half;
    }
}
