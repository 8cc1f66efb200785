//! An observer receives every decision and failure under the documented names, and never sees a key.

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use sluicegate::observe::{CallInfo, PollScope};
use std::collections::BTreeSet;

use crate::prelude::*;

const SECRET: &str = "sk_live_do_not_show";

/// The timeout of a limiter whose store is ready at once. The breaker counts one failure in each half of it.
const EACH_FAILURE_COUNTS: Duration = Duration::from_nanos(1);

fn charge(policy: &Policy) -> Charge {
    Charge::new(policy, Key::new("user", SECRET), 1)
}

fn key() -> Header {
    Header::new("x-api-key")
}

async fn ask(layer: &RateLimitLayer) {
    send(layer, with(&[("x-api-key", SECRET)])).await;
}

async fn check(limiter: &Limiter, policy: &Policy) -> bool {
    limiter.try_acquire([charge(policy)]).await
}

async fn reset(limiter: &Limiter, policy: &Policy) -> bool {
    limiter.reset(policy, charge(policy).key()).await.is_ok()
}

// Events

#[tokio::test(start_paused = true)]
async fn an_observer_is_told_of_decisions_and_of_how_long_they_took() {
    let (log, far) = (Log::default(), Scripted::far(Duration::from_millis(30)));
    let layer = support::layer(support::limiter(far).observer(log.clone()));
    ask(&layer
        .clone()
        .limit(policy("allows", "5/1s"), key())
        .limit(policy("allows-too", "5/1s"), key())
        .limit(policy("shadow", "0/1s").shadow(), key()))
    .await;
    ask(&layer.limit(policy("refuses", "0/1s,0/1m"), key())).await;
    let expected = "
        check allows,allows-too true in 30ms
        shadow check shadow false shadow:0/1s in 30ms
        check refuses false refuses:0/1s refuses:0/1m in 30ms
    ";
    assert_eq!(log.lines(), block(expected));
}

#[tokio::test(start_paused = true)]
async fn an_observer_is_told_of_failures_and_of_what_became_of_the_request() {
    let log = Log::default();
    let open = support::limiter(Scripted::silent()).observer(log.clone());
    let closed = open.clone().on_failure(FailurePolicy::Closed);
    let api = policy("api", "1/1s");
    let shadow = policy("trial", "1/1s").shadow();
    assert!(check(&open, &api).await);
    assert!(!check(&closed, &api).await);
    assert!(check(&closed, &shadow).await);
    assert!(open.peek([charge(&api)]).await.is_err());
    tokio::time::advance(Duration::from_millis(50)).await; // one failure counts in each half timeout
    assert!(!reset(&open, &api).await);
    let scripted = support::limiter(Scripted::allowing()).observer(log.clone());
    let decision = scripted.check([charge(&api)]).await.unwrap();
    assert!(scripted.settle(decision.usage(), |_| 0).await.is_err());
    let expected = r#"
        check api timeout passed in 100ms
        check api timeout rejected in 100ms
        shadow check trial timeout passed in 100ms
        peek api timeout failed in 100ms
        open true Some("unavailable")
        reset api unavailable failed in 0ns
        check api true in 0ns
        settle api unavailable failed in 0ns
    "#;
    assert_eq!(log.lines(), block(expected));
}

#[tokio::test(start_paused = true)]
async fn an_observer_is_told_when_the_store_is_asked_no_more_and_when_it_is_asked_again() {
    let log = Log::default();
    let is_up = Arc::new(AtomicU64::new(0));
    let up = is_up.clone();
    let store = Scripted::new(move |check| match up.load(SeqCst) {
        0 => StoreFuture::pending(pending()),
        _ => StoreFuture::ready(allowed(check)),
    });
    let limiter = support::limiter(store).observer(log.clone());
    let limiter = limiter.on_failure(FailurePolicy::Local).replicas(2);
    let api = policy("api", "10/1d");
    for _ in 0..5 {
        assert!(check(&limiter, &api).await);
    }
    for _ in 0..2 {
        assert!(!check(&limiter, &api).await);
    }
    assert!(limiter.peek([charge(&api)]).await.is_ok());
    assert!(!reset(&limiter, &api).await);
    is_up.store(1, SeqCst);
    tokio::time::advance(Duration::from_millis(375)).await;
    assert!(check(&limiter, &api).await);
    let failed = "check api timeout local in 100ms\nlocal check api true in 100ms\n";
    let expected = r#"
        open true Some("timeout")
        check api timeout local in 100ms
        local check api true in 100ms
        check api circuit_open local in 0ns
        local check api false api:5/1d in 0ns
        check api circuit_open local in 0ns
        local check api false api:5/1d in 0ns
        peek api circuit_open local in 0ns
        local peek api in 0ns
        reset api circuit_open failed in 0ns
        open false None
        check api true in 0ns
    "#;
    assert_eq!(log.lines(), block(&(failed.repeat(4) + expected)));
}

