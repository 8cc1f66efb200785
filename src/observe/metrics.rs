use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::{Asked, Blocked, Decided, Done, Failed, MissingKey, Observer, Switched};
use crate::{error::StoreErrorKind, policy::Policy, rule::Rule};

const DECISIONS: &str = "sluicegate_decisions_total";
const LOCAL: &str = "sluicegate_local_decisions_total";
const REFUSALS: &str = "sluicegate_refusals_total";
const FAILURES: &str = "sluicegate_failures_total";
const SWITCHES: &str = "sluicegate_breaker_switches_total";
const OPEN: &str = "sluicegate_breakers_open";
const MISSING_KEYS: &str = "sluicegate_missing_keys_total";
const BLOCKED: &str = "sluicegate_blocked_total";
const LATENCY: &str = "sluicegate_store_seconds";

/// Counts and measures, with the recorder of the crate `metrics` (feature `metrics`).
///
/// | name | kind | labels | |
/// |---|---|---|---|
/// | `sluicegate_decisions_total` | counter | `policy`, `outcome`: `allowed`, `denied`, `shadow_denied` | checks; a refused one counts only under the policies that refuse |
/// | `sluicegate_local_decisions_total` | counter | the same | those of them that the memory of this process has decided |
/// | `sluicegate_refusals_total` | counter | `policy`, `rule` (`10/1s`), `shadow`: `true`, `false` | every rule that refuses a check |
/// | `sluicegate_failures_total` | counter | `call`: `check`, `peek`, `settle`, `reset`; `kind`: `timeout`, `unavailable`, `circuit_open`, `refused`, `protocol`, `invalid_request`; `outcome`: `passed`, `local`, `refused`, `lost` | calls without an answer, and what became of the request |
/// | `sluicegate_breaker_switches_total` | counter | `state`: `open`, `closed` | how often the breaker before the store has opened and closed |
/// | `sluicegate_breakers_open` | gauge | | breakers that are open: one for each limiter of this process that cannot use its store |
/// | `sluicegate_unidentified_total` | counter | `policy`, empty when it is unknown; `kind`: `missing`, `malformed`, `unavailable`; `outcome`: `passed`, `refused` | requests that do not say who is asking |
/// | `sluicegate_blocked_total` | counter | `policy`, empty when the request is on a list as a whole; `outcome`: `passed`, `refused` | requests on a deny list |
/// | `sluicegate_store_seconds` | histogram | `call` | how long the store took, or was waited for in vain; not told when it was not asked |
///
/// The labels are bounded by the policies and the rules of the service: nothing that a client sends becomes one.
/// A service that makes up policies for each of its callers should give them few names.
///
/// ```
/// use metrics_util::debugging::{DebugValue, DebuggingRecorder};
/// use sluicegate::{Charge, Key, Limiter, MemoryStore, Policy, observe::MetricsObserver};
///
/// let recorder = DebuggingRecorder::new();
/// let limiter = Limiter::new(MemoryStore::new()).observer(MetricsObserver::new());
/// let api = Policy::parse("api", "10/1s")?;
/// let charge = Charge::new(&api, Key::new("user", "alice"), 11);
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// metrics::with_local_recorder(&recorder, || runtime.block_on(limiter.check([charge])))?;
/// let seen = recorder.snapshotter().snapshot().into_vec();
/// let count = |name| seen.iter().find(|(key, ..)| key.key().name() == name).map(|(.., value)| value);
/// assert_eq!(count("sluicegate_decisions_total"), Some(&DebugValue::Counter(1)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MetricsObserver {
    _private: (),
}

impl MetricsObserver {
    /// Creates the observer and describes its metrics to the recorder, if that is installed already.
    #[must_use]
    pub fn new() -> Self {
        describe_counter!(DECISIONS, "Checks, by policy and outcome");
        describe_counter!(LOCAL, "Checks that the memory of this process has decided");
        describe_counter!(REFUSALS, "Rules that refused a check");
        describe_counter!(FAILURES, "Calls that the store could not answer");
        describe_counter!(SWITCHES, "How often the breaker has opened and closed");
        describe_gauge!(OPEN, "Breakers that are open");
        describe_counter!(MISSING_KEYS, "Requests that do not say who is asking");
        describe_counter!(BLOCKED, "Requests on a deny list");
        describe_histogram!(LATENCY, Unit::Seconds, "How long the store took");
        Self { _private: () }
    }
}

