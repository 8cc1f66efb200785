//! [`PublishedPolicy`]: the data that a service publishes about a policy in the store, for operators' tools.

use std::collections::BTreeSet;

#[cfg(feature = "redis")]
use crate::domain::FailurePolicy;
use crate::domain::policy::Policy;

/// The most kinds of keys that are published for a policy.
const MAX_KINDS: usize = 16;

/// In bytes. Kinds are written in programs: a longer text is not a name.
const MAX_KIND: usize = 32;

/// A policy as used by a process: the definition, and where it is used. No values of keys are published.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedPolicy {
    /// The name, rules, ban and failure policy, and whether this is a shadow.
    pub policy: Policy,
    /// The kinds of keys that were charged; at most 16.
    pub kinds: BTreeSet<Box<str>>,
    /// Whether checks under this policy [enforce blocks](crate::block#blocks).
    pub enforces_blocks: bool,
    /// The version of this crate that has published the policy.
    pub version: Box<str>,
    /// When a process last reported that it uses the policy, in ms since the Unix epoch by the store's clock. Processes
    /// report this every five minutes.
    pub seen_ms: u64,
    /// Whether the process used several definitions of this name at about the same time, such as plans. If none of its
    /// definitions shares the name, processes differ.
    pub shares_name: bool,
    /// Whether a reload has replaced the policy, so that the store takes it back.
    pub is_replaced: bool,
    /// The label of the process that publishes it, if some policy of that process has slots. No stored policy has one.
    pub(crate) process: Option<Box<str>>,
}

/// The longest label of a process, in bytes.
const MAX_LABEL: usize = 64;

/// The host and the id of this process.
pub(crate) fn default_label() -> Box<str> {
    let of_kernel = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let of_environment = || std::env::var("HOSTNAME").or_else(|_| std::env::var("COMPUTERNAME"));
    let host = of_kernel().or_else(|| of_environment().ok());
    let host = host.unwrap_or_else(|| "host".to_owned());
    plain_label(&format!("{}:{}", host.trim(), std::process::id()))
}

/// A label of at most 64 printable ASCII characters without spaces.
pub(crate) fn plain_label(label: &str) -> Box<str> {
    let plain = label.bytes().filter(u8::is_ascii_graphic);
    plain.take(MAX_LABEL).map(char::from).collect()
}

impl PublishedPolicy {
    /// Creates the entry of a policy, for this version of the crate. Pass the policy with its effective failure policy,
    /// including the limiter's default.
    pub(crate) fn new(policy: Policy, enforces_blocks: bool) -> Self {
        Self {
            policy,
            kinds: BTreeSet::new(),
            enforces_blocks,
            version: env!("CARGO_PKG_VERSION").into(),
            seen_ms: 0,
            shares_name: false,
            process: None,
            is_replaced: false,
        }
    }

    /// Notes which of the policies that a process uses have the same name as others.
    pub(crate) fn note_shared_names(policies: &mut [Self]) {
        let names: Vec<String> = policies.iter().map(|it| it.policy.name().into()).collect();
        for it in policies {
            let mut same = names.iter().filter(|name| *name == it.policy.name());
            it.shares_name = same.nth(1).is_some();
        }
    }

    /// Adds a kind of keys; returns whether the kind is new.
    pub(crate) fn add_kind(&mut self, kind: &str) -> bool {
        let fits = self.kinds.len() < MAX_KINDS && (1..=MAX_KIND).contains(&kind.len());
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b',';
        fits && kind.bytes().all(is_plain) && self.kinds.insert(kind.into())
    }
}

#[cfg(feature = "redis")]
impl PublishedPolicy {
    /// Returns the fields in which two definitions of one name can differ.
    pub(crate) fn definition(&self) -> String {
        let settings = self.policy.settings();
        let lines = settings.map(|(name, value)| format!("{name}={value}\n"));
        lines.collect()
    }

    /// Returns the whole entry in the stored form.
    pub(crate) fn text(&self, seen_ms: u64) -> String {
        let kinds: Vec<&str> = self.kinds.iter().map(|kind| &**kind).collect();
        let (kinds, blocks, version) = (kinds.join(","), self.enforces_blocks, &self.version);
        let (shares_name, definition) = (self.shares_name, self.definition());
        format!(
            "seen={seen_ms}\nversion={version}\nblocks={blocks}\nkinds={kinds}\nshares_name={shares_name}\n{definition}"
        )
    }

    /// Reads the output of [`text`](Self::text). Ignores unknown lines, which a later version may have written.
    pub(crate) fn parse(name: &str, text: &str) -> Option<Self> {
        let lines = || text.lines().filter_map(|line| line.split_once('='));
        let value = |wanted: &str| Some(lines().find(|(name, _)| *name == wanted)?.1);
        let mut policy = Policy::parse(name, value("rules")?).ok()?;
        for (name, value) in lines() {
            policy = match name {
                "ban" => policy.ban(value.parse().ok()?),
                "shadow" => policy.shadow(),
                "on_failure" => {
                    let mut all = FailurePolicy::ALL.iter().copied();
                    policy.on_failure(all.find(|it| it.as_str() == value)?)
                }
                "unit" => policy.unit(value.parse().ok()?),
                "hidden" => policy.hidden(),
                _ => policy,
            };
        }
        let mut published = Self::new(policy, value("blocks") == Some("true"));
        published.version = value("version")?.chars().take(MAX_KIND).collect();
        published.seen_ms = value("seen")?.parse().ok()?;
        published.shares_name = value("shares_name") == Some("true");
        // A kind that is not valid is skipped: any process may write to the store.
        for kind in value("kinds").unwrap_or_default().split(',') {
            published.add_kind(kind);
        }
        Some(published)
    }
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
    fn definitions_of_one_process_that_share_a_name_say_so() {
        let definitions = [("api", "10/1d"), ("login", "5/1d"), ("api", "3000/1d")];
        let mut published = definitions
            .map(|(name, rules)| PublishedPolicy::new(Policy::parse(name, rules).unwrap(), true));
        PublishedPolicy::note_shared_names(&mut published);
        let read = published.each_ref().map(|it| {
            let read = PublishedPolicy::parse(it.policy.name(), &it.text(7)).unwrap();
            (it.shares_name, read.shares_name)
        });
        assert_eq!(read, [(true, true), (false, false), (true, true)]);
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