#[tokio::test(start_paused = true)]
async fn the_observer_of_a_breaker_that_opened_is_notified_when_a_clone_closes_it() {
    let log = Log::default();
    let is_up = Arc::new(AtomicBool::new(false));
    let up = is_up.clone();
    let store = Scripted::new(move |check| match up.load(SeqCst) {
        true => StoreFuture::ready(allowed(check)),
        false => StoreFuture::ready(Err(unavailable())),
    });
    let unobserved = support::limiter(store).timeout(EACH_FAILURE_COUNTS);
    let observed = unobserved.clone().observer(log.clone());
    let api = policy("api", "10/1d");
    for (opening, closing, switches) in [
        (&observed, &unobserved, 2),
        (&unobserved, &observed, 0),
        (&observed, &observed, 2),
    ] {
        let before = log.switches().len();
        is_up.store(false, SeqCst);
        for _ in 0..5 {
            assert!(opening.check([charge(&api)]).await.is_err());
        }
        is_up.store(true, SeqCst);
        tokio::time::advance(Duration::from_millis(375)).await;
        assert!(closing.check([charge(&api)]).await.is_ok());
        let told = log.switches().split_off(before);
        let expected = [r#"open true Some("unavailable")"#, "open false None"];
        assert_eq!(told, expected[..switches]);
    }
}

/// The events of a request through a layer with this limiter.
async fn told_of(layer: impl FnOnce(Limiter) -> RateLimitLayer) -> String {
    let log = Log::default();
    let limiter = support::limiter(Scripted::allowing()).observer(log.clone());
    ask(&layer(limiter)).await;
    log.lines().join(", ")
}

/// A test for each row: a layer of a limiter, and the events of a request.
macro_rules! told_of {
    ($($name:ident: $layer:expr => $told:expr;)*) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            assert_eq!(told_of($layer).await, $told);
        }
    )*};
}

fn absent() -> Header {
    Header::new("absent")
}

fn api() -> Policy {
    policy("api", "1/1s")
}

fn trial() -> Policy {
    policy("trial", "1/1s").shadow()
}

/// A layer that denies each key.
fn listed(limiter: Limiter) -> RateLimitLayer {
    support::layer(limiter).deny_keys(|_| true)
}

fn looked_up(policy: Policy) -> impl Fn(&Parts) -> std::future::Ready<Charge> {
    move |_| ready(charge(&policy))
}

fn never_looked_up(_: &Parts) -> std::future::Pending<Charge> {
    pending()
}

fn too_many(_: &Parts) -> Keys {
    (0..100).map(|n| Key::new("n", n.to_string())).collect()
}

told_of! {
    an_absent_key_is_reported: |it| support::layer(it).limit(api(), absent()) => "api missing rejected";
    an_absent_key_of_a_shadow_is_reported: |it| support::layer(it).limit(trial(), absent()) => "trial missing passed";
    an_absent_key_of_a_shadow_layer_is_reported: |it| support::layer(it).shadow().limit(api(), absent()) => "api missing passed";
    an_absent_peer_is_reported_as_a_mistake: |it| support::layer(it).limit(api(), PeerIp) => "api misconfigured rejected";
    an_absent_peer_of_a_shadow_is_reported_as_a_mistake: |it| support::layer(it).limit(trial(), PeerIp) => "trial misconfigured passed";
    a_client_that_has_to_authenticate_is_reported: |it| support::layer(it).limit(api(), challenging()) => "api unauthenticated rejected";
    a_look_up_that_never_ends_is_reported: |it| support::layer(it).charge_async(never_looked_up) => "? unavailable passed";
    a_look_up_that_never_ends_is_reported_as_rejected_if_closed:
        |it| support::layer(it.on_failure(FailurePolicy::Closed)).charge_async(never_looked_up) => "? unavailable rejected";
    too_many_keys_are_reported: |it| support::layer(it).limit(api(), too_many) => "check api invalid_request rejected in 0ns";
    too_many_keys_of_a_shadow_are_reported: |it| support::layer(it).limit(trial(), too_many) => "shadow check trial invalid_request passed in 0ns, shadow check trial true in 0ns";
    a_request_on_a_deny_list_is_reported: |it| support::layer(it).deny(|_| true).limit(api(), key()) => "? blocked by list";
    a_request_on_the_deny_list_of_a_shadow_layer_is_reported: |it| support::layer(it).deny(|_| true).shadow() => "? blocked by list";
    a_key_on_a_deny_list_is_reported_with_its_policy: |it| listed(it).limit(api(), key()) => "api blocked by list";
    a_key_on_the_deny_list_of_a_shadow_layer_is_reported: |it| listed(it).limit(api(), key()).shadow() => "api blocked by list";
    a_key_of_a_shadow_on_a_deny_list_is_reported: |it| listed(it).limit(trial(), key()) => "trial blocked by list";
    a_key_that_was_looked_up_on_a_deny_list_is_reported: |it| listed(it).charge_async(looked_up(api())) => "api blocked by list";
    a_key_of_a_shadow_that_was_looked_up_on_a_deny_list_is_reported: |it| listed(it).charge_async(looked_up(trial())) => "trial blocked by list";
}

