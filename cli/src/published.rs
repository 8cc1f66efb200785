//! `sluicegate policies`, and the published policies for verbs that need the limits.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    path::Path,
};

use clap::Args;
use serde::Serialize;
use sluicegate::{
    Key, Policy, Rule,
    error::StoreErrorKind,
    policies::{Policies, PublishedPolicy},
    store::redis::inspect::Inspector,
};

use super::{
    answer::Answer,
    census,
    error::{Error, Result, warn},
    output::{Output, WARN},
    policies_file, server,
    settings::Settings,
    text::{printable, span},
};

/// A process publishes its policies every five minutes. A definition that is older than this is not in use.
const IN_USE_MS: u64 = 15 * 60_000;

const EXAMPLES: &str = "\
Examples:
  sluicegate policies
  sluicegate policies --json | jq -r '.policies[].policy'

Services publish their policies in the store, a few seconds after the first use
of each. Each definition has a row. If one process uses several of a name, they
are plans, and `inspect`, `explain` and `top` use all of them. Otherwise
processes differ, and these verbs use the newest. For 15 minutes after a deploy
the former definition still counts as one in use.

Exit codes: 0 done, 1 nothing is published.

Rights: HGETALL of the keys `PREFIX:*`, and TIME. Nothing is written.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PoliciesArgs {}

/// The answer as JSON; fields are only ever added.
#[derive(Serialize)]
struct Report {
    /// Sorted by name, with the newest definition first.
    policies: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    policy: String,
    rules: String,
    ban: Option<String>,
    shadow: bool,
    on_failure: Option<&'static str>,
    kinds: Vec<String>,
    enforces_blocks: bool,
    version: String,
    /// The last time at which a process published the policy, in ms since the Unix epoch.
    seen_ms: u64,
    /// Whether processes use different definitions now.
    differs: bool,
    #[serde(skip)]
    now_ms: u64,
}

pub(crate) fn run(_: &PoliciesArgs, settings: &Settings, output: &mut Output) -> Result<Answer> {
    let report = server::inspect(settings, async |inspector| {
        let now_ms = inspector.index_now_ms().await?;
        Ok(Report::of(inspector.policies().await?, now_ms))
    })?;
    output.report(&report, |report, output| write(report, settings, output))?;
    Ok((!report.policies.is_empty()).into())
}

impl Report {
    fn of(published: Vec<PublishedPolicy>, now_ms: u64) -> Self {
        let mut rows = Vec::new();
        for definitions in by_name(published).into_values() {
            let differs = !are_plans(&definitions) && in_use(&definitions).nth(1).is_some();
            rows.extend(
                definitions
                    .iter()
                    .map(|published| Row::of(published, differs, now_ms)),
            );
        }
        Self { policies: rows }
    }
}

impl Row {
    fn of(published: &PublishedPolicy, differs: bool, now_ms: u64) -> Self {
        let policy = published.policy();
        let kinds = published.kinds().map(|kind| printable(kind.as_bytes()));
        Self {
            policy: policy.name().to_owned(),
            rules: policy.to_string(),
            ban: policy.ban_config().map(|ban| ban.to_string()),
            shadow: policy.is_shadow(),
            on_failure: policy
                .failure_policy()
                .map(|on_failure| on_failure.as_str()),
            kinds: kinds.collect(),
            enforces_blocks: published.enforces_blocks(),
            version: printable(published.version().as_bytes()),
            seen_ms: published.seen_ms(),
            differs,
            now_ms,
        }
    }

    fn cells(&self) -> [String; 7] {
        let name = match self.shadow {
            true => format!("{}*", self.policy),
            false => self.policy.clone(),
        };
        [
            name,
            self.rules.clone(),
            self.ban.clone().unwrap_or_default(),
            self.on_failure.unwrap_or_default().to_owned(),
            self.kinds.join(", "),
            match self.enforces_blocks {
                true => "enforced".to_owned(),
                false => "not enforced".to_owned(),
            },
            format!("{} ago", span(self.now_ms.saturating_sub(self.seen_ms))),
        ]
    }
}

fn write(report: &Report, settings: &Settings, output: &mut Output) -> Result<()> {
    if report.policies.is_empty() {
        writeln!(output, "No policies are published.")?;
        return output.hint(&census::ask_why_empty(settings));
    }
    let mut table = output.table([
        "policy",
        "rules",
        "ban",
        "on failure",
        "kinds",
        "blocks",
        "seen",
    ]);
    for row in &report.policies {
        table.add_row(row.cells());
    }
    output.write_table(&table)?;
    if report.policies.iter().any(|row| row.shadow) {
        output.hint("*: a shadow, which denies no request")?;
    }
    let mut differing: Vec<&str> = Vec::new();
    for row in report.policies.iter().filter(|row| row.differs) {
        // Each definition of such a policy has a row, but one warning is enough.
        if !differing.contains(&&*row.policy) {
            differing.push(&row.policy);
        }
    }
    for name in differing {
        writeln!(output, "{WARN}processes differ in {name}{WARN:#}")?;
    }
    Ok(())
}

