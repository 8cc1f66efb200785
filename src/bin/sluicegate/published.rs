//! `sluicegate policies`, and the policies that services publish, for verbs that need the limits.

use std::{collections::BTreeMap, io::Write, path::Path};

use clap::Args;
use serde::Serialize;
use sluicegate::{
    Policy,
    error::StoreErrorKind,
    policies::{Policies, PublishedPolicy},
    store::redis::inspect::Inspector,
};

use super::{
    Answer, census,
    error::{Error, Result},
    output::{Output, WARN},
    policies_file, server,
    settings::Settings,
    text::{printable, span},
};

/// Processes say every five minutes by what they decide: what none has said for so long is not in use.
const IN_USE_MS: u64 = 15 * 60_000;

const EXAMPLES: &str = "\
Examples:
  sluicegate policies
  sluicegate policies --json | jq -r '.policies[].policy'

Services publish their policies in the store, a few seconds after the first
use of each. Where processes differ in a policy, each definition is a row, and
the newest is what `inspect`, `explain` and `top` take.

Exit codes: 0 done, 1 nothing is published.

Rights: HGETALL of the keys `PREFIX:*`, and TIME. Nothing is written.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PoliciesArgs {}

/// The answer as JSON; fields are only ever added.
#[derive(Serialize)]
struct Report {
    /// By name, the newest definition first.
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
    /// When a process last said that it decides by it, in ms since the Unix epoch.
    seen_ms: u64,
    /// Whether processes differ in it now.
    differs: bool,
    #[serde(skip)]
    now_ms: u64,
}

pub(crate) fn run(_: &PoliciesArgs, settings: &Settings, output: &mut Output) -> Result<Answer> {
    let report = server::block_on(settings, async {
        let (_, inspector) = server::connect(settings).await?;
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
            let differs = is_in_use_twice(&definitions);
            rows.extend(definitions.iter().map(|it| Row::of(it, differs, now_ms)));
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
            ban: policy.banned_by().map(|ban| ban.to_string()),
            shadow: policy.is_shadow(),
            on_failure: policy.failure_policy().map(|it| it.as_str()),
            kinds: kinds.collect(),
            enforces_blocks: published.enforces_blocks(),
            version: printable(published.version().as_bytes()),
            seen_ms: published.seen_ms(),
            differs,
            now_ms,
        }
    }

    fn cells(&self) -> [String; 6] {
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
            format!("{} ago", span(self.now_ms.saturating_sub(self.seen_ms))),
        ]
    }
}

fn write(report: &Report, settings: &Settings, output: &mut Output) -> Result<()> {
    if report.policies.is_empty() {
        writeln!(output, "No policies are published.")?;
        return output.hint(&census::ask_reason(settings, None));
    }
    let mut table = output.table(["policy", "rules", "ban", "on failure", "kinds", "seen"]);
    for row in &report.policies {
        table.add_row(row.cells());
    }
    output.write_table(&table)?;
    if report.policies.iter().any(|row| row.shadow) {
        output.hint("*: a shadow, which denies no request")?;
    }
    let mut differing: Vec<&str> = Vec::new();
    for row in report.policies.iter().filter(|row| row.differs) {
        if !differing.contains(&&*row.policy) {
            differing.push(&row.policy);
        }
    }
    for name in differing {
        writeln!(output, "{WARN}processes differ in {name}{WARN:#}")?;
    }
    Ok(())
}

/// The limits, for verbs that need them: those of the file, or else what services publish. Warns of differences.
/// `None` where there are neither.
pub(crate) async fn limits(
    settings: &Settings,
    file: Option<&Path>,
    inspector: &Inspector,
) -> Result<Option<Policies>> {
    let file = match settings.policies_or(file) {
        Some(path) => Some(policies_file::load(path)?),
        None => None,
    };
    let published = match inspector.policies().await {
        Ok(published) => by_name(published),
        // Rights that the verb does not need otherwise.
        Err(error) if error.kind() == StoreErrorKind::AccessDenied => BTreeMap::new(),
        // They may be on another node of a cluster than the identity.
        Err(error) => {
            warn(format_args!("published policies are not read: {error}"));
            BTreeMap::new()
        }
    };
    for (name, definitions) in &published {
        let newest = &definitions[0];
        if is_in_use_twice(definitions) {
            warn(format_args!(
                "processes differ in {name}: see `sluicegate policies`"
            ));
        }
        let of_file = file.as_ref().and_then(|known| known.get(name));
        if let Some(of_file) = of_file.filter(|it| is_other(it, newest.policy())) {
            let published = newest.policy();
            warn(format_args!(
                "the service publishes {name} = {published}, the file says {of_file}"
            ));
        }
    }
    if file.is_some() {
        return Ok(file);
    }
    let newest = published
        .into_values()
        .filter_map(|it| it.into_iter().next());
    let policies: Vec<Policy> = newest.map(|it| it.policy().clone()).collect();
    if policies.is_empty() {
        return Ok(None);
    }
    Ok(Some(Policies::new(policies).map_err(Error::usage)?))
}

fn warn(text: std::fmt::Arguments<'_>) {
    anstream::eprintln!("{WARN}warning:{WARN:#} {text}");
}

/// The definitions of each name, the newest first.
fn by_name(published: Vec<PublishedPolicy>) -> BTreeMap<String, Vec<PublishedPolicy>> {
    let mut by_name = BTreeMap::<String, Vec<PublishedPolicy>>::new();
    for it in published {
        by_name
            .entry(it.policy().name().to_owned())
            .or_default()
            .push(it);
    }
    for definitions in by_name.values_mut() {
        definitions.sort_by_key(|it| std::cmp::Reverse(it.seen_ms()));
    }
    by_name
}

/// Whether several definitions were seen at about the same time.
fn is_in_use_twice(definitions: &[PublishedPolicy]) -> bool {
    match definitions {
        [newest, next, ..] => next.seen_ms() + IN_USE_MS > newest.seen_ms(),
        _ => false,
    }
}

/// A failure policy is no limit.
fn is_other(policy: &Policy, other: &Policy) -> bool {
    policy.rules() != other.rules()
        || policy.banned_by() != other.banned_by()
        || policy.is_shadow() != other.is_shadow()
}