#[tokio::test]
async fn a_pair_of_observers_is_told_both() {
    let logs = [Log::default(), Log::default()];
    everything((logs[0].clone(), Arc::new(logs[1].clone()))).await;
    let kinds = |log: &Log| {
        let lines = log.lines();
        let kinds = lines.iter().map(|it| it.split(" in ").next().unwrap());
        kinds.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(kinds(&logs[0]).contains(&"? blocked by list".to_owned()));
    assert_eq!(kinds(&logs[0]), kinds(&logs[1]));
}

#[test]
fn a_store_that_answers_at_once_needs_no_runtime_to_be_observed() {
    let log = Log::default();
    let limiter = support::limiter(Scripted::allowing()).observer(log.clone());
    let charges = [policy("api", "1/1s"), policy("trial", "1/1s").shadow()].map(|it| charge(&it));
    assert!(futures::executor::block_on(limiter.try_acquire(charges)));
    assert_eq!(log.lines().len(), 2);
}

#[test]
fn an_observer_that_does_nothing_costs_no_allocation() {
    struct Nothing;
    impl Observer for Nothing {
        fn on_event(&self, _: &Event<'_>) {}
    }
    let allocations = |limiter: Limiter| {
        let layer = support::layer(limiter)
            .limit(policy("api", "9999/1m,9999/1h"), key())
            .limit(policy("trial", "9999/1m").shadow(), key());
        // The first four requests allocate memory that is kept. The fifth makes no list longer.
        for _ in 0..4 {
            futures::executor::block_on(ask(&layer));
        }
        let counted = allocation_counter::measure(|| futures::executor::block_on(ask(&layer)));
        counted.count_total
    };
    // No step of a window begins here, and all identities share a list, since their hashes do not matter.
    let store = || MemoryStore::new().capacity(64).clock(ManualClock::new(0));
    let limiter = || support::limiter(store());
    let unobserved = allocations(limiter());
    assert_eq!(allocations(limiter().observer(Nothing)), unobserved);
    // No subscriber wants these events.
    assert_eq!(
        allocations(limiter().observer(TracingObserver::new())),
        unobserved
    );
    assert_eq!(
        allocations(limiter().observer(MetricsObserver::new())),
        unobserved
    );
}

/// Causes every event once.
async fn everything(observer: impl Observer) {
    let observer = Arc::new(observer);
    let (api, trial) = (
        policy("api", "10/1s,10/1m"),
        policy("trial", "5/1m").shadow(),
    );
    let [allows, denies] = [Scripted::allowing(), Scripted::denying_for(9)];
    for store in [allows, denies, Scripted::failing()] {
        let limiter = support::limiter(store).observer(observer.clone());
        let limiter = limiter.timeout(EACH_FAILURE_COUNTS);
        let layer = support::layer(limiter.clone())
            .limit(api.clone(), key())
            .limit(trial.clone(), key());
        ask(&layer).await;
        ask(&layer.clone().deny(|_| true)).await;
        ask(&layer.clone().deny_keys(|_| true)).await;
        ask(&layer.limit(policy("who", "1/1s"), Header::new("absent"))).await;
        let _ = limiter.check([charge(&trial)]).await;
        let _ = limiter.peek([charge(&api)]).await;
        let _ = limiter.reset(&api, charge(&api).key()).await;
        if let Ok(decision) = limiter.check([charge(&api)]).await {
            let _ = limiter.settle(decision.usage(), |_| 0).await;
        }
    }
}

#[tokio::test]
async fn no_key_is_shown_even_in_full() {
    let log = Log::in_full();
    everything(log.clone()).await;
    let text = log.lines().concat();
    for event in ["Decision {", "Completion {", "Error {", "BreakerOpened {"] {
        assert!(text.contains(event), "{event}");
    }
    let bytes: Vec<String> = SECRET.bytes().map(|byte| byte.to_string()).collect();
    let dense = text.replace([' ', '\n'], "");
    let is_shown = text.contains(SECRET) || dense.contains(&bytes.join(","));
    assert!(!is_shown, "{text}");
}

// Metrics

/// The metrics of this work, sorted: each with its labels, and its value or number of values.
pub(crate) fn recorded<F: Future<Output = ()>>(
    work: impl FnOnce(MetricsObserver) -> F,
) -> Vec<String> {
    let mut seen = registered(work);
    seen.retain(|it| !it.ends_with(" = 0"));
    seen
}

/// Metrics of one name in one line, without the first word of all names: `blocked_total policy= by=list = 3, policy=api …`.
pub(crate) fn grouped(seen: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut last = "";
    for metric in seen {
        let (name, labels) = metric.split_once(' ').unwrap();
        match lines.last_mut().filter(|_| last == name) {
            Some(line) => *line += &format!(", {labels}"),
            None => lines.push(metric.replacen("sluicegate_", "", 1)),
        }
        last = name;
    }
    lines
}

/// The same, with metrics that have counted nothing.
fn registered<F: Future<Output = ()>>(work: impl FnOnce(MetricsObserver) -> F) -> Vec<String> {
    registered_in(&support::runtime(), work)
}

fn registered_in<F: Future<Output = ()>>(
    runtime: &tokio::runtime::Runtime,
    work: impl FnOnce(MetricsObserver) -> F,
) -> Vec<String> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(work(MetricsObserver::new()));
    });
    let mut seen = Vec::new();
    for (key, _, description, value) in snapshotter.snapshot().into_vec() {
        assert!(description.is_some(), "{key:?}");
        let labels = key.key().labels();
        let labels = labels.map(|it| format!("{}={}", it.key(), it.value()));
        let labels = labels.collect::<Vec<_>>().join(" ");
        let value = match value {
            DebugValue::Counter(count) => count,
            DebugValue::Histogram(times) => times.len().try_into().unwrap(),
            DebugValue::Gauge(value) => format!("{:.0}", value.into_inner()).parse().unwrap(),
        };
        seen.push(format!("{} {labels} = {value}", key.key().name()));
    }
    seen.sort();
    seen
}

