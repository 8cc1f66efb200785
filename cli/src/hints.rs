//! [`Hints`]: a sample of the stored keys, and why a verb found nothing: another prefix, another kind of identity,
//! IPv6 networks of other bits, another policy.

use std::collections::{BTreeSet, HashSet};

use sluicegate::Key;
use sluicegate::block::BlockedBy;
use sluicegate::store::redis::inspect::{Inspector, StoredName};

use super::scan::of_node;
use super::text::{grouped, printable};
use super::{Error, Result, Settings};

/// The number of keys for each SCAN. A server serves nothing else during a SCAN, for less than a millisecond.
const BATCH: u32 = 500;

/// The maximum number of keys to look at. `SCAN` follows hashes, so these keys are a sample.
const MOST: u64 = 10_000;

#[derive(Default)]
pub(crate) struct Hints {
    prefix: String,
    /// The number of all keys on the servers, including those of other programs, and of those in the sample.
    total: u64,
    looked_at: u64,
    /// The prefixes with stored counts.
    prefixes: BTreeSet<String>,
    /// The kinds, the policies and the widths of IPv6 networks under the prefix of the settings. Policies that have slots
    /// have a name for each expiry: `jobs@30000`.
    kinds: BTreeSet<String>,
    policies: BTreeSet<(String, String)>,
    ipv6_prefixes: BTreeSet<String>,
}

impl Hints {
    pub(crate) async fn look(inspector: &Inspector, settings: &Settings) -> Result<Self> {
        let mut hints = Self {
            prefix: settings.prefix().to_owned(),
            ..Self::default()
        };
        let (servers, selection) = (inspector.servers().await?, inspector.all_prefixes());
        let share = MOST / u64::try_from(servers.len()).unwrap_or(1).max(1);
        for server in &servers {
            let of_node = |error| of_node(Error::from(error), server);
            let count = server.key_count().await.map_err(of_node)?;
            let (mut cursor, mut looked_at) = (0, 0);
            while looked_at < share {
                let batch = server.scan(cursor, &selection, BATCH).await;
                let (next, names) = batch.map_err(of_node)?;
                names.iter().for_each(|name| hints.add(name));
                looked_at += u64::from(BATCH);
                cursor = next;
                if cursor == 0 {
                    // The scan is complete, whatever the sizes of its batches were.
                    looked_at = count;
                    break;
                }
            }
            hints.total += count;
            hints.looked_at += looked_at.min(count);
        }
        Ok(hints)
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
        self.ipv6_prefixes.extend(ipv6_prefix(name.identity()));
    }

    /// The reason why there is nothing under this prefix; `None` if there is something.
    pub(crate) fn why_empty(&self) -> Option<String> {
        let (prefix, among) = (&self.prefix, self.among());
        if self.prefixes.contains(prefix) {
            return None;
        }
        Some(match self.prefixes.is_empty() {
            true => format!(
                "No counts are stored{among}: is this the service's server, and its database?"
            ),
            false => format!(
                "No counts are stored under the prefix `{prefix}`{among}, but under {}: see --prefix",
                listed(&self.prefixes)
            ),
        })
    }

    /// The proof that the service uses another prefix; `None` unless the sample holds all keys.
    fn why_elsewhere(&self) -> Option<String> {
        let is_elsewhere = self.looked_at >= self.total && !self.prefixes.is_empty();
        self.why_empty().filter(|_| is_elsewhere)
    }

    /// The reason why the service may not know this identity; `None` if counts are stored for it.
    pub(crate) async fn why_unknown(
        &self,
        inspector: &Inspector,
        key: &Key,
    ) -> Result<Option<String>> {
        if self.why_empty().is_none() && !self.stored(inspector, key, &[]).await?.is_empty() {
            return Ok(None);
        }
        let stored = inspector.name(key, "");
        let (identity, among) = (stored.identity(), self.among());
        let why = self.why_empty().or_else(|| self.why_misnamed(identity));
        Ok(Some(why.unwrap_or_else(|| {
            format!(
                "No counts are stored for {identity}{among}: it was not charged, its counts have expired, or the service \
                 names it otherwise."
            )
        })))
    }

    /// The policies with a stored value for an identity, including values that cannot be read, without `known` ones.
    pub(crate) async fn stored(
        &self,
        inspector: &Inspector,
        key: &Key,
        known: &[String],
    ) -> Result<Vec<String>> {
        let mut stored = Vec::new();
        for (policy, name) in self.policies.iter().filter(|it| !known.contains(&it.0)) {
            let value = inspector.read(&inspector.name(key, name)).await?;
            if !matches!(value, Ok(None)) {
                stored.push(policy.clone());
            }
        }
        stored.dedup();
        Ok(stored)
    }

