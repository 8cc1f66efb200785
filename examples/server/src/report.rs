//! Decisions as JSON. The page reads these, since quota headers have several styles and can be switched off.

use std::time::Duration;

use axum::{Json, http::header, response::IntoResponse};
use serde::Serialize;
use sluicegate::{Decision, Usage, block::BlockedBy, decision::RuleUsage};

/// The answer to a request that accepts JSON.
#[derive(Serialize)]
struct DecisionReport {
    /// `None`: the store could not decide, and the failure policy let the request pass.
    allowed: Option<bool>,
    local: bool,
    rules: Vec<RuleReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<BlockReport>,
}

#[derive(Serialize)]
struct BlockReport {
    /// `operator` or `ban`.
    by: &'static str,
    /// How long a ban lasts. `None` for an operator's block, whose end is not shown to the caller.
    retry_after_ms: Option<u64>,
}

/// The state of one rule.
#[derive(Serialize)]
pub(crate) struct RuleReport {
    id: String,
    /// The limit that was applied. In a local decision, this is the share of one process.
    limit: u64,
    remaining: u64,
    reset_after_ms: u64,
    /// Whether this rule denied the request, or would have denied it in the case of a shadow.
    exceeded: bool,
    /// `None` also when the rule would never admit the request.
    retry_after_ms: Option<u64>,
}

/// Identifies a rule by its place in its policy. A reload can change everything else about the rule.
pub(crate) fn rule_id(policy: &str, index: usize) -> String {
    format!("{policy}.{index}")
}

pub(crate) fn decision(decision: Option<&Decision>) -> impl IntoResponse + use<> {
    let report = DecisionReport {
        allowed: decision.map(Decision::is_allowed),
        local: decision.is_some_and(|decision| decision.usage().is_local()),
        rules: decision.map_or_else(Vec::new, |decision| rules(decision.usage())),
        blocked: decision.and_then(blocked),
    };
    ([(header::CACHE_CONTROL, "no-store")], Json(report))
}

fn blocked(decision: &Decision) -> Option<BlockReport> {
    let Decision::Blocked(blocked) = decision else {
        return None;
    };
    let by = blocked.block().source();
    let wait = blocked.retry_after().filter(|_| by == BlockedBy::Ban);
    Some(BlockReport {
        by: by.as_str(),
        retry_after_ms: wait.map(millis),
    })
}

/// The state of each rule, including those of shadows.
pub(crate) fn rules(usage: &Usage) -> Vec<RuleReport> {
    let shadow = usage.shadow().map(Decision::usage);
    let policies = [Some(usage), shadow].into_iter().flatten();
    let policies = policies.flat_map(Usage::policies);
    let rules = policies.flat_map(|usage| {
        let rules = usage.rules().iter().enumerate();
        rules.map(move |(index, rule)| RuleReport::new(rule_id(usage.policy().name(), index), rule))
    });
    rules.collect()
}

impl RuleReport {
    fn new(id: String, usage: &RuleUsage) -> Self {
        Self {
            id,
            limit: usage.rule().limit(),
            remaining: usage.remaining(),
            reset_after_ms: millis(usage.reset_after()),
            exceeded: usage.is_exceeded(),
            retry_after_ms: usage.retry_after().map(millis),
        }
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
