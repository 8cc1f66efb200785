//! [`Hints`]: a sample of the stored keys, and why a verb found nothing: another prefix, another kind of identity,
//! IPv6 networks of other bits, another policy.

use std::collections::BTreeSet;

use sluicegate::Key;
use sluicegate::policies::PublishedPolicy;
use sluicegate::store::redis::inspect::{Inspector, StoredName};

use super::text::{grouped, printable};
use super::{Error, Result};

/// The number of keys for each SCAN. A server serves nothing else during a SCAN, for less than a millisecond.
const BATCH: u32 = 500;

/// The maximum number of keys to look at. `SCAN` follows hashes, so these keys are a sample.
const MOST: u64 = 10_000;

/// A reason why nothing was found.
#[derive(Default)]
pub(crate) struct Why {
    /// Empty without a reason.
    pub(crate) text: String,
    /// Whether services name identities otherwise: by the prefix, the kind or the bits.
    pub(crate) is_misnamed: bool,
    /// Whether that is certain, although the sample may not hold all keys.
    pub(crate) is_proven: bool,
}

impl Why {
    const fn misnamed(text: String, is_proven: bool) -> Self {
        let is_misnamed = true;
        Self {
            text,
            is_misnamed,
            is_proven,
        }
    }

    fn other(text: String) -> Self {
        let other = Self::default();
        Self { text, ..other }
    }
}

pub(crate) struct Hints<'a> {
    pub(crate) inspector: &'a Inspector,
    prefix: String,
    /// The number of all keys on the servers, including those of other programs, and of those in the sample.
    total: u64,
    looked_at: u64,
    /// Whether policies are published, so that all kinds are known.
    is_published: bool,
    /// The prefixes with stored counts, or with published policies.
    pub(crate) prefixes: BTreeSet<String>,
    /// The kinds and policies, stored or published, and the stored forms and widths of IPv6 networks, under the prefix
    /// of the settings. Policies that have slots have a name for each expiry: `jobs@30000`.
    kinds: BTreeSet<String>,
    policies: BTreeSet<(String, String)>,
    pub(crate) forms: BTreeSet<u8>,
    ipv6_prefixes: BTreeSet<String>,
    /// The reason why the sample could not be taken, for example because the user may not SCAN.
    pub(crate) unchecked: Option<Error>,
}

impl<'a> Hints<'a> {
    pub(crate) async fn look(inspector: &'a Inspector, published: &[PublishedPolicy]) -> Self {
        let is_published = !published.is_empty();
        let prefix = inspector.name(&Key::new("", ""), "").prefix().to_owned();
        let kinds = published.iter().flat_map(|it| &it.kinds);
        let policies = published.iter().map(|it| it.policy.name().to_owned());
        let mut hints = Self {
            inspector,
            total: 0,
            looked_at: 0,
            is_published,
            prefixes: is_published.then(|| prefix.clone()).into_iter().collect(),
            prefix,
            kinds: kinds.cloned().map(Into::into).collect(),
            policies: policies.map(|name| (name.clone(), name)).collect(),
            forms: BTreeSet::new(),
            ipv6_prefixes: BTreeSet::new(),
            unchecked: None,
        };
        hints.unchecked = hints.sample().await.err();
        hints
    }

    async fn sample(&mut self) -> Result<()> {
        let servers = self.inspector.servers().await?;
        let selection = self.inspector.all_prefixes();
        let share = MOST / u64::try_from(servers.len()).unwrap_or(1).max(1);
        for server in &servers {
            let of_node = |error| Error::from(error).at(server.address());
            let count = server.key_count().await.map_err(of_node)?;
            let (mut cursor, mut looked_at) = (0, 0);
            while looked_at < share {
                let batch = server.scan(cursor, &selection, BATCH).await;
                let (next, names) = batch.map_err(of_node)?;
                names.iter().for_each(|name| self.add(name));
                looked_at += u64::from(BATCH);
                cursor = next;
                if cursor == 0 {
                    // The scan is complete, whatever the sizes of its batches were.
                    looked_at = count;
                    break;
                }
            }
            self.total += count;
            self.looked_at += looked_at.min(count);
        }
        Ok(())
    }

    fn add(&mut self, name: &StoredName) {
        // Ignore blocks: an operator can block an identity that does not exist, under a prefix that no service has.
        if name.is_of_block() {
            return;
        }
        self.prefixes.insert(name.prefix().to_owned());
        if name.prefix() != self.prefix {
            return;
        }
        let (kind, _) = name.identity().split_once('=').unwrap_or_default();
        self.kinds.insert(kind.to_owned());
        let policy = name.policy().to_owned();
        if let Some(ms) = name.slots_expire_after_ms() {
            let of_slots = format!("{policy}@{ms}");
            self.policies.insert((policy.clone(), of_slots));
        }
        self.policies.insert((policy.clone(), policy));
        self.forms.extend(name.form());
        self.ipv6_prefixes.extend(ipv6_prefix(name.identity()));
    }

    /// The reason why there is nothing under this prefix, or why that is not known; `None` if there is something.
    pub(crate) fn why_empty(&self) -> Option<Why> {
        if let Some(error) = &self.unchecked {
            let text = "Whether the service names it so could not be checked";
            return Some(Why::other(format!("{text}: {}", error.message)));
        }
        let (prefix, among) = (&self.prefix, self.among());
        if self.prefixes.contains(prefix) {
            return None;
        }
        // A fresh server has no key of the service yet.
        if self.prefixes.is_empty() {
            let text = "is this the service's server, and its database?";
            return Some(Why::other(format!("No counts are stored{among}: {text}")));
        }
        let (others, is_whole) = (listed(&self.prefixes), self.looked_at >= self.total);
        let text = format!("No counts are stored under the prefix `{prefix}`{among}");
        let text = format!("{text}, but under {others}: see --prefix");
        Some(Why::misnamed(text, is_whole))
    }

