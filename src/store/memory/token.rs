//! [`Token`]: a keyed hash that replaces a policy's name and a key.

use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

use siphasher::sip128::SipHasher13;
use smallvec::SmallVec;

use crate::domain::key::Key;

/// A hash of a policy's name and a key. With 128 bits no two are equal, the hash key is secret so that a client cannot
/// aim at a token, and the token has no meaning outside this process.
pub(super) type Token = (u64, u64);

/// Longer identities are joined on the heap.
const SHORT: usize = 128;

/// Makes tokens. Each process makes other ones.
#[derive(Clone, Debug)]
pub(super) struct Tokens {
    hasher: SipHasher13,
}

impl Default for Tokens {
    fn default() -> Self {
        let random = || RandomState::new().hash_one(());
        Self {
            hasher: SipHasher13::new_with_keys(random(), random()),
        }
    }
}

impl Tokens {
    /// Joins the parts first, because hashing them separately takes longer. Their lengths go first, and the secrecy, so that
    /// `("a", "bc")` and `("ab", "c")` stay apart.
    pub(super) fn token(&self, policy: &str, key: &Key) -> Token {
        let lengths = (policy.len() as u64) << 32 | key.kind().len() as u64;
        let header = lengths << 1 | u64::from(key.is_secret());
        let mut identity = SmallVec::<[u8; SHORT]>::from_slice(&header.to_le_bytes());
        for part in [policy.as_bytes(), key.kind().as_bytes(), key.value()] {
            identity.extend_from_slice(part);
        }
        self.hasher.hash(&identity).as_u64()
    }
}

/// For maps indexed by tokens: half of a token is as good as any hash.
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
