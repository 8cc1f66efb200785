//! [`StoredName`]: the parsed name of a key.

use redis::Cmd;

use crate::{
    domain::{
        block::{BLOCKS, STRIKES},
        key::Key,
        policy::Policy,
    },
    store::redis::key_names::{Names, window_of_slots},
};

/// The name of a stored key: its identity and its policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredName {
    name: Box<str>,
    identity: std::ops::Range<usize>,
}

impl StoredName {
    /// The key of the counts under the policy of this name, or of the block or strikes.
    pub(super) fn write(names: &Names, key: &Key, policy: &str) -> Self {
        Self::with_end(names, key, |name| match policy.contains('@') {
            true => name.extend_from_slice(policy.as_bytes()), // of slots
            false => names.write_counts(name, policy),
        })
    }

    fn with_end(names: &Names, key: &Key, write_end: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut name = names.name("", key);
        let start = names.prefix().len() + ":{".len();
        let identity = start..name.len() - "}:".len();
        write_end(&mut name);
        let name = String::from_utf8_lossy(&name).into();
        Self { name, identity }
    }

    /// The key of the counts or slots under this policy.
    pub(super) fn of(names: &Names, key: &Key, policy: &Policy) -> Self {
        Self::with_end(names, key, |name| names.write_policy(name, policy))
    }

    /// The key of the block of an identity, from its form in the index.
    pub(super) fn of_block(names: &Names, identity: &[u8]) -> Option<Self> {
        let prefix = names.prefix().as_bytes();
        let end = ["}:", BLOCKS].concat();
        Self::read(names, [prefix, b":{", identity, end.as_bytes()].concat())
    }

    /// `None` for a name that this store does not use.
    pub(super) fn read(names: &Names, name: Vec<u8>) -> Option<Self> {
        let name = Self::read_of_any_prefix(name)?;
        (name.prefix() == names.prefix()).then_some(name)
    }

    /// `None` for a name that no store of this crate uses. A prefix has no braces.
    pub(super) fn read_of_any_prefix(name: Vec<u8>) -> Option<Self> {
        let name = String::from_utf8(name).ok()?;
        let (_, rest) = name.split_once(":{")?;
        let (identity, policy) = rest.split_once("}:")?;
        let is_plain = name.bytes().all(|byte| byte.is_ascii_graphic());
        // The names of contributors are longer: they contain a colon.
        let is_policy = !policy.contains(':') && policy != STRIKES;
        let ends_with = |sign, is_number: fn(&str) -> bool| {
            let end = policy.split_once(sign);
            end.is_some_and(|(policy, number)| !policy.is_empty() && is_number(number))
        };
        let is_policy = is_policy
            && (policy.starts_with('!')
                || ends_with('@', |ms| ms.parse::<u64>().is_ok())
                || ends_with('~', |form| form.parse::<u8>().is_ok()));
        if !identity.contains('=') || !is_policy || !is_plain {
            return None;
        }
        let start = name.len() - rest.len();
        let identity = start..start + identity.len();
        let name = name.into_boxed_str();
        Some(Self { name, identity })
    }

    /// The prefix of the name: see [`RedisStore::prefix`](crate::RedisStore::prefix).
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.name[..self.identity.start - ":{".len()]
    }

    /// The limited identity as in the name: `ip=203.0.113.7`, or `api-key=#` and a hash if the value is long, strange
    /// or secret.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.name[self.identity.clone()]
    }

    /// The name of the policy.
    #[must_use]
    pub fn policy(&self) -> &str {
        let policy = &self.name[self.identity.end + 2..];
        policy.split(['@', '~']).next().unwrap_or(policy)
    }

    /// The number of the stored form, if the key holds counts: other versions of this crate may store another one.
    #[must_use]
    pub fn form(&self) -> Option<u8> {
        let (_, number) = self.name[self.identity.end..].split_once('~')?;
        number.parse().ok()
    }

    /// The expiry of slots, in ms, if the key holds slots.
    #[must_use]
    pub fn slots_expire_after_ms(&self) -> Option<u64> {
        window_of_slots(self.as_bytes())
    }

    /// Whether this is the key of a block, which has no policy.
    #[must_use]
    pub fn is_of_block(&self) -> bool {
        self.policy() == BLOCKS
    }

    /// The command that reads the key. `ZRANGE` is among the least rights.
    pub(super) fn read_command(&self) -> Cmd {
        let (command, range) = match self.slots_expire_after_ms() {
            Some(_) => ("ZRANGE", &["0", "-1", "WITHSCORES"][..]),
            None => ("GET", &[][..]),
        };
        let mut cmd = redis::cmd(command);
        cmd.arg(self.as_bytes()).arg(range);
        cmd
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.name.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut names = Names::new("shop");
        names.set_prefix("shop[1]*");
        for (key, identity) in [
            (Key::new("ip", "2001:db8::/64"), "ip=2001:db8::/64"),
            (Key::new("user", "a:b@c"), "user=a:b@c"),
            (Key::secret("api-key", "x"), "api-key=#"),
        ] {
            let read = StoredName::read(&names, names.name("api.v1~1", &key)).unwrap();
            assert!(read.identity().starts_with(identity), "{read:?}");
            assert_eq!((read.policy(), read.prefix()), ("api.v1", "shop[1]*"));
            assert_eq!(read, StoredName::write(&names, &key, "api.v1"));
            assert_eq!(read.slots_expire_after_ms(), None);
            assert_eq!(read.form(), Some(1));
            let slots = Policy::parse("api.v1", "3/30s@concurrent").unwrap();
            let slots = StoredName::of(&names, &key, &slots);
            assert_eq!(
                (slots.policy(), slots.slots_expire_after_ms()),
                ("api.v1", Some(30_000))
            );
            let read_slots = StoredName::read(&names, slots.as_bytes().to_vec());
            assert_eq!(read_slots, Some(slots));
            let other = StoredName::read(&Names::new("other"), names.name("api.v1~1", &key));
            assert_eq!(other, None);
            let read = StoredName::read_of_any_prefix(names.name("api.v1~1", &key)).unwrap();
            assert_eq!(read, StoredName::write(&names, &key, "api.v1"));
        }
    }

    #[test]
    fn other_names_are_none() {
        let names = Names::new("shop");
        for other in [
            "",
            "shop",
            "shop:{ip=1}",
            "shop:{ip=1}:",
            "shop:{ip}:api",
            "shop2:{ip=1}:api",
            "shop:{ip=1}:a\x1bpi",
            "shop:{ip=1}:ä",
            "shop:{ip=1}:api@",
            "shop:{ip=1}:api@3@4",
            "shop:{ip=1}:api",
            "shop:{ip=1}:api~",
            "shop:{ip=1}:~1",
        ] {
            assert_eq!(StoredName::read(&names, other.into()), None, "{other}");
        }
        assert_eq!(
            StoredName::read(&names, b"shop:{ip=\xff}:api".to_vec()),
            None
        );
    }
}
