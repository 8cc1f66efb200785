//! Work that no request waits for lives in one runtime, and goes on in the next.

use support::{paused_runtime, prelude::*, scripted::unavailable, trace::traced_here};
use tokio::{runtime::Runtime, task::yield_now, time::advance};

fn alice() -> Key {
    user("alice")
}

#[test]
fn strikes_in_a_runtime_that_nothing_drives_wait_with_one_warning_until_it_has_been_shut_down() {
    let (trace, _guard) = traced_here();
    let limiter = Limiter::new(MemoryStore::new());
    let policy = policy("login", "1/1d");
    let policy = policy.ban("2/1d=1h".parse().unwrap());
    let ask = async || {
        let charge = Charge::new(&policy, alice(), 2);
        limiter.check([charge]).await.unwrap()
    };
    let warnings = || trace.lines.lock().unwrap().clone();
    let (parked, other) = (paused_runtime(), paused_runtime());
    parked.block_on(ask()); // the first poll denies, so that nothing that was spawned begins
    other.block_on(async {
        ask().await;
        assert_eq!(warnings(), [""; 0], "a runtime may be late");
        advance(Duration::from_secs(2)).await;
        for _ in 0..3 {
            assert!(matches!(ask().await, Decision::Denied(_)));
        }
        let warnings = warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("a tokio runtime that nothing drives"));
    });
    drop(parked);
    other.block_on(async {
        ask().await;
        ask().await;
        limiter.strikes_counted().await;
        assert!(matches!(ask().await, Decision::Blocked(_)));
    });
}

#[test]
fn a_limiter_outside_of_a_runtime_decides_and_warns_once() {
    let (trace, _guard) = traced_here();
    let limiter = Limiter::new(MemoryStore::new());
    let policy = policy("api", "1/1d");
    for allowed in [true, false, false] {
        let asked = limiter.check([Charge::new(&policy, alice(), 1)]);
        let decision = futures::executor::block_on(asked).unwrap();
        assert_eq!(decision.is_allowed(), allowed);
    }
    let warnings = trace.lines.lock().unwrap().clone();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("outside of a tokio runtime"));
}

#[test]
fn what_an_ended_runtime_has_surely_not_sent_is_sent_in_the_next() {
    let policy = policy("jobs", "1/30s@concurrent");
    for polls in [0, 5] {
        // Its first return of slots is surely not sent.
        let has_failed = AtomicBool::new(false);
        let store = Fated::new(MemoryStore::new(), move |asked| match asked {
            Asked::Execute(Operation::Return(_)) if !has_failed.swap(true, SeqCst) => {
                Fate::Fails(unavailable().unsent())
            }
            _ => Fate::Answered,
        });
        let limiter = Limiter::new(store);
        let acquire = async || -> Option<Slot> {
            let job = Charge::new(&policy, alice(), 1);
            let slot = limiter.acquire_slot([job], Duration::ZERO).await;
            slot.unwrap().ok().flatten()
        };
        paused_runtime().block_on(async {
            drop(acquire().await.unwrap());
            for _ in 0..polls {
                yield_now().await; // the first return fails
            }
        });
        paused_runtime().block_on(async {
            assert!(acquire().await.is_none());
            limiter.return_slots().await;
            assert!(acquire().await.is_some(), "after {polls} polls");
        });
    }
}

#[test]
fn work_from_outside_of_any_runtime_goes_on_in_that_of_later_callers() {
    let store = MemoryStore::new();
    let limiter = Limiter::new(store.clone());
    let policy = policy("jobs", "5/30s@concurrent");
    let job = |cost| Charge::new(&policy, alice(), cost);
    let (first, second) = (paused_runtime(), paused_runtime());
    let take_and_return = |runtime: &Runtime| {
        let decision = runtime.block_on(limiter.check([job(1)])).unwrap();
        drop(limiter.hold(&decision).unwrap());
        runtime.block_on(async {
            for _ in 0..5 {
                yield_now().await;
            }
        });
    };
    take_and_return(&first);
    drop(first);
    for _ in 0..3 {
        take_and_return(&second);
    }
    let look = Check::new([job(0)]).unwrap();
    let left = futures::executor::block_on(store.check(&look)).unwrap();
    assert_eq!(remaining(left.usage())[0], 5);
}

#[test]
fn the_end_of_a_process_does_not_wait_for_work_that_its_runtime_refuses() {
    let policy = policy("jobs", "1/30s@concurrent");
    let limiter = Limiter::new(MemoryStore::new());
    let runtime = paused_runtime();
    let handle = runtime.handle().clone();
    runtime.block_on(async {
        let job = Charge::new(&policy, alice(), 1);
        let slot = limiter.acquire_slot([job], Duration::ZERO).await;
        drop(slot.unwrap().unwrap());
    });
    drop(runtime);
    let _ended = handle.enter();
    futures::executor::block_on(limiter.return_slots());
}
