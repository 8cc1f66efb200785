//! `sluicegate policies`, and the published policies for verbs that need the limits.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};
use sluicegate::error::StoreErrorKind;
use sluicegate::policies::PublishedPolicy;
use sluicegate::store::redis::inspect::Inspector;
use sluicegate::{Key, Policy, Rule};

use super::error::warn;
use super::text::{printable, span};
use super::{Error, Output, Result, Settings, Table, hints, policies_file, server};

/// A process publishes its policies every five minutes. A definition that is older than this is not in use.
const IN_USE_MS: u64 = 15 * 60_000;

pub(crate) fn run(settings: &Settings, output: &mut Output) -> Result<bool> {
    let (mut published, now_ms, why) = server::inspect(settings, async |inspector| {
        let now_ms = inspector.index_now_ms().await?;
        let published = inspector.policies().await?;
        let is_none = published.is_empty() && !output.is_json;
        let why = hints::why_empty(&inspector, is_none).await;
        Ok((published, now_ms, why))
    })?;
    let (rows, table, differing, has_shadow) = definitions(&mut published, now_ms);
    output.report(&json!({ "policies": rows }), |_, output| {
        if rows.is_empty() {
            output.line("No policies are published.")?;
            return output.hint(&why);
        }
        output.table(&table)?;
        if has_shadow {
            output.hint("*: a shadow, which denies no request")?;
        }
        for name in differing {
            output.warn(format!("processes differ in {name}"))?;
        }
        Ok(())
    })?;
    Ok(!rows.is_empty())
}

/// The definitions as JSON and as a table, the policies in which processes differ, and whether any is a shadow.
fn definitions(
    published: &mut [PublishedPolicy],
    now_ms: u64,
) -> (Vec<Value>, Table, Vec<&str>, bool) {
    let (mut rows, mut differing, mut has_shadow) = (Vec::new(), Vec::new(), false);
    let titles = "policy|rules|ban|on failure|kinds|blocks|seen";
    let mut table = Table::new(titles.split('|'));
    for definitions in by_name(published) {
        let name = definitions[0].policy.name();
        let differs = !are_plans(definitions) && in_use(definitions).nth(1).is_some();
        differing.extend(Some(name).filter(|_| differs));
        for published in definitions {
            let (policy, enforces_blocks) = (&published.policy, published.enforces_blocks);
            let ban = policy.ban_config().map(|ban| ban.to_string());
            let on_failure = policy.failure_policy().map(|it| it.as_str());
            let kinds = published.kinds.iter().map(|it| printable(it.as_bytes()));
            let (kinds, shadow): (Vec<_>, _) = (kinds.collect(), policy.is_shadow());
            has_shadow |= shadow;
            table.row([
                format!("{name}{}", if shadow { "*" } else { "" }).into(),
                policy.to_string().into(),
                ban.clone().unwrap_or_default().into(),
                on_failure.unwrap_or_default().into(),
                kinds.join(", ").into(),
                ["not enforced", "enforced"][usize::from(enforces_blocks)].into(),
                format!("{} ago", span(now_ms.saturating_sub(published.seen_ms))).into(),
            ]);
            rows.push(json!({
                "policy": name, "rules": policy.to_string(), "ban": ban, "shadow": shadow,
                "on_failure": on_failure, "kinds": kinds, "enforces_blocks": enforces_blocks,
                "version": printable(published.version.as_bytes()),
                "seen_ms": published.seen_ms, "differs": differs,
            }));
        }
    }
    (rows, table, differing, has_shadow)
}

/// The limits, for verbs that need them.
pub(crate) struct Limits {
    /// The limits from the file, or from the published policies, with all plans that share a name; `None` if there are
    /// neither.
    pub(crate) policies: Option<Vec<Policy>>,
    /// The policies with other limits in some processes.
    pub(crate) differing: Vec<Differing>,
    pub(crate) published: Vec<PublishedPolicy>,
    /// Completes a sentence about a stored policy or rule that the source of the limits does not have.
    pub(crate) lacks: &'static str,
    /// The reason why the published policies could not be read; `None` if they were.
    pub(crate) unpublished: Option<Error>,
}

impl Limits {
    /// The definitions of this name: several for plans, and none for an unknown name.
    pub(crate) fn of(&self, name: &str) -> Vec<Policy> {
        let all = self.policies.iter().flatten();
        let named = all.filter(|policy| policy.name() == name);
        named.cloned().collect()
    }

    /// The reason why there are no limits.
    pub(crate) fn why_unlimited(&self) -> String {
        let unread =
            |why: &Error| format!("the published policies could not be read ({})", why.message);
        let none = || "the service publishes no limits".to_owned();
        self.unpublished.as_ref().map_or_else(none, unread)
    }

    /// The error of a verb that needs limits where there are none. If a node of a cluster does not answer, the verb says
    /// what it can without them.
    pub(crate) fn why_none(&self) -> Result<()> {
        let how = "give --policies FILE, or write `policies = \"FILE\"` into sluicegate.toml";
        let why = format!("the limits are needed, and {}: {how}", self.why_unlimited());
        match &self.unpublished {
            Some(error) if error.is_away => Ok(()),
            Some(_) => Err(Error::server(why)),
            None => Err(Error::usage(why)),
        }
    }
}

/// Names the policies with a stored value for an identity that the limits do not have.
pub(crate) fn write_others(policies: &[String], lacks: &str, output: &mut Output) -> Result<()> {
    match policies.join(", ") {
        others if others.is_empty() => Ok(()),
        others => output.warn(format!(
            "counts are stored under policies that {lacks}: {others}"
        )),
    }
}