    /// The reason why the service may not know this identity; `None` if counts are stored for it.
    pub(crate) async fn why_unknown(&self, key: &Key) -> Result<Option<Why>> {
        let identity = self.inspector.name(key, "").identity().to_owned();
        let misnamed = self.why_misnamed(&identity);
        if self.unchecked.is_some() && misnamed.is_some() {
            return Ok(misnamed);
        }
        if let Some(why) = self.why_empty() {
            return Ok(Some(why));
        }
        if !self.stored(key, &[]).await?.is_empty() {
            return Ok(None);
        }
        let among = self.among();
        Ok(Some(misnamed.unwrap_or_else(|| {
            Why::other(format!(
                "No counts are stored for {identity}{among}: it was not charged, its counts have expired, or the service \
                 names it otherwise."
            ))
        })))
    }

    /// The policies with a stored value for an identity, including values that cannot be read, without `known` ones.
    pub(crate) async fn stored(&self, key: &Key, known: &[String]) -> Result<Vec<String>> {
        let mut stored = Vec::new();
        for (policy, name) in self.policies.iter().filter(|it| !known.contains(&it.0)) {
            let value = self.inspector.read(&self.inspector.name(key, name)).await?;
            if !matches!(value, Ok(None)) {
                stored.push(policy.clone());
            }
        }
        stored.dedup();
        Ok(stored)
    }

    /// The reason why no service seems to use identities of this form; `None` if similar identities are stored, or
    /// none.
    pub(crate) fn why_misnamed(&self, identity: &str) -> Option<Why> {
        let (kind, _) = identity.split_once('=').unwrap_or_default();
        let (among, kinds, networks) = (self.among(), &self.kinds, &self.ipv6_prefixes);
        if !kinds.is_empty() && !kinds.contains(kind) {
            let (kinds, kind) = (listed(kinds), printable(kind.as_bytes()));
            return Some(Why::misnamed(
                format!("No identity of the kind `{kind}` is stored{among}: the kinds are {kinds}"),
                self.is_published || among.is_empty(),
            ));
        }
        // The service may group IPv6 addresses otherwise than the tool does.
        let bits = ipv6_prefix(identity)?;
        (!networks.is_empty() && !networks.contains(&bits)).then(|| {
            let stored = listed(networks);
            let text = format!(
                "IPv6 addresses are stored as networks of {stored}{among}, and {identity} is a {bits}: for one address, see \
                 --ipv6-prefix; deny a larger network in the service (`RateLimitLayer::deny_keys`)"
            );
            Why::misnamed(text, true)
        })
    }

    /// The reason why there is nothing under this policy; `None` if there is something.
    pub(crate) fn why_no_policy(&self, policy: &str) -> Option<Why> {
        let names: BTreeSet<String> = self.policies.iter().map(|it| it.0.clone()).collect();
        if names.contains(policy) {
            return None;
        }
        let (among, names, policy) = (self.among(), listed(&names), printable(policy.as_bytes()));
        let why =
            format!("Nothing is stored under a policy `{policy}`{among}: the policies are {names}");
        self.why_empty().or(Some(Why::misnamed(why, false)))
    }

    /// The reason why there is nothing under the prefix. An error if there is no policy of this name.
    pub(crate) fn why_none(&self, policy: Option<&str>) -> Result<String> {
        let why = policy.map_or_else(|| self.why_empty(), |it| self.why_no_policy(it));
        let why = why.unwrap_or_default().text;
        match policy {
            Some(_) if self.unchecked.is_none() && !why.is_empty() => Err(Error::usage(why)),
            _ => Ok(why),
        }
    }

    /// The reason why there is nothing for this identity under `known` policies.
    pub(crate) async fn why_nothing(&self, key: &Key, known: &[String]) -> Result<Why> {
        if let Some(why) = self.why_unknown(key).await? {
            return Ok(why);
        }
        // The value of a known policy may still be stored although its units no longer count.
        let others = self.stored(key, known).await?;
        if others.is_empty() {
            return Ok(Why::default());
        }
        let others = listed(&others);
        let text = format!("Counts are stored for it under other policies: {others}");
        Ok(Why::other(text))
    }

    /// Names the size of the sample; empty if the sample holds all keys.
    fn among(&self) -> String {
        if self.looked_at >= self.total {
            return String::new();
        }
        let (looked_at, total) = (grouped(self.looked_at), grouped(self.total));
        format!(" among {looked_at} of {total} keys")
    }
}

/// One sentence that says why there is nothing under the prefix; empty without a reason, or if it is not wanted.
pub(crate) async fn why_empty(inspector: &Inspector, is_wanted: bool) -> String {
    if !is_wanted {
        return String::new();
    }
    let why = Hints::look(inspector, &[]).await.why_empty();
    why.unwrap_or_default().text
}

/// The width of an IPv6 network: `/64`.
fn ipv6_prefix(identity: &str) -> Option<String> {
    let (network, bits) = identity.strip_prefix("ip=")?.split_once('/')?;
    network.contains(':').then(|| format!("/{bits}"))
}

pub(crate) fn listed<'a>(words: impl IntoIterator<Item = &'a String>) -> String {
    const MOST: usize = 20;
    let quoted = |word: &String| format!("`{}`", printable(word.as_bytes()));
    let mut words: Vec<String> = words.into_iter().take(MOST + 1).map(quoted).collect();
    if words.len() > MOST {
        words[MOST] = "…".to_owned();
    }
    words.join(", ")
}
