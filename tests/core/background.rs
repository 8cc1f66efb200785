//! Work that no request waits for is done in a thread of the process, even when the runtimes of callers end.

use support::{prelude::*, runtime};

fn alice() -> Key {
    user("alice")
}

/// A limiter whose work is done in the thread.
fn limiter(store: impl Store) -> Limiter {
    Limiter::new(store)
}

fn jobs() -> Policy {
    policy("jobs", "1/12s@concurrent")
}

async fn take(limiter: &Limiter) -> Option<Slot> {
    let job = Charge::new(&jobs(), alice(), 1);
    let slot = limiter.acquire_slot([job], Duration::ZERO).await;
    slot.unwrap().ok().flatten()
}

/// The end of the work, in a runtime of its own.
fn finish(limiter: &Limiter) {
    runtime().block_on(support::finished(limiter));
}

#[test]
fn strikes_are_counted_outside_of_any_runtime() {
    let limiter = limiter(MemoryStore::new());
    let policy = policy("login", "1/1d").ban("2/1d=1h".parse().unwrap());
    let ask = || {
        let asked = limiter.check([Charge::new(&policy, alice(), 2)]);
        block_on(asked).unwrap()
    };
    assert!(is_denied(&ask()));
    assert!(is_denied(&ask()));
    block_on(limiter.strikes_counted());
    assert!(is_blocked(&ask()));
}

#[test]
fn a_return_that_was_surely_not_sent_is_made_again_when_its_runtime_has_ended() {
    let has_failed = AtomicBool::new(false);
    let store = Fated::new(MemoryStore::new(), move |asked| match asked {
        Asked::Execute(Operation::Return(_)) if !has_failed.swap(true, SeqCst) => {
            Fate::Fails(unavailable().unsent())
        }
        _ => Fate::Answered,
    });
    let limiter = limiter(store);
    let begun = std::time::Instant::now();
    runtime().block_on(async { drop(take(&limiter).await.unwrap()) });
    finish(&limiter);
    assert!(begun.elapsed() < ms(9_000), "it has not expired");
    runtime().block_on(async { assert!(take(&limiter).await.is_some()) });
}

#[test]
fn a_slot_that_was_just_returned_is_there_for_the_next_taker() {
    let limiter = limiter(MemoryStore::new());
    runtime().block_on(async {
        for _ in 0..100 {
            drop(take(&limiter).await.expect("it was returned"));
        }
    });
}

#[test]
fn a_settlement_whose_runtime_has_ended_is_made_all_the_same() {
    for settles_early in [false, true] {
        let (store, clock) = memory();
        let is_down = Arc::new(AtomicBool::new(true));
        let store = Fated::new(store, {
            let is_down = Arc::clone(&is_down);
            move |asked| match asked {
                Asked::Execute(Operation::Settle(_)) if is_down.load(SeqCst) => {
                    Fate::Fails(unavailable().unsent())
                }
                _ => Fate::Answered,
            }
        });
        let (limiter, tokens) = (limiter(store), policy("tokens", "1000/1h"));
        runtime().block_on(async {
            let decision = check(&limiter, &tokens, "alice", 500).await;
            let meter = limiter.meter(&decision);
            meter.add(7);
            if settles_early {
                is_down.store(false, SeqCst);
            }
            drop(meter);
        });
        is_down.store(false, SeqCst);
        finish(&limiter);
        assert_eq!(runtime().block_on(left(&limiter, &tokens, "alice")), 993);
        drop(clock);
    }
}

/// A limiter over a store that makes a settlement when this is notified, and a policy.
fn delaying() -> (Limiter, Policy, Arc<Notify>) {
    let arrives = Arc::new(Notify::new());
    let arriving = Arc::clone(&arrives);
    let store = Fated::new(MemoryStore::new(), move |asked| match asked {
        Asked::Execute(Operation::Settle(_)) => Fate::Delayed(Arc::clone(&arriving)),
        _ => Fate::Answered,
    });
    let limiter = limiter(store).timeout(MINUTE);
    (limiter, policy("tokens", "1000/1h"), arrives)
}

