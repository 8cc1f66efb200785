//! [`Reader`]: the keys of one identity to read, and the policies to compare them with.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::SystemTime;

use clap::Args;
use sluicegate::store::redis::inspect::{Inspector, StoredBlock, StoredName, StoredResult};
use sluicegate::{Key, Policy};

use super::error::warn;
use super::hints::{Hints, Why};
use super::identity::{IdentitiesArgs, Named};
use super::published::{Differing, Limits};
use super::scan::{DEFAULT_LOAD, Scan};
use super::text::millis;
use super::{Result, Settings, published};

/// The arguments of verbs that read the counts of identities.
#[derive(Args)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    pub(crate) identities: IdentitiesArgs,

    /// The service's policies, instead of those that it publishes. Without either, the tool scans all keys of the
    /// server to find those of the identity [default: `policies` of the configuration file]
    #[arg(long, value_name = "FILE")]
    policies: Option<PathBuf>,

    /// Only this policy; may be repeated
    #[arg(long = "policy", value_name = "NAME")]
    only: Vec<String>,

    /// Use this machine's time: behind a proxy that does not pass TIME on, such as twemproxy
    #[arg(long)]
    local_clock: bool,
}

/// The server and the policies to read from.
pub(crate) struct Reader<'a> {
    args: &'a ReadArgs,
    pub(crate) inspector: &'a Inspector,
    pub(crate) named: Named,
    /// The keys to read, each with its policies: none without known limits, several if plans share the name.
    /// Slots have a key for each expiry.
    keys: Vec<(StoredName, Vec<Policy>)>,
    pub(crate) limits: &'a Limits,
    /// The reason why a block may have no effect; `None` if that is not known.
    pub(crate) unenforced: Option<String>,
}

/// A key, the policies, and the stored value.
pub(crate) type Read<'a> = (&'a StoredName, &'a [Policy], StoredResult);

/// Everything that is stored for an identity at one time.
pub(crate) struct Snapshot<'a> {
    pub(crate) reader: &'a Reader<'a>,
    /// The server's clock.
    pub(crate) now_ms: u64,
    pub(crate) values: Vec<Read<'a>>,
    /// The block of the identity. Independent of the counts.
    pub(crate) block: StoredBlock,
    /// The denials that count towards a ban, independent of the policy.
    pub(crate) strikes: StoredResult,
    /// The labels of processes that hold slots.
    pub(crate) processes: HashMap<u64, String>,
}

impl ReadArgs {
    /// Reads the limits, from the file or as services publish them.
    pub(crate) async fn limits(
        &self,
        settings: &Settings,
        inspector: &Inspector,
    ) -> Result<Limits> {
        let file = self.policies.as_deref();
        published::limits(settings, file, inspector, &self.only).await
    }

    /// Chooses the keys to read: for the policies in the arguments or the file, or those that a SCAN finds.
    pub(crate) async fn reader<'a>(
        &'a self,
        inspector: &'a Inspector,
        limits: &'a Limits,
        named: Named,
    ) -> Result<Reader<'a>> {
        let mut names = self.only.clone();
        if names.is_empty() {
            let all = limits.policies.iter().flatten();
            names.extend(all.map(|policy| policy.name().to_owned()));
            names.dedup();
        }
        let mut keys = Vec::<(StoredName, Vec<Policy>)>::new();
        for name in names {
            let plans = limits.of(&name);
            if plans.is_empty() {
                keys.push((inspector.name(&named.key, &name), Vec::new()));
            }
            for policy in plans {
                let stored = inspector.name_under(&named.key, &policy);
                match keys.iter_mut().find(|(known, _)| *known == stored) {
                    Some((_, plans)) => plans.push(policy),
                    None => keys.push((stored, vec![policy])),
                }
            }
        }
        if limits.policies.is_none() && self.only.is_empty() {
            // Nothing names a policy, so only a scan finds the keys.
            let found = found(inspector, &named.key).await;
            // The right that is missing first is the one to name.
            let names = found.map_err(|error| match limits.unpublished {
                Some(_) => error.and(limits.why_unlimited()),
                None => error,
            });
            keys = names?.into_iter().map(|name| (name, Vec::new())).collect();
        }
        let unenforced = published::why_unenforced(&limits.published, &named.key);
        Ok(Reader {
            args: self,
            inspector,
            named,
            keys,
            limits,
            unenforced,
        })
    }
}