impl Observer for MetricsObserver {
    fn decided(&self, decided: &Decided<'_>) {
        let asked = decided.asked();
        if !decided.is_local() {
            time(asked, decided.latency());
        }
        let shadow = asked.is_shadow();
        let refusals = refusals(decided);
        let outcome = match (decided.is_allowed(), shadow) {
            (true, _) => "allowed",
            (false, false) => "denied",
            (false, true) => "shadow_denied",
        };
        for policy in policies(decided) {
            if decided.is_allowed() || refusals.iter().any(|(it, _)| it.is_same(policy)) {
                let name = policy.name();
                counter!(DECISIONS, "policy" => name.to_owned(), "outcome" => outcome).increment(1);
                if decided.is_local() {
                    counter!(LOCAL, "policy" => name.to_owned(), "outcome" => outcome).increment(1);
                }
            }
        }
        let shadow = if shadow { "true" } else { "false" };
        for (policy, rule) in refusals {
            let (policy, rule) = (policy.name().to_owned(), rule.to_string());
            counter!(REFUSALS, "policy" => policy, "rule" => rule, "shadow" => shadow).increment(1);
        }
    }

    fn done(&self, done: &Done<'_>) {
        if !done.is_local() {
            time(done.asked(), done.latency());
        }
    }

    fn failed(&self, failed: &Failed<'_>) {
        let kind = failed.error().kind();
        if kind != StoreErrorKind::CircuitOpen {
            time(failed.asked(), failed.latency());
        }
        let (call, kind) = (failed.asked().call().as_str(), kind.as_str());
        let outcome = failed.outcome().as_str();
        counter!(FAILURES, "call" => call, "kind" => kind, "outcome" => outcome).increment(1);
    }

    fn switched(&self, switched: &Switched<'_>) {
        let state = if switched.is_open() { "open" } else { "closed" };
        counter!(SWITCHES, "state" => state).increment(1);
        if switched.is_open() {
            gauge!(OPEN).increment(1.0);
        } else {
            gauge!(OPEN).decrement(1.0);
        }
    }

    fn on_missing_key(&self, missing: &MissingKey<'_>) {
        let policy = missing.policy().map_or("", Policy::name).to_owned();
        let kind = missing.error().kind().as_str();
        let outcome = missing.outcome().as_str();
        counter!(MISSING_KEYS, "policy" => policy, "kind" => kind, "outcome" => outcome)
            .increment(1);
    }

    fn blocked(&self, blocked: &Blocked<'_>) {
        let policy = blocked.policy().map_or("", Policy::name).to_owned();
        let outcome = blocked.outcome().as_str();
        counter!(BLOCKED, "policy" => policy, "outcome" => outcome).increment(1);
    }
}

fn time(asked: &Asked<'_>, latency: std::time::Duration) {
    histogram!(LATENCY, "call" => asked.call().as_str()).record(latency.as_secs_f64());
}

/// The policies, each once, as they were applied: of a local decision not those that were asked for.
fn policies<'a>(decided: &Decided<'a>) -> Vec<&'a Policy> {
    let mut policies: Vec<&Policy> = Vec::with_capacity(decided.asked().policies().len());
    for usage in decided.policies() {
        if !policies.iter().any(|it| it.is_same(usage.policy())) {
            policies.push(usage.policy());
        }
    }
    policies
}

/// The rules that refuse, each once, however many keys it refuses.
fn refusals<'a>(decided: &Decided<'a>) -> Vec<(&'a Policy, Rule)> {
    let mut refusals: Vec<(&Policy, Rule)> = Vec::new();
    for (policy, usage) in decided.refusals() {
        let known = |it: &&(&Policy, Rule)| it.1 == usage.rule() && it.0.is_same(policy);
        if refusals.iter().find(known).is_none() {
            refusals.push((policy, usage.rule()));
        }
    }
    refusals
}
