//! [`Report`]: the usage of an identity, to be shown.

use super::{Decision, RuleUsage};
use crate::domain::{charge::Charge, rule::seconds};

/// The units that an identity has left, and whether it is blocked: to be shown to that user, or to an operator.
/// `Serialize` with the feature `serde`.
///
/// You get a report from [`Limiter::report`](crate::Limiter::report), or, for the request that a handler serves, from
/// [`Decisions::report`](crate::middleware::Decisions::report). [Hidden](crate::Policy::hidden) policies and
/// [shadows](crate::Policy::shadow) are left out.
///
/// ```
/// use std::time::Duration;
///
/// use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy, block::BlockRequest};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let limiter = Limiter::new(MemoryStore::new());
/// let (api, alice) = (Policy::parse("api", "100/1h@fixed")?, Key::new("user", "alice"));
/// limiter.check([Charge::new(&api, alice.clone(), 1)]).await?;
/// let report = limiter.report([&api], &alice).await?;
/// assert!(report.limits[0].reset_after_seconds.unwrap() <= 3_600);
///
/// limiter.block(&alice, BlockRequest::pause(Duration::from_secs(60))).await?;
/// let block = limiter.report([&api], &alice).await?.blocked.unwrap();
/// assert_eq!((block.source, block.ends_after_seconds), ("pause", Some(60)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Report {
    /// Why the identity is blocked; `None` if it is not, if the store keeps no blocks, or if the limiter does not
    /// [enforce](crate::Limiter::enforce_blocks) them.
    pub blocked: Option<ReportedBlock>,
    /// The usage under each rule, in the order of the policies.
    pub limits: Vec<ReportedLimit>,
}

/// A block, as clients may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReportedBlock {
    /// `operator`, `ban` or `pause`.
    pub source: &'static str,
    /// Seconds until the block ends, rounded up; `None` for an operator's block.
    pub ends_after_seconds: Option<u64>,
}

/// The usage under one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReportedLimit {
    /// The name of the policy.
    pub policy: String,
    /// The kind of the key, such as `user`. The value is left out.
    pub kind: String,
    /// The rule as text, such as `100/1h`.
    pub rule: String,
    /// The [unit](crate::Policy::unit) that the policy counts, such as `requests`.
    pub unit: String,
    /// How many units the rule admits.
    pub limit: u64,
    /// How many are left.
    pub remaining: u64,
    /// Seconds until no unit counts, rounded up; 0 if none does. `None` for slots, and for rules with windows over a
    /// year.
    pub reset_after_seconds: Option<u64>,
}

impl Report {
    /// Creates the report of these decisions, in order.
    pub(crate) fn of<'a>(decisions: impl IntoIterator<Item = &'a Decision>) -> Self {
        let mut report = Self::default();
        for decision in decisions {
            if let Decision::Blocked(blocked) = decision {
                report.blocked = Some(ReportedBlock {
                    source: blocked.block().source().as_str(),
                    ends_after_seconds: blocked.shown_retry_after().map(seconds),
                });
            }
            let usage = decision.usage();
            let charges = usage.check().charges().iter().zip(usage.policies());
            for (charge, of_policy) in charges.filter(|(it, _)| !it.policy().is_hidden()) {
                let rules = of_policy.rules().iter();
                report
                    .limits
                    .extend(rules.map(|rule| ReportedLimit::of(charge, rule)));
            }
        }
        report
    }
}

impl ReportedLimit {
    fn of(charge: &Charge, usage: &RuleUsage) -> Self {
        let (policy, rule) = (charge.policy(), usage.rule());
        Self {
            policy: policy.name().to_owned(),
            kind: charge.key().kind().to_owned(),
            rule: rule.to_string(),
            unit: policy.counted_in().to_owned(),
            limit: rule.limit(),
            remaining: usage.remaining(),
            reset_after_seconds: usage.shown_reset_after().map(seconds),
        }
    }
}