impl Reader<'_> {
    /// Reads once.
    pub(crate) async fn read(&self) -> Result<Snapshot<'_>> {
        let stored = self.stored().await;
        stored.map_err(|error| error.at(self.inspector.node_address(&self.named.key)))
    }

    async fn stored(&self) -> Result<Snapshot<'_>> {
        let (inspector, key) = (self.inspector, &self.named.key);
        // A proxy such as twemproxy does not pass TIME on.
        let now_ms = match self.args.local_clock {
            true => millis(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()),
            false => inspector.now_ms(key).await?,
        };
        let (mut values, mut has_slots) = (Vec::with_capacity(self.keys.len()), false);
        for (name, policies) in &self.keys {
            let value = inspector.read(name).await?;
            has_slots |= name.slots_expire_after_ms().is_some() && matches!(value, Ok(Some(_)));
            values.push((name, &policies[..], value));
        }
        Ok(Snapshot {
            reader: self,
            now_ms,
            values,
            block: inspector.block(key).await?,
            strikes: inspector.read(&inspector.strikes(key)).await?,
            // Without the right to read them, processes are shown by their numbers.
            processes: match has_slots {
                true => inspector.processes().await.unwrap_or_default(),
                false => HashMap::new(),
            },
        })
    }

    /// The policies that are read and in which processes differ.
    pub(crate) fn differing(&self) -> Vec<Differing> {
        let differing = self.limits.differing.iter();
        let read = differing.filter(|it| self.reads(&it.policy));
        read.cloned().collect()
    }

    /// The reason why nothing is stored for the identity under these policies.
    pub(crate) async fn why_nothing(&self) -> Why {
        let hints = self.hints().await;
        let why = hints.why_nothing(&self.named.key, &self.known()).await;
        why.unwrap_or_default()
    }

    /// Other policies than these with a stored value for the identity, within the sample. Empty if the user may not
    /// look, or has named policies.
    pub(crate) async fn other_policies(&self) -> Vec<String> {
        if self.limits.policies.is_none() || !self.args.only.is_empty() {
            return Vec::new();
        }
        let hints = self.hints().await;
        let others = hints.stored(&self.named.key, &self.known()).await;
        others.unwrap_or_default()
    }

    async fn hints(&self) -> Hints<'_> {
        Hints::look(self.inspector, &self.limits.published).await
    }

    fn known(&self) -> Vec<String> {
        let keys = self.keys.iter();
        keys.map(|it| it.0.policy().to_owned()).collect()
    }

    pub(crate) fn reads(&self, policy: &str) -> bool {
        self.keys.iter().any(|(name, _)| name.policy() == policy)
    }
}

/// The keys with a stored value for an identity, sorted by policy. This scans all keys. Those of another stored form are
/// left out, with a warning: other versions read and reset them.
async fn found(inspector: &Inspector, key: &Key) -> Result<Vec<StoredName>> {
    let mut names = Vec::new();
    let mut scan = Scan::new(inspector, DEFAULT_LOAD).await?;
    // A node that does not answer has no keys of this identity, or reading them fails.
    scan.run(&inspector.all_of(key), async |_, found| {
        names.extend(found);
        Ok(())
    })
    .await?;
    let order = |name: &StoredName| (name.policy().to_owned(), name.slots_expire_after_ms());
    names.sort_unstable_by_key(order);
    names.dedup();
    let own = inspector.name(key, "p").form();
    let is_other = |name: &StoredName| name.form().is_some() && name.form() != own;
    let (others, names): (Vec<_>, Vec<_>) = names.into_iter().partition(is_other);
    if let Some(other) = others.first() {
        warn(format!(
            "counts of another stored form are left out, which another version of this crate keeps: {} has form {}",
            other.policy(),
            other.form().unwrap_or_default(),
        ));
    }
    Ok(names)
}
