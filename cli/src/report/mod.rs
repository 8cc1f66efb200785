//! [`Report`]: everything that is stored for one identity, and the answer to a request. `inspect` and `explain` show
//! the report once, `watch` again and again.

mod policy;
mod text;
mod verdict;

use serde::Serialize;
use sluicegate::Rule;
use sluicegate::store::redis::inspect::StoredValue;

pub(crate) use self::policy::{PolicyReport, other_rules};
use self::verdict::Verdict;
use super::block_report::{BlockReport, LevelReport};
use super::denied::DenialReport;
use super::error::warn;
use super::published::{Differing, Limits};
use super::reading::{Reader, Snapshot};
use super::text::millis;
use super::{Error, Result};

/// The answer as JSON. All times are in ms since the Unix epoch.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    pub(crate) identity: String,
    /// The identity as you wrote it.
    #[serde(skip)]
    pub(crate) title: String,
    pub(crate) now_ms: u64,
    /// The units that the request costs.
    cost: u64,
    #[serde(flatten)]
    pub(crate) verdict: Verdict,
    /// The block in force; null if there is none.
    pub(crate) blocked: Option<BlockReport>,
    /// The reason why the block may have no effect.
    warning: Option<String>,
    /// The level of bans that grow; null if there is none.
    ban_level: Option<LevelReport>,
    /// Denials that count towards a ban.
    strikes: Vec<Strikes>,
    /// The recent denials by policy; null if the tool may not read them.
    denied: Option<Vec<DenialReport>>,
    pub(crate) policies: Vec<PolicyReport>,
    /// Policies with a stored value that the file or the service does not have.
    other_policies: Vec<String>,
    /// The policies that services publish with rules that differ from the file, or in several versions.
    published_differs: Vec<Differing>,
    /// The policies that plans share, and under which some of the plans deny and others admit.
    undecided: Vec<String>,
    /// The reason why nothing is stored; null if something is.
    why: Option<String>,
    #[serde(skip)]
    limits: &'a Limits,
    /// Whether services may name the identity otherwise.
    #[serde(skip)]
    is_doubted: bool,
    /// The reason why the block cannot be read.
    #[serde(skip)]
    pub(crate) unreadable_block: Option<Error>,
}

/// The limit is the number of strikes that leads to a ban; null if no known policy has one.
#[derive(Serialize)]
struct Strikes {
    count: u64,
    limit: Option<u64>,
    window_ms: u64,
}

impl<'a> Report<'a> {
    /// Reads once, for a request of this cost.
    pub(crate) async fn read(reader: &Reader<'a>, cost: u64) -> Result<Self> {
        let stored = reader.read().await?;
        let (now_ms, limits) = (stored.now_ms, reader.limits);
        let (blocked, unreadable_block) = match BlockReport::of(&stored.block, now_ms) {
            Ok(block) => (block, None),
            Err(error) => (None, Some(error)),
        };
        let (mut policies, mut undecided) = (Vec::new(), Vec::new());
        let (mut denials, mut are_certain) = (Vec::new(), limits.policies.is_some());
        let published_differs = reader.differing();
        for read in &stored.values {
            let (policy, denial) = PolicyReport::of(read, &stored, cost)?;
            let mut differing = published_differs.iter();
            let differs = differing.any(|it| it.may_deny && it.policy == policy.policy);
            if policy.passes.is_none() && policy.error.is_none() && read.1.len() > 1 {
                undecided.push(policy.policy.clone());
            }
            are_certain &= policy.is_certain() && !differs;
            // If the service may have other limits, these prove neither a denial nor a pass.
            denials.extend(denial.filter(|_| !differs));
            policies.push(policy);
        }
        // A layer that looks up keys without a policy may enforce the block, but nothing publishes that.
        let block = (blocked.as_ref(), reader.unenforced.is_none());
        let name = reader.inspector.name(&reader.named.key, "");
        let identity = name.identity().to_owned();
        Ok(Self {
            title: reader.named.title(&identity),
            identity,
            now_ms,
            cost,
            verdict: Verdict::of(block, are_certain, denials),
            warning: reader.unenforced.clone().filter(|_| blocked.is_some()),
            blocked,
            ban_level: LevelReport::of(&stored.block, now_ms),
            strikes: strikes(&stored),
            denied: None,
            policies,
            other_policies: Vec::new(),
            published_differs,
            undecided,
            why: None,
            limits,
            is_doubted: false,
            unreadable_block,
        })
    }

    /// Adds the recent denials, the policies that are stored besides those of the limits, and the reason why there is
    /// nothing to show.
    pub(crate) async fn complete(&mut self, reader: &Reader<'_>) {
        self.denied = self.read_denied(reader).await;
        self.other_policies = reader.other_policies().await;
        if !self.is_empty() {
            return;
        }
        let why = reader.why_nothing().await;
        // Services may name the identity otherwise: that nothing is stored for it proves nothing then. Nothing proves
        // either that a hash was made with the service's secret.
        if why.is_misnamed || self.identity.contains("=#") {
            self.is_doubted = true;
            self.verdict.doubt();
        }
        self.why = Some(why.text).filter(|why| !why.is_empty());
    }

    /// The recent denials of the identity, by these policies or by a block. `None` if the tool may not read them.
    async fn read_denied(&self, reader: &Reader<'_>) -> Option<Vec<DenialReport>> {
        let denials = match reader.inspector.denials(self.now_ms).await {
            Ok(denials) => denials,
            Err(error) if error.code() == Some("NOPERM") => return None,
            // In a cluster, the denials may be on another node than the identity.
            Err(error) => {
                warn(format_args!("denials are not read: {error}"));
                return None;
            }
        };
        let denied = denials.iter().filter(|denied| {
            let is_read = |policy: &str| reader.reads(policy);
            denied.identity() == self.identity && denied.policy().is_none_or(is_read)
        });
        Some(denied.map(DenialReport::of).collect())
    }

    /// Whether there is nothing to show.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocked.is_none()
            && self.ban_level.is_none()
            && self.other_policies.is_empty()
            && self.policies.iter().all(PolicyReport::is_empty)
    }

    /// The first rule or block that makes every answer wrong, because the script cannot read it either.
    pub(crate) fn unreadable(&mut self) -> Option<Error> {
        let unreadable = self.policies.iter().find_map(|policy| {
            let (name, error) = (&policy.policy, policy.error.as_ref()?);
            Some(Error::server(format_args!(
                "policy `{name}`: {error}. No check of it can be decided: the service's failure policy applies. \
                 `sluicegate reset` deletes the value"
            )))
        });
        self.unreadable_block.take().or(unreadable)
    }
}

/// The strikes in each window with strikes. The limit is that of the strictest ban with this window.
fn strikes(stored: &Snapshot<'_>) -> Vec<Strikes> {
    let policies = stored.values.iter().flat_map(|(_, policies, _)| *policies);
    let bans = policies.filter_map(|policy| Some(policy.ban_config()?.strikes()));
    let bans: Vec<Rule> = bans.collect();
    let value = stored.strikes.as_ref().ok().and_then(Option::as_ref);
    let sections = value.map_or(&[][..], StoredValue::sections).iter();
    let strikes = sections.map(|section| {
        let limits = bans.iter().filter(|rule| section.is_of(rule));
        Strikes {
            count: section.used(stored.now_ms),
            limit: limits.map(Rule::limit).min(),
            window_ms: millis(section.rule(0).window()),
        }
    });
    strikes.filter(|strikes| strikes.count > 0).collect()
}
