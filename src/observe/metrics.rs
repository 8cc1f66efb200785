//! [`MetricsObserver`]: counters and histograms of decisions and calls.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock},
    time::{Duration, Instant},
};

use super::{
    CallInfo, CallKind, DecisionView, Event, Observer, RequestOutcome, SlotChange, Timing,
    event::{DENY_LIST, distinct},
};
use crate::domain::{
    block::BlockedBy,
    charge::Charge,
    error::{ExtractErrorKind, StoreError, StoreErrorKind},
    policy::Policy,
    rule::Rule,
};
use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

const DECISIONS: &str = "sluicegate_decisions_total";
const LOCAL: &str = "sluicegate_local_decisions_total";
const CACHED: &str = "sluicegate_cached_denials_total";
const DENIALS: &str = "sluicegate_denials_total";
const FAILURES: &str = "sluicegate_failures_total";
const LATE: &str = "sluicegate_late_answers_total";
const SWITCHES: &str = "sluicegate_breaker_switches_total";
const OPEN: &str = "sluicegate_breakers_open";
const MISSING_KEYS: &str = "sluicegate_missing_keys_total";
const BLOCKED: &str = "sluicegate_blocked_total";
const NEAR: &str = "sluicegate_near_limit_total";
const BANS: &str = "sluicegate_bans_total";
const PAUSES: &str = "sluicegate_pauses_total";
const LATENCY: &str = "sluicegate_store_seconds";
const CHARGED: &str = "sluicegate_units_charged_total";
const RETURNED: &str = "sluicegate_units_returned_total";
const SETTLEMENTS: &str = "sluicegate_settlements_total";
const HELD: &str = "sluicegate_slots_held";
const LOST: &str = "sluicegate_slots_lost_total";
const WAITING: &str = "sluicegate_waiting_callers";
const WAIT: &str = "sluicegate_wait_seconds";

/// Counts and measures, with the recorder of the crate `metrics` (feature `metrics`).
///
/// [The table](crate::observe#metrics) has all names, labels and meanings.
///
/// Counters start at 0 before the first event, so that a rate shows the first jump. If you install a recorder before
/// you create the observer, this holds for failed calls, blocks and the breaker; for the counters of a policy, from
/// the time when you put a layer that limits by that policy around a service. The counter of pauses begins with the
/// first pause of a kind.
///
/// The labels are bounded by the policies and rules of your service: no data from clients becomes a label. If you
/// create policies for each caller, use few names.
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
#[derive(Clone, Debug)]
pub struct MetricsObserver {
    /// By the names of policies, and one for calls, which have no policy: its name is empty.
    handles: Arc<RwLock<ByPolicy>>,
}

/// When the handles were made, and these.
type ByPolicy = HashMap<Box<str>, (Instant, Arc<Handles>)>;

/// Handles of the recorder for the metrics that each request updates, under all policies of one name.
///
/// They are made again after a while: you may install a recorder later, and a recorder may forget a counter that was idle.
#[derive(Debug, Default)]
struct Handles {
    /// Indexed by [`CallKind`].
    latency: [OnceLock<Histogram>; CallKind::Unblock as usize + 1],
    /// Indexed as [`OUTCOMES`].
    decisions: [OnceLock<Counter>; 3],
    charged: OnceLock<Counter>,
    /// For each rule, and whether the policy is a shadow.
    denials: Mutex<HashMap<(Rule, bool), Counter>>,
}

/// How long handles are kept.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// The most names with handles, and the most counters of denials of a name. When they are full, they begin again.
const MOST: usize = 1_024;

const OUTCOMES: [&str; 3] = ["allowed", "denied", "shadow_denied"];

impl MetricsObserver {
    /// Creates the observer and describes the metrics to the recorder, if you have installed one already.
    #[must_use]
    pub fn new() -> Self {
        // The recorder shows these texts to operators, as the help of each metric.
        describe_counter!(DECISIONS, "Checks, by policy and outcome");
        describe_counter!(LOCAL, "Checks that the memory of this process has decided");
        describe_counter!(CACHED, "Denials that a deny cache answered");
        describe_counter!(DENIALS, "Rules that denied a check");
        describe_counter!(FAILURES, "Calls that the store could not answer");
        describe_counter!(LATE, "Checks admitted too late, and settled");
        describe_counter!(SWITCHES, "How often the breaker has opened and closed");
        describe_gauge!(OPEN, "Breakers that are open");
        describe_counter!(MISSING_KEYS, "Limits that found no key in a request");
        describe_counter!(BLOCKED, "Requests on a deny list or of blocked identities");
        describe_counter!(NEAR, "Identities that have reached a share of a limit");
        describe_counter!(BANS, "Identities blocked for too many denials");
        describe_counter!(PAUSES, "Pauses that other services asked for");
        describe_histogram!(LATENCY, Unit::Seconds, "How long the store took");
        describe_counter!(CHARGED, "Units charged by checks and settlements");
        describe_counter!(RETURNED, "Units that settlements have returned");
        describe_counter!(SETTLEMENTS, "Settlements, by policy and outcome");
        describe_gauge!(HELD, "Slots of the work in this process");
        describe_counter!(LOST, "Slots that were lost while their holder worked");
        describe_gauge!(WAITING, "Callers that wait for room");
        describe_histogram!(WAIT, Unit::Seconds, "How long callers have waited");
        start_at_zero();
        Self {
            handles: Arc::default(),
        }
    }

