//! [`Census`]: a sample of the stored keys. It explains why nothing was found.

use std::{collections::BTreeSet, iter};

use sluicegate::{
    Key,
    store::redis::inspect::{Inspector, StoredName},
};

use super::{
    error::Result,
    scan::of_node,
    server,
    settings::Settings,
    text::{grouped, nearest, printable},
};

/// The number of keys for each SCAN. A server serves nothing else during a SCAN, for less than a millisecond.
const BATCH: u32 = 500;

/// The maximum number of keys to look at. `SCAN` follows hashes, so these keys are a sample.
const MOST: u64 = 10_000;

/// The sample.
pub(crate) struct Census {
    prefix: String,
    /// The number of all keys on the servers, including those of other programs.
    total: u64,
    /// The number of keys in the sample.
    looked_at: u64,
    /// The prefixes with stored counts.
    prefixes: BTreeSet<String>,
    /// The kinds of identities under the prefix of the settings.
    kinds: BTreeSet<String>,
    pub(crate) policies: BTreeSet<String>,
    /// The policies that have slots, and when these expire, in ms.
    slots: BTreeSet<(String, u64)>,
    /// The widths of the stored IPv6 networks.
    ipv6_prefixes: BTreeSet<u8>,
}

impl Census {
    pub(crate) async fn take(inspector: &Inspector, settings: &Settings) -> Result<Self> {
        let mut census = Self {
            prefix: settings.prefix().to_owned(),
            total: 0,
            looked_at: 0,
            prefixes: BTreeSet::new(),
            kinds: BTreeSet::new(),
            policies: BTreeSet::new(),
            slots: BTreeSet::new(),
            ipv6_prefixes: BTreeSet::new(),
        };
        let (servers, selection) = (inspector.servers().await?, inspector.all_prefixes());
        let share = MOST / u64::try_from(servers.len()).unwrap_or(1).max(1);
        for server in &servers {
            let count = server.key_count().await;
            let count = count.map_err(|error| of_node(error.into(), server))?;
            let (mut cursor, mut looked_at) = (0, 0);
            while looked_at < share {
                let batch = server.scan(cursor, &selection, BATCH).await;
                let (next, names) = batch.map_err(|error| of_node(error.into(), server))?;
                for name in names {
                    census.add(&name);
                }
                looked_at += u64::from(BATCH);
                cursor = next;
                if cursor == 0 {
                    // The scan is complete, whatever the sizes of its batches were.
                    looked_at = count;
                    break;
                }
            }
            census.total += count;
            census.looked_at += looked_at.min(count);
        }
        Ok(census)
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
        let (kind, value) = name.identity().split_once('=').unwrap_or_default();
        self.kinds.insert(kind.to_owned());
        self.policies.insert(name.policy().to_owned());
        let slots = name.slots_expire_after_ms();
        self.slots
            .extend(slots.map(|ms| (name.policy().to_owned(), ms)));
        self.ipv6_prefixes.extend(ipv6_prefix(kind, value));
    }

    /// The reason why there is nothing under this prefix; `None` if there is something.
    pub(crate) fn why_empty(&self) -> Option<String> {
        if self.prefixes.contains(&self.prefix) {
            return None;
        }
        if self.total == 0 {
            return Some("The server keeps no keys at all.".into());
        }
        let (prefix, among) = (&self.prefix, self.among());
        if self.prefixes.is_empty() {
            return Some(format!(
                "No counts are stored{among}: is this the service's server, and its database?"
            ));
        }
        let others = listed(self.prefixes.iter().map(String::as_str));
        Some(format!(
            "No counts are stored under the prefix `{prefix}`{among}, but under {others}: see --prefix"
        ))
    }

    /// The proof that the service uses another prefix; `None` unless the sample holds all keys.
    pub(crate) fn why_elsewhere(&self) -> Option<String> {
        let is_whole = self.looked_at >= self.total;
        let is_elsewhere = is_whole && !self.prefixes.is_empty();
        self.why_empty().filter(|_| is_elsewhere)
    }

    /// The reason why the service may not know this identity; `None` if counts are stored for it.
    pub(crate) async fn why_unknown(
        &self,
        inspector: &Inspector,
        key: &Key,
    ) -> Result<Option<String>> {
        if let Some(why) = self.why_empty() {
            return Ok(Some(why));
        }
        if !self.stored_under(inspector, key).await?.is_empty() {
            return Ok(None);
        }
        let stored = inspector.name(key, "");
        let identity = stored.identity();
        Ok(Some(self.why_misnamed(identity).unwrap_or_else(|| {
            // The policies are known from a sample, so the identity may have counts under others.
            let under = match self.among() {
                whole if whole.is_empty() => whole,
                among => format!(" under the policies{among}"),
            };
            format!(
                "No counts are stored for {identity}{under}: it was not charged, its counts have expired, or the service \
                 names it otherwise."
            )
        })))
    }

    /// The policies with a stored value for an identity, including values that cannot be read.
    async fn stored_under(&self, inspector: &Inspector, key: &Key) -> Result<Vec<&str>> {
        let mut stored = Vec::new();
        for policy in &self.policies {
            let slots = self.slots.iter().filter(|(of, _)| of == policy);
            let slots = slots.map(|(_, expire_after_ms)| format!("{policy}@{expire_after_ms}"));
            for name in iter::once(policy.clone()).chain(slots) {
                let value = inspector.read(&inspector.name(key, &name)).await?;
                if !matches!(value, Ok(None)) && stored.last() != Some(&policy.as_str()) {
                    stored.push(policy.as_str());
                }
            }
        }
        Ok(stored)
    }