#[test]
fn the_documented_metrics_are_recorded_with_bounded_labels() {
    let seen = recorded(everything);
    let expected = "
        blocked_total policy= by=list = 3, policy=api by=list = 3
        breaker_switches_total state=open = 1
        breakers_open  = 1
        decisions_total policy=api outcome=allowed = 2, policy=api outcome=denied = 2, policy=trial outcome=allowed = 2, policy=trial outcome=shadow_denied = 1
        denials_total policy=api rule=10/1m shadow=false = 2, policy=api rule=10/1s shadow=false = 2, policy=trial rule=5/1m shadow=true = 1
        failures_total call=check kind=unavailable outcome=passed = 3, call=peek kind=protocol outcome=failed = 1, call=peek kind=unavailable outcome=failed = 1, call=reset kind=unavailable outcome=failed = 3, call=settle kind=unavailable outcome=failed = 1
        missing_keys_total policy=who kind=missing outcome=rejected = 3
        settlements_total policy=api outcome=failed = 1
        store_seconds call=check = 9, call=peek = 3, call=reset = 3, call=settle = 1
        units_charged_total policy=api = 2, policy=trial = 2
    ";
    assert_eq!(grouped(&seen), block(expected));
}

fn layer(observer: impl Observer) -> RateLimitLayer {
    let limiter = support::limiter(Scripted::allowing()).observer(observer);
    let banning = policy("api", "10/1s,10/1m").ban("3/1m=1h".parse().unwrap());
    support::layer(limiter)
        .limit(banning, key())
        .limit(policy("trial", "5/1m").shadow(), key())
}

