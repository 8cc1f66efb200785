use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use metrics::{
    Key, Label, Level, Metadata, Unit, counter, describe_counter, describe_gauge,
    describe_histogram, gauge, with_recorder,
};

use super::{
    Blocked, BreakerEvent, CallInfo, CallKind, CompletionEvent, DecisionEvent, ErrorEvent,
    MissingKey, Observer,
};
use crate::{error::StoreErrorKind, policy::Policy, rule::Rule};

const DECISIONS: &str = "sluicegate_decisions_total";
const LOCAL: &str = "sluicegate_local_decisions_total";
const DENIALS: &str = "sluicegate_denials_total";
const FAILURES: &str = "sluicegate_failures_total";
const SWITCHES: &str = "sluicegate_breaker_switches_total";
const OPEN: &str = "sluicegate_breakers_open";
const MISSING_KEYS: &str = "sluicegate_missing_keys_total";
const BLOCKED: &str = "sluicegate_blocked_total";
const LATENCY: &str = "sluicegate_store_seconds";

static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// Counts and measures, with the recorder of the crate `metrics` (feature `metrics`).
///
/// | name | kind | labels | |
/// |---|---|---|---|
/// | `sluicegate_decisions_total` | counter | `policy`, `outcome`: `allowed`, `denied`, `shadow_denied` | checks; a denied one counts only under the policies that deny |
/// | `sluicegate_local_decisions_total` | counter | the same | those of them that the memory of this process has decided |
/// | `sluicegate_denials_total` | counter | `policy`, `rule` (`10/1s`), `shadow`: `true`, `false` | every rule that denies a check |
/// | `sluicegate_failures_total` | counter | `call`: `check`, `peek`, `settle`, `reset`; `kind`: `timeout`, `unavailable`, `circuit_open`, `access_denied`, `protocol`, `invalid_request`; `outcome`: `passed`, `local`, `rejected`, `failed` | calls without an answer, and what became of the request |
/// | `sluicegate_breaker_switches_total` | counter | `state`: `open`, `closed` | how often the breaker before the store has opened and closed |
/// | `sluicegate_breakers_open` | gauge | | breakers that are open: one for each limiter of this process that cannot use its store |
/// | `sluicegate_missing_keys_total` | counter | `policy`, empty when it is unknown; `kind`: `missing`, `malformed`, `unavailable`; `outcome`: `passed`, `rejected` | limits that found no key in a request |
/// | `sluicegate_blocked_total` | counter | `policy`, empty when the request is on a list as a whole; `outcome`: `passed`, `rejected` | requests on a deny list |
/// | `sluicegate_store_seconds` | histogram | `call` | how long a call of the store took, answered or not |
///
/// The labels are bounded by the policies and the rules of the service: nothing that a client sends becomes one.
/// A service that makes up policies for each of its callers should give them few names: names are also kept here.
///
/// ```
/// use metrics_util::debugging::{DebugValue, DebuggingRecorder};
/// use sluicegate::{Charge, Key, Limiter, MemoryStore, MetricsObserver, Policy};
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
#[derive(Clone)]
pub struct MetricsObserver {
    keys: Arc<Keys>,
}

/// The names and labels of what is counted for each request, made once.
///
/// Not the counters: a recorder may be installed later, and may drop a counter that was idle.
struct Keys {
    latency: [Key; 4],
    by_policy: RwLock<HashMap<Box<str>, Arc<PolicyKeys>>>,
}

/// The keys of the policies of one name.
struct PolicyKeys {
    /// By [`Outcome`].
    decisions: [Key; 3],
    /// By [`Outcome`].
    local: [Key; 3],
    /// By rule, and whether the policy is a shadow.
    denials: RwLock<HashMap<(Rule, bool), Key>>,
}

#[derive(Clone, Copy)]
enum Outcome {
    Allowed,
    Denied,
    ShadowDenied,
}

impl Outcome {
    /// In the order in which they are declared.
    const LABELS: [&str; 3] = ["allowed", "denied", "shadow_denied"];

    fn of(event: &DecisionEvent<'_>) -> Self {
        match (event.is_allowed(), event.call().is_shadow()) {
            (true, _) => Self::Allowed,
            (false, false) => Self::Denied,
            (false, true) => Self::ShadowDenied,
        }
    }
}

impl MetricsObserver {
    /// Creates the observer and describes its metrics to the recorder, if that is installed already.
    #[must_use]
    pub fn new() -> Self {
        describe_counter!(DECISIONS, "Checks, by policy and outcome");
        describe_counter!(LOCAL, "Checks that the memory of this process has decided");
        describe_counter!(DENIALS, "Rules that denied a check");
        describe_counter!(FAILURES, "Calls that the store could not answer");
        describe_counter!(SWITCHES, "How often the breaker has opened and closed");
        describe_gauge!(OPEN, "Breakers that are open");
        describe_counter!(MISSING_KEYS, "Limits that found no key in a request");
        describe_counter!(BLOCKED, "Requests on a deny list");
        describe_histogram!(LATENCY, Unit::Seconds, "How long the store took");
        Self {
            keys: Arc::new(Keys::new()),
        }
    }
}

impl Default for MetricsObserver {
    fn default() -> Self {
        Self::new()
    }
}

