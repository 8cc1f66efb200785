//! [`Reading`]: everything that is stored for one identity, and the policies to compare it with.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::SystemTime,
};

use clap::Args;
use sluicegate::{
    Key, Policy,
    store::redis::inspect::{Inspector, StoredBlock, StoredName, StoredResult},
};

use super::{
    census,
    denied::DenialReport,
    error::{Result, warn},
    policies_file,
    published::{self, Differing, Limits, Source},
    scan::{DEFAULT_LOAD, Scan, of_home},
    server,
    settings::Settings,
    text::millis,
};

/// The arguments of verbs that read the counts of an identity.
#[derive(Args)]
pub(crate) struct ReadArgs {
    /// The service's policies, instead of those that it publishes. Without either, the tool scans all keys of the
    /// server to find those of the identity [default: `policies` of the configuration file]
    #[arg(long, value_name = "FILE")]
    pub(crate) policies: Option<PathBuf>,

    /// Only this policy; may be repeated
    #[arg(long = "policy", value_name = "NAME")]
    pub(crate) only: Vec<String>,

    /// Use this machine's time: behind a proxy that does not pass TIME on, such as twemproxy
    #[arg(long)]
    pub(crate) local_clock: bool,
}

/// Everything that is stored for an identity at one time.
pub(crate) struct Reading {
    /// The stored form: a secret is a hash.
    pub(crate) identity: String,
    /// The server's clock.
    pub(crate) now_ms: u64,
    /// The block of the identity. Independent of the counts.
    pub(crate) block: StoredBlock,
    /// The denials that count towards a ban, independent of the policy.
    pub(crate) strikes: StoredResult,
    pub(crate) entries: Vec<Entry>,
    /// The labels of processes that hold slots.
    pub(crate) processes: HashMap<u64, String>,
    /// The number of denials; `None` if it was not read.
    pub(crate) denied: Option<Vec<DenialReport>>,
    /// Whether a file or the service supplies limits.
    pub(crate) has_limits: bool,
    pub(crate) source: Source,
    /// The reason why the published policies could not be read; `None` if they were.
    pub(crate) unpublished: Option<String>,
    /// The policies of this reading that have other limits in some processes.
    pub(crate) differing: Vec<Differing>,
    /// The reason why the block may have no effect; `None` without a block, or if that is not known.
    pub(crate) unenforced: Option<String>,
}

/// The stored value under one policy. Policies of one name have several if some have slots, a key for each expiry.
pub(crate) struct Entry {
    pub(crate) name: String,
    /// If the key holds slots.
    pub(crate) slots_expire_after_ms: Option<u64>,
    /// Empty if its limits are not known. Several if plans share the name.
    pub(crate) policies: Vec<Policy>,
    pub(crate) stored: StoredResult,
}

/// The server and the policies to read from.
pub(crate) struct Reader {
    pub(crate) inspector: Inspector,
    key: Key,
    /// The keys to read, each with its policies. Those without limits come from arguments or from a scan.
    policies: Vec<(StoredName, Vec<Policy>)>,
    local_clock: bool,
    has_limits: bool,
    source: Source,
    unpublished: Option<String>,
    differing: Vec<Differing>,
}

impl ReadArgs {
    /// Reads once.
    pub(crate) fn read(&self, settings: &Settings, key: &Key) -> Result<Reading> {
        server::inspect(settings, async |inspector| {
            let reader = self.reader(settings, inspector, key.clone()).await?;
            let mut reading = reader.read().await?;
            reading.denied = reader.denied(&reading).await;
            if !matches!(reading.block, Ok(None)) {
                let published = reader.inspector.policies().await.unwrap_or_default();
                reading.unenforced = published::why_unenforced(&published, key);
            }
            Ok(reading)
        })
    }

    /// Chooses the keys to read: for the policies in the arguments or the file, or those that a SCAN finds.
    pub(crate) async fn reader(
        &self,
        settings: &Settings,
        inspector: Inspector,
        key: Key,
    ) -> Result<Reader> {
        let file = self.policies.as_deref();
        let limits = published::limits(settings, file, &inspector).await?;
        let from_file = settings.policies_or(file);
        let named: Vec<_> = match &limits.policies {
            Some(known) if self.only.is_empty() => known
                .iter()
                .map(|policy| (policy.name().to_owned(), limits.of(policy.name())))
                .collect(),
            _ => self.named(&limits, from_file)?,
        };
        let mut policies: Vec<_> = named
            .into_iter()
            .flat_map(|(name, policies)| keys(&inspector, &key, &name, policies))
            .collect();
        if limits.policies.is_none() && self.only.is_empty() {
            // Nothing names a policy, so only a scan finds the keys.
            let names = found(&inspector, &key).await?.into_iter();
            policies = names.map(|name| (name, Vec::new())).collect();
        }
        let is_read = |differing: &Differing| {
            let mut names = policies.iter().map(|(name, _)| name.policy());
            names.any(|name| name == differing.policy)
        };
        let differing = limits.differing.into_iter().filter(is_read).collect();
        Ok(Reader {
            inspector,
            key,
            policies,
            local_clock: self.local_clock,
            has_limits: limits.policies.is_some(),
            source: limits.source,
            unpublished: limits.unpublished,
            differing,
        })
    }

