//! Meters of checks that handlers make themselves: settled when the last clone is dropped, however that happens.

use sluicegate::middleware::CostMeter;
use support::{cut_checks::cut_checks, prelude::*};

fn policies() -> [Policy; 3] {
    ["input", "output", "money"].map(|name| Policy::parse(name, "1000/1h").unwrap())
}

fn charges(cost: u64) -> [Charge; 3] {
    policies().map(|policy| charge(&policy, "alice", cost))
}

/// Charges 10 under each policy.
async fn checked(limiter: &Limiter) -> Decision {
    limiter.check(charges(10)).await.unwrap()
}

/// The used units of each limit.
async fn used(limiter: &Limiter) -> Vec<u64> {
    let usage = limiter.peek(charges(0)).await.unwrap();
    usage.rules().map(|rule| 1_000 - rule.remaining()).collect()
}

/// The same, after the settlements of dropped meters.
async fn used_at_last(limiter: &Limiter) -> Vec<u64> {
    support::finished(limiter).await;
    used(limiter).await
}

#[tokio::test]
async fn a_check_is_settled_when_the_last_clone_of_its_meter_is_dropped() {
    let limiter = support::limiter(MemoryStore::new());
    let decision = checked(&limiter).await;
    let meter = limiter.meter(&decision);
    let (clone, output) = (meter.clone(), meter.under("output"));
    meter.add(3);
    drop(meter);
    clone.under("money").add(400);
    let guard = clone.delay_end();
    drop(clone);
    output.add(70);
    drop(output);
    let used = used_at_last(&limiter).await;
    assert_eq!(used, [10, 10, 10], "a guard is left");
    drop(guard);
    assert_eq!(used_at_last(&limiter).await, [3, 70, 400]);

    // A second meter of the check settles nothing.
    limiter.meter(&decision).add(900);
    assert_eq!(used_at_last(&limiter).await, [3, 70, 400]);
}

#[tokio::test]
async fn a_meter_without_a_reading_keeps_the_charge_and_one_of_0_refunds_it() {
    let limiter = support::limiter(MemoryStore::new());
    drop(limiter.meter(&checked(&limiter).await));
    assert_eq!(used_at_last(&limiter).await, [10, 10, 10]);
    let one = limiter.meter(&checked(&limiter).await);
    one.under("input").set(0);
    drop(one);
    assert_eq!(used_at_last(&limiter).await, [10, 20, 20]);
    limiter.meter(&checked(&limiter).await).set(0);
    assert_eq!(used_at_last(&limiter).await, [10, 20, 20]);
}

#[tokio::test]
async fn a_meter_of_a_denied_check_settles_nothing() {
    let limiter = support::limiter(MemoryStore::new());
    let denied = limiter.check(charges(1_001)).await.unwrap();
    assert!(!denied.is_allowed());
    limiter.meter(&denied).add(7);
    assert_eq!(used_at_last(&limiter).await, [0, 0, 0]);
}

#[tokio::test]
async fn a_task_that_is_cancelled_or_panics_pays_what_it_has_metered() {
    let limiter = support::limiter(MemoryStore::new());
    let meter = limiter.meter(&checked(&limiter).await);
    meter.add(3);
    let task = tokio::spawn(async move {
        let _meter = meter;
        pending::<()>().await;
    });
    yield_now().await;
    task.abort();
    assert!(task.await.is_err());
    assert_eq!(used_at_last(&limiter).await, [3, 3, 3]);

    let meter = limiter.meter(&checked(&limiter).await);
    let task = tokio::spawn(async move {
        meter.add(4);
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(task.await.is_err());
    assert_eq!(used_at_last(&limiter).await, [7, 7, 7]);
}

/// A memory store that refuses so many settlements, without any change.
fn refusing(store: MemoryStore, refused: usize) -> Limiter {
    let left = AtomicUsize::new(refused);
    support::limiter(Fated::new(store, move |asked| {
        let one_less = |left: usize| left.checked_sub(1);
        let is_settlement = matches!(asked, Asked::Execute(Operation::Settle(_)));
        match is_settlement && left.fetch_update(SeqCst, SeqCst, one_less).is_ok() {
            true => Fate::Fails(unavailable().unsent()),
            false => Fate::Answered,
        }
    }))
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_was_not_sent_is_tried_again_for_a_minute_and_waited_for() {
    for (refused, expected) in [(20, 3), (usize::MAX, 10)] {
        let store = MemoryStore::new();
        let limiter = refusing(store.clone(), refused);
        limiter.meter(&checked(&limiter).await).add(3);
        let start = Instant::now();
        support::finished(&limiter).await;
        assert!(start.elapsed() >= SECOND, "it waits");
        assert!(start.elapsed() <= Duration::from_secs(61));
        assert_eq!(used(&support::limiter(store)).await, [expected; 3]);
    }
}

/// No breaker stops these.
#[tokio::test(start_paused = true)]
async fn a_settlement_that_a_server_refuses_for_long_is_tried_again_less_and_less_often() {
    for kind in [StoreErrorKind::Refused, StoreErrorKind::AccessDenied] {
        let tries = Arc::new(AtomicUsize::new(0));
        let asked_for = tries.clone();
        let limiter = support::limiter(Fated::new(MemoryStore::new(), move |asked| match asked {
            Asked::Execute(Operation::Settle(_)) => {
                asked_for.fetch_add(1, SeqCst);
                Fate::Fails(StoreError::new(kind, "told to").unsent())
            }
            _ => Fate::Answered,
        }));
        limiter.meter(&checked(&limiter).await).add(3);
        support::finished(&limiter).await;
        let tries = tries.load(SeqCst);
        assert!((10..=30).contains(&tries), "{kind:?}: {tries}");
    }
}

#[test]
fn a_meter_without_any_runtime_settles_all_the_same() {
    let limiter = support::limiter(MemoryStore::new());
    let decision = block_on(checked(&limiter));
    limiter.meter(&decision).add(3);
    let used = support::runtime().block_on(used_at_last(&limiter));
    assert_eq!(used, [3, 3, 3]);
}

#[test]
fn a_name_that_is_not_charged_is_warned_of_once() {
    let lines = traced(false, async {
        let limiter = support::limiter(MemoryStore::new());
        for _ in 0..2 {
            let meter = limiter.meter(&checked(&limiter).await);
            meter.under("outputs").add(1);
            meter.under("output").add(1);
        }
        assert_eq!(limiter.finish(Duration::from_secs(61)).await, 0);
    });
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(line.starts_with("WARN misconfigured: `CostMeter::under` names a policy"));
    let names = r#"policy="outputs" similar="output""#;
    assert!(line.contains(names), "{line}");
}

#[tokio::test]
async fn streams_that_are_cut_anywhere_cost_what_was_metered_under_each_policy() {
    cut_checks(support::limiter(MemoryStore::new()), 5_000).await;
}

/// A name for each event, from a client say, must not fill the memory.
#[test]
fn the_names_of_a_meter_are_bounded() {
    let meter = CostMeter::default();
    for event in 0..1_000 {
        meter.under(format!("event-{event}")).add(1);
    }
    assert_eq!(meter.under("event-0").units(), Some(1));
    assert_eq!(meter.under("event-999").units(), None);
}
