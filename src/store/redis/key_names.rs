//! Names of keys in Redis: `<prefix>:{<kind>=<token>}:<policy>`, and behind that for counts `~<number of the stored form>`,
//! for slots `@<window in ms>`. So versions of this crate that store counts otherwise count apart, side by side. All else
//! has no number, so that a block holds for all versions.
//!
//! The braces make all policies of one identity share a cluster slot. A client cannot choose a slot, merge two
//! identities or make a name long: only a short, plain value that is no secret is written as it is. Any other value is
//! hashed with a key, and marked by a `#`, which no plain value has.

use std::fmt;

use crate::{
    domain::{
        Text,
        contributors::label,
        key::Key,
        policy::Policy,
        report::{Account, Span},
    },
    store::redis::wire::VERSION,
};

/// The longest value that is written without hashing. An IPv6 network takes 43 bytes.
const MAX_PLAIN: usize = 48;

/// The longest kind that is written without hashing.
const MAX_KIND: usize = 32;

/// Separates these hashes from other uses of the same secret.
const CONTEXT: &str = "sluicegate 2026-11-21 identity token";

/// Builds the names of this store's keys.
#[derive(Clone)]
pub(super) struct Names {
    prefix: Box<str>,
    /// The end of all names of counts: `~<form>`.
    form: Box<[u8]>,
    hash_key: [u8; blake3::KEY_LEN],
}

/// Without the secret.
impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.into(),
            form: form(VERSION),
            hash_key: blake3::derive_key(CONTEXT, b""),
        }
    }

    pub(super) fn set_prefix(&mut self, prefix: &str) {
        let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
        assert!(
            prefix.len() <= MAX_PLAIN && prefix.bytes().all(plain),
            "the prefix of keys must be at most {MAX_PLAIN} printable ASCII characters without spaces and braces"
        );
        self.prefix = prefix.into();
    }

    /// Sets the number of the stored form.
    pub(super) fn set_form(&mut self, number: u8) {
        self.form = form(number);
    }

    pub(super) fn set_secret(&mut self, secret: &[u8]) {
        self.hash_key = blake3::derive_key(CONTEXT, secret);
    }

    /// The name of the index of blocks.
    pub(super) fn block_index(&self) -> Vec<u8> {
        format!("{}:!blocks", self.prefix).into_bytes()
    }

    /// The name of the hash of published policies.
    pub(super) fn policies(&self) -> Vec<u8> {
        format!("{}:!policies", self.prefix).into_bytes()
    }

    /// The text in the braces of an identity's names.
    pub(super) fn identity(&self, key: &Key) -> Vec<u8> {
        let name = self.name("", key);
        name[self.prefix.len() + ":{".len()..name.len() - "}:".len()].to_vec()
    }

    /// Writes the start of all names of an identity: `<prefix>:{<kind>=<token>}:`.
    pub(super) fn write_start(&self, name: &mut Vec<u8>, key: &Key) {
        name.reserve(self.prefix.len() + MAX_KIND + MAX_PLAIN + 5);
        name.extend_from_slice(self.prefix.as_bytes());
        name.extend_from_slice(b":{");
        self.write_identity(name, key);
        name.extend_from_slice(b"}:");
    }

    /// Writes the name of the key of a charge.
    pub(super) fn write_charge(&self, name: &mut Vec<u8>, policy: &Policy, key: &Key) {
        self.write_start(name, key);
        self.write_policy(name, policy);
    }

    /// Writes the end of the name of a charge. Slots are apart, by their window in ms. `@` and `~` are in no policy's name,
    /// and the names of this crate's own policies begin with `!`.
    pub(super) fn write_policy(&self, name: &mut Vec<u8>, policy: &Policy) {
        match policy.rules() {
            [rule] if rule.is_concurrency() => {
                name.extend_from_slice(policy.name().as_bytes());
                name.push(b'@');
                name.extend_from_slice(rule.window_ms().to_string().as_bytes());
            }
            _ => self.write_counts(name, policy.name()),
        }
    }

    /// Writes the end of the name of counts under the policy of this name.
    pub(super) fn write_counts(&self, name: &mut Vec<u8>, policy: &str) {
        name.extend_from_slice(policy.as_bytes());
        if !policy.starts_with('!') {
            name.extend_from_slice(&self.form);
        }
    }

    /// Writes the text in the braces: `<kind>=<token>`.
    pub(super) fn write_identity(&self, name: &mut Vec<u8>, key: &Key) {
        let (kind, value) = (key.kind(), key.value());
        if is_plain_kind(kind) {
            name.extend_from_slice(kind.as_bytes());
        }
        name.push(b'=');
        if key.is_token() || !key.is_secret() && is_plain_kind(kind) && is_plain(value) {
            name.extend_from_slice(value);
        } else {
            name.push(b'#');
            name.extend_from_slice(&self.hash(key).to_hex().as_bytes()[..32]);
        }
    }

    /// The prefix of all names.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The `SCAN` pattern for the keys of all identities, or of `key`, under all policies, or the policy with this
    /// name. Without a name, blocks and strikes are left out.
    pub(super) fn pattern(&self, key: Option<&Key>, policy: Option<&str>) -> Vec<u8> {
        let mut pattern = Vec::new();
        let literal = match key {
            Some(key) => self.name("", key),
            None => self.prefix.as_bytes().to_vec(),
        };
        for byte in literal {
            if b"*?[]\\".contains(&byte) {
                pattern.push(b'\\');
            }
            pattern.push(byte);
        }
        if key.is_none() {
            pattern.extend_from_slice(b":{*=*}:");
        }
        pattern.extend_from_slice(policy.unwrap_or("[^!]*").as_bytes());
        pattern
    }

    /// The name of the set of an account in one span.
    ///
    /// A policy's name has no colon, and every identity has a `=`, so this is no name of a count.
    pub(super) fn reported(&self, account: &Account, span: Span) -> Vec<u8> {
        let (mut name, by) = match account {
            Account::Contributors { policy, key } => (self.name(policy.name(), key), ":by"),
            Account::Denials => (format!("{}:{{!denied}}", self.prefix).into_bytes(), ""),
        };
        let end = format!("{by}:{}:{}", span.length_ms, span.start_ms);
        name.extend_from_slice(end.as_bytes());
        name
    }

    /// The label of a contributor.
    pub(super) fn label(&self, label: &Key) -> String {
        label::text(label, |label| self.hash(label).to_hex()[..32].to_owned())
    }

    /// A name of an identity with this end: the name of a policy without a number, such as blocks.
    pub(super) fn name(&self, policy: &str, key: &Key) -> Vec<u8> {
        let mut name = Vec::new();
        self.write_start(&mut name, key);
        name.extend_from_slice(policy.as_bytes());
        name
    }

    fn hash(&self, key: &Key) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.hash_key);
        hasher.update(&[u8::from(key.is_secret())]);
        // The same width on all replicas, whatever their processors.
        hasher.update(&(key.kind().len() as u64).to_le_bytes());
        hasher.update(key.kind().as_bytes());
        hasher.update(key.value());
        hasher.finalize()
    }
}

