//! Labels of contributors: short, so that a client cannot make them grow, and hashed so that two clients cannot share
//! one.

use std::sync::Arc;

use crate::domain::key::Key;

/// The longest label. Sixteen of them need less than the 1 KB that a sorted set may have.
pub(crate) const MAX_LABEL: usize = 44;

/// The longest value that a process keeps in full; the store hashes a value that does not fit into a label.
const MAX_VALUE: usize = 48;

/// How many characters of the kind remain beside a hash.
const MAX_HASHED_KIND: usize = 10;

/// Shortens a key: a long value becomes its beginning and a hash of the whole.
pub(crate) fn bounded(label: Key) -> Arc<Key> {
    let value = label.value();
    if value.len() <= MAX_VALUE {
        return Arc::new(label);
    }
    let mut short = value[..MAX_VALUE - HASH].to_vec();
    short.extend_from_slice(hash(value).as_bytes());
    Arc::new(label.with_value(&short))
}

/// The length of the hash of a long value, in hexadecimal digits: another value with this hash cannot be found.
const HASH: usize = 32;

#[cfg(feature = "redis")]
fn hash(value: &[u8]) -> String {
    blake3::hash(value).to_hex()[..HASH].to_owned()
}

/// The hash is valid within one process only: the keys are random.
#[cfg(not(feature = "redis"))]
fn hash(value: &[u8]) -> String {
    use std::{
        hash::{BuildHasher, RandomState},
        sync::LazyLock,
    };
    static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(Default::default);
    KEYS.iter()
        .map(|key| format!("{:016x}", key.hash_one(value)))
        .collect()
}

/// Returns `kind=value`, or `kind=#hash` if the value is long, unusual or secret; `hash` returns 32 characters.
pub(crate) fn text(label: &Key, hash: impl FnOnce(&Key) -> String) -> String {
    // Operators read labels in a terminal and type them into commands, so unusual characters are hashed.
    let kind = Some(label.kind()).filter(|it| is_plain(it.as_bytes(), b"-_."));
    let kind = kind.unwrap_or_default();
    let value = std::str::from_utf8(label.value()).unwrap_or_default();
    let fits = !kind.is_empty() && kind.len() + 1 + value.len() <= MAX_LABEL;
    if fits && !label.is_secret() && is_plain(value.as_bytes(), b"-_.:/@+") {
        return format!("{kind}={value}");
    }
    let kind = &kind[..kind.len().min(MAX_HASHED_KIND)];
    format!("{kind}=#{}", hash(label))
}

fn is_plain(text: &[u8], also: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || also.contains(byte);
    !text.is_empty() && text.iter().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(label: Key) -> String {
        text(&bounded(label), |_| "0".repeat(32))
    }

    #[test]
    fn plain_labels_can_be_read_and_all_others_are_hashed_and_short() {
        let uuid = "6d1c4e52-3a0e-4a43-9f6e-0d4cf6a4a1b2";
        assert_eq!(
            text_of(Key::new("account", uuid)),
            format!("account={uuid}")
        );
        assert_eq!(text_of(Key::new("ip", "2001:db8::/64")), "ip=2001:db8::/64");
        let long = "x".repeat(65_536);
        for value in [
            "",
            "#0",
            "a=b",
            "a b",
            "ü",
            "a\nb",
            "{a}",
            &long,
            &long[..40],
        ] {
            let text = text_of(Key::new("user", value));
            assert_eq!(text, format!("user=#{}", "0".repeat(32)), "{value:?}");
        }
        assert!(text_of(Key::secret("api-key", "abc")).starts_with("api-key=#"));
        assert!(text_of(Key::new("a b", "c")).starts_with("=#"));
        let widest = text_of(Key::secret("a-very-long-kind-of-label", "x"));
        assert!(widest.len() <= MAX_LABEL, "{widest}");
    }

    #[test]
    fn long_values_are_cut_and_still_told_apart() {
        let long = "x".repeat(65_536);
        let [a, b] = ["a", "b"].map(|end| bounded(Key::new("user", format!("{long}{end}"))));
        assert_ne!(a, b);
        assert_eq!(a.value().len(), MAX_VALUE);
        assert!(bounded(Key::secret("user", &long)).is_secret());
    }
}