    /// The reason why no service seems to use identities of this form; `None` if similar identities are stored, or
    /// none.
    fn why_misnamed(&self, identity: &str) -> Option<String> {
        let (kind, _) = identity.split_once('=').unwrap_or_default();
        let (among, kinds, networks) = (self.among(), &self.kinds, &self.ipv6_prefixes);
        if !kinds.is_empty() && !kinds.contains(kind) {
            let kinds = listed(kinds);
            return Some(format!(
                "No identity of the kind `{kind}` is stored{among}: the kinds are {kinds}"
            ));
        }
        // The service may group IPv6 addresses otherwise than the tool does.
        let bits = ipv6_prefix(identity)?;
        (!networks.is_empty() && !networks.contains(&bits)).then(|| {
            let stored = listed(networks);
            format!("IPv6 addresses are stored as networks of {stored}{among}, and {identity} is a {bits}: see --ipv6-prefix")
        })
    }

    /// The reason why there is nothing under this policy; `None` if there is something.
    pub(crate) fn why_no_policy(&self, policy: &str) -> Option<String> {
        let names: BTreeSet<String> = self.policies.iter().map(|it| it.0.clone()).collect();
        if names.contains(policy) {
            return None;
        }
        let (among, names, policy) = (self.among(), listed(&names), printable(policy.as_bytes()));
        let why =
            format!("Nothing is stored under a policy `{policy}`{among}: the policies are {names}");
        self.why_empty().or(Some(why))
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

/// One sentence that says why there is nothing under the prefix, or nothing for this identity under `known` policies;
/// empty without a reason.
pub(crate) async fn why_nothing(
    inspector: &Inspector,
    settings: &Settings,
    key: Option<&Key>,
    known: &[String],
) -> String {
    let why = async {
        let hints = Hints::look(inspector, settings).await?;
        let Some(key) = key else {
            return Ok(hints.why_empty());
        };
        if let Some(why) = hints.why_unknown(inspector, key).await? {
            return Ok(Some(why));
        }
        // The value of a known policy may still be stored although its units no longer count.
        let others = hints.stored(inspector, key, known).await?;
        let names = listed(&others);
        let why = format!("Counts are stored for it under other policies: {names}");
        Ok((!others.is_empty()).then_some(why))
    };
    let why = why.await.unwrap_or_else(|error: Error| unchecked(&error));
    why.unwrap_or_default()
}

/// The message when the sample could not be taken, for example because the user may not SCAN.
pub(crate) fn unchecked(error: &Error) -> Option<String> {
    let why = error.message();
    Some(format!(
        "Whether the service names it so could not be checked: {why}"
    ))
}

/// Reasons to doubt that a block of these identities has an effect.
pub(crate) struct Doubts<'a> {
    inspector: &'a Inspector,
    hints: Result<Hints>,
    /// The identities that the service has denied within the last hour. Empty if the tool may not read them.
    denied: HashSet<String>,
}

impl<'a> Doubts<'a> {
    pub(crate) async fn new(inspector: &'a Inspector, settings: &Settings) -> Self {
        let denials = match inspector.index_now_ms().await {
            Ok(now_ms) => inspector.denials(now_ms).await.unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        Self {
            inspector,
            hints: Hints::look(inspector, settings).await,
            denied: denials.iter().map(|it| it.identity().to_owned()).collect(),
        }
    }

    /// The reason why the service may not know this identity. Missing counts prove nothing: those of a blocked identity
    /// expire.
    pub(crate) async fn of(&self, key: &Key) -> Option<String> {
        let held = self.inspector.block(key).await.ok().and_then(Result::ok);
        let by = held.flatten().map(|(block, _)| block.source());
        let stored = self.inspector.name(key, "");
        match (by, &self.hints) {
            (Some(BlockedBy::Ban), _) => None,
            _ if self.denied.contains(stored.identity()) => None,
            (Some(_), hints) => hints.as_ref().ok()?.why_misnamed(stored.identity()),
            (None, Ok(hints)) => {
                let why = hints.why_unknown(self.inspector, key).await;
                why.unwrap_or_else(|error| unchecked(&error))
            }
            (None, Err(error)) => unchecked(error),
        }
    }

    /// An error if services use other prefixes and none uses this one, since you probably mistyped or forgot the
    /// prefix. A doubt without proof is only a warning: a fresh server has no keys of the service yet.
    pub(crate) fn refuse_other_prefix(&self) -> Result<()> {
        match self.hints.as_ref().ok().and_then(Hints::why_elsewhere) {
            Some(why) => Err(Error::usage(format_args!(
                "nothing was blocked: {why} (--force blocks all the same)"
            ))),
            None => Ok(()),
        }
    }
}

/// The width of an IPv6 network: `/64`.
fn ipv6_prefix(identity: &str) -> Option<String> {
    let (network, bits) = identity.strip_prefix("ip=")?.split_once('/')?;
    network.contains(':').then(|| format!("/{bits}"))
}

fn listed<'a>(words: impl IntoIterator<Item = &'a String>) -> String {
    const MOST: usize = 20;
    let words = words
        .into_iter()
        .map(|word| format!("`{}`", printable(word.as_bytes())));
    let mut words: Vec<String> = words.take(MOST + 1).collect();
    if words.len() > MOST {
        words[MOST] = "…".to_owned();
    }
    words.join(", ")
}