    /// The reason why no service seems to use identities of this form; `None` if similar identities are stored, or
    /// none.
    pub(crate) fn why_misnamed(&self, identity: &str) -> Option<String> {
        let (kind, value) = identity.split_once('=').unwrap_or_default();
        let among = self.among();
        if self.kinds.is_empty() {
            return None;
        }
        if !self.kinds.contains(kind) {
            let kinds = listed(self.kinds.iter().map(String::as_str));
            let meant = nearest(kind, self.kinds.iter().map(String::as_str));
            let meant = meant.map_or_else(String::new, |kind| format!(". Did you mean {kind}=?"));
            return Some(format!(
                "No identity of the kind `{kind}` is stored{among}: the kinds are {kinds}{meant}"
            ));
        }
        // The service may group IPv6 addresses otherwise than the tool does.
        if let Some(bits) = ipv6_prefix(kind, value)
            && !self.ipv6_prefixes.is_empty()
            && !self.ipv6_prefixes.contains(&bits)
        {
            let stored = self.ipv6_prefixes.iter().map(|bits| format!("/{bits}"));
            let stored = stored.collect::<Vec<_>>().join(", ");
            return Some(format!(
                "IPv6 addresses are stored as networks of {stored}{among}, and {identity} is a /{bits}: see --ipv6-prefix"
            ));
        }
        None
    }

    /// The reason why there is nothing under this policy; `None` if there is something.
    pub(crate) fn why_no_policy(&self, policy: &str) -> Option<String> {
        if self.policies.contains(policy) {
            return None;
        }
        self.why_empty().or_else(|| {
            let (among, policy) = (self.among(), printable(policy.as_bytes()));
            let policies = listed(self.policies.iter().map(String::as_str));
            Some(format!(
                "Nothing is stored under a policy `{policy}`{among}: the policies are {policies}"
            ))
        })
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

/// One sentence that says why there is nothing under the prefix; empty if there is something.
pub(crate) async fn why_empty(inspector: &Inspector, settings: &Settings) -> String {
    let census = Census::take(inspector, settings).await;
    said(census.map(|it| it.why_empty())).unwrap_or_default()
}

/// The same, over a new connection.
pub(crate) fn ask_why_empty(settings: &Settings) -> String {
    let asked = server::inspect(settings, async |inspector| {
        Ok(why_empty(&inspector, settings).await)
    });
    asked.unwrap_or_else(|error| unknown(error.message()))
}

/// One sentence that says why there is nothing for this identity under the `asked` policies; `None` without a reason.
pub(crate) async fn why_nothing<'a>(
    inspector: &Inspector,
    settings: &Settings,
    key: &Key,
    asked: impl Iterator<Item = &'a str>,
) -> Option<String> {
    let why = async {
        let mut census = Census::take(inspector, settings).await?;
        if let Some(why) = census.why_unknown(inspector, key).await? {
            return Ok(Some(why));
        }
        // The value of an `asked` policy may still be stored although its units no longer count.
        for policy in asked {
            census.policies.remove(policy);
        }
        let others = listed(census.stored_under(inspector, key).await?.into_iter());
        let why = format!("Counts are stored for it under other policies: {others}");
        Ok((!others.is_empty()).then_some(why))
    };
    said(why.await)
}

/// The same, over a new connection.
pub(crate) fn ask_why_nothing<'a>(
    settings: &Settings,
    key: &Key,
    asked: impl Iterator<Item = &'a str>,
) -> Option<String> {
    let asked = server::inspect(settings, async |inspector| {
        Ok(why_nothing(&inspector, settings, key, asked).await)
    });
    said(asked)
}

/// The reason, or why none could be found.
fn said(why: Result<Option<String>>) -> Option<String> {
    why.unwrap_or_else(|error| Some(unknown(error.message())))
}

/// The policies with a stored value for an identity that are not `known`, within the sample. Empty if the user may not
/// look.
pub(crate) fn ask_other_policies<'a>(
    settings: &Settings,
    key: &Key,
    known: impl Iterator<Item = &'a str>,
) -> Vec<String> {
    let stored = server::inspect(settings, async |inspector| {
        other_policies(&inspector, settings, key, known).await
    });
    stored.unwrap_or_default()
}

/// The same over this connection.
pub(crate) async fn other_policies<'a>(
    inspector: &Inspector,
    settings: &Settings,
    key: &Key,
    known: impl Iterator<Item = &'a str>,
) -> Result<Vec<String>> {
    let mut census = Census::take(inspector, settings).await?;
    for policy in known {
        census.policies.remove(policy);
    }
    let stored = census.stored_under(inspector, key).await?.into_iter();
    Ok(stored.map(str::to_owned).collect())
}

/// The message when the sample could not be taken, for example because the user may not SCAN.
pub(crate) fn unknown(why: &str) -> String {
    format!("Whether the service names it so could not be checked: {why}")
}

/// The prefix length of an IPv6 network.
fn ipv6_prefix(kind: &str, value: &str) -> Option<u8> {
    let (network, bits) = value.split_once('/')?;
    (kind == "ip" && network.contains(':')).then(|| bits.parse().ok())?
}

fn listed<'a>(words: impl Iterator<Item = &'a str>) -> String {
    const MOST: usize = 20;
    let mut words: Vec<String> = words
        .take(MOST + 1)
        .map(|word| match word {
            "" => "`` (none)".to_owned(),
            word => format!("`{}`", printable(word.as_bytes())),
        })
        .collect();
    if words.len() > MOST {
        words[MOST] = "…".to_owned();
    }
    words.join(", ")
}
