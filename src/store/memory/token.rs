use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::domain::key::Key;

/// What stands for a policy's name and a key: 128 bits, so that no two meet, keyed so that nobody can aim at one, and
/// useless outside this process.
pub(super) type Token = (u64, u64);

/// Identities up to this length, three bytes included, are put together without an allocation.
const SHORT: usize = 128;

/// Makes tokens, each time a process starts other ones.
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
    /// An identity that is short is put together first: hashing its parts one by one takes longer. An identity is
    /// always hashed in the same way, since which one depends on its length.
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

/// Two lengths and the secrecy, then the parts: so `("a", "bc")` and `("ab", "c")` stay apart. `None` if it is not
/// short.
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