    /// The handles for the policies of this name, made less than [`KEPT_FOR`] before `now`.
    fn of(&self, policy: &str, now: Instant) -> Arc<Handles> {
        // The usual case needs no write lock, so requests do not wait for each other.
        let all = self.handles.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, known)) = all.get(policy)
            && now.saturating_duration_since(*since) < KEPT_FOR
        {
            return Arc::clone(known);
        }
        drop(all);
        let new = Arc::<Handles>::default();
        let mut all = self.handles.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.retain(|_, (since, _)| now.saturating_duration_since(*since) < KEPT_FOR);
        }
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(policy.into(), (now, Arc::clone(&new)));
        new
    }

    /// Records the latency once for each call, even if the call had several checks.
    fn record_latency(&self, call: &CallInfo<'_>, timing: Timing) {
        if !call.shares_call {
            let histogram = &self.of("", timing.ended_at).latency[call.kind as usize];
            let new = || histogram!(LATENCY, "call" => call.kind.as_str());
            histogram.get_or_init(new).record(timing.latency);
        }
    }

    fn count_decision(&self, shadow: bool, decision: DecisionView<'_>, now: Instant) {
        let is_denied = !decision.is_allowed();
        let outcome = usize::from(is_denied) + usize::from(is_denied && shadow);
        // In a local decision, the limits are smaller than in the call.
        for policy in distinct(decision.policies().map(|usage| usage.policy())) {
            let denies = |rule: &&Rule| {
                let mut denials = decision.denials();
                denials.any(|(by, usage)| by.is_same(policy) && usage.rule() == **rule)
            };
            let mut denying = policy.rules().iter().filter(denies).peekable();
            // A denied check counts only under the policies that deny.
            if is_denied && denying.peek().is_none() {
                continue;
            }
            let handles = self.of(policy.name(), now);
            let new = || by_outcome(DECISIONS, policy, OUTCOMES[outcome]);
            handles.decisions[outcome].get_or_init(new).increment(1);
            if decision.is_local() {
                by_outcome(LOCAL, policy, OUTCOMES[outcome]).increment(1);
            }
            if decision.is_cached() {
                of_policy(CACHED, policy).increment(1);
            }
            denying.for_each(|rule| handles.count_denial(policy, *rule, shadow));
            if decision.is_allowed() && !policy.is_concurrency() {
                handles.count_units(decision, policy);
            }
        }
    }
}

impl Default for MetricsObserver {
    fn default() -> Self {
        Self::new()
    }
}

impl Handles {
    /// Counts the units that an admission has charged under a policy. Slots are held, not charged.
    fn count_units(&self, decision: DecisionView<'_>, policy: &Policy) {
        let charges = decision.0.usage().check().charges().iter();
        let charges = charges.filter(|charge| charge.policy().is_same(policy));
        let new = || of_policy(CHARGED, policy);
        let units = charges.map(Charge::cost).sum();
        self.charged.get_or_init(new).increment(units);
    }

    fn count_denial(&self, policy: &Policy, rule: Rule, shadow: bool) {
        let lock = || self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(&(rule, shadow)).cloned();
        let counter = known.unwrap_or_else(|| {
            // The recorder may take long, so no lock is held meanwhile.
            let new = by_rule(DENIALS, policy, rule, shadow);
            let mut denials = lock();
            if denials.len() >= MOST {
                denials.clear();
            }
            denials.insert((rule, shadow), new.clone());
            new
        });
        counter.increment(1);
    }
}