#[test]
fn counters_are_at_zero_before_the_first_request() {
    let started = registered(|_| async {});
    let built = registered(|observer| async move {
        let _ = layer(observer).layer(());
    });
    let wrapped = registered(|observer| async move {
        let _ = RateLimit::new((), layer(observer));
    });
    assert_eq!(wrapped, built);
    let expected = "
        bans_total policy=api = 0
        cached_denials_total policy=api = 0, policy=trial = 0
        decisions_total policy=api outcome=allowed = 0, policy=api outcome=denied = 0, policy=trial outcome=allowed = 0, policy=trial outcome=shadow_denied = 0
        denials_total policy=api rule=10/1m shadow=false = 0, policy=api rule=10/1s shadow=false = 0, policy=trial rule=5/1m shadow=true = 0
        local_decisions_total policy=api outcome=allowed = 0, policy=api outcome=denied = 0, policy=trial outcome=allowed = 0, policy=trial outcome=shadow_denied = 0
        missing_keys_total policy=api kind=malformed outcome=rejected = 0, policy=api kind=misconfigured outcome=rejected = 0, policy=api kind=missing outcome=rejected = 0, policy=api kind=unauthenticated outcome=rejected = 0, policy=api kind=unavailable outcome=rejected = 0, policy=trial kind=malformed outcome=passed = 0, policy=trial kind=misconfigured outcome=passed = 0, policy=trial kind=missing outcome=passed = 0, policy=trial kind=unauthenticated outcome=passed = 0, policy=trial kind=unavailable outcome=passed = 0
        near_limit_total policy=api rule=10/1m shadow=false = 0, policy=api rule=10/1s shadow=false = 0, policy=trial rule=5/1m shadow=true = 0
        settlements_total policy=api outcome=done = 0, policy=api outcome=failed = 0, policy=api outcome=unsent = 0, policy=trial outcome=done = 0, policy=trial outcome=failed = 0, policy=trial outcome=unsent = 0
        units_charged_total policy=api = 0, policy=trial = 0
        units_returned_total policy=api = 0, policy=trial = 0
    ";
    let mut of_policies = built;
    of_policies.retain(|it| !started.contains(it));
    assert_eq!(grouped(&of_policies), block(expected));

    let count = |metric: &str| started.iter().filter(|it| it.starts_with(metric)).count();
    assert_eq!(count("sluicegate_failures_total call=check kind="), 8 * 3);
    assert_eq!(count("sluicegate_blocked_total policy= by="), 4);
    assert_eq!(count("sluicegate_breaker_switches_total state="), 2);
    assert_eq!(count("sluicegate_breakers_open "), 1);
    for call in "peek settle renew return reset block unblock".split(' ') {
        let failed = format!("sluicegate_failures_total call={call} kind=");
        assert_eq!(count(&failed), 8, "{call}");
    }
    assert_eq!(started.len(), 31 + 7 * 8);

    let jobs = policy("jobs", "2/30s@concurrent");
    let built = registered(|observer| async move { observer.on_event(&Event::Policy(&jobs)) });
    for expected in [
        "sluicegate_slots_lost_total policy=jobs = 0",
        "sluicegate_settlements_total policy=jobs outcome=failed = 0",
    ] {
        assert!(built.iter().any(|it| it == expected), "{built:?}");
    }
    assert!(!built.concat().contains("units"), "{built:?}");
}

/// The metrics with these beginnings.
fn only(seen: &[String], beginnings: &[&str]) -> Vec<String> {
    let is_meant = |it: &&String| beginnings.iter().any(|beginning| it.starts_with(beginning));
    seen.iter().filter(is_meant).cloned().collect()
}

#[test]
fn units_are_counted_by_policy_with_those_that_settlements_add_and_return() {
    let seen = recorded(|observer| async move {
        let limiter = support::limiter(MemoryStore::new()).observer(observer);
        let (api, trial) = (policy("api", "20/1d"), policy("trial", "99/1d").shadow());
        let all = policy("all", "99/1d");
        let jobs = policy("jobs", "99/30s@concurrent");
        let charges =
            || [&api, &trial, &all, &jobs].map(|it| Charge::new(it, Key::new("user", SECRET), 5));
        let admitted = limiter.check(charges()).await.unwrap();
        limiter.settle(admitted.usage(), |_| 2).await.unwrap();
        let admitted = limiter.check(charges()).await.unwrap();
        let cost = |charge: &Charge| match charge.policy().name() {
            "api" => 15,
            _ => 5,
        };
        limiter.settle(admitted.usage(), cost).await.unwrap();
        // Denied by one policy, so charged to none; and a look that charges nothing.
        assert!(!limiter.check(charges()).await.unwrap().is_allowed());
        limiter.peek(charges()).await.unwrap();
    });
    let expected = "
        settlements_total policy=all outcome=done = 2, policy=api outcome=done = 2, policy=jobs outcome=done = 2, policy=trial outcome=done = 1
        units_charged_total policy=all = 10, policy=api = 20, policy=trial = 10
        units_returned_total policy=all = 3, policy=api = 3, policy=trial = 3
    ";
    let told = only(&seen, &["sluicegate_units", "sluicegate_settlements"]);
    assert_eq!(grouped(&told), block(expected));
}

#[test]
fn a_settlement_that_was_not_sent_is_told_from_one_that_failed() {
    let seen = recorded(|observer| async move {
        let limiter = support::limiter(Scripted::allowing()).observer(observer);
        let limiter = limiter.timeout(EACH_FAILURE_COUNTS);
        let api = policy("api", "10/1d");
        let decision = limiter.check([charge(&api)]).await.unwrap();
        // The scripted store fails at settlements, and the breaker opens at other calls that fail.
        assert!(limiter.settle(decision.usage(), |_| 0).await.is_err());
        let decision = limiter.check([charge(&api)]).await.unwrap();
        for _ in 0..5 {
            let _ = limiter.reset(&api, charge(&api).key()).await;
        }
        let error = limiter.settle(decision.usage(), |_| 0).await.unwrap_err();
        assert!(error.is_unsent());
    });
    let told = only(
        &seen,
        &["sluicegate_units_returned", "sluicegate_settlements"],
    );
    let expected = "settlements_total policy=api outcome=failed = 1, policy=api outcome=unsent = 1";
    assert_eq!(grouped(&told), [expected]);
}

