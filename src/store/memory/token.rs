//! [`Token`]: a keyed hash that replaces a policy's name and a key.

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::domain::key::Key;

/// A hash of a policy's name and a key. With 128 bits no two are equal, the hash key is secret so that a client cannot
/// aim at a token, and the token has no meaning outside this process.
pub(super) type Token = (u64, u64);

/// The maximum length of an identity, with three bytes for the header, that is joined on the stack.
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
    /// Joins a short identity first, because hashing the parts separately takes longer. The length decides, so an
    /// identity is always hashed in the same way.
    pub(super) fn token(&self, policy: &str, key: &Key) -> Token {
        let mut short = [0; SHORT];
        match put_together(policy, key, &mut short) {
            Some(identity) => self.hasher.hash(identity).as_u64(),
            None => {
                let mut hasher = self.hasher;
                (policy, key).hash(&mut hasher);
                hasher.finish128().as_u64()
            }
        }
    }
}

/// A header of two lengths and the secrecy, then the parts, so that `("a", "bc")` and `("ab", "c")` stay apart. `None`
/// if the identity is not short.
fn put_together<'a>(policy: &str, key: &Key, short: &'a mut [u8; SHORT]) -> Option<&'a [u8]> {
    let parts = [policy.as_bytes(), key.kind().as_bytes(), key.value()];
    let header = [
        u8::try_from(policy.len()).ok()?,
        u8::try_from(key.kind().len()).ok()?,
        u8::from(key.is_secret()),
    ];
    let mut end = header.len();
    short[..end].copy_from_slice(&header);
    for part in parts {
        let start = end;
        end += part.len();
        short.get_mut(start..end)?.copy_from_slice(part);
    }
    Some(&short[..end])
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
