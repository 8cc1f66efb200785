//! [`Report`]: everything that is stored for one identity, and the answer to a request. `inspect` and `explain` show
//! the report once, `watch` again and again.

mod policy;
mod text;
mod verdict;

use std::collections::HashMap;

use serde::Serialize;
use sluicegate::store::redis::inspect::{StoredBlock, StoredName, StoredResult, StoredValue};
use sluicegate::{Key, Policy, Rule};

pub(crate) use self::policy::{PolicyReport, other_rules};
use self::verdict::{BlockInForce, Verdict};
use super::block_report::{BlockReport, LevelReport};
use super::denied::DenialReport;
use super::published::{Differing, Limits};
use super::text::millis;
use super::{Error, Result};

/// A key, the policies, and the stored value.
type Read<'a> = (&'a StoredName, &'a [Policy], StoredResult);

/// Everything that is stored for an identity at one time, and the limits.
pub(crate) struct Snapshot<'a> {
    pub(crate) key: &'a Key,
    pub(crate) identity: String,
    pub(crate) limits: &'a Limits,
    /// The policies of `values` in which processes differ.
    pub(crate) differing: Vec<Differing>,
    /// The reason why a block may have no effect; `None` if that is not known.
    pub(crate) unenforced: Option<&'a str>,
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

/// The answer as JSON. All times are in ms since the Unix epoch.
#[derive(Default, Serialize)]
pub(crate) struct Report {
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
    pub(crate) denied: Option<Vec<DenialReport>>,
    pub(crate) policies: Vec<PolicyReport>,
    /// Policies with a stored value that the file or the service does not have.
    pub(crate) other_policies: Vec<String>,
    /// The policies that services publish with rules that differ from the file, or in several versions.
    published_differs: Vec<Differing>,
    /// The policies that plans share, and under which some of the plans deny and others admit.
    undecided: Vec<String>,
    /// The reason why nothing is stored; null if something is.
    pub(crate) why: Option<String>,
    #[serde(skip)]
    has_limits: bool,
    /// The reason why the published policies could not be read; `None` if they were.
    #[serde(skip)]
    unpublished: Option<String>,
    /// Whether services may name the identity otherwise.
    #[serde(skip)]
    is_doubted: bool,
    /// Completes a sentence about a rule that the limits do not have.
    #[serde(skip)]
    lacks: &'static str,
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

impl Report {
    pub(crate) fn of(stored: &Snapshot<'_>, cost: u64) -> Result<Self> {
        let (now_ms, limits) = (stored.now_ms, stored.limits);
        let (blocked, unreadable_block) = match BlockReport::of(&stored.block, now_ms) {
            Ok(block) => (block, None),
            Err(error) => (None, Some(error)),
        };
        let (mut policies, mut undecided) = (Vec::new(), Vec::new());
        let (mut denials, mut are_certain) = (Vec::new(), limits.policies.is_some());
        for read in &stored.values {
            let (policy, denial) = PolicyReport::of(read, stored, cost)?;
            let mut differing = stored.differing.iter();
            let differs = differing.any(|it| it.may_deny && it.policy == policy.policy);
            if policy.passes.is_none() && policy.error.is_none() && read.1.len() > 1 {
                undecided.push(policy.policy.clone());
            }
            are_certain &= policy.is_certain() && !differs;
            // If the service may have other limits, these prove neither a denial nor a pass.
            denials.extend(denial.filter(|_| !differs));
            policies.push(policy);
        }
        let block = blocked.as_ref().map(|block| BlockInForce {
            until_ms: block.until_ms,
            // A layer that looks up keys without a policy may enforce the block, but nothing publishes that.
            is_enforced: stored.unenforced.is_none(),
        });
        let unenforced = stored.unenforced.filter(|_| blocked.is_some());
        Ok(Self {
            identity: stored.identity.clone(),
            title: stored.identity.clone(),
            now_ms,
            cost,
            verdict: Verdict::of(block.as_ref(), are_certain, denials),
            blocked,
            warning: unenforced.map(str::to_owned),
            ban_level: LevelReport::of(&stored.block, now_ms),
            strikes: strikes(stored),
            policies,
            published_differs: stored.differing.clone(),
            undecided,
            has_limits: limits.policies.is_some(),
            unpublished: limits.unpublished.as_ref().map(|_| limits.why_unlimited()),
            lacks: limits.lacks,
            unreadable_block,
            ..Self::default()
        })
    }

    /// Whether there is nothing to show.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocked.is_none()
            && self.ban_level.is_none()
            && self.other_policies.is_empty()
            && self.policies.iter().all(PolicyReport::is_empty)
    }

    /// Notes that services may name the identity otherwise: that nothing is stored for it proves nothing then.
    pub(crate) fn doubt(&mut self) {
        self.is_doubted = true;
        self.verdict.doubt();
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
    let strikes = sections.map(|section| Strikes {
        count: section.used(stored.now_ms),
        limit: bans
            .iter()
            .filter(|rule| section.is_of(rule))
            .map(Rule::limit)
            .min(),
        window_ms: millis(section.rule(0).window()),
    });
    strikes.filter(|strikes| strikes.count > 0).collect()
}
