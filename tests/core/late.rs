//! A check that may have been sent, and whose answer comes when its caller has gone on: it costs what its request cost.

use support::prelude::*;

const LATE: Duration = ms(150);

/// A store that decides at once, and answers checks after the timeout.
fn late() -> (MemoryStore, Fated) {
    let (memory, _) = memory();
    let fate = |asked: &Asked<'_>| match asked {
        Asked::Check(check) if check.charges().iter().any(|it| it.cost() > 0) => Fate::Late(LATE),
        _ => Fate::Answered,
    };
    (memory.clone(), Fated::new(memory, fate))
}

fn tokens() -> Policy {
    policy("tokens", "10000/1h")
}

/// The units that the store counts for alice.
async fn stored(store: &MemoryStore) -> u64 {
    let check = store.check(&check_of(&tokens(), "alice", 0)).await.unwrap();
    10_000 - remaining(check.usage())[0]
}

fn estimate() -> [Charge; 1] {
    [charge(&tokens(), "alice", 500)]
}

#[tokio::test(start_paused = true)]
async fn an_error_costs_nothing_and_a_request_that_passes_costs_the_estimate() {
    for (passes, expected) in [(false, 0), (true, 1_500)] {
        let (memory, store) = late();
        let limiter = support::limiter(store);
        for _ in 0..3 {
            match passes {
                true => assert!(limiter.try_acquire(estimate()).await),
                false => assert!(limiter.check(estimate()).await.is_err()),
            }
        }
        support::finished(&limiter).await;
        assert_eq!(stored(&memory).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_local_admission_costs_its_settlement_or_its_meter_or_the_estimate_and_a_local_denial_nothing()
 {
    for settles_late in [false, true] {
        let (memory, store) = late();
        let limiter = support::limiter(store).on_failure(FailurePolicy::Local);
        let wait = async || {
            if settles_late {
                sleep(2 * LATE).await;
            }
        };
        let settled = limiter.check(estimate()).await.unwrap();
        wait().await;
        limiter.settle(settled.usage(), |_| 7).await.unwrap();
        let metered = limiter.check(estimate()).await.unwrap();
        wait().await;
        limiter.meter(&metered).add(14);
        drop((settled, metered));
        let kept = limiter.check(estimate()).await.unwrap();
        wait().await;
        drop(kept);
        let large = [charge(&tokens(), "alice", 9_500)];
        assert!(is_denied(&limiter.check(large).await.unwrap()), "locally");
        support::finished(&limiter).await;
        assert_eq!(stored(&memory).await, 7 + 14 + 500, "{settles_late}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_was_full_again_before_a_late_refund_gets_nothing_twice() {
    let (memory, clock) = memory();
    let bucket = policy("p", "10+1/1s@bucket");
    let store = Fated::new(memory.clone(), |asked| match asked {
        Asked::Check(_) => Fate::Late(LATE),
        _ => Fate::Answered,
    });
    let limiter = support::limiter(store);
    let check = limiter.check([charge(&bucket, "alice", 2)]);
    assert!(check.await.is_err(), "charged, and late");
    clock.advance(ms(2_000));
    let others = check_of(&bucket, "alice", 10);
    assert!(memory.check(&others).await.unwrap().is_allowed());
    support::finished(&limiter).await;
    let look = memory.check(&check_of(&bucket, "alice", 0)).await.unwrap();
    assert_eq!(remaining(look.usage()), [0]);
}

#[tokio::test(start_paused = true)]
async fn a_blocked_identity_pays_nothing_for_a_check_that_the_store_has_admitted_late() {
    let (memory, store) = late();
    let limiter = support::limiter(store).on_failure(FailurePolicy::Open);
    limiter.block(&user("alice"), HOUR).await.unwrap();
    memory.unblock(&user("alice")).await.unwrap(); // another process, and this one does not know yet
    assert!(is_blocked(&limiter.check(estimate()).await.unwrap()));
    support::finished(&limiter).await;
    assert_eq!(stored(&memory).await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_second_of_several_lists_costs_what_its_request_costs() {
    let (memory, _) = memory();
    // The plan is denied in time, and the credits are answered late.
    let store = Fated::new(memory.clone(), |asked| match asked {
        Asked::Check(check) if check.charges()[0].policy().name() == "tokens" => Fate::Late(LATE),
        _ => Fate::Answered,
    });
    for (failure, expected) in [(FailurePolicy::Local, 7), (FailurePolicy::Closed, 7)] {
        let limiter = support::limiter(store.clone()).on_failure(failure);
        let plan = [charge(&policy("plan", "0/1h"), "alice", 500)];
        match limiter.check_first([plan, estimate()]).await {
            Ok(decision) => {
                limiter.settle(decision.usage(), |_| 7).await.unwrap();
            }
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Timeout),
        }
        support::finished(&limiter).await;
        assert_eq!(stored(&memory).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_asks_again_pays_once() {
    let (memory, _) = memory();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let store = Fated::new(memory.clone(), move |asked| match asked {
        Asked::Check(_) if count.fetch_add(1, SeqCst) < 3 => Fate::Late(LATE),
        _ => Fate::Answered,
    });
    let limiter = support::limiter(store);
    let decision = limiter.acquire(estimate(), MINUTE).await.unwrap();
    assert!(decision.is_allowed());
    assert_eq!(asked.load(SeqCst), 4);
    support::finished(&limiter).await;
    assert_eq!(stored(&memory).await, 500);
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_dropped_keeps_its_charge_and_returns_its_slots() {
    let (memory, store) = late();
    let limiter = support::limiter(store);
    let jobs = policy("jobs", "1/1h@concurrent");
    let charges = [charge(&tokens(), "alice", 500), charge(&jobs, "alice", 1)];
    let mut asked = Box::pin(limiter.check(charges));
    assert!(futures::poll!(asked.as_mut()).is_pending());
    drop(asked);
    let look = memory.check(&check_of(&jobs, "alice", 0)).await.unwrap();
    assert_eq!(remaining(look.usage()), [0], "before the answer");
    support::finished(&limiter).await;
    let look = memory.check(&check_of(&jobs, "alice", 0)).await.unwrap();
    assert_eq!(remaining(look.usage()), [1]);
    assert_eq!(stored(&memory).await, 500);
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_one_event_and_no_other() {
    let (_, store) = late();
    let seen = Log::of(|event| {
        let name = format!("{event:?}");
        Some(name.split([' ', '(']).next().unwrap().to_owned())
    });
    let limiter = support::limiter(store).observer(seen.clone());
    let limited = policy("tokens", "600/1h").ban("2/1d=1h".parse().unwrap());
    for _ in 0..3 {
        let asked = limiter.check([charge(&limited, "alice", 500).with_contributor(user("carol"))]);
        assert!(asked.await.is_err());
    }
    support::finished(&limiter).await;
    limiter.strikes_counted().await;
    let mut seen = seen.lines();
    seen.sort();
    // The store has denied one of them.
    let expected = ["Error", "Error", "Error", "LateAnswer", "LateAnswer"];
    assert_eq!(seen, expected);
    let by = limiter.contributors(&limited, &user("alice")).await;
    assert_eq!(by.unwrap().iter().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_by_the_refund_of_a_late_answer() {
    let (memory, _) = memory();
    let answers = Arc::new(Notify::new());
    let (held, is_first) = (Arc::clone(&answers), AtomicBool::new(true));
    let store = Fated::new(memory, move |asked| match asked {
        Asked::Check(_) if is_first.swap(false, SeqCst) => Fate::Held(Arc::clone(&held)),
        _ => Fate::Answered,
    });
    let (limiter, one) = (support::limiter(store), policy("one", "1/1h"));
    assert!(limiter.check([charge(&one, "alice", 1)]).await.is_err());
    let waits = tokio::spawn({
        let (limiter, one) = (limiter.clone(), one.clone());
        async move { limiter.acquire([charge(&one, "alice", 1)], 2 * HOUR).await }
    });
    sleep(SECOND).await;
    answers.notify_one();
    let begin = Instant::now();
    assert!(waits.await.unwrap().unwrap().is_allowed());
    assert!(begin.elapsed() < SECOND);
}

#[test]
fn a_store_with_timers_whose_runtime_ends_while_it_is_late_is_a_lost_answer() {
    let (memory, store) = late();
    let limiter = Limiter::new(store);
    for _ in 0..10 {
        support::runtime().block_on(async {
            assert!(limiter.check(estimate()).await.is_err());
        });
    }
    assert_eq!(support::runtime().block_on(limiter.finish(MINUTE)), 0);
    let stored = support::runtime().block_on(stored(&memory));
    assert_eq!(stored % 500, 0, "none is known by half");
}

/// A peek, and a check of no cost, have nothing to settle.
#[tokio::test(start_paused = true)]
async fn what_costs_nothing_is_not_waited_for() {
    let memory = MemoryStore::new();
    let store = Fated::new(memory, |_| Fate::Hangs);
    let limiter = support::limiter(store);
    assert!(limiter.peek(estimate()).await.is_err());
    let nothing = limiter.check([charge(&tokens(), "alice", 0)]).await;
    assert!(nothing.is_err());
    assert_eq!(limiter.finish(Duration::ZERO).await, 0);
    assert!(limiter.check(estimate()).await.is_err());
    assert_eq!(limiter.finish(Duration::ZERO).await, 1);
}