#[test]
fn a_settlement_whose_caller_leaves_goes_on() {
    let (limiter, tokens, arrives) = delaying();
    runtime().block_on(async {
        let decision = check(&limiter, &tokens, "alice", 500).await;
        let mut settling = Box::pin(limiter.settle(decision.usage(), |_| 7));
        assert!(futures::poll!(settling.as_mut()).is_pending());
        drop(settling);
        assert_eq!(left(&limiter, &tokens, "alice").await, 500);
        arrives.notify_one();
    });
    finish(&limiter);
    assert_eq!(runtime().block_on(left(&limiter, &tokens, "alice")), 993);
}

#[test]
fn the_end_of_a_process_waits_no_longer_than_it_is_asked_to() {
    let store = Fated::new(MemoryStore::new(), |asked| match asked {
        Asked::Execute(Operation::Return(_)) => Fate::Fails(unavailable().unsent()),
        _ => Fate::Answered,
    });
    let limiter = limiter(store);
    runtime().block_on(async {
        let slot = take(&limiter).await;
        assert_eq!(limiter.finish(ms(20)).await, 1, "it is not returned");
        assert!(slot.is_some());
    });
}

/// The threads of this process that do the work.
#[cfg(target_os = "linux")]
fn workers() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let mut names = threads.map(|it| std::fs::read_to_string(it.unwrap().path().join("comm")));
    let is_worker = |it: std::io::Result<String>| it.is_ok_and(|it| it.trim() == "sluicegate");
    names.by_ref().map(is_worker).filter(|it| *it).count()
}

/// Runs the test of this name in a process of its own, since other tests start the thread. Returns whether this is it.
fn is_alone(name: &str, set: &[(&str, &str)]) -> bool {
    const CHILD: &str = "SLUICEGATE_ALONE";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    alone.args(["--test-threads", "1", "--exact"]);
    alone.arg(format!("background::{name}"));
    let alone = alone.env(CHILD, "1").envs(set.iter().copied()).output();
    let alone = alone.unwrap();
    let output = String::from_utf8_lossy(&alone.stdout);
    let has_passed = alone.status.success() && output.contains("1 passed");
    assert!(has_passed, "{output}");
    false
}

#[cfg(target_os = "linux")]
#[test]
fn denials_over_a_memory_store_start_no_thread_and_are_counted() {
    let name = "denials_over_a_memory_store_start_no_thread_and_are_counted";
    if !is_alone(name, &[]) {
        return;
    }
    runtime().block_on(async {
        let (store, clock) = memory();
        let limiter = limiter(store);
        for _ in 0..20 {
            let check = limiter.check([charge(&policy("p", "0/1s"), "alice", 1)]);
            assert!(is_denied(&check.await.unwrap()));
            clock.advance(MINUTE);
        }
        assert_eq!(workers(), 0);
        let denials = limiter.denials().await.unwrap();
        assert_eq!(denials[0].last_hour(), 20);
    });
}

/// No system has a stack of 2^46 bytes to give.
#[cfg(target_os = "linux")]
#[test]
fn a_thread_that_cannot_start_is_one_warning_and_runtimes_of_callers_do_its_work() {
    let name = "a_thread_that_cannot_start_is_one_warning_and_runtimes_of_callers_do_its_work";
    if !is_alone(name, &[("RUST_MIN_STACK", "70368744177664")]) {
        return;
    }
    assert!(std::thread::Builder::new().spawn(|| ()).is_err());
    let (trace, _guard) = traced_here();
    let (limiter, tokens, arrives) = delaying();
    runtime().block_on(async {
        for expected in [993, 986] {
            let decision = check(&limiter, &tokens, "alice", 500).await;
            limiter.meter(&decision).add(7);
            arrives.notify_one();
            assert_eq!(limiter.finish(MINUTE).await, 0);
            assert_eq!(left(&limiter, &tokens, "alice").await, expected);
        }
    });
    assert_eq!(workers(), 0);
    let lines = trace.lines.lock().unwrap();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("cannot be started"), "{lines:?}");
}