fn form(number: u8) -> Box<[u8]> {
    format!("~{number}").into_bytes().into()
}

/// The window in ms that stands at the end of a name of slots; `None` for the name of another key.
pub(super) fn window_of_slots(name: &[u8]) -> Option<u64> {
    let policy = &name[name.iter().rposition(|byte| *byte == b'}')?..];
    let at = policy.iter().rposition(|byte| *byte == b'@')?;
    std::str::from_utf8(&policy[at + 1..]).ok()?.parse().ok()
}

/// Reads the text in the braces of a name with a hashed value: `<kind>=#<hash>`.
pub(super) fn hashed(kind: impl Into<Text>, token: &str) -> Option<Key> {
    let hash = token.strip_prefix('#')?;
    let is_hash = hash.len() == 32
        && hash
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let kind = kind.into();
    let is_kind = kind.as_str().is_empty() || is_plain_kind(kind.as_str());
    (is_hash && is_kind).then(|| Key::of_token(kind, token))
}

fn is_plain_kind(kind: &str) -> bool {
    const PLAIN: [bool; 256] = plain(b"-_.");
    are(&PLAIN, kind.as_bytes(), MAX_KIND)
}

fn is_plain(value: &[u8]) -> bool {
    const PLAIN: [bool; 256] = plain(b"-_.:/@+");
    are(&PLAIN, value, MAX_PLAIN)
}