    fn named(&self, limits: &Limits, file: Option<&Path>) -> Result<Vec<(String, Vec<Policy>)>> {
        let named = self.only.iter().map(|name| {
            if let (Some(known), Some(file)) = (&limits.policies, file) {
                policies_file::named(known, file, name)?;
            }
            Ok((name.clone(), limits.of(name)))
        });
        named.collect()
    }
}

impl Reader {
    /// The reason why nothing is stored for the identity under these policies.
    pub(crate) async fn why_nothing(&self, settings: &Settings) -> String {
        let asked = self.policies.iter().map(|(name, _)| name.policy());
        let why = census::why_nothing(&self.inspector, settings, &self.key, asked).await;
        why.unwrap_or_default()
    }

    pub(crate) async fn read(&self) -> Result<Reading> {
        let reading = self.read_from_home().await;
        reading.map_err(|error| of_home(error, &self.inspector, &self.key))
    }

    async fn read_from_home(&self) -> Result<Reading> {
        // A proxy such as twemproxy does not pass TIME on.
        let now_ms = if self.local_clock {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            millis(since.unwrap_or_default())
        } else {
            self.inspector.now_ms(&self.key).await?
        };
        let mut entries = Vec::with_capacity(self.policies.len());
        for (name, policies) in &self.policies {
            entries.push(Entry {
                name: name.policy().to_owned(),
                slots_expire_after_ms: name.slots_expire_after_ms(),
                policies: policies.clone(),
                stored: self.inspector.read(name).await?,
            });
        }
        let holds_slots = |entry: &Entry| {
            entry.slots_expire_after_ms.is_some() && matches!(entry.stored, Ok(Some(_)))
        };
        // Without the right to read them, processes are shown by their numbers.
        let processes = match entries.iter().any(holds_slots) {
            true => self.inspector.processes().await.unwrap_or_default(),
            false => HashMap::new(),
        };
        Ok(Reading {
            identity: self.inspector.name(&self.key, "").identity().to_owned(),
            now_ms,
            block: self.inspector.block(&self.key).await?,
            strikes: self
                .inspector
                .read(&self.inspector.strikes(&self.key))
                .await?,
            entries,
            processes,
            denied: None,
            has_limits: self.has_limits,
            source: self.source,
            unpublished: self.unpublished.clone(),
            differing: self.differing.clone(),
            unenforced: None,
        })
    }

    /// The recent denials of the identity, by these policies or by a block. `None` if the tool may not read them.
    async fn denied(&self, reading: &Reading) -> Option<Vec<DenialReport>> {
        let denials = match self.inspector.denials(reading.now_ms).await {
            Ok(denials) => denials,
            Err(error) if error.code() == Some("NOPERM") => return None,
            // In a cluster, the denials may be on another node than the identity.
            Err(error) => {
                warn(format_args!("denials are not read: {error}"));
                return None;
            }
        };
        let is_read = |policy: &str| reading.entries.iter().any(|entry| entry.name == policy);
        let denied = denials.iter().filter(|denied| {
            denied.identity() == reading.identity && denied.policy().is_none_or(is_read)
        });
        Some(denied.map(DenialReport::of).collect())
    }
}

/// The keys of an identity under policies of one name: slots have a key for each expiry.
fn keys(
    inspector: &Inspector,
    key: &Key,
    name: &str,
    policies: Vec<Policy>,
) -> Vec<(StoredName, Vec<Policy>)> {
    let mut keys: Vec<(StoredName, Vec<Policy>)> = Vec::new();
    for policy in policies {
        let stored = inspector.name_under(key, &policy);
        match keys.iter_mut().find(|(known, _)| *known == stored) {
            Some((_, policies)) => policies.push(policy),
            None => keys.push((stored, vec![policy])),
        }
    }
    if keys.is_empty() {
        keys.push((inspector.name(key, name), Vec::new()));
    }
    keys
}

/// The keys with a stored value for an identity, sorted by policy. This scans all keys.
async fn found(inspector: &Inspector, key: &Key) -> Result<Vec<StoredName>> {
    let mut names = Vec::new();
    let scan = Scan::new(inspector, DEFAULT_LOAD).await?;
    scan.run(&inspector.all_of(key), async |_, found| {
        names.extend(found);
        Ok(())
    })
    .await?;
    let order = |name: &StoredName| (name.policy().to_owned(), name.slots_expire_after_ms());
    names.sort_unstable_by_key(order);
    names.dedup();
    Ok(names)
}
