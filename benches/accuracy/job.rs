//! The job of a worker.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rule;

/// The variable with a worker's job.
pub(crate) const JOB: &str = "SLUICEGATE_ACCURACY_JOB";

/// Far more than a busy machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Where {
    Server(String),
    Sentinels(Vec<String>),
    Cluster(Vec<String>),
    /// A server without scripts.
    Transactions(String),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) at: Where,
    /// One policy for each rule. Each request is charged to one of them.
    pub(crate) rules: Vec<String>,
    /// Separates the keys of this load from those of others.
    pub(crate) load: String,
    /// The number of keys under each rule.
    pub(crate) keys: u64,
    /// The number of simultaneous requests, or bursts of requests.
    pub(crate) tasks: u64,
    /// The mean pause between two bursts of a task. With zero, there is none.
    pub(crate) pause: Duration,
    /// The number of simultaneous requests of one key.
    pub(crate) burst: u64,
    /// The timeout of each decision.
    pub(crate) timeout: Duration,
    /// Decide locally as one of this number of replicas when the store cannot decide.
    pub(crate) replicas: Option<u32>,
    /// Adds a deny cache and leases around the store. Leases are impossible under the rule that measures time, so that
    /// rule is left out.
    pub(crate) with_leases_and_cache: bool,
}

impl Job {
    /// As many requests as possible, each for one of four keys.
    pub(crate) fn crowd(at: Where, rule: &str, load: String, tasks: u64) -> Self {
        Self {
            at,
            rules: vec![rule.into()],
            load,
            keys: 4,
            tasks,
            pause: Duration::ZERO,
            burst: 1,
            timeout: PATIENCE,
            replicas: None,
            with_leases_and_cache: false,
        }
    }

    /// Requests for twice the limit of each key, in bursts of this size. All rules must have the same rate.
    pub(crate) fn calm(at: Where, rules: &[&str], keys: u64, processes: usize, burst: u64) -> Self {
        const TASKS: u64 = 16;
        let each = rule(rules[0]);
        let rate =
            2.0 * requests(each.limit() * keys * rules.len() as u64) / each.window().as_secs_f64();
        let at_once = requests(TASKS * processes as u64 * burst);
        Self {
            at,
            rules: rules.iter().map(|&rule| rule.into()).collect(),
            load: format!("in-{burst}s-"),
            keys,
            tasks: TASKS,
            pause: Duration::from_secs_f64(at_once / rate),
            burst,
            timeout: PATIENCE,
            replicas: None,
            with_leases_and_cache: false,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "some thousands")]
fn requests(count: u64) -> f64 {
    count as f64
}