/// Whether there are bytes, at most `most`, and all of this set. Each check asks this of each byte of its keys.
fn are(set: &[bool; 256], bytes: &[u8], most: usize) -> bool {
    (1..=most).contains(&bytes.len())
        && bytes
            .iter()
            .fold(true, |all, byte| all & set[usize::from(*byte)])
}

/// Letters, digits and these signs.
const fn plain(signs: &[u8]) -> [bool; 256] {
    let (mut plain, mut byte) = ([false; 256], 0_u8);
    while byte < 128 {
        plain[byte as usize] = byte.is_ascii_alphanumeric();
        byte += 1;
    }
    let mut sign = 0;
    while sign < signs.len() {
        plain[signs[sign] as usize] = true;
        sign += 1;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: &Key) -> String {
        String::from_utf8(Names::new("rl").name("api", key)).unwrap()
    }

    #[test]
    fn plain_values_can_be_read_and_all_others_are_hashed() {
        assert_eq!(
            name(&Key::new("ip", "203.0.113.7")),
            "rl:{ip=203.0.113.7}:api"
        );
        assert_eq!(
            name(&Key::new("ip", "2001:db8:1:2::/64")),
            "rl:{ip=2001:db8:1:2::/64}:api"
        );
        let long = "x".repeat(65_536);
        for value in [
            "", "#0", "a}b", "{a}", "a=b", "a b", "a\0b", "ü", "a\nb", &long,
        ] {
            let name = name(&Key::new("user", value));
            assert!(
                name.starts_with("rl:{user=#") && name.len() == 10 + 32 + 5,
                "{name}"
            );
        }
        assert!(name(&Key::secret("api-key", "abc")).starts_with("rl:{api-key=#"));
        assert!(name(&Key::new("a{b}", "c")).starts_with("rl:{=#"));
    }

    #[test]
    fn a_hash_names_the_identity_that_it_was_made_of() {
        for key in [
            Key::secret("api-key", "abc"),
            Key::new("a{b}", "c"),
            Key::new("user", "a b"),
        ] {
            let name = name(&key);
            let (kind, token) = name[4..].split_once('=').unwrap();
            let token = token.strip_suffix("}:api").unwrap();
            let hashed = |token| hashed(kind.to_owned(), token);
            assert_eq!(self::name(&hashed(token).unwrap()), name);
            assert_eq!(hashed(&token[..32]), None);
        }
        assert_eq!(hashed("user", "#5877C54E0123456789ABCDEF01234567"), None);
        assert_eq!(hashed("a:b", "#5877c54e0123456789abcdef01234567"), None);
    }

    #[test]
    fn no_two_identities_share_a_name() {
        let values: [&[u8]; 9] = [
            b"", b"a", b"a:b", b"{a}", b"a}", b"\xff", b"\0", b"#a", b"b",
        ];
        let mut keys: Vec<Key> = Vec::new();
        for kind in ["user", "user=", "{user}", "", "a", "b"] {
            keys.extend(
                values
                    .iter()
                    .flat_map(|value| [Key::new(kind, value), Key::secret(kind, value)]),
            );
        }
        let names: std::collections::HashSet<Vec<u8>> = keys
            .iter()
            .map(|key| Names::new("rl").name("api", key))
            .collect();
        assert_eq!(names.len(), keys.len());
    }

    #[test]
    fn a_pattern_has_the_characters_of_names_for_themselves() {
        let mut names = Names::new("rl");
        let text = |pattern| String::from_utf8(pattern).unwrap();
        assert_eq!(text(names.pattern(None, None)), "rl:{*=*}:[^!]*");
        assert_eq!(text(names.pattern(None, Some("api"))), "rl:{*=*}:api");
        names.set_prefix("a*[?]\\");
        let alice = Key::new("user", "alice");
        assert_eq!(
            text(names.pattern(Some(&alice), None)),
            "a\\*\\[\\?\\]\\\\:{user=alice}:[^!]*"
        );
    }

    #[test]
    fn the_secret_of_the_deployment_changes_every_hash() {
        let mut names = Names::new("rl");
        let before = names.name("api", &Key::secret("api-key", "abc"));
        names.set_secret(b"pepper");
        assert_ne!(names.name("api", &Key::secret("api-key", "abc")), before);
    }

    #[test]
    #[should_panic(expected = "the prefix of keys must be")]
    fn a_prefix_with_braces_is_refused() {
        Names::new("rl").set_prefix("{rl}");
    }
}
