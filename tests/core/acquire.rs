//! Callers wait for room in order of arrival, call the store only when there may be room, and never come too early.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::{FutureExt, future::join_all};
use http::{Request, Response, StatusCode};
use sluicegate::{
    Charge, Decision, FailurePolicy, Key, Limiter, MemoryStore, Policy, RateLimitLayer, Store,
    StoreError, Usage,
    block::Until,
    error::StoreErrorKind,
    manual_clock::ManualClock,
    observe::{Event, Observer},
    store::{Check, Operation, Reply, StoreFuture},
};
use support::scripted::{self, Scripted};
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt};

const LONG: Duration = Duration::from_secs(60);

/// A memory store with the clock of the paused runtime, which records the times of calls.
#[derive(Debug)]
pub(crate) struct Timed {
    store: MemoryStore,
    clock: ManualClock,
    start: Instant,
    asked_ms: Mutex<Vec<u128>>,
    /// The time from a decision to the answer.
    latency: Duration,
}

impl Timed {
    pub(crate) fn new() -> Arc<Self> {
        Self::with_latency(Duration::ZERO)
    }

    pub(crate) fn with_latency(latency: Duration) -> Arc<Self> {
        let clock = ManualClock::new(0);
        Arc::new(Self {
            store: MemoryStore::new().clock(clock.clone()),
            clock,
            start: Instant::now(),
            asked_ms: Mutex::default(),
            latency,
        })
    }

    pub(crate) fn now_ms(&self) -> u128 {
        self.start.elapsed().as_millis()
    }

    fn set_clock(&self) -> u128 {
        let now_ms = self.now_ms();
        self.clock.set(u64::try_from(now_ms).unwrap());
        now_ms
    }

    pub(crate) fn asked_ms(&self) -> Vec<u128> {
        self.asked_ms.lock().unwrap().clone()
    }
}

impl Store for Timed {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        let now_ms = self.set_clock();
        self.asked_ms.lock().unwrap().push(now_ms);
        let (decision, latency) = (self.store.check(check), self.latency);
        if latency.is_zero() {
            return decision;
        }
        StoreFuture::pending(async move {
            tokio::time::sleep(latency).await;
            decision.await
        })
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        self.set_clock();
        self.store.execute(operation)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }
}

/// Counts the decisions that an observer was notified of.
#[derive(Clone, Default)]
struct Told(Arc<AtomicU32>);

impl Observer for Told {
    fn on_event(&self, event: &Event<'_>) {
        let is_decision = matches!(event, Event::Decision { .. });
        self.0.fetch_add(u32::from(is_decision), SeqCst);
    }
}

