//! [`Usage`]: the usage of an identity under one policy.

use std::collections::HashMap;

use serde_json::json;
use sluicegate::store::redis::inspect::{Section, StoredName, StoredValue};
use sluicegate::{Policy, Rule};

use super::rows::{Rank, Row};
use crate::holders::Holder;
use crate::text::{span, used, without_limit};
use crate::{BAD, Cell};

/// The fullest rule of an identity under one policy, or without limits the rule with the most units.
pub(super) struct Usage<'a> {
    section: &'a Section,
    rule: Rule,
    /// `None` if that is not known.
    limit: Option<u64>,
    pub(super) used: u64,
    /// The time when one more unit fits; 0 if that is now or never, or if the limit is not known.
    fits_ms: u64,
    pub(super) rank: Rank,
}

impl<'a> Usage<'a> {
    /// `None` if no units count. If plans share the name, the plan that leaves most decides: no other identity is known
    /// to be full.
    pub(super) fn of(value: &'a StoredValue, plans: &[Policy], now_ms: u64) -> Option<Self> {
        if plans.is_empty() {
            let sections = value.sections().iter();
            let all = sections.filter_map(|it| Self::new(it, &it.rule(0), None, now_ms));
            return all.max_by_key(|usage| usage.rank);
        }
        let plans = plans.iter().filter_map(|plan| {
            let rules = plan.rules().iter().filter_map(|rule| {
                Self::new(value.section(rule)?, rule, Some(rule.limit()), now_ms)
            });
            rules.max_by_key(|usage| usage.rank)
        });
        plans.min_by_key(|usage| usage.rank)
    }

    fn new(section: &'a Section, rule: &Rule, limit: Option<u64>, now_ms: u64) -> Option<Self> {
        let (used, rule) = (section.used(now_ms), *rule);
        let fits_ms = limit.map_or(0, |limit| section.fits_at_ms(now_ms, limit, 1));
        let rank = match limit {
            // Among full rules, the longest wait comes first.
            Some(limit) => ((u128::from(used) << 64) / u128::from(limit.max(1)), fits_ms),
            None => (0, used),
        };
        (used > 0).then_some(Self {
            section,
            rule,
            limit,
            used,
            fits_ms,
            rank,
        })
    }

    pub(super) fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.used >= limit)
    }

    pub(super) fn row(
        &self,
        name: &StoredName,
        value: &StoredValue,
        labels: &HashMap<u64, String>,
        now_ms: u64,
    ) -> Row {
        let (identity, policy, limit) = (name.identity(), name.policy(), self.limit);
        let (slots, steps) = (self.rule.is_concurrency(), self.section.steps(now_ms).len());
        let fits_ms = Some(self.fits_ms).filter(|ms| self.is_full() && *ms > 0);
        let rule = limit.map_or_else(|| without_limit(&self.rule), |_| self.rule.to_string());
        let holders = Holder::all(Some(value), now_ms, labels);
        let of = format!("{identity} under {policy}");
        let notes = holders.iter().map(|holder| holder.text(&of, now_ms));
        let used = Cell::right(used(self.used, limit, slots));
        let mut cells = vec![identity.into(), policy.into(), rule.as_str().into(), used];
        match limit {
            None => cells.push((steps as u64).into()),
            Some(limit) => {
                let percent = u128::from(self.used) * 100 / u128::from(limit.max(1));
                let denied = match fits_ms {
                    // Full, without a time: not even one unit will ever fit.
                    None if self.is_full() => "ever".to_owned(),
                    None => String::new(),
                    Some(_) if slots => "as long as all run".to_owned(),
                    Some(ms) => span(ms.saturating_sub(now_ms)),
                };
                cells.push(Cell::right(format!("{percent}%")));
                cells.push(Cell::from(denied).style(BAD));
            }
        }
        let document = json!({
            "identity": identity, "policy": policy, "rule": rule, "limit": limit, "slots": slots,
            "used": self.used, "steps": steps, "full": limit.map(|_| self.is_full()), "fits_ms": fits_ms,
            "holders": holders,
        });
        (document, cells, notes.collect())
    }
}