/// The limits, for verbs that need them.
pub(crate) struct Limits {
    /// The limits from the file, or from the published policies; `None` if there are neither.
    pub(crate) policies: Option<Policies>,
    /// The same, and all plans that share a name.
    definitions: Vec<Policy>,
    /// The policies with other limits in some processes.
    pub(crate) differing: Vec<Differing>,
    pub(crate) source: Source,
    /// The reason why the published policies could not be read; `None` if they were.
    pub(crate) unpublished: Option<String>,
}

impl Limits {
    /// The definitions of this name: several if plans share it, and none if it is not known.
    pub(crate) fn of(&self, name: &str) -> Vec<Policy> {
        let all = self.definitions.iter();
        all.filter(|policy| policy.name() == name)
            .cloned()
            .collect()
    }
}

/// The source of the limits.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    File,
    Service,
}

impl Source {
    /// Completes a sentence about a stored policy or rule that this source does not have.
    pub(crate) const fn lacks(self) -> &'static str {
        match self {
            Self::File => "the file does not have",
            Self::Service => "the published policies do not have",
        }
    }
}

/// A policy that services publish with other limits than the file, or in two versions. Fields are only ever added.
#[derive(Clone, Serialize)]
pub(crate) struct Differing {
    pub(crate) policy: String,
    /// The published definitions, the newest first. There are several while processes differ.
    pub(crate) published: Vec<String>,
    /// The definition in the file; null without a file.
    pub(crate) file: Option<String>,
    /// Whether the policy is more than a shadow in one of these definitions.
    #[serde(skip)]
    pub(crate) may_deny: bool,
}

impl Differing {
    /// `None` if all definitions have the same limits.
    fn of(definitions: &[PublishedPolicy], of_file: Option<&Policy>) -> Option<Self> {
        let published = distinct(definitions);
        let newest = *published.first()?;
        let expected = in_force(definitions);
        // The file may have any of the plans.
        let is_file_other = |file| expected.iter().all(|policy| is_other(policy, file));
        let do_differ = expected.len() < published.len();
        (do_differ || of_file.is_some_and(is_file_other)).then(|| Self {
            policy: newest.name().to_owned(),
            published: published.iter().map(|policy| definition(policy)).collect(),
            file: of_file.map(definition),
            may_deny: !published
                .iter()
                .copied()
                .chain(of_file)
                .all(Policy::is_shadow),
        })
    }

    /// `the service publishes api = 100/10s, the file says 100/20s`
    pub(crate) fn text(&self) -> String {
        let (policy, published) = (&self.policy, self.published.join(" and "));
        match &self.file {
            Some(file) => {
                format!("the service publishes {policy} = {published}, the file says {file}")
            }
            None => format!(
                "processes differ in {policy}, which is {published}: see `sluicegate policies`"
            ),
        }
    }
}

/// The parts of a policy that limit.
fn definition(policy: &Policy) -> String {
    let ban = policy
        .ban_config()
        .map(|ban| format!(" with the ban {ban}"));
    let shadow = if policy.is_shadow() {
        " as a shadow"
    } else {
        ""
    };
    format!("{policy}{}{shadow}", ban.unwrap_or_default())
}