/// Creates the counters that need no policy as a label, since a rate misses the first jump of an absent counter.
fn start_at_zero() {
    use BlockedBy::{Ban, Operator, Pause};
    use CallKind::{Block, Check, Peek, Renew, Reset, Return, Settle, Unblock};
    use RequestOutcome::{Failed, Local, Passed, Rejected};
    gauge!(OPEN).increment(0.0);
    for state in ["open", "closed"] {
        counter!(SWITCHES, "state" => state).increment(0);
    }
    for by in [DENY_LIST, Operator.as_str(), Ban.as_str(), Pause.as_str()] {
        counter!(BLOCKED, "policy" => "", "by" => by).increment(0);
    }
    for &kind in StoreErrorKind::ALL {
        for outcome in [Passed, Local, Rejected] {
            failures(Check, kind, outcome).increment(0);
        }
        for call in [Peek, Settle, Renew, Return, Reset, Block, Unblock] {
            failures(call, kind, Failed).increment(0);
        }
    }
}

/// Creates the counters of a policy.
fn start_policy_at_zero(policy: &Policy) {
    let shadow = policy.is_shadow();
    for outcome in [OUTCOMES[0], OUTCOMES[1 + usize::from(shadow)]] {
        by_outcome(DECISIONS, policy, outcome).increment(0);
        by_outcome(LOCAL, policy, outcome).increment(0);
    }
    for outcome in ["done", "failed", "unsent"] {
        by_outcome(SETTLEMENTS, policy, outcome).increment(0);
    }
    let own: &[_] = match policy.is_concurrency() {
        true => &[CACHED, LOST],
        false => &[CACHED, CHARGED, RETURNED],
    };
    for name in own {
        of_policy(name, policy).increment(0);
    }
    for rule in policy.rules() {
        by_rule(DENIALS, policy, *rule, shadow).increment(0);
        if !rule.is_concurrency() {
            by_rule(NEAR, policy, *rule, shadow).increment(0);
        }
    }
    for &kind in ExtractErrorKind::ALL {
        no_key(Some(policy), kind, RequestOutcome::of(shadow)).increment(0);
    }
    if policy.ban_config().is_some() {
        of_policy(BANS, policy).increment(0);
    }
}

fn failures(call: CallKind, kind: StoreErrorKind, outcome: RequestOutcome) -> Counter {
    let (call, kind, outcome) = (call.as_str(), kind.as_str(), outcome.as_str());
    counter!(FAILURES, "call" => call, "kind" => kind, "outcome" => outcome)
}

fn by_outcome(name: &'static str, policy: &Policy, outcome: &'static str) -> Counter {
    counter!(name, "policy" => policy.name().to_owned(), "outcome" => outcome)
}

fn by_rule(name: &'static str, policy: &Policy, rule: Rule, shadow: bool) -> Counter {
    let (policy, rule) = (policy.name().to_owned(), rule.to_string());
    counter!(name, "policy" => policy, "rule" => rule, "shadow" => shadow.to_string())
}

fn no_key(policy: Option<&Policy>, kind: ExtractErrorKind, outcome: RequestOutcome) -> Counter {
    let policy = policy.map_or("", Policy::name).to_owned();
    counter!(MISSING_KEYS, "policy" => policy, "kind" => kind.as_str(), "outcome" => outcome.as_str())
}

fn of_policy(name: &'static str, policy: &Policy) -> Counter {
    counter!(name, "policy" => policy.name().to_owned())
}

fn count_failure(call: &CallInfo<'_>, error: &StoreError, outcome: RequestOutcome) {
    failures(call.kind, error.kind(), outcome).increment(1);
    count_settlement(call, ["failed", "unsent"][usize::from(error.is_unsent())]);
}

/// Counts a call under its policies, if it is a settlement.
fn count_settlement(call: &CallInfo<'_>, outcome: &'static str) {
    for policy in call.policies().filter(|_| call.kind == CallKind::Settle) {
        by_outcome(SETTLEMENTS, policy, outcome).increment(1);
    }
}

/// Counts the units that a settlement adds and gives back.
fn count_settled_units(call: &CallInfo<'_>) {
    for (charge, cost) in call.charges.iter().zip(call.final_costs) {
        let (policy, before) = (charge.policy(), charge.cost());
        if !policy.is_concurrency() {
            of_policy(CHARGED, policy).increment(cost.saturating_sub(before));
            of_policy(RETURNED, policy).increment(before.saturating_sub(*cost));
        }
    }
}

fn count_switch(state: &'static str, opened: f64) {
    counter!(SWITCHES, "state" => state).increment(1);
    gauge!(OPEN).increment(opened);
}

fn count_slots(policy: &Policy, slots: u64, change: SlotChange) {
    let held = gauge!(HELD, "policy" => policy.name().to_owned());
    // A check takes at most a thousand.
    let number = f64::from(u32::try_from(slots).unwrap_or(u32::MAX));
    match change {
        SlotChange::Taken => held.increment(number),
        SlotChange::Returned => held.decrement(number),
        SlotChange::Lost => of_policy(LOST, policy).increment(slots),
    }
}