fn calls(rules: &str, cost: u64) -> [Charge; 1] {
    let policy = Policy::parse("their-api", rules).unwrap();
    [Charge::new(&policy, Key::new("account", "ours"), cost)]
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The store decides the denial before the reset, and the denial arrives after the reset.
#[tokio::test(start_paused = true)]
async fn a_reset_while_the_store_is_asked_is_heard_by_all_who_wait() {
    let store = Timed::with_latency(ms(10));
    let limiter = Limiter::new(store.clone());
    let charges = || calls("2/1h", 2);
    assert!(limiter.check(charges()).await.unwrap().is_allowed());
    let one = || calls("2/1h", 1);
    let reset = async {
        tokio::time::sleep(ms(5)).await;
        let charge = &charges()[0];
        limiter.reset(charge.policy(), charge.key()).await.unwrap();
    };
    let (first, second, ()) = tokio::join!(
        limiter.acquire(one(), ms(1_000)),
        limiter.acquire(one(), 120 * LONG),
        reset
    );
    assert!(first.unwrap().is_allowed());
    assert!(second.unwrap().is_allowed());
    assert_eq!(store.asked_ms(), [0, 10, 20, 30]);
}

/// Waits. Returns the time of the admission in ms; `None` for a denial.
#[test]
fn who_need_not_wait_needs_no_runtime() {
    let limiter = Limiter::new(MemoryStore::new());
    let acquire = || limiter.acquire(calls("1/1h", 1), LONG).now_or_never();
    let [first, second] = [acquire(), acquire()].map(|it| it.unwrap().unwrap());
    assert!(first.is_allowed());
    assert!(!second.is_allowed(), "an hour is more than a minute");
}

async fn admitted_ms(limiter: &Limiter, store: &Timed, cost: u64, most: Duration) -> Option<u128> {
    let decision = limiter
        .acquire(calls("2/1s@exact", cost), most)
        .await
        .unwrap();
    decision.is_allowed().then(|| store.now_ms())
}

#[tokio::test(start_paused = true)]
async fn callers_are_admitted_in_order_at_the_first_millisecond_with_two_calls_of_the_store_at_most()
 {
    let store = Timed::new();
    let limiter = Limiter::new(store.clone());
    let order = Mutex::new(Vec::new());
    let callers = (0..6).map(|caller| {
        let (limiter, store, order) = (&limiter, &store, &order);
        async move {
            let at_ms = admitted_ms(limiter, store, 1, LONG).await.unwrap();
            order.lock().unwrap().push((caller, at_ms));
        }
    });
    join_all(callers).await;
    let expected = [
        (0, 0),
        (1, 0),
        (2, 1_001),
        (3, 1_001),
        (4, 2_002),
        (5, 2_002),
    ];
    assert_eq!(*order.lock().unwrap(), expected);
    assert_eq!(
        store.asked_ms(),
        [0, 0, 0, 1_001, 1_001, 1_001, 2_002, 2_002]
    );
}

#[tokio::test(start_paused = true)]
async fn no_caller_overtakes_one_that_waits_for_more() {
    let store = Timed::new();
    let limiter = Limiter::new(store.clone());
    let [first, large, small] = [1, 2, 1].map(|cost| admitted_ms(&limiter, &store, cost, LONG));
    let times = tokio::join!(first, large, small);
    assert_eq!(times, (Some(0), Some(1_001), Some(2_002)));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_would_be_too_long_ends_at_once_and_asks_once() {
    let store = Timed::new();
    let limiter = Limiter::new(store.clone());
    let [first, second, third] =
        [LONG, ms(1_000), ms(1_001)].map(|most| admitted_ms(&limiter, &store, 2, most));
    assert_eq!(first.await, Some(0));
    let start = Instant::now();
    assert_eq!(second.await, None);
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(third.await, Some(1_001));
    let never = admitted_ms(&limiter, &store, 3, LONG);
    assert_eq!(never.await, None);
    assert_eq!(store.asked_ms(), [0, 0, 0, 1_001, 1_001]);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_cannot_wait_asks_once_for_all() {
    let store = Scripted::new(|check| {
        let check = check.clone();
        StoreFuture::pending(async move {
            tokio::time::sleep(ms(1)).await;
            scripted::denied(&check, 1_000)
        })
    });
    let limiter = Limiter::new(store.clone());
    let crowd = (0..100).map(|_| limiter.acquire(calls("2/1s", 1), ms(300)));
    for decision in join_all(crowd).await {
        assert!(!decision.unwrap().is_allowed());
    }
    assert_eq!(store.checks().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_denial_from_another_callers_answer_has_the_remaining_time_and_reaches_the_observer() {
    let told = Told::default();
    let limiter = Limiter::new(Timed::new()).observer(told.clone());
    let first = limiter
        .acquire(calls("2/10s@exact", 2), LONG)
        .await
        .unwrap();
    assert!(first.is_allowed());
    let wait = |cost, most| limiter.acquire(calls("2/10s@exact", cost), ms(most));
    let later = async |cost| {
        tokio::time::sleep(ms(4_000)).await;
        wait(cost, 0).await
    };
    let (patient, same, dearer) = tokio::join!(wait(1, 20_000), later(1), later(2));
    assert!(patient.unwrap().is_allowed());
    // One unit waits ahead of the two units of the dearer caller, so the second of these has to wait for another window.
    for (denied, retry_after_ms) in [(same, 6_001), (dearer, 16_002)] {
        let Decision::Denied(denial) = denied.unwrap() else {
            panic!("admitted after 4 s");
        };
        assert_eq!(denial.retry_after(), Some(ms(retry_after_ms)));
    }
    // Two admissions and two denials, and six denials that the head of the queue hid: it asks every two seconds.
    assert_eq!(told.0.load(SeqCst), 10);
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_never_fits_is_denied_at_once_while_others_wait() {
    let limiter = Limiter::new(Timed::new());
    let wait = |cost, most| limiter.acquire(calls("2/10s@exact", cost), ms(most));
    assert!(wait(2, 0).await.unwrap().is_allowed());
    let start = Instant::now();
    let never = async {
        let decision = wait(3, 20_000).await.unwrap();
        (decision, start.elapsed())
    };
    let (_, (never, waited)) = tokio::join!(wait(1, 20_000), never);
    let Decision::Denied(denial) = never else {
        panic!("admitted");
    };
    assert_eq!((denial.retry_after(), waited), (None, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn callers_with_shadows_alone_do_not_wait_for_each_other() {
    let limiter = Limiter::new(Scripted::silent()).probe_interval(Duration::ZERO);
    let trial = Policy::parse("trial", "1/1d").unwrap().shadow();
    let charge = || [Charge::new(&trial, Key::new("account", "ours"), 1)];
    let start = Instant::now();
    join_all((0..60).map(|_| limiter.acquire(charge(), LONG))).await;
    assert_eq!(start.elapsed(), ms(100));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_caller_passes_on_its_turn_and_the_answer_of_the_store() {
    let store = Timed::new();
    let limiter = Limiter::new(store.clone());
    admitted_ms(&limiter, &store, 2, LONG).await;
    let second = admitted_ms(&limiter, &store, 1, LONG);
    let mut third = pin!(admitted_ms(&limiter, &store, 1, LONG));
    {
        let mut second = pin!(second);
        assert!(second.as_mut().now_or_never().is_none());
        assert!(third.as_mut().now_or_never().is_none());
        tokio::time::sleep(ms(500)).await;
    }
    assert_eq!(third.await, Some(1_001));
    assert_eq!(store.asked_ms(), [0, 0, 1_001]);
}

#[tokio::test(start_paused = true)]
async fn callers_are_admitted_in_order_of_arrival_although_the_last_is_polled_first() {
    let store = Timed::new();
    let limiter = Limiter::new(store.clone());
    let wait = || admitted_ms(&limiter, &store, 2, LONG);
    assert_eq!(wait().await, Some(0));
    let mut callers: Vec<_> = (0..4).map(|_| Box::pin(wait())).collect();
    for caller in &mut callers {
        assert!(caller.as_mut().now_or_never().is_none());
    }
    drop(callers.remove(1)); // its place goes with it
    callers.reverse();
    let mut admitted_ms = join_all(callers).await;
    admitted_ms.reverse();
    assert_eq!(admitted_ms, [Some(1_001), Some(2_002), Some(3_003)]);
}

#[tokio::test(start_paused = true)]
async fn callers_in_a_long_queue_are_hardly_ever_woken() {
    let limiter = Limiter::new(Timed::new());
    let wait = || limiter.acquire(calls("1/1h", 1), LONG * 60 * 1_000);
    assert!(wait().await.unwrap().is_allowed());
    let polls = AtomicU32::new(0);
    let callers = (0..500).map(|_| {
        let (mut caller, polls) = (Box::pin(wait()), &polls);
        poll_fn(move |cx| {
            polls.fetch_add(1, SeqCst);
            caller.as_mut().poll(cx)
        })
    });
    let minute = tokio::time::timeout(LONG, join_all(callers)).await;
    assert!(minute.is_err(), "an hour has not passed");
    let polls = polls.load(SeqCst);
    assert!(polls < 500 * 20, "{polls}");
}

#[tokio::test(start_paused = true)]
async fn callers_with_different_keys_do_not_wait_for_each_other() {
    let store = Timed::new();
    let limiter = Limiter::new(store.clone());
    admitted_ms(&limiter, &store, 2, LONG).await;
    let policy = Policy::parse("their-api", "2/1s@exact").unwrap();
    let other = [Charge::new(&policy, Key::new("account", "other"), 1)];
    let mut waits = pin!(admitted_ms(&limiter, &store, 1, LONG));
    assert!(waits.as_mut().now_or_never().is_none());
    assert!(limiter.acquire(other, LONG).now_or_never().is_some());
}

/// A store that does not answer for this time, and then allows everything.
fn stalls_for(stall: Duration) -> Arc<Scripted> {
    let start = Instant::now();
    Scripted::new(move |check| match start.elapsed() < stall {
        true => StoreFuture::pending(std::future::pending()),
        false => StoreFuture::ready(scripted::allowed(check)),
    })
}

#[tokio::test(start_paused = true)]
async fn a_caller_waits_until_a_store_that_stalls_is_back_and_asks_about_once_an_interval() {
    for interval in [ms(0), ms(250)] {
        let store = stalls_for(ms(5_000));
        let limiter = Limiter::new(store.clone()).probe_interval(interval);
        let start = Instant::now();
        let callers = (0..20).map(|_| limiter.acquire(calls("100/1s", 1), LONG));
        for decision in join_all(callers).await {
            assert!(decision.unwrap().is_allowed());
        }
        let waited = start.elapsed();
        assert!((ms(5_000)..ms(6_000)).contains(&waited), "{waited:?}");
        let during_the_stall = store.checks().len() - 20;
        assert!((5..=40).contains(&during_the_stall), "{during_the_stall}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_or_is_silent_for_longer_than_a_caller_waits_gives_the_last_error() {
    let failing = Limiter::new(Scripted::failing()).probe_interval(Duration::ZERO);
    let start = Instant::now();
    let error = failing.acquire(calls("1/1s", 1), ms(2_000)).await;
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::Unavailable);
    assert_eq!(start.elapsed(), ms(2_000));

    let silent = Limiter::new(stalls_for(LONG)).timeout(ms(70));
    let silent = silent.probe_interval(Duration::ZERO);
    let start = Instant::now();
    let error = silent.acquire(calls("1/1s", 1), ms(2_000)).await;
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::Timeout);
    let waited = start.elapsed();
    assert!((ms(2_000)..=ms(2_070)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_comes_while_the_breaker_is_open_waits_for_the_store() {
    let limiter = Limiter::new(stalls_for(ms(3_000)));
    for _ in 0..5 {
        let error = limiter.check(calls("1/1s", 1)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Timeout);
    }
    let error = limiter.acquire(calls("1/1s", 1), Duration::ZERO).await;
    assert_eq!(error.unwrap_err().kind(), StoreErrorKind::CircuitOpen);
    let decision = limiter.acquire(calls("1/1s", 1), LONG).await;
    assert!(decision.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn an_error_that_time_does_not_mend_and_a_local_decision_end_the_wait_at_once() {
    let start = Instant::now();
    for kind in [StoreErrorKind::AccessDenied, StoreErrorKind::InvalidRequest] {
        let refused = move |_: &Check| StoreFuture::ready(Err(StoreError::new(kind, "refused")));
        let limiter = Limiter::new(Scripted::new(refused));
        let error = limiter.acquire(calls("1/1s", 1), LONG).await.unwrap_err();
        assert_eq!(error.kind(), kind);
    }
    let local = Limiter::new(Scripted::failing()).on_failure(FailurePolicy::Local);
    let decision = local.acquire(calls("1/1s", 1), LONG).await.unwrap();
    assert!(decision.is_allowed() && decision.usage().is_local());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_layer_waits_for_a_store_that_stalls_under_closed_and_passes_at_once_under_open() {
    let send = async |policy: FailurePolicy, stall: Duration| {
        let start = Instant::now();
        let theirs = Policy::parse("their-api", "9/1s").unwrap();
        let limiter = Limiter::new(stalls_for(stall)).on_failure(policy);
        let layer = RateLimitLayer::new(limiter)
            .limit(theirs, Key::new("account", "ours"))
            .max_wait(ms(2_000));
        let client = client(layer, Arc::default());
        let response = client.oneshot(Request::new(String::new())).await;
        (response.unwrap().status(), start.elapsed())
    };
    let (status, waited) = send(FailurePolicy::Closed, ms(500)).await;
    assert_eq!(status, StatusCode::OK);
    assert!((ms(500)..ms(1_500)).contains(&waited), "{waited:?}");
    let (status, waited) = send(FailurePolicy::Closed, LONG).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!((ms(2_000)..=ms(2_100)).contains(&waited), "{waited:?}");
    let passed = send(FailurePolicy::Open, LONG).await;
    assert_eq!(passed, (StatusCode::OK, ms(100)));
}

#[tokio::test(start_paused = true)]
async fn requests_that_pass_while_a_store_is_silent_do_not_wait_for_each_other() {
    // Without a breaker, each asks, and has its timeout.
    for interval in [ms(0), ms(250)] {
        let limiter = Limiter::new(stalls_for(LONG)).probe_interval(interval);
        let layer = RateLimitLayer::new(limiter)
            .limit(
                Policy::parse("api", "999/1s").unwrap(),
                Key::new("user", "alice"),
            )
            .max_wait(ms(10_000));
        let start = Instant::now();
        let requests = (0..200).map(|_| {
            let service = client(layer.clone(), Arc::default());
            service.oneshot(Request::new(String::new()))
        });
        for response in join_all(requests).await {
            assert_eq!(response.unwrap().status(), StatusCode::OK);
        }
        let waited = start.elapsed();
        assert!(waited < ms(1_000), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_denial_that_the_store_gave_to_another_names_the_contributor_of_its_own_check() {
    let limiter = Limiter::new(Timed::new());
    let asks = |name: &'static str, most| {
        let [charge] = calls("1/10s@exact", 1);
        limiter.acquire([charge.with_contributor(Key::new("user", name))], most)
    };
    assert!(asks("carol", LONG).await.unwrap().is_allowed());
    let (alice, bob) = tokio::join!(asks("alice", LONG), asks("bob", ms(300)));
    assert!(alice.unwrap().is_allowed());
    let Decision::Denied(denial) = bob.unwrap() else {
        panic!("bob waited");
    };
    let contributor = denial.charge().contributor();
    assert_eq!(contributor, Some(&Key::new("user", "bob")));
}

#[tokio::test(start_paused = true)]
async fn where_the_queue_moves_too_slowly_a_caller_asks_out_of_turn() {
    let slow = Scripted::new(|check| {
        let check = check.clone();
        StoreFuture::pending(async move {
            tokio::time::sleep(ms(60)).await;
            scripted::allowed(&check)
        })
    });
    let limiter = Limiter::new(slow);
    let ask = || limiter.acquire(calls("9/1s", 1), ms(50));
    let start = Instant::now();
    let (first, second) = tokio::join!(ask(), ask());
    assert!(first.unwrap().is_allowed() && second.unwrap().is_allowed());
    assert_eq!(start.elapsed(), ms(110));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_denies_a_caller_at_once_for_as_long_as_those_ahead_need() {
    let limiter = Limiter::new(Timed::new()).max_queue(3);
    let start = Instant::now();
    let callers = (0..6).map(|_| async {
        let decision = limiter.acquire(calls("1/1s@exact", 1), LONG).await.unwrap();
        let denied_for = match &decision {
            Decision::Denied(denial) => denial.retry_after(),
            _ => None,
        };
        (start.elapsed().as_millis(), denied_for)
    });
    let (served, denied) = ((0..4).map(|n| (n * 1_001, None)), (0, Some(ms(4_004))));
    let expected: Vec<_> = served.chain([denied, denied]).collect();
    assert_eq!(join_all(callers).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_flood_is_denied_at_once_but_for_those_that_are_served_in_time() {
    let limiter = Limiter::new(Timed::new());
    let start = Instant::now();
    let callers = (0..20_000).map(|_| async {
        let decision = limiter.acquire(calls("10/1s@exact", 1), ms(2_500)).await;
        (decision.unwrap().is_allowed(), start.elapsed().is_zero())
    });
    let ends = join_all(callers).await;
    let count = |end| ends.iter().filter(|it| **it == end).count();
    assert_eq!((count((true, true)), count((true, false))), (10, 20));
    assert_eq!((count((false, true)), count((false, false))), (19_970, 0));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_cannot_be_served_in_time_is_denied_at_once_with_the_time_of_its_turn() {
    let limiter = Limiter::new(Timed::new());
    let start = Instant::now();
    let callers = (0..5).map(|_| async {
        let decision = limiter.acquire(calls("1/1s@exact", 1), ms(2_500)).await;
        let denied_for = match &decision.unwrap() {
            Decision::Denied(denial) => denial.retry_after(),
            _ => None,
        };
        (start.elapsed().as_millis(), denied_for)
    });
    // The fourth does not wait, so the fifth gets the same time.
    let denied = (0, Some(ms(3_003)));
    let served = |at_ms| (at_ms, None);
    let expected = [served(0), served(1_001), served(2_002), denied, denied];
    assert_eq!(join_all(callers).await, expected);
}

/// The maximum wait of each caller is exactly the time until its turn.
#[tokio::test(start_paused = true)]
async fn a_caller_that_is_served_just_in_time_is_not_denied() {
    for rules in [
        "2/1s",
        "3/1s@100ms,5/10s",
        "2/1s@fixed",
        "2+1/1s@bucket",
        "4+3/2s@bucket,5/3s@exact",
    ] {
        let run = async |patience: &[Duration]| {
            let store = Timed::new();
            let limiter = Limiter::new(store.clone());
            let callers = patience.iter().enumerate().map(|(caller, most)| {
                let (limiter, store) = (&limiter, &store);
                async move {
                    let cost = 1 + (caller as u64) % 2;
                    let decision = limiter.acquire(calls(rules, cost), *most).await.unwrap();
                    decision.is_allowed().then(|| store.now_ms())
                }
            });
            join_all(callers).await
        };
        let endless = vec![LONG; 12];
        let served = run(&endless).await;
        for (caller, at_ms) in served.iter().enumerate() {
            let mut patience = endless.clone();
            patience[caller] = ms(u64::try_from(at_ms.unwrap()).unwrap());
            assert_eq!(run(&patience).await, served, "{rules}, caller {caller}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_round_trip_does_not_limit_how_many_are_admitted() {
    let store = Timed::with_latency(ms(10));
    let limiter = Limiter::new(store.clone());
    let start = Instant::now();
    let callers = (0..1_000).map(|_| limiter.acquire(calls("5000/1s", 1), ms(200)));
    for decision in join_all(callers).await {
        assert!(decision.unwrap().is_allowed());
    }
    // One caller asks first, and then 256 at the same time.
    assert_eq!(start.elapsed(), ms(50));
}

// Blocks

/// Whether a caller under a block was admitted, and after how many ms. `unblock` is the time until the block ends.
async fn admitted_after_block(
    limiter: &Limiter,
    until: Until,
    most: Duration,
    unblock: Duration,
) -> (bool, u128) {
    let key = Key::new("account", "ours");
    limiter.block(&key, until).await.unwrap();
    let waiting = async {
        let start = Instant::now();
        let decision = limiter.acquire(calls("9/1s", 1), most).await.unwrap();
        (decision.is_allowed(), start.elapsed().as_millis())
    };
    let unblocking = async {
        tokio::time::sleep(unblock).await;
        limiter.unblock(&key).await.unwrap();
    };
    tokio::join!(waiting, unblocking).0
}

#[tokio::test(start_paused = true)]
async fn a_block_is_waited_out_to_the_millisecond_where_the_limiter_says_so_and_it_ends_in_time() {
    let run = async |waits, until: Until, most_ms, unblock| {
        let limiter = Limiter::new(Timed::new()).wait_for_blocks(waits);
        admitted_after_block(&limiter, until, ms(most_ms), unblock).await
    };
    let block = || Until::from(ms(5_000));
    assert_eq!(run(true, block(), 5_000, LONG).await, (true, 5_000));
    assert_eq!(run(true, block(), 4_999, LONG).await, (false, 0));
    assert_eq!(run(true, block(), 5_000, ms(700)).await, (true, 700));
    assert_eq!(run(true, Until::Forever, 5_000, LONG).await, (false, 0));
    assert_eq!(run(false, block(), 5_000, LONG).await, (false, 0));
}

// Units that are given back

/// The time in ms at which a caller that waits for all units of `2/10s` is admitted, and the times of the store's
/// calls.
async fn admitted_after(change: impl AsyncFnOnce(&Limiter, &Usage)) -> (u128, Vec<u128>) {
    let store = Timed::new();
    let limiter = Limiter::new(store.clone());
    let charges = || calls("2/10s@exact", 2);
    let first = limiter.acquire(charges(), LONG).await.unwrap();
    let waiting = async {
        let decision = limiter.acquire(charges(), LONG).await.unwrap();
        assert!(decision.is_allowed());
        store.now_ms()
    };
    let changing = async {
        tokio::time::sleep(ms(300)).await;
        change(&limiter, first.usage()).await;
    };
    let (admitted_ms, ()) = tokio::join!(waiting, changing);
    (admitted_ms, store.asked_ms())
}

#[tokio::test(start_paused = true)]
async fn a_reset_and_a_settlement_that_gives_back_are_heard_at_once() {
    let reset = async |limiter: &Limiter, _: &Usage| {
        let [charge] = calls("2/10s@exact", 0);
        limiter.reset(charge.policy(), charge.key()).await.unwrap();
    };
    // Only the name of the policy counts, and clones share the queues.
    let reset_by_clone = async |limiter: &Limiter, _: &Usage| {
        let [charge] = calls("7/1m", 0);
        let clone = limiter.clone().on_failure(FailurePolicy::Closed);
        clone.reset(charge.policy(), charge.key()).await.unwrap();
    };
    let settle = async |limiter: &Limiter, usage: &Usage| {
        limiter.settle(usage, |_| 0).await.unwrap();
    };
    assert_eq!(admitted_after(reset).await, (300, vec![0, 0, 300]));
    assert_eq!(admitted_after(reset_by_clone).await, (300, vec![0, 0, 300]));
    assert_eq!(admitted_after(settle).await, (300, vec![0, 0, 300]));
}

#[tokio::test(start_paused = true)]
async fn only_a_refund_of_the_policy_and_key_wakes_a_caller() {
    let more = async |limiter: &Limiter, usage: &Usage| {
        limiter.settle(usage, |_| 3).await.unwrap();
    };
    let other_key = async |limiter: &Limiter, _: &Usage| {
        let [charge] = calls("2/10s@exact", 0);
        let other = Key::new("account", "other");
        limiter.reset(charge.policy(), &other).await.unwrap();
    };
    let other_policy = async |limiter: &Limiter, _: &Usage| {
        let [charge] = calls("2/10s@exact", 0);
        let other = Policy::parse("other", "2/10s@exact").unwrap();
        limiter.reset(&other, charge.key()).await.unwrap();
    };
    let asked = |last_ms| vec![0, 0, 2_000, 4_000, 6_000, 8_000, 10_000, last_ms];
    let expected = asked(10_001);
    // Further units count from the settlement on.
    assert_eq!(admitted_after(more).await, (10_301, asked(10_301)));
    assert_eq!(admitted_after(other_key).await, (10_001, expected.clone()));
    assert_eq!(admitted_after(other_policy).await, (10_001, expected));
}

/// The time in ms at which a caller that waits for all units of `2/1h` is admitted. `by` resets the key at `at_ms`.
async fn admitted_after_reset(limiter: &Limiter, store: &Timed, by: &Limiter, at_ms: u64) -> u128 {
    let charges = || calls("2/1h", 2);
    assert!(limiter.acquire(charges(), LONG).await.unwrap().is_allowed());
    let waiting = async {
        let decision = limiter.acquire(charges(), LONG * 120).await.unwrap();
        assert!(decision.is_allowed());
        store.now_ms()
    };
    let resetting = async {
        tokio::time::sleep(ms(at_ms)).await;
        let [charge] = charges();
        by.reset(charge.policy(), charge.key()).await.unwrap();
    };
    tokio::join!(waiting, resetting).0
}

#[tokio::test(start_paused = true)]
async fn callers_notice_a_reset_by_others_within_two_seconds() {
    let store = Timed::new();
    let [limiter, elsewhere] = [(); 2].map(|()| Limiter::new(store.clone()));
    let admitted_ms = admitted_after_reset(&limiter, &store, &elsewhere, 4_500).await;
    assert_eq!(admitted_ms, 6_000);
    assert_eq!(store.asked_ms(), [0, 0, 2_000, 4_000, 6_000]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_under_a_raised_limit_does_not_wait_behind_one_under_the_old() {
    let store = Timed::new();
    let limiter = Limiter::new(store.clone());
    let at = async |rules, delay| {
        tokio::time::sleep(ms(delay)).await;
        let decision = limiter.acquire(calls(rules, 1), LONG).await.unwrap();
        decision.is_allowed().then(|| store.now_ms())
    };
    admitted_ms(&limiter, &store, 2, LONG).await;
    let old = at("2/1s@exact", 0);
    let (old, new, next) = tokio::join!(old, at("4/1s@exact", 100), at("4/1s@exact", 200));
    // Both rules share the counts, so the old limit has room only after the units of the new one are released.
    assert_eq!((old, new, next), (Some(1_101), Some(100), Some(200)));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_is_admitted_when_the_response_of_another_gives_back() {
    let theirs = Policy::parse("their-api", "1/1h").unwrap();
    let layer = RateLimitLayer::new(Timed::new())
        .limit(theirs, Key::new("account", "ours"))
        // Long enough for the third request, even without refunds.
        .max_wait(LONG * 240)
        .settle(|_, _| 0);
    let client = ServiceBuilder::new()
        .layer(layer)
        .service_fn(async |_: Request<String>| {
            tokio::time::sleep(ms(40)).await;
            Ok::<_, Infallible>(Response::new(String::new()))
        });
    let start = Instant::now();
    let requests = (0..3).map(|_| client.clone().oneshot(Request::new(String::new())));
    for response in join_all(requests).await {
        assert_eq!(response.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(start.elapsed(), ms(120));
}

/// The layer around a service that records the times of calls.
fn client(
    layer: RateLimitLayer,
    called: Arc<Mutex<Vec<Instant>>>,
) -> impl tower::Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send>
+ Clone {
    ServiceBuilder::new()
        .layer(layer)
        .service_fn(move |_: Request<String>| {
            called.lock().unwrap().push(Instant::now());
            std::future::ready(Ok(Response::new(String::new())))
        })
}

fn outbound(store: Arc<Timed>) -> RateLimitLayer {
    let theirs = Policy::parse("their-api", "2/1s@exact").unwrap();
    RateLimitLayer::new(store)
        .limit(theirs, Key::new("account", "ours"))
        .max_wait(ms(1_500))
}

#[tokio::test(start_paused = true)]
async fn a_layer_around_a_client_lets_requests_wait_and_answers_those_that_cannot() {
    let called = Arc::default();
    let client = client(outbound(Timed::new()), Arc::clone(&called));
    let start = Instant::now();
    let requests = (0..5).map(|_| client.clone().oneshot(Request::new(String::new())));
    let statuses = join_all(requests).await.into_iter();
    let statuses: Vec<StatusCode> = statuses.map(|it| it.unwrap().status()).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429]);
    let called = called.lock().unwrap();
    let times: Vec<u128> = called.iter().map(|it| (*it - start).as_millis()).collect();
    assert_eq!(times, [0, 0, 1_001, 1_001]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_looked_up_waits_as_others_do_and_the_deadline_holds_for_the_look_up() {
    let layer = |delay: Duration| {
        let theirs = Policy::parse("their-api", "2/1s@exact").unwrap();
        let look_up = move |_: &http::request::Parts| {
            let theirs = theirs.clone();
            async move {
                tokio::time::sleep(delay).await;
                Charge::new(&theirs, Key::new("account", "ours"), 1)
            }
        };
        let limiter = Limiter::new(Timed::new()).on_failure(FailurePolicy::Closed);
        RateLimitLayer::new(limiter)
            .charge_async(look_up)
            .max_wait(LONG)
    };
    let start = Instant::now();
    let quick = client(layer(ms(50)), Arc::default());
    let requests = (0..3).map(|_| quick.clone().oneshot(Request::new(String::new())));
    for response in join_all(requests).await {
        assert_eq!(response.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(start.elapsed(), ms(1_051));

    let start = Instant::now();
    let slow = client(layer(ms(1_500)), Arc::default());
    let response = slow.oneshot(Request::new(String::new())).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(start.elapsed(), ms(1_000));
}

#[tokio::test(start_paused = true)]
async fn a_shadow_is_decided_when_its_caller_is_admitted_and_makes_nobody_wait() {
    let store = Timed::new();
    let limiter = Limiter::new(store.clone());
    let shadow = Policy::parse("shadow", "1/1h@exact").unwrap().shadow();
    let charges = || {
        let ours = Charge::new(&shadow, Key::new("account", "ours"), 1);
        calls("2/1s@exact", 1).into_iter().chain([ours])
    };
    let mut times = Vec::new();
    for _ in 0..3 {
        let decision = limiter.acquire(charges(), LONG).await.unwrap();
        assert!(decision.is_allowed());
        times.push((
            store.now_ms(),
            decision.usage().shadow().unwrap().is_allowed(),
        ));
    }
    assert_eq!(times, [(0, true), (0, false), (1_001, false)]);
    // The third caller has to ask twice.
    assert_eq!(store.asked_ms(), [0, 0, 0, 1_001]);
}

#[test]
fn waiting_can_be_spawned() {
    fn send(_: impl Future + Send) {}
    let limiter = Limiter::new(MemoryStore::new());
    send(limiter.acquire(calls("1/1s", 1), LONG));
}
