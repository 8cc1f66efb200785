//! Shows the page the limits of a caller and the units left: `GET /limits`; and resets them: `DELETE /limits`.
//!
//! Neither is limited, so that the page can show the limits when they deny everything else. In a service that is open
//! to the world, limit them as well, and let only your operators reset anything.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Serialize;
use sluicegate::{
    Charge, FailurePolicy, Key, KeyExtractor, Limiter, Policy, Rule, Usage,
    error::{ConfigError, ExtractError},
    policies::ReloadablePolicies,
    store::redis::inspect::Inspector,
};

use super::{
    options::{Options, Who},
    report::{self, RuleReport, rule_id},
};

/// How long the page waits for each reply about holders.
const HOLDERS_ARE_READ: Duration = Duration::from_millis(200);

pub(crate) struct Limits {
    limiter: Limiter,
    inspector: Option<Inspector>,
    live: ReloadablePolicies,
    limits: Vec<Limit>,
    probe: Policy,
    shadow: bool,
    redis: bool,
    may_reset: bool,
    tells_contributors: bool,
}

struct Limit {
    policy: String,
    /// Written as in `--limit`: `ip`, `header:x-api-key`.
    key: String,
    extractor: Arc<dyn KeyExtractor>,
}

#[derive(Serialize)]
struct Report {
    store: &'static str,
    /// Whether the store has answered just now.
    answers: bool,
    local: bool,
    on_failure: &'static str,
    may_reset: bool,
    limits: Vec<LimitReport>,
    /// A missing rule is unknown: the store does not answer, or the limit does not apply.
    rules: Vec<RuleReport>,
}

#[derive(Serialize)]
struct LimitReport {
    policy: String,
    key: String,
    shadow: bool,
    /// Whether the limit applies to this request.
    applies: bool,
    rules: Vec<RuleText>,
    /// The five contributors with the most units, if they are counted and the caller may know.
    contributors: Vec<ContributorText>,
    /// The processes that hold slots of the caller, if they share a server and the caller may know.
    holders: Vec<HolderText>,
}

#[derive(Serialize)]
struct ContributorText {
    label: String,
    units: u64,
}

#[derive(Serialize)]
struct HolderText {
    /// The host and the id of the process.
    process: String,
    slots: u64,
    /// How long ago the process asked for the first of them.
    held_ms: u64,
}

#[derive(Serialize)]
struct RuleText {
    id: String,
    limit: u64,
    window_ms: u64,
    /// Set for buckets only.
    refill: Option<u64>,
    /// Whether the units are slots, held while a request runs.
    slots: bool,
    /// The calendar that the rule counts in: `month@UTC`.
    calendar: Option<String>,
}

impl Limits {
    pub(crate) fn new(
        options: &Options,
        limiter: Limiter,
        inspector: Option<Inspector>,
        live: ReloadablePolicies,
    ) -> Result<Self, ConfigError> {
        let limits = options.limits.iter().map(|limit| Limit {
            policy: limit.policy.name().to_owned(),
            key: match &limit.who {
                Who::Ip => "ip".to_owned(),
                Who::All => "all".to_owned(),
                Who::Header(name) => format!("header:{name}"),
            },
            extractor: super::extractor(&limit.who, options),
        });
        Ok(Self {
            limiter,
            inspector: inspector.map(|inspector| inspector.timeout(HOLDERS_ARE_READ)),
            live,
            limits: limits.collect(),
            // No request is charged to this policy. A shadow would not do: a check can be answered without its shadows
            // while the store is silent.
            probe: Policy::parse("server-probe", "1/1s")?,
            shadow: options.shadow,
            redis: !options.redis.is_empty(),
            // Behind a proxy, the listening address does not say who can reach the server.
            may_reset: options.listen.ip().is_loopback() && options.trusted_proxies.is_empty(),
            tells_contributors: options.contributors.is_some(),
        })
    }

    pub(crate) fn routes(self) -> Router {
        let limits = get(show).delete(reset);
        Router::new()
            .route("/limits", limits)
            .with_state(Arc::new(self))
    }

    /// The charges that a request with this head would cause, with a cost of 0.
    fn charges(&self, head: &Parts) -> Result<Vec<Charge>, ExtractError> {
        let mut charges = Vec::new();
        for limit in &self.limits {
            let keys = limit.extractor.extract(head)?;
            let Some(policy) = self.policy(limit) else {
                continue;
            };
            charges.extend(keys.into_iter().map(|key| Charge::new(&policy, key, 0)));
        }
        Ok(charges)
    }

    /// The current policy: its file may have been read again.
    fn policy(&self, limit: &Limit) -> Option<Policy> {
        let policy = self.live.get(&limit.policy)?;
        Some(if self.shadow { policy.shadow() } else { policy })
    }