/// Writes down the events of slots, of callers that wait, and of policies.
fn holders() -> Log {
    Log::of(|event| match event {
        Event::Slots {
            policy,
            slots,
            change,
            ..
        } => Some(format!("{} {slots} {change:?}", policy.name())),
        Event::Wait { call, waited, .. } => Some(format!("{} {waited:?}", call.names())),
        Event::Policy(policy) if policy.is_shadow() => Some(format!("{} (shadow)", policy.name())),
        Event::Policy(policy) => Some(policy.name().to_owned()),
        _ => None,
    })
}

fn jobs(slots: u64) -> [Charge; 1] {
    let jobs = policy("jobs", "3/30s@concurrent");
    [Charge::new(&jobs, Key::new("user", SECRET), slots)]
}

#[test]
fn slots_are_counted_by_policy_while_they_are_held_and_when_they_are_lost() {
    let seen = registered_in(&support::paused_runtime(), |observer| async move {
        let log = holders();
        let limiter = support::limiter(MemoryStore::new()).observer((log.clone(), observer));
        let acquire = async |slots| {
            let slot = limiter.acquire_slot(jobs(slots), Duration::ZERO).await;
            slot.unwrap().unwrap().unwrap()
        };
        let (two, one) = (acquire(2).await, acquire(1).await);
        assert_eq!(log.take(), ["jobs 2 Taken", "jobs 1 Taken"]);
        let watch = one.watch();
        drop(one);
        assert_eq!(log.take(), ["jobs 1 Returned"]);
        drop(watch);
        // An operator resets the key: the next renewal finds no slot.
        let [job] = jobs(1);
        limiter.reset(job.policy(), job.key()).await.unwrap();
        two.lost().await;
        assert_eq!(log.take(), ["jobs 2 Lost"]);
        drop(two);
        assert_eq!(log.take(), ["jobs 2 Returned"]);
        // One that is held at the end.
        Box::leak(Box::new(acquire(1).await));
    });
    let told = only(&seen, &["sluicegate_slots"]);
    let expected = [
        "slots_held policy=jobs = 1",
        "slots_lost_total policy=jobs = 2",
    ];
    assert_eq!(grouped(&told), expected);
}

/// Five charges of five units, of which the fourth reaches the share.
async fn near_its_limit(observer: impl Observer) {
    let limiter = support::limiter(MemoryStore::new()).observer(observer);
    let day = policy("day", "5/1d@fixed");
    for _ in 0..5 {
        assert!(check(&limiter, &day).await);
    }
}

#[test]
fn a_policy_near_its_limit_is_in_the_log_and_in_the_metrics_once() {
    let mut lines = traced(true, near_its_limit(TracingObserver::new()));
    lines.retain(|line| line.contains("near limit"));
    let expected = r#"DEBUG near limit policy="day" rule=5/1d@fixed shadow=false remaining=1"#;
    assert_eq!(lines, [expected]);
    let seen = only(&recorded(near_its_limit), &["sluicegate_near_limit_total"]);
    let expected = "near_limit_total policy=day rule=5/1d@fixed shadow=false = 1";
    assert_eq!(grouped(&seen), [expected]);
}

#[test]
fn callers_that_wait_are_counted_by_policy_and_their_time_is_measured() {
    let seen = registered_in(&support::paused_runtime(), |observer| async move {
        let log = holders();
        let limiter = support::limiter(MemoryStore::new()).observer((log.clone(), observer));
        let acquire = |max_wait| limiter.acquire_slot(jobs(2), Duration::from_secs(max_wait));
        // One that is admitted at once, and one that is denied at once, do not wait.
        let slot = acquire(5).await.unwrap().unwrap();
        assert!(acquire(0).await.unwrap().is_err());
        assert_eq!(log.take(), ["jobs 2 Taken"]);

        let (mut first, mut second) = (Box::pin(acquire(9)), Box::pin(acquire(9)));
        assert!(futures::poll!(&mut first).is_pending());
        assert!(futures::poll!(&mut second).is_pending());
        assert_eq!(log.take(), ["jobs None", "jobs None"]);
        tokio::time::advance(Duration::from_secs(3)).await;
        drop(second);
        assert_eq!(log.take(), ["jobs Some(3s)"]);
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(slot);
        let slot = first.await.unwrap().unwrap();
        let expected = ["jobs 2 Returned", "jobs Some(4s)", "jobs 2 Taken"];
        assert_eq!(log.take(), expected);
        drop(slot);
    });
    let told = only(&seen, &["sluicegate_wait"]);
    let expected = [
        "wait_seconds policy=jobs = 2",
        "waiting_callers policy=jobs = 0",
    ];
    assert_eq!(grouped(&told), expected);
}

