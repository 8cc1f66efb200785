//! [`PublishedPolicy`]: what a service publishes of a policy in its store, for operators' tools.

use std::collections::BTreeSet;

#[cfg(feature = "redis")]
use crate::domain::FailurePolicy;
use crate::domain::policy::Policy;

/// How many kinds of keys are published of a policy.
const MAX_KINDS: usize = 16;

/// In bytes: kinds are written in programs, and longer ones would be no names.
const MAX_KIND: usize = 32;

/// A policy as a process decides by it: its definition, and where it is used. No value of a key is part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedPolicy {
    policy: Policy,
    kinds: BTreeSet<Box<str>>,
    enforces_blocks: bool,
    version: Box<str>,
    seen_ms: u64,
}

impl PublishedPolicy {
    /// A policy whose checks enforce blocks or not, of this version of the crate. Its failure policy is the one that
    /// applies, if the limiter's does.
    pub(crate) fn new(policy: Policy, enforces_blocks: bool) -> Self {
        Self {
            policy,
            kinds: BTreeSet::new(),
            enforces_blocks,
            version: env!("CARGO_PKG_VERSION").into(),
            seen_ms: 0,
        }
    }

    /// Notes a check by it that enforces blocks.
    pub(crate) const fn enforce_blocks(&mut self) {
        self.enforces_blocks = true;
    }

    /// Adds a kind of keys; answers whether it is new.
    pub(crate) fn add_kind(&mut self, kind: &str) -> bool {
        let fits = self.kinds.len() < MAX_KINDS && kind.len() <= MAX_KIND;
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b',';
        fits && kind.bytes().all(is_plain) && self.kinds.insert(kind.into())
    }

    /// The policy: its name, rules, ban and failure policy, and whether it is a shadow.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The kinds of keys that it was charged to, in the order of the alphabet; at most 16.
    #[must_use]
    pub fn kinds(&self) -> impl ExactSizeIterator<Item = &str> {
        self.kinds.iter().map(|kind| &**kind)
    }

    /// Whether its checks [enforce blocks](crate::block#blocks).
    #[must_use]
    pub const fn enforces_blocks(&self) -> bool {
        self.enforces_blocks
    }

    /// The version of this crate that has published it.
    #[must_use]
    pub const fn version(&self) -> &str {
        &self.version
    }

    /// When a process last said that it decides by it, in ms since the Unix epoch by that process's clock. Processes
    /// say so every five minutes.
    #[must_use]
    pub const fn seen_ms(&self) -> u64 {
        self.seen_ms
    }
}

#[cfg(feature = "redis")]
impl PublishedPolicy {
    /// The parts by which two definitions of one name differ.
    pub(crate) fn definition(&self) -> String {
        let policy = &self.policy;
        let mut text = format!("rules={policy}\n");
        if let Some(ban) = policy.banned_by() {
            text.push_str(&format!("ban={ban}\n"));
        }
        if policy.is_shadow() {
            text.push_str("shadow=true\n");
        }
        if let Some(failure) = policy.failure_policy() {
            text.push_str(&format!("on_failure={}\n", failure.as_str()));
        }
        text
    }

    /// All of it, as it is stored under its name.
    pub(crate) fn text(&self, seen_ms: u64) -> String {
        let kinds: Vec<&str> = self.kinds().collect();
        let (kinds, blocks, version) = (kinds.join(","), self.enforces_blocks, self.version());
        let definition = self.definition();
        format!("seen={seen_ms}\nversion={version}\nblocks={blocks}\nkinds={kinds}\n{definition}")
    }

    /// Reads what [`text`](Self::text) wrote. Lines that it does not know are those of a later version.
    pub(crate) fn parse(name: &str, text: &str) -> Option<Self> {
        let value = |wanted: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            lines.find_map(|(name, value)| (name == wanted).then_some(value))
        };
        let mut policy = Policy::parse(name, value("rules")?).ok()?;
        if let Some(ban) = value("ban") {
            policy = policy.ban(ban.parse().ok()?);
        }
        if value("shadow").is_some() {
            policy = policy.shadow();
        }
        if let Some(text) = value("on_failure") {
            policy = policy.on_failure(failure_policy(text)?);
        }
        let mut published = Self::new(policy, value("blocks") == Some("true"));
        published.version = value("version")?.chars().take(MAX_KIND).collect();
        published.seen_ms = value("seen")?.parse().ok()?;
        for kind in value("kinds").unwrap_or_default().split(',') {
            if !kind.is_empty() {
                published.add_kind(kind);
            }
        }
        Some(published)
    }
}

#[cfg(feature = "redis")]
fn failure_policy(text: &str) -> Option<FailurePolicy> {
    use FailurePolicy::{Closed, Local, Open};
    [Open, Local, Closed]
        .into_iter()
        .find(|policy| policy.as_str() == text)
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_read_back() {
        let plain = Policy::parse("api", "10/1s,100/1m").unwrap();
        let strict = Policy::parse("login", "20+10/1s@bucket").unwrap();
        let strict = strict.ban("5/10m=1h".parse().unwrap()).shadow();
        for policy in [plain, strict.on_failure(FailurePolicy::Closed)] {
            let mut published = PublishedPolicy::new(policy.clone(), true);
            assert!(published.add_kind("ip") && published.add_kind("user"));
            assert!(!published.add_kind("ip") && !published.add_kind("a,b"));
            let read = PublishedPolicy::parse(policy.name(), &published.text(7)).unwrap();
            published.seen_ms = 7;
            assert_eq!(read, published);
        }
    }

    #[test]
    fn what_cannot_be_read_is_none() {
        for text in [
            "",
            "rules=10/1s",
            "rules=10\nversion=1\nseen=1",
            "seen=x\nversion=1\nrules=1/1s",
        ] {
            assert_eq!(PublishedPolicy::parse("api", text), None, "{text}");
        }
    }
}