    async fn report(&self, charges: Vec<Charge>) -> Report {
        let limits = self.limits.iter().filter_map(|limit| {
            let mut policies = charges.iter().map(|charge| charge.policy().name());
            let applies = policies.any(|name| name == limit.policy);
            Some(LimitReport::new(limit, &self.policy(limit)?, applies))
        });
        let mut limits: Vec<LimitReport> = limits.collect();
        if self.tells_contributors && self.may_reset {
            self.add_contributors(&charges, &mut limits).await;
        }
        if let Some(inspector) = self.inspector.as_ref().filter(|_| self.may_reset) {
            add_holders(inspector, &charges, &mut limits).await;
        }
        let (answers, usage) = tokio::join!(self.answers(), self.limiter.peek(charges));
        Report {
            store: if self.redis { "redis" } else { "memory" },
            answers,
            local: usage.as_ref().is_ok_and(Usage::is_local),
            on_failure: self.limiter.failure_policy().as_str(),
            may_reset: self.may_reset,
            limits,
            rules: usage.map_or_else(|_| Vec::new(), |usage| report::rules(&usage)),
        }
    }

    async fn add_contributors(&self, charges: &[Charge], limits: &mut [LimitReport]) {
        for charge in charges {
            let policy = charge.policy();
            let told = self.limiter.contributors(policy, charge.key()).await;
            let limit = limits
                .iter_mut()
                .find(|limit| limit.policy == policy.name());
            let (Ok(told), Some(limit)) = (told, limit) else {
                continue;
            };
            limit.contributors = told
                .iter()
                .take(5)
                .map(|contributor| ContributorText {
                    label: contributor.label().trim_start_matches("header=").to_owned(),
                    units: contributor.units(),
                })
                .collect();
        }
    }

    /// Whether the store itself answers, rather than the memory of this process in its place.
    async fn answers(&self) -> bool {
        let strict = self.limiter.clone().on_failure(FailurePolicy::Closed);
        let nobody = Key::new("server", "probe");
        strict
            .peek([Charge::new(&self.probe, nobody, 0)])
            .await
            .is_ok()
    }
}

/// Adds the processes that hold slots. A silent server leaves them out.
async fn add_holders(inspector: &Inspector, charges: &[Charge], limits: &mut [LimitReport]) {
    let are_slots = |policy: &Policy| policy.rules().iter().any(Rule::is_concurrency);
    for charge in charges.iter().filter(|charge| are_slots(charge.policy())) {
        let name = inspector.name_under(charge.key(), charge.policy());
        let stored = inspector.read(&name).await;
        let (Ok(Ok(Some(value))), Ok(now_ms)) = (stored, inspector.now_ms(charge.key()).await)
        else {
            continue;
        };
        let labels = inspector.processes().await.unwrap_or_default();
        let mut holders: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let sections = value.sections().iter();
        let slots = sections.flat_map(|section| section.slots(now_ms));
        for (_, id) in slots {
            let (slots, since_ms) = holders.entry(id.process()).or_insert((0, u64::MAX));
            (*slots, *since_ms) = (*slots + 1, id.asked_at_ms().min(*since_ms));
        }
        let holders = holders.into_iter();
        let holders = holders.map(|(process, (slots, since_ms))| HolderText {
            process: labels
                .get(&process)
                .cloned()
                .unwrap_or_else(|| format!("{process:016x}")),
            slots,
            held_ms: now_ms.saturating_sub(since_ms),
        });
        let policy = charge.policy().name();
        if let Some(limit) = limits.iter_mut().find(|limit| limit.policy == policy) {
            limit.holders.extend(holders);
        }
    }
}

impl LimitReport {
    fn new(limit: &Limit, policy: &Policy, applies: bool) -> Self {
        let rules = policy.rules().iter().enumerate();
        let rules = rules.map(|(index, rule)| RuleText {
            id: rule_id(policy.name(), index),
            limit: rule.limit(),
            window_ms: report::millis(rule.window()),
            refill: rule.refill(),
            slots: rule.is_concurrency(),
            calendar: rule.in_calendar().map(|calendar| calendar.to_string()),
        });
        Self {
            policy: limit.policy.clone(),
            key: limit.key.clone(),
            shadow: policy.is_shadow(),
            applies,
            rules: rules.collect(),
            contributors: Vec::new(),
            holders: Vec::new(),
        }
    }
}

async fn show(State(limits): State<Arc<Limits>>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    match limits.charges(&head) {
        Ok(charges) => {
            let report = limits.report(charges).await;
            ([(header::CACHE_CONTROL, "no-store")], Json(report)).into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
}

/// Pages of other origins cannot send this method.
async fn reset(State(limits): State<Arc<Limits>>, request: Request) -> StatusCode {
    let (head, _) = request.into_parts();
    if !limits.may_reset {
        return StatusCode::FORBIDDEN;
    }
    let Ok(charges) = limits.charges(&head) else {
        return StatusCode::BAD_REQUEST;
    };
    for charge in charges {
        let reset = limits.limiter.reset(charge.policy(), charge.key()).await;
        if reset.is_err() {
            return StatusCode::SERVICE_UNAVAILABLE;
        }
    }
    StatusCode::NO_CONTENT
}