impl Keys {
    fn new() -> Self {
        use CallKind::{Check, Peek, Reset, Settle};
        // In the order in which they are declared.
        let latency = [Check, Peek, Settle, Reset]
            .map(|kind| Key::from_parts(LATENCY, vec![Label::new("call", kind.as_str())]));
        Self {
            latency,
            by_policy: RwLock::default(),
        }
    }

    fn of(&self, policy: &Policy) -> Arc<PolicyKeys> {
        let name = policy.name();
        let known = self
            .by_policy
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = known.get(name) {
            return keys.clone();
        }
        drop(known);
        let mut known = self
            .by_policy
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let keys = known.entry(name.into());
        keys.or_insert_with(|| Arc::new(PolicyKeys::new(name)))
            .clone()
    }

    /// Once for each call, also where it was for several checks.
    fn record_latency(&self, call: &CallInfo<'_>, latency: Duration) {
        if call.shares_call() {
            return;
        }
        let key = &self.latency[call.kind() as usize];
        with_recorder(|it| {
            it.register_histogram(key, &METADATA)
                .record(latency.as_secs_f64())
        });
    }
}

impl PolicyKeys {
    fn new(policy: &str) -> Self {
        let key = |name, outcome| {
            let labels = vec![
                Label::new("policy", policy.to_owned()),
                Label::new("outcome", outcome),
            ];
            Key::from_parts(name, labels)
        };
        Self {
            decisions: Outcome::LABELS.map(|outcome| key(DECISIONS, outcome)),
            local: Outcome::LABELS.map(|outcome| key(LOCAL, outcome)),
            denials: RwLock::default(),
        }
    }

    fn count(&self, outcome: Outcome, local: bool) {
        increment(&self.decisions[outcome as usize]);
        if local {
            increment(&self.local[outcome as usize]);
        }
    }

    fn count_denial(&self, policy: &Policy, rule: Rule, shadow: bool) {
        let known = self.denials.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = known.get(&(rule, shadow)) {
            return increment(key);
        }
        drop(known);
        let key = denial_key(policy, rule, shadow);
        increment(&key);
        let mut known = self.denials.write().unwrap_or_else(PoisonError::into_inner);
        known.insert((rule, shadow), key);
    }
}

fn denial_key(policy: &Policy, rule: Rule, shadow: bool) -> Key {
    let labels = vec![
        Label::new("policy", policy.name().to_owned()),
        Label::new("rule", rule.to_string()),
        Label::new("shadow", if shadow { "true" } else { "false" }),
    ];
    Key::from_parts(DENIALS, labels)
}

fn increment(key: &Key) {
    with_recorder(|it| it.register_counter(key, &METADATA).increment(1));
}

impl Observer for MetricsObserver {
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        let (local, shadow) = (event.is_local(), event.call().is_shadow());
        if !local {
            self.keys.record_latency(event.call(), event.latency());
        }
        let outcome = Outcome::of(event);
        for policy in applied(event) {
            if event.is_allowed() {
                self.keys.of(policy).count(outcome, local);
                continue;
            }
            let mut denying = denying(event, policy).peekable();
            if denying.peek().is_some() {
                let keys = self.keys.of(policy);
                keys.count(outcome, local);
                denying.for_each(|rule| keys.count_denial(policy, rule, shadow));
            }
        }
    }

    fn on_completion(&self, event: &CompletionEvent<'_>) {
        if !event.is_local() {
            self.keys.record_latency(event.call(), event.latency());
        }
    }

    fn on_error(&self, event: &ErrorEvent<'_>) {
        let kind = event.error().kind();
        if kind != StoreErrorKind::CircuitOpen {
            self.keys.record_latency(event.call(), event.latency());
        }
        let (call, kind) = (event.call().kind().as_str(), kind.as_str());
        let outcome = event.outcome().as_str();
        counter!(FAILURES, "call" => call, "kind" => kind, "outcome" => outcome).increment(1);
    }

    fn on_breaker(&self, event: &BreakerEvent<'_>) {
        let state = if event.is_open() { "open" } else { "closed" };
        counter!(SWITCHES, "state" => state).increment(1);
        if event.is_open() {
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

    fn on_blocked(&self, blocked: &Blocked<'_>) {
        let policy = blocked.policy().map_or("", Policy::name).to_owned();
        let outcome = blocked.outcome().as_str();
        counter!(BLOCKED, "policy" => policy, "outcome" => outcome).increment(1);
    }
}

/// The policies, each once, as they were applied: those of a local decision have smaller limits than those of the call.
fn applied<'a>(event: &DecisionEvent<'a>) -> impl Iterator<Item = &'a Policy> + use<'a> {
    let all = event.policies().map(|it| it.policy());
    all.clone().enumerate().filter_map(move |(index, policy)| {
        let is_first = all.clone().take(index).all(|it| !it.is_same(policy));
        is_first.then_some(policy)
    })
}

/// The rules of a policy that deny, each once, however many keys it denies.
fn denying<'a>(
    event: &DecisionEvent<'a>,
    policy: &'a Policy,
) -> impl Iterator<Item = Rule> + use<'a> {
    let usages = event.policies().filter(|it| it.policy().is_same(policy));
    let rules = policy.rules().iter().enumerate();
    rules.filter_map(move |(index, rule)| {
        let denies = usages.clone().any(|it| it.rules()[index].is_exceeded());
        denies.then_some(*rule)
    })
}

impl fmt::Debug for MetricsObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsObserver").finish_non_exhaustive()
    }
}