#[test]
fn a_request_that_waits_for_the_end_of_a_block_is_counted_under_no_policy() {
    let seen = registered_in(&support::paused_runtime(), |observer| async move {
        let limiter = support::limiter(MemoryStore::new()).observer(observer);
        let blocked = key().key(SECRET);
        let until = Duration::from_secs(9);
        limiter.block(&blocked, until).await.unwrap();
        let layer = support::layer(limiter.clone().wait_for_blocks(true))
            .deny_blocked(key())
            .max_wait(Duration::from_secs(20));
        let mut request = Box::pin(ask(&layer));
        assert!(futures::poll!(&mut request).is_pending());
        limiter.unblock(&blocked).await.unwrap();
        request.await;
    });
    let told = only(&seen, &["sluicegate_wait"]);
    let expected = ["wait_seconds policy= = 1", "waiting_callers policy= = 0"];
    assert_eq!(grouped(&told), expected);
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_about_a_slot_or_a_wait_takes_no_slot_and_stops_no_caller() {
    struct Panics;
    impl Observer for Panics {
        fn on_event(&self, event: &Event<'_>) {
            match event {
                Event::Slots { .. } => panic!("the observer does not like slots"),
                Event::Wait { .. } => panic!("the observer does not like to wait"),
                _ => {}
            }
        }
    }
    let limiter = support::limiter(MemoryStore::new()).observer(Panics);
    let acquire = |max_wait| limiter.acquire_slot(jobs(3), Duration::from_secs(max_wait));
    let slot = acquire(0).await.unwrap().unwrap();
    let mut waiting = Box::pin(acquire(9));
    assert!(futures::poll!(&mut waiting).is_pending());
    drop(slot);
    assert!(waiting.await.unwrap().is_ok());
}

#[test]
fn an_observer_is_told_once_of_the_policies_of_a_layer() {
    let names = holders();
    let layer = layer((names.clone(), MetricsObserver::new()));
    assert_eq!(names.take(), [""; 0]);
    let _ = (layer.layer(()), layer.layer(()));
    assert_eq!(names.take(), ["api", "trial (shadow)"]);
    let _ = layer.shadow().layer(());
    assert_eq!(names.take(), ["api (shadow)", "trial (shadow)"]);
}

/// Requests by this number of identities on many paths. Some are denied, blocked, or without a key.
async fn crowd(limiter: Limiter, identities: u32) {
    let routes = Routes::new(policy("general", "1/1d")).route("/7", policy("seventh", "1/1d"));
    let by_user = |head: &Parts| Some(Key::new("user", head.headers.get("x-user")?));
    let layer = support::layer(limiter)
        .limit(routes, by_user)
        .limit(policy("trial", "0/1d").shadow(), by_user)
        .deny_keys(|key| key.value().ends_with(b"13"))
        .headers(HeaderStyle::NONE)
        .rejection(StatusOnly);
    let service = layer.layer(hello());
    for number in 0..identities {
        let user = format!("identity-{number}");
        let fields = [("x-forwarded-for", "203.0.113.7"), ("x-user", &user)];
        // Each tenth request comes twice, and each thousandth has no user.
        let fields = &fields[..if number % 1_000 == 999 { 1 } else { 2 }];
        for _ in 0..if number % 10 == 0 { 2 } else { 1 } {
            let mut request = with(fields);
            *request.uri_mut() = format!("/{}", number % 10_000).parse().unwrap();
            service.clone().oneshot(request).await.unwrap();
        }
    }
}

#[test]
fn neither_identities_nor_paths_become_labels_or_fields() {
    let run = |identities| {
        // There is room for all, and each identity is at its limit.
        let limiter = || support::limiter(MemoryStore::new().capacity(100_000));
        let metrics = recorded(|it| crowd(limiter().observer(it), identities));
        let metrics = metrics.iter().map(|it| it.rsplit_once(" = ").unwrap().0);
        let observed = limiter().observer(TracingObserver::new());
        let lines = traced(true, crowd(observed, identities));
        // Times differ from line to line; all other parts are one of a few.
        let lines = lines.iter().map(|it| it.split("retry_after_ms=").next());
        let all = metrics.chain(lines.flatten()).map(str::to_owned);
        all.collect::<BTreeSet<_>>()
    };
    let many = run(5_000);
    for text in &many {
        let is_expected = !text.contains("identity-") && !text.contains("203.0.113");
        assert!(is_expected, "{text}");
    }
    assert_eq!(many, run(1_000));
    assert!(many.len() < 40, "{many:?}");
}

#[test]
fn local_decisions_are_counted_and_what_was_not_asked_is_not_timed() {
    let seen = recorded(|observer| async move {
        let limiter = support::limiter(Scripted::failing()).observer(observer);
        let limiter = limiter.on_failure(FailurePolicy::Local).replicas(2);
        let limiter = limiter.timeout(EACH_FAILURE_COUNTS);
        let api = policy("api", "10/1d");
        for _ in 0..8 {
            check(&limiter, &api).await;
        }
    });
    let expected = "
        breaker_switches_total state=open = 1
        breakers_open  = 1
        decisions_total policy=api outcome=allowed = 5, policy=api outcome=denied = 3
        denials_total policy=api rule=5/1d shadow=false = 3
        failures_total call=check kind=circuit_open outcome=local = 3, call=check kind=unavailable outcome=local = 5
        local_decisions_total policy=api outcome=allowed = 5, policy=api outcome=denied = 3
        store_seconds call=check = 5
        units_charged_total policy=api = 5
    ";
    assert_eq!(grouped(&seen), block(expected));
}

// Spans and events

#[test]
fn spans_and_events_have_the_documented_fields() {
    let lines = traced(true, everything(TracingObserver::new()));
    let mut distinct: Vec<&str> = Vec::new();
    for line in &lines {
        if !distinct.contains(&line.as_str()) {
            distinct.push(line);
        }
    }
    let expected = r#"
        DEBUG call="check" policies=api shadow=false
        TRACE allowed policies=api shadow=false local=false
        TRACE allowed policies=trial shadow=true local=false
        DEBUG blocked by="list"
        DEBUG blocked policy="api" by="list"
        DEBUG missing key policy="who" shadow=false kind="missing" error=the header that identifies the client is absent or empty: `absent` outcome="rejected"
        DEBUG call="check" policies=trial shadow=true
        DEBUG call="peek" policies=api shadow=false
        DEBUG call="reset" policies=api shadow=false
        WARN failed call="reset" policies=api shadow=false kind="unavailable" error=told to fail outcome="failed" suppressed=0
        DEBUG call="settle" policies=api shadow=false
        DEBUG denied policy="api" rule=10/1s shadow=false local=false cached=false retry_after_ms=9
        DEBUG denied policy="trial" rule=5/1m shadow=true local=false cached=false retry_after_ms=9
        WARN failed call="peek" policies=api shadow=false kind="protocol" error=the store denied a check that fits every rule outcome="failed" suppressed=0
        WARN the store could not decide about a request: failure policies apply as long as it cannot kind="unavailable" error=told to fail
    "#;
    assert_eq!(distinct, block(expected));
    assert!(!lines.concat().contains(SECRET));
}

#[test]
fn a_kind_of_failure_is_told_of_once_until_the_store_answers_and_then_once_a_second() {
    let fails = Arc::new(AtomicU64::new(0));
    let failing = fails.clone();
    let lines = traced(false, async {
        let store = Scripted::new(move |check| match failing.load(SeqCst) {
            0 => StoreFuture::pending(pending()),
            1 => StoreFuture::ready(Err(unavailable())),
            _ => StoreFuture::ready(allowed(check)),
        });
        let limiter = support::limiter(store).observer(TracingObserver::new());
        let limiter = limiter.probe_interval(Duration::ZERO);
        let api = policy("api", "1/1s");
        let ask = async |how, times| {
            fails.store(how, SeqCst);
            for _ in 0..times {
                check(&limiter, &api).await;
            }
        };
        ask(0, 100).await;
        ask(1, 1_000).await;
        ask(0, 10).await;
        ask(2, 1).await;
        ask(1, 10).await;
        for _ in 0..1_000 {
            ask(2, 1).await;
            ask(1, 1).await;
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        ask(2, 1).await;
        ask(1, 10).await;
    });
    let failures = lines.iter().filter(|it| it.starts_with("WARN failed"));
    let told = failures.map(|line| {
        let (_, suppressed) = line.rsplit_once("suppressed=").unwrap();
        (line.contains("timeout"), suppressed)
    });
    let expected = [(true, "0"), (false, "0"), (false, "999"), (false, "1009")];
    assert!(told.eq(expected), "{lines:?}");
}

#[tokio::test]
async fn the_span_is_around_the_stores_work_and_nothing_else() {
    struct Flag(Arc<AtomicU64>);
    impl Observer for Flag {
        fn on_event(&self, _: &Event<'_>) {}

        fn on_call(&self, _: &CallInfo<'_>) -> Option<Box<dyn PollScope>> {
            Some(Box::new(Self(self.0.clone())))
        }
    }
    impl PollScope for Flag {
        fn enter(&mut self, poll: &mut dyn FnMut()) {
            self.0.fetch_add(1, SeqCst);
            poll();
            self.0.fetch_sub(1, SeqCst);
        }
    }
    let flag = Arc::new(AtomicU64::new(0));
    let seen = flag.clone();
    let store = Scripted::new(move |check| {
        let (answer, seen) = (allowed(check), seen.clone());
        StoreFuture::pending(async move {
            assert_eq!(seen.load(SeqCst), 2);
            tokio::task::yield_now().await;
            assert_eq!(seen.load(SeqCst), 2);
            answer
        })
    });
    let limiter = support::limiter(store).observer((Flag(flag.clone()), Flag(flag.clone())));
    limiter.check([charge(&api())]).await.unwrap();
    assert_eq!(flag.load(SeqCst), 0);
}
