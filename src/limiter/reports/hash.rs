//! [`IdentityHasher`]: hashes a policy's name and a key in some nanoseconds.
//!
//! Like wyhash, the hasher multiplies eight bytes at a time, and mixes the upper half of the product into the lower.
//! Its seeds differ in each process. On a collision, two identities count as one, with no other effect.

use std::hash::{BuildHasher, RandomState};

use crate::domain::{key::Key, policy::Policy};

pub(super) struct IdentityHasher {
    seeds: [u64; 2],
}

impl Default for IdentityHasher {
    fn default() -> Self {
        let random = || RandomState::new().hash_one(());
        Self {
            // Odd: no factor may be 0.
            seeds: [random(), random() | 1],
        }
    }
}

impl IdentityHasher {
    /// The hash of an identity under a policy, of a blocked identity, or of a contributor.
    #[inline]
    pub(super) fn hash(&self, policy: Option<&Policy>, key: &Key) -> u64 {
        let hash = self.seeds[0] ^ u64::from(key.is_secret());
        let hash = self.add(hash, policy.map_or("", Policy::name).as_bytes());
        let hash = self.add(hash, key.kind().as_bytes());
        self.add(hash, key.value())
    }

    /// Includes the length, so that `("a", "bc")` and `("ab", "c")` stay apart.
    #[inline]
    fn add(&self, hash: u64, bytes: &[u8]) -> u64 {
        let mut hash = hash ^ (bytes.len() as u64).rotate_left(32);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            hash = self.mixed(hash ^ u64::from_le_bytes(*word));
        }
        let rest = rest.iter();
        self.mixed(hash ^ rest.fold(0, |word, byte| word << 8 | u64::from(*byte)))
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the halves of the product")]
    fn mixed(&self, word: u64) -> u64 {
        let product = u128::from(word) * u128::from(self.seeds[1]);
        product as u64 ^ (product >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_of_many_identities_share_a_hash() {
        let hasher = IdentityHasher::default();
        let [api, ap] = ["api", "ap"].map(|name| Policy::parse(name, "1/1m").unwrap());
        let mut hashes = HashSet::new();
        let mut count = 0;
        let mut add = |policy: Option<&Policy>, key: &Key| {
            count += 1;
            hashes.insert(hasher.hash(policy, key));
        };
        for number in 0..20_000 {
            for policy in [Some(&api), Some(&ap), None] {
                add(
                    policy,
                    &Key::new("ip", format!("10.0.{}.{}", number / 256, number % 256)),
                );
                add(policy, &Key::secret("user", number.to_string()));
            }
        }
        for length in 0..40 {
            add(Some(&api), &Key::new("user", vec![0; length]));
            add(Some(&api), &Key::new("use", vec![b'r'; length]));
            for place in 0..length {
                let mut value = vec![b'x'; length];
                value[place] = b'y';
                add(Some(&api), &Key::new("user", value));
            }
        }
        assert_eq!(hashes.len(), count);
    }
}