/// A policy that services publish with other limits than the file, or in two versions.
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
    fn of(definitions: &[PublishedPolicy], file: Option<&[Policy]>) -> Option<Self> {
        let published = distinct(definitions);
        let newest = *published.first()?;
        let mut of_file = file.into_iter().flatten();
        let of_file = of_file.find(|it| it.name() == newest.name());
        let expected = in_force(definitions);
        // The file may have any of the plans.
        let is_file_other = |file| expected.iter().all(|policy| is_other(policy, file));
        let do_differ = expected.len() < published.len();
        (do_differ || of_file.is_some_and(is_file_other)).then(|| Self {
            policy: newest.name().to_owned(),
            published: published.iter().map(|policy| definition(policy)).collect(),
            file: of_file.map(definition),
            may_deny: published
                .into_iter()
                .chain(of_file)
                .any(|it| !it.is_shadow()),
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
    let ban = policy.ban_config();
    let ban = ban.map(|ban| format!(" with the ban {ban}"));
    let shadow = ["", " as a shadow"][usize::from(policy.is_shadow())];
    format!("{policy}{}{shadow}", ban.unwrap_or_default())
}

/// Reads the limits, and warns about differences. A file has to have all policies that are `named`.
pub(crate) async fn limits(
    settings: &Settings,
    file: Option<&Path>,
    inspector: &Inspector,
    named: &[String],
) -> Result<Limits> {
    let file = settings.policies_or(file);
    let file = file
        .map(|path| policies_file::load(path, named))
        .transpose()?;
    let mut unpublished = None;
    let mut published = inspector.policies().await.unwrap_or_else(|error| {
        // A missing right is no reason for a warning: the verb works without it, and in a cluster the published
        // policies may be on another node than the identity.
        if error.kind() != StoreErrorKind::AccessDenied {
            warn(format_args!("published policies are not read: {error}"));
        }
        unpublished = Some(error.into());
        Vec::new()
    });
    let names = by_name(&mut published);
    let differing = names.iter();
    let differing = differing.filter_map(|it| Differing::of(it, file.as_deref()));
    let differing: Vec<Differing> = differing.collect();
    for differing in &differing {
        warn(differing.text());
    }
    let (policies, lacks) = match file {
        Some(file) => (Some(file), "the file does not have"),
        None => {
            let all: Vec<Vec<Policy>> = names.iter().map(|it| in_force(it)).collect();
            for plans in all.iter().filter(|it| it.len() > 1) {
                let rules: Vec<String> = plans.iter().map(definition).collect();
                let (name, rules) = (plans[0].name(), rules.join(" and "));
                anstream::eprintln!(
                    "plans share the name {name}: {rules}; a FILE of --policies has one"
                );
            }
            let all = Some(all.concat()).filter(|all| !all.is_empty());
            (all, "the published policies do not have")
        }
    };
    Ok(Limits {
        policies,
        differing,
        published,
        lacks,
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
    definitions.first().is_some_and(|it| it.shares_name)
}

/// The definitions in use that limit otherwise than each other, the newest first.
fn distinct(definitions: &[PublishedPolicy]) -> Vec<&Policy> {
    let mut distinct: Vec<&Policy> = Vec::new();
    for policy in in_use(definitions).map(|it| &it.policy) {
        if distinct.iter().all(|other| is_other(other, policy)) {
            distinct.push(policy);
        }
    }
    distinct
}

/// The definitions of each name, the newest first.
fn by_name(published: &mut [PublishedPolicy]) -> Vec<&[PublishedPolicy]> {
    fn name(published: &PublishedPolicy) -> &str {
        published.policy.name()
    }
    published.sort_by(|a, b| (name(a), b.seen_ms).cmp(&(name(b), a.seen_ms)));
    let names = published.chunk_by(|a, b| name(a) == name(b));
    names.collect()
}

/// The definitions that were published at about the same time as the newest. The newest comes first.
fn in_use(definitions: &[PublishedPolicy]) -> impl Iterator<Item = &PublishedPolicy> {
    let newest_ms = definitions.first().map_or(0, |it| it.seen_ms);
    let definitions = definitions.iter();
    definitions.filter(move |it| it.seen_ms + IN_USE_MS > newest_ms)
}

/// The reason why a block of this key may have no effect: no published policy for keys of this kind enforces blocks.
/// Layers that look up keys without a policy are not published. `None` if nothing is published for the kind.
pub(crate) fn why_unenforced(published: &[PublishedPolicy], key: &Key) -> Option<String> {
    let mut names = Vec::new();
    for definitions in by_name(&mut published.to_vec()) {
        // A definition that no process uses any more says nothing about blocks now.
        let is_of_kind = |it: &&PublishedPolicy| it.kinds.contains(key.kind());
        let of_kind: Vec<_> = in_use(definitions).filter(is_of_kind).collect();
        if of_kind.iter().any(|it| it.enforces_blocks) {
            return None;
        }
        names.extend(of_kind.first().map(|it| it.policy.name().to_owned()));
    }
    let (kind, policies) = (printable(key.kind().as_bytes()), names.join(", "));
    (!names.is_empty()).then(|| {
        format!(
            "no published policy for the kind `{kind}` enforces blocks ({policies}): the block holds only where a layer has \
             `deny_blocked`, see `sluicegate policies`"
        )
    })
}

/// Whether the limits differ. A failure policy is no limit.
fn is_other(policy: &Policy, other: &Policy) -> bool {
    policy.rules() != other.rules()
        || policy.ban_config() != other.ban_config()
        || policy.is_shadow() != other.is_shadow()
}