/// Reads the limits, and warns about differences.
pub(crate) async fn limits(
    settings: &Settings,
    file: Option<&Path>,
    inspector: &Inspector,
) -> Result<Limits> {
    let file = match settings.policies_or(file) {
        Some(path) => Some(policies_file::load(path)?),
        None => None,
    };
    let mut unpublished = None;
    let published = inspector.policies().await.unwrap_or_else(|error| {
        // A missing right is no reason for a warning: the verb works without it, and in a cluster the published
        // policies may be on another node than the identity.
        if error.kind() != StoreErrorKind::AccessDenied {
            warn(format_args!("published policies are not read: {error}"));
        }
        unpublished = Some(Error::from(error).message().to_owned());
        Vec::new()
    });
    let published = by_name(published);
    let differing = published.iter().filter_map(|(name, definitions)| {
        let of_file = file.as_ref().and_then(|known| known.get(name));
        Differing::of(definitions, of_file)
    });
    let differing: Vec<Differing> = differing.collect();
    for differing in &differing {
        warn(differing.text());
    }
    let plans = published.values().filter(|_| file.is_none());
    for plans in plans.map(|it| in_force(it)).filter(|it| it.len() > 1) {
        let rules: Vec<String> = plans.iter().map(definition).collect();
        let (name, rules) = (plans[0].name(), rules.join(" and "));
        anstream::eprintln!("plans share the name {name}: {rules}; a FILE of --policies has one");
    }
    let source = match file {
        Some(_) => Source::File,
        None => Source::Service,
    };
    let definitions = match &file {
        Some(file) => file.iter().cloned().collect(),
        None => published.values().flat_map(|it| in_force(it)).collect(),
    };
    let policies = match file {
        None if published.is_empty() => None,
        None => {
            let newest = published.values().filter_map(|it| it.first());
            let newest = newest.map(|it| it.policy().clone());
            Some(Policies::new(newest).map_err(Error::usage)?)
        }
        file => file,
    };
    Ok(Limits {
        policies,
        definitions,
        differing,
        source,
        unpublished,
    })
}

/// The limits of one name: the newest definition, or those of all plans, the lowest first.
fn in_force(definitions: &[PublishedPolicy]) -> Vec<Policy> {
    let mut plans: Vec<Policy> = distinct(definitions).into_iter().cloned().collect();
    if !are_plans(definitions) {
        plans.truncate(1);
    }
    plans.sort_by_key(|plan| plan.rules().iter().map(Rule::limit).collect::<Vec<_>>());
    plans
}

/// Whether one process uses several of these definitions. Otherwise, several are those of processes that differ. The
/// newest says so: a definition that a reload has replaced is not published again.
fn are_plans(definitions: &[PublishedPolicy]) -> bool {
    let mut in_use = in_use(definitions);
    in_use.next().is_some_and(PublishedPolicy::shares_name)
}

/// The definitions in use that limit otherwise than each other, the newest first.
fn distinct(definitions: &[PublishedPolicy]) -> Vec<&Policy> {
    let mut distinct: Vec<&Policy> = Vec::new();
    for policy in in_use(definitions).map(PublishedPolicy::policy) {
        if distinct.iter().all(|other| is_other(other, policy)) {
            distinct.push(policy);
        }
    }
    distinct
}

/// The definitions of each name, the newest first.
fn by_name(published: Vec<PublishedPolicy>) -> BTreeMap<String, Vec<PublishedPolicy>> {
    let mut by_name = BTreeMap::<String, Vec<PublishedPolicy>>::new();
    for definition in published {
        by_name
            .entry(definition.policy().name().to_owned())
            .or_default()
            .push(definition);
    }
    for definitions in by_name.values_mut() {
        definitions.sort_by_key(|published| std::cmp::Reverse(published.seen_ms()));
    }
    by_name
}

/// The definitions that were published at about the same time as the newest. The newest comes first.
fn in_use(definitions: &[PublishedPolicy]) -> impl Iterator<Item = &PublishedPolicy> {
    let newest_ms = definitions.first().map_or(0, PublishedPolicy::seen_ms);
    definitions
        .iter()
        .filter(move |published| published.seen_ms() + IN_USE_MS > newest_ms)
}

/// The reason why a block of this key may have no effect: no published policy for keys of this kind enforces blocks.
/// Layers that look up keys without a policy are not published. `None` if nothing is published for the kind.
pub(crate) fn why_unenforced(published: &[PublishedPolicy], key: &Key) -> Option<String> {
    let published = by_name(published.to_vec());
    // A definition that no process uses any more says nothing about blocks now.
    let in_use = published
        .values()
        .flat_map(|definitions| in_use(definitions));
    let of_kind: Vec<_> = in_use
        .filter(|published| published.kinds().any(|kind| kind == key.kind()))
        .collect();
    if of_kind.is_empty() || of_kind.iter().any(|published| published.enforces_blocks()) {
        return None;
    }
    let names: BTreeSet<&str> = of_kind
        .iter()
        .map(|published| published.policy().name())
        .collect();
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    Some(format!(
        "no published policy for the kind `{}` enforces blocks ({names}): the block holds only where a layer has \
         `deny_blocked`, see `sluicegate policies`",
        printable(key.kind().as_bytes())
    ))
}

/// Whether the limits differ. A failure policy is no limit.
fn is_other(policy: &Policy, other: &Policy) -> bool {
    policy.rules() != other.rules()
        || policy.ban_config() != other.ban_config()
        || policy.is_shadow() != other.is_shadow()
}