fn count_wait(call: &CallInfo<'_>, waited: Option<Duration>) {
    let none = call.charges.is_empty().then_some("");
    for policy in call.policies().map(Policy::name).chain(none) {
        let waiting = gauge!(WAITING, "policy" => policy.to_owned());
        waiting.increment(if waited.is_none() { 1.0 } else { -1.0 });
        if let Some(waited) = waited {
            histogram!(WAIT, "policy" => policy.to_owned()).record(waited);
        }
    }
}

impl Observer for MetricsObserver {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Decision {
                call,
                timing,
                decision,
            } => {
                // Without a call, a latency would make the store look faster than it is.
                if !decision.is_local() && !decision.0.usage().spares_call() {
                    self.record_latency(call, *timing);
                }
                self.count_decision(call.shadow, *decision, timing.ended_at);
            }
            Event::Completion {
                call,
                timing,
                local,
            } => {
                if !local {
                    self.record_latency(call, *timing);
                }
                count_settlement(call, "done");
                count_settled_units(call);
            }
            Event::Error {
                call,
                timing,
                error,
                outcome,
            } => {
                // An open breaker has spared the call.
                if error.kind() != StoreErrorKind::CircuitOpen {
                    self.record_latency(call, *timing);
                }
                count_failure(call, error, *outcome);
            }
            _ => count(event),
        }
    }
}

/// Counts an event without handles, since it is rare.
fn count(event: &Event<'_>) {
    match event {
        Event::Policy(policy) => start_policy_at_zero(policy),
        Event::BreakerOpened { .. } => count_switch("open", 1.0),
        Event::BreakerClosed => count_switch("closed", -1.0),
        Event::MissingKey {
            policy,
            error,
            outcome,
            ..
        } => no_key(*policy, error.kind(), *outcome).increment(1),
        Event::Blocked { policy, source } => {
            let policy = policy.map_or("", Policy::name).to_owned();
            let by = source.map_or(DENY_LIST, BlockedBy::as_str);
            counter!(BLOCKED, "policy" => policy, "by" => by).increment(1);
        }
        Event::NearLimit { policy, rule } => {
            by_rule(NEAR, policy, rule.rule(), policy.is_shadow()).increment(1);
        }
        Event::Ban { policy, .. } => of_policy(BANS, policy).increment(1),
        Event::Pause { kind, .. } => counter!(PAUSES, "kind" => (*kind).to_owned()).increment(1),
        Event::Slots {
            policy,
            slots,
            change,
        } => count_slots(policy, *slots, *change),
        Event::LateAnswer => counter!(LATE).increment(1),
        Event::Wait { call, waited } => count_wait(call, *waited),
        Event::Decision { .. } | Event::Completion { .. } | Event::Error { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use metrics::{Gauge, Key, KeyName, Metadata, Recorder, SharedString};

    use super::*;

    /// A recorder that notes while it registers a counter of denials whether another thread could count one.
    struct Busy(Arc<Handles>, Mutex<Vec<bool>>);

    impl Recorder for Busy {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            let is_free = self.0.denials.try_lock().is_ok();
            self.1.lock().unwrap().push(is_free);
            Counter::noop()
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    #[test]
    fn no_denial_waits_while_the_recorder_registers_a_counter_and_few_are_kept() {
        let handles = Arc::<Handles>::default();
        let busy = Busy(Arc::clone(&handles), Mutex::default());
        let policy = Policy::parse("api", "1/1s").unwrap();
        metrics::with_local_recorder(&busy, || {
            for limit in 0..=MOST as u64 {
                for _ in 0..2 {
                    handles.count_denial(&policy, Rule::per_second(limit), false);
                }
            }
        });
        let registered = busy.1.into_inner().unwrap();
        assert_eq!(registered, [true; MOST + 1], "once each");
        assert_eq!(handles.denials.lock().unwrap().len(), 1);
    }

    #[test]
    fn handles_of_names_that_are_not_asked_for_again_are_dropped() {
        let (observer, start) = (MetricsObserver::new(), Instant::now());
        let kept = |name: usize, after: Duration| {
            observer.of(&name.to_string(), start + after);
            observer.handles.read().unwrap().len()
        };
        let soon = Duration::from_millis(1);
        let fill = |first| (first..MOST).fold(0, |_, name| kept(name, soon));
        assert_eq!(fill(0), MOST);
        assert_eq!(kept(MOST, soon), 1, "all were young");
        assert_eq!(fill(1), MOST);
        let then = KEPT_FOR + soon;
        assert_eq!(kept(0, then), 1, "all were old");
    }
}
