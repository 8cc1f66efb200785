//! Callers wait for room in order of arrival, call the store only when there may be room, and never come too early.

use support::prelude::*;

const LONG: Duration = MINUTE;

/// A memory store with the clock of the paused runtime, which records the times of checks.
pub(crate) struct Timed {
    pub(crate) store: Fated,
    start: Instant,
    asked_ms: Arc<Mutex<Vec<u128>>>,
}

impl Timed {
    pub(crate) fn new() -> Self {
        Self::with_latency(Duration::ZERO)
    }

    /// `latency` is the time from a decision to the answer.
    pub(crate) fn with_latency(latency: Duration) -> Self {
        let (memory, clock) = memory();
        let (start, asked_ms) = (Instant::now(), Arc::<Mutex<Vec<u128>>>::default());
        let asked = Arc::clone(&asked_ms);
        let fate = move |call: &Asked<'_>| {
            let now_ms = start.elapsed().as_millis();
            clock.set(u64::try_from(now_ms).unwrap());
            let Asked::Check(_) = call else {
                return Fate::Answered;
            };
            asked.lock().unwrap().push(now_ms);
            Fate::late(latency)
        };
        Self {
            store: Fated::new(memory, fate),
            start,
            asked_ms,
        }
    }

    pub(crate) fn limiter(&self) -> Limiter {
        support::limiter(self.store.clone())
    }

    fn now_ms(&self) -> u128 {
        self.start.elapsed().as_millis()
    }

    pub(crate) fn asked_ms(&self) -> Vec<u128> {
        self.asked_ms.lock().unwrap().clone()
    }
}

pub(crate) fn ours() -> Key {
    Key::new("account", "ours")
}

fn calls(rules: &str, cost: u64) -> [Charge; 1] {
    [Charge::new(&policy("their-api", rules), ours(), cost)]
}

async fn reset(limiter: &Limiter, [charge]: [Charge; 1]) {
    limiter.reset(charge.policy(), charge.key()).await.unwrap();
}

/// Waits. Returns the time of the admission in ms; `None` for a denial.
async fn admitted_ms(limiter: &Limiter, store: &Timed, cost: u64, most: Duration) -> Option<u128> {
    let decision = limiter.acquire(calls("2/1s@exact", cost), most).await;
    decision.unwrap().is_allowed().then(|| store.now_ms())
}

/// The store decides the denial before the reset, and the denial arrives after the reset.
#[tokio::test(start_paused = true)]
async fn a_reset_while_the_store_is_asked_is_heard_by_all_who_wait() {
    let store = Timed::with_latency(ms(10));
    let limiter = store.limiter();
    let one = || calls("2/1h", 1);
    assert!(limiter.check(calls("2/1h", 2)).await.unwrap().is_allowed());
    let resetting = async {
        sleep(ms(5)).await;
        reset(&limiter, one()).await;
    };
    let waiting = (
        limiter.acquire(one(), ms(1_000)),
        limiter.acquire(one(), 120 * LONG),
    );
    let (first, second, ()) = tokio::join!(waiting.0, waiting.1, resetting);
    assert!(first.unwrap().is_allowed() && second.unwrap().is_allowed());
    assert_eq!(store.asked_ms(), [0, 10, 20, 30]);
}

#[test]
fn who_need_not_wait_needs_no_runtime() {
    let limiter = support::limiter(MemoryStore::new());
    let acquire = || limiter.acquire(calls("1/1h", 1), LONG).now_or_never();
    let [first, second] = [acquire(), acquire()].map(|it| it.unwrap().unwrap());
    assert!(first.is_allowed());
    assert!(!second.is_allowed(), "an hour is more than a minute");
}

/// The rules, the longest queue, and callers that come at once: their cost and patience, and when they are admitted, or
/// for how long they are denied, at once or (after `@`) then; all in ms.
const CROWDS: &str = "
Callers are admitted in order at the first millisecond
 2/1s@exact; 99; 1 60s 0; 1 60s 0; 1 60s 1001; 1 60s 1001; 1 60s 2002; 1 60s 2002
No caller overtakes one that waits for more
 2/1s@exact; 99; 1 60s 0; 2 60s 1001; 1 60s 2002
A full queue denies at once with the denial of the first in it
 1/1s@exact; 3; 1 60s 0; 1 60s 1001; 1 60s 2002; 1 60s 3003; 1 60s !1001; 1 60s !1001
A caller whose own time does not suffice is denied at once and another when the first in the queue is denied for longer
 1/1s@exact; 99; 1 2500 0; 1 2500 1001; 1 2500 2002; 1 2500 1001@2002; 1 1000 !1001; 1 2500 1001@2002
A caller that waits behind one that may take more time is denied at its deadline
 2/1s@exact; 99; 2 60s 0; 2 60s 1001; 2 60s 2002; 1 1500 502@1500
";

#[tokio::test(start_paused = true)]
async fn a_crowd_gets_its_answers_in_order_with_two_calls_of_the_store_at_most_for_each() {
    for (sentence, words) in rows(CROWDS) {
        let store = Timed::new();
        let limiter = store.limiter().max_queue(words[1].parse().unwrap());
        let got = join_all(words[2..].iter().map(async |caller| {
            let parts: Vec<_> = caller.split(' ').collect();
            let charges = calls(words[0], parts[0].parse().unwrap());
            let patience = ms(millis(parts[1]).unsigned_abs());
            let decision = limiter.acquire(charges, patience).await.unwrap();
            let got = match (decision.is_allowed(), store.now_ms()) {
                (true, now_ms) => now_ms.to_string(),
                (false, 0) => format!("!{}", retry_after(&decision).unwrap().as_millis()),
                (false, late_ms) => {
                    let rest_ms = retry_after(&decision).unwrap().as_millis();
                    format!("{rest_ms}@{late_ms}")
                }
            };
            (got, parts[2].to_owned())
        }));
        for (got, expected) in got.await {
            assert_eq!(got, expected, "{sentence}");
        }
        if sentence.starts_with("Callers are") {
            assert_eq!(
                store.asked_ms(),
                [0, 0, 0, 1_001, 1_001, 1_001, 2_002, 2_002]
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_would_be_too_long_ends_at_once_and_asks_once() {
    let store = Timed::new();
    let limiter = store.limiter();
    let waits = async |cost, most| admitted_ms(&limiter, &store, cost, most).await;
    assert_eq!(waits(2, LONG).await, Some(0));
    assert_eq!((waits(2, ms(1_000)).await, store.now_ms()), (None, 0));
    assert_eq!(waits(2, ms(1_001)).await, Some(1_001));
    assert_eq!(waits(3, LONG).await, None);
    assert_eq!(store.asked_ms(), [0, 0, 0, 1_001, 1_001]);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_cannot_wait_asks_once_for_all() {
    let store = Scripted::new(|check| {
        let check = check.clone();
        StoreFuture::pending(async move {
            sleep(ms(1)).await;
            denied(&check, 1_000)
        })
    });
    let limiter = support::limiter(store.clone());
    let crowd = (0..100).map(|_| limiter.acquire(calls("2/1s", 1), ms(300)));
    let denied = join_all(crowd).await;
    assert!(denied.iter().all(|it| is_denied(it.as_ref().unwrap())));
    assert_eq!(store.checks().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_denial_from_another_callers_answer_has_the_remaining_time_and_reaches_the_observer() {
    let told = Log::of(|event| matches!(event, Event::Decision { .. }).then(String::new));
    let limiter = Timed::new().limiter().observer(told.clone());
    let wait = |cost, most| limiter.acquire(calls("2/10s@exact", cost), ms(most));
    assert!(wait(2, 60_000).await.unwrap().is_allowed());
    let later = async |cost| {
        sleep(ms(4_000)).await;
        wait(cost, 0).await
    };
    let (patient, same, dearer) = tokio::join!(wait(1, 20_000), later(1), later(2));
    assert!(patient.unwrap().is_allowed());
    for denied in [same, dearer] {
        assert_eq!(retry_after(&denied.unwrap()), Some(ms(6_001)));
    }
    // Two admissions and two denials, and six denials that the head of the queue hid, which asks every two seconds.
    assert_eq!(told.lines().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_never_fits_is_denied_at_once_while_others_wait() {
    let store = Timed::new();
    let limiter = store.limiter();
    let wait = |cost| limiter.acquire(calls("2/10s@exact", cost), ms(20_000));
    assert!(wait(2).await.unwrap().is_allowed());
    let never = async { (retry_after(&wait(3).await.unwrap()), store.now_ms()) };
    let (_, never) = tokio::join!(wait(1), never);
    assert_eq!(never, (None, 0));
}

#[tokio::test(start_paused = true)]
async fn callers_with_shadows_alone_do_not_wait_for_each_other() {
    let limiter = support::limiter(Scripted::silent()).probe_interval(Duration::ZERO);
    let trial = policy("trial", "1/1d").shadow();
    let start = Instant::now();
    let charge = || [Charge::new(&trial, ours(), 1)];
    join_all((0..60).map(|_| limiter.acquire(charge(), LONG))).await;
    assert_eq!(start.elapsed(), ms(100));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_caller_passes_on_its_turn_and_the_answer_of_the_store() {
    let store = Timed::new();
    let limiter = store.limiter();
    admitted_ms(&limiter, &store, 2, LONG).await;
    let mut second = Box::pin(admitted_ms(&limiter, &store, 1, LONG));
    let mut third = pin!(admitted_ms(&limiter, &store, 1, LONG));
    assert!(second.as_mut().now_or_never().is_none());
    assert!(third.as_mut().now_or_never().is_none());
    sleep(ms(500)).await;
    drop(second);
    assert_eq!(third.await, Some(1_001));
    assert_eq!(store.asked_ms(), [0, 0, 1_001]);
}

#[tokio::test(start_paused = true)]
async fn callers_are_admitted_in_order_of_arrival_although_the_last_is_polled_first() {
    let store = Timed::new();
    let limiter = store.limiter();
    let wait = || admitted_ms(&limiter, &store, 2, LONG);
    assert_eq!(wait().await, Some(0));
    let mut callers: Vec<_> = (0..4).map(|_| Box::pin(wait())).collect();
    for caller in &mut callers {
        assert!(caller.as_mut().now_or_never().is_none());
    }
    drop(callers.remove(1)); // and from the queue
    callers.reverse();
    let admitted_ms = join_all(callers).await;
    assert_eq!(admitted_ms, [Some(3_003), Some(2_002), Some(1_001)]);
}

#[tokio::test(start_paused = true)]
async fn callers_in_a_long_queue_are_hardly_ever_woken() {
    let limiter = Timed::new().limiter();
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
    let minute = timeout(LONG, join_all(callers)).await;
    assert!(minute.is_err(), "an hour has not passed");
    let polls = polls.load(SeqCst);
    assert!(polls < 500 * 20, "{polls}");
}

#[tokio::test(start_paused = true)]
async fn callers_with_different_keys_do_not_wait_for_each_other() {
    let store = Timed::new();
    let limiter = store.limiter();
    admitted_ms(&limiter, &store, 2, LONG).await;
    let mut waits = pin!(admitted_ms(&limiter, &store, 1, LONG));
    assert!(waits.as_mut().now_or_never().is_none());
    let other = [charge(&policy("their-api", "2/1s@exact"), "other", 1)];
    assert!(limiter.acquire(other, LONG).now_or_never().is_some());
}

/// A store that does not answer for this time, and then allows everything.
fn stalls_for(stall: Duration) -> Arc<Scripted> {
    let start = Instant::now();
    Scripted::new(move |check| match start.elapsed() < stall {
        true => StoreFuture::pending(pending()),
        false => StoreFuture::ready(allowed(check)),
    })
}

#[tokio::test(start_paused = true)]
async fn a_caller_waits_until_a_store_that_stalls_is_back_and_asks_about_once_an_interval() {
    for interval in [ms(0), ms(250)] {
        let store = stalls_for(ms(5_000));
        let limiter = support::limiter(store.clone()).probe_interval(interval);
        let start = Instant::now();
        let callers = (0..20).map(|_| limiter.acquire(calls("100/1s", 1), LONG));
        assert!(all_admitted(callers).await);
        let waited = start.elapsed();
        assert!((ms(5_000)..ms(6_000)).contains(&waited), "{waited:?}");
        let during_the_stall = store.checks().len() - 20;
        assert!((5..=40).contains(&during_the_stall), "{during_the_stall}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_or_is_silent_for_longer_than_a_caller_waits_gives_the_last_error() {
    let silent = support::limiter(stalls_for(LONG)).timeout(ms(70));
    let refused = || Err(StoreError::new(StoreErrorKind::Refused, "told to"));
    let refusing = Scripted::new(move |_| StoreFuture::ready(refused()));
    let [failing, refusing] = [Scripted::failing(), refusing].map(support::limiter);
    for (limiter, kind, most) in [
        (failing, StoreErrorKind::Unavailable, ms(2_000)),
        (refusing, StoreErrorKind::Refused, ms(2_000)),
        (silent, StoreErrorKind::Timeout, ms(2_070)),
    ] {
        let (limiter, start) = (limiter.probe_interval(Duration::ZERO), Instant::now());
        let error = limiter.acquire(calls("1/1s", 1), ms(2_000)).await;
        assert_eq!(error.unwrap_err().kind(), kind);
        let waited = start.elapsed();
        assert!((ms(2_000)..=most).contains(&waited), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_time_does_not_mend_and_a_local_decision_end_the_wait_at_once() {
    let start = Instant::now();
    for kind in [StoreErrorKind::AccessDenied, StoreErrorKind::InvalidRequest] {
        let refused = move |_: &Check| StoreFuture::ready(Err(StoreError::new(kind, "refused")));
        let limiter = support::limiter(Scripted::new(refused));
        let error = limiter.acquire(calls("1/1s", 1), LONG).await.unwrap_err();
        assert_eq!(error.kind(), kind);
    }
    let local = support::limiter(Scripted::failing()).on_failure(FailurePolicy::Local);
    let decision = local.acquire(calls("1/1s", 1), LONG).await.unwrap();
    assert!(decision.is_allowed() && decision.usage().is_local());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_layer_waits_for_a_store_that_stalls_under_closed_and_passes_at_once_under_open() {
    use FailurePolicy::{Closed, Open};
    for (failure_policy, stall, status, waits) in [
        (Closed, ms(500), 200, ms(500)..ms(1_500)),
        (Closed, LONG, 503, ms(2_000)..ms(2_101)),
        (Open, LONG, 200, ms(100)..ms(101)),
    ] {
        let limiter = support::limiter(stalls_for(stall)).on_failure(failure_policy);
        let layer = support::layer(limiter)
            .limit(policy("their-api", "9/1s"), ours())
            .max_wait(ms(2_000));
        let start = Instant::now();
        assert_eq!(get(&layer).await, status, "{failure_policy:?}");
        let waited = start.elapsed();
        assert!(waits.contains(&waited), "{failure_policy:?}: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_pass_while_a_store_is_silent_do_not_wait_for_each_other() {
    // Without a breaker, each asks, and has its timeout.
    for interval in [ms(0), ms(250)] {
        let limiter = support::limiter(stalls_for(LONG)).probe_interval(interval);
        let layer = support::layer(limiter)
            .limit(policy("api", "999/1s"), user("alice"))
            .max_wait(ms(10_000));
        let start = Instant::now();
        let requests = (0..200).map(|_| get(&layer));
        assert_eq!(join_all(requests).await, [StatusCode::OK; 200]);
        let waited = start.elapsed();
        assert!(waited < ms(1_000), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_denial_that_the_store_gave_to_another_names_the_contributor_of_its_own_check() {
    let limiter = Timed::new().limiter();
    let asks = |name: &'static str, most| {
        let [charge] = calls("1/10s@exact", 1);
        limiter.acquire([charge.with_contributor(user(name))], most)
    };
    assert!(asks("carol", LONG).await.unwrap().is_allowed());
    let (alice, bob) = tokio::join!(asks("alice", LONG), asks("bob", ms(300)));
    assert!(alice.unwrap().is_allowed());
    let Decision::Denied(denial) = bob.unwrap() else {
        panic!("bob waited");
    };
    assert_eq!(denial.charge().contributor(), Some(&user("bob")));
}

#[tokio::test(start_paused = true)]
async fn where_the_queue_moves_too_slowly_a_caller_asks_out_of_turn() {
    let slow = Scripted::new(|check| {
        let check = check.clone();
        StoreFuture::pending(async move {
            sleep(ms(60)).await;
            allowed(&check)
        })
    });
    let limiter = support::limiter(slow);
    let ask = || limiter.acquire(calls("9/1s", 1), ms(50));
    let start = Instant::now();
    let (first, second) = tokio::join!(ask(), ask());
    assert!(first.unwrap().is_allowed() && second.unwrap().is_allowed());
    assert_eq!(start.elapsed(), ms(110));
}

#[tokio::test(start_paused = true)]
async fn a_flood_that_is_not_served_in_time_is_denied_without_asking_the_store() {
    let store = Timed::new();
    let limiter = store.limiter();
    let callers = (0..20_000).map(|_| async {
        let decision = limiter.acquire(calls("10/1s@exact", 1), ms(2_500)).await;
        (decision.unwrap().is_allowed(), store.now_ms())
    });
    let ends = join_all(callers).await;
    let count = |end| ends.iter().filter(|it| **it == end).count();
    assert_eq!([0, 1_001, 2_002].map(|at_ms| count((true, at_ms))), [10; 3]);
    // Those beyond the longest queue at once, and the others when the store denies the first of them for too long.
    assert_eq!(count((false, 0)) + count((false, 2_002)), 19_970);
    assert!(store.asked_ms().len() < 100, "{:?}", store.asked_ms());
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
            let limiter = store.limiter();
            let callers = patience.iter().enumerate().map(async |(caller, most)| {
                let cost = 1 + (caller as u64) % 2;
                let decision = limiter.acquire(calls(rules, cost), *most).await.unwrap();
                decision.is_allowed().then(|| store.now_ms())
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
    let limiter = store.limiter();
    let callers = (0..1_000).map(|_| limiter.acquire(calls("5000/1s", 1), ms(200)));
    assert!(all_admitted(callers).await);
    // One caller asks first, and then 256 at the same time.
    assert_eq!(store.now_ms(), 50);
}

#[tokio::test(start_paused = true)]
async fn a_block_is_waited_out_to_the_millisecond_where_the_limiter_says_so_and_it_ends_in_time() {
    let block = || Until::from(ms(5_000));
    for (waits, until, most_ms, unblocked_after, expected) in [
        (true, block(), 5_000, LONG, (true, 5_000)),
        (true, block(), 4_999, LONG, (false, 0)),
        (true, block(), 5_000, ms(700), (true, 700)),
        (true, Until::Forever, 5_000, LONG, (false, 0)),
        (false, block(), 5_000, LONG, (false, 0)),
    ] {
        let store = Timed::new();
        let limiter = store.limiter().wait_for_blocks(waits);
        limiter.block(&ours(), until).await.unwrap();
        let waiting = async {
            let decision = limiter.acquire(calls("9/1s", 1), ms(most_ms)).await;
            (decision.unwrap().is_allowed(), store.now_ms())
        };
        let unblocking = async {
            sleep(unblocked_after).await;
            limiter.unblock(&ours()).await.unwrap();
        };
        assert_eq!(tokio::join!(waiting, unblocking).0, expected);
    }
}

// Units that are given back

/// The time in ms at which a caller that waits for all units of `2/10s` is admitted, and the times of the store's
/// calls.
async fn admitted_after(change: impl AsyncFnOnce(&Limiter, &Usage)) -> (u128, Vec<u128>) {
    let store = Timed::new();
    let limiter = store.limiter();
    let all = || limiter.acquire(calls("2/10s@exact", 2), LONG);
    let first = all().await.unwrap();
    let waiting = async {
        assert!(all().await.unwrap().is_allowed());
        store.now_ms()
    };
    let changing = async {
        sleep(ms(300)).await;
        change(&limiter, first.usage()).await;
    };
    let (admitted_ms, ()) = tokio::join!(waiting, changing);
    (admitted_ms, store.asked_ms())
}

#[tokio::test(start_paused = true)]
async fn a_reset_and_a_settlement_that_gives_back_are_heard_at_once() {
    let heard = (300, vec![0, 0, 300]);
    let by_reset =
        async |limiter: &Limiter, _: &Usage| reset(limiter, calls("2/10s@exact", 0)).await;
    // Only the name of the policy counts, and clones share the queues.
    let by_clone = async |limiter: &Limiter, _: &Usage| {
        let clone = limiter.clone().on_failure(FailurePolicy::Closed);
        reset(&clone, calls("7/1m", 0)).await;
    };
    let by_settlement = async |limiter: &Limiter, usage: &Usage| {
        limiter.settle(usage, |_| 0).await.unwrap();
    };
    assert_eq!(admitted_after(by_reset).await, heard);
    assert_eq!(admitted_after(by_clone).await, heard);
    assert_eq!(admitted_after(by_settlement).await, heard);
}

#[tokio::test(start_paused = true)]
async fn only_a_refund_of_the_policy_and_key_wakes_a_caller() {
    let more = async |limiter: &Limiter, usage: &Usage| {
        limiter.settle(usage, |_| 3).await.unwrap();
    };
    let other_key = async |limiter: &Limiter, _: &Usage| {
        let policy = policy("their-api", "2/10s@exact");
        limiter.reset(&policy, &user("other")).await.unwrap();
    };
    let other_policy = async |limiter: &Limiter, _: &Usage| {
        let policy = policy("other", "2/10s@exact");
        limiter.reset(&policy, &ours()).await.unwrap();
    };
    let every_two = [0, 0, 2_000, 4_000, 6_000, 8_000, 10_000];
    let asked_until = |last_ms| (last_ms, [&every_two[..], &[last_ms]].concat());
    // Further units count from the settlement on.
    assert_eq!(admitted_after(more).await, asked_until(10_301));
    assert_eq!(admitted_after(other_key).await, asked_until(10_001));
    assert_eq!(admitted_after(other_policy).await, asked_until(10_001));
}

#[tokio::test(start_paused = true)]
async fn callers_notice_a_reset_by_others_within_two_seconds() {
    let store = Timed::new();
    let [limiter, elsewhere] = [(); 2].map(|()| store.limiter());
    let all = || limiter.acquire(calls("2/1h", 2), LONG * 120);
    assert!(all().await.unwrap().is_allowed());
    let resetting = async {
        sleep(ms(4_500)).await;
        reset(&elsewhere, calls("2/1h", 2)).await;
    };
    assert!(tokio::join!(all(), resetting).0.unwrap().is_allowed());
    assert_eq!(store.now_ms(), 6_000);
    assert_eq!(store.asked_ms(), [0, 0, 2_000, 4_000, 6_000]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_under_a_raised_limit_does_not_wait_behind_one_under_the_old() {
    let store = Timed::new();
    let limiter = store.limiter();
    let at = async |rules, delay| {
        sleep(ms(delay)).await;
        let decision = limiter.acquire(calls(rules, 1), LONG).await.unwrap();
        decision.is_allowed().then(|| store.now_ms())
    };
    admitted_ms(&limiter, &store, 2, LONG).await;
    let old = at("2/1s@exact", 0);
    let times = tokio::join!(old, at("4/1s@exact", 100), at("4/1s@exact", 200));
    // Both rules share the counts, so the old limit has room only after the units of the new one are released.
    assert_eq!(times, (Some(1_101), Some(100), Some(200)));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_is_admitted_when_the_response_of_another_gives_back() {
    let layer = support::layer(Timed::new().store)
        .limit(policy("their-api", "1/1h"), ours())
        // Long enough for the third request, even without refunds.
        .max_wait(LONG * 240)
        .settle(|_, _| 0);
    let client = layer.layer(service_fn(async |request: Request<String>| {
        sleep(ms(40)).await;
        Ok::<_, Infallible>(Response::new(request.into_body()))
    }));
    let start = Instant::now();
    for response in join_all((0..3).map(|_| client.clone().oneshot(to("/")))).await {
        assert_eq!(response.unwrap().status(), 200);
    }
    assert_eq!(start.elapsed(), ms(120));
}

async fn get(layer: &RateLimitLayer) -> StatusCode {
    send(layer, to("/")).await.status()
}

#[tokio::test(start_paused = true)]
async fn a_layer_around_a_client_lets_requests_wait_and_answers_those_that_cannot() {
    let called = Arc::<Mutex<Vec<Instant>>>::default();
    let layer = support::layer(Timed::new().store)
        .limit(policy("their-api", "2/1s@exact"), ours())
        .max_wait(ms(1_500));
    let calls = called.clone();
    let client = layer.layer(answering(move |request| {
        calls.lock().unwrap().push(Instant::now());
        Response::new(request.into_body())
    }));
    let start = Instant::now();
    let responses = join_all((0..5).map(|_| client.clone().oneshot(to("/")))).await;
    let statuses = responses.into_iter().map(|it| it.unwrap().status());
    assert_eq!(statuses.collect::<Vec<_>>(), [200, 200, 200, 200, 429]);
    let called = called.lock().unwrap();
    let times: Vec<u128> = called.iter().map(|it| (*it - start).as_millis()).collect();
    assert_eq!(times, [0, 0, 1_001, 1_001]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_looked_up_waits_as_others_do_and_the_deadline_holds_for_the_look_up() {
    let client = |delay: Duration| {
        let look_up = move |_: &Parts| async move {
            sleep(delay).await;
            let [charge] = calls("2/1s@exact", 1);
            charge
        };
        let limiter = Timed::new().limiter().on_failure(FailurePolicy::Closed);
        let layer = support::layer(limiter).charge_async(look_up);
        layer.max_wait(LONG)
    };
    let (start, quick) = (Instant::now(), client(ms(50)));
    assert_eq!(join_all((0..3).map(|_| get(&quick))).await, [200; 3]);
    assert_eq!(start.elapsed(), ms(1_051));
    let start = Instant::now();
    assert_eq!(get(&client(ms(1_500))).await, 503);
    assert_eq!(start.elapsed(), ms(1_000));
}

#[tokio::test(start_paused = true)]
async fn a_shadow_is_decided_when_its_caller_is_admitted_and_makes_nobody_wait() {
    let store = Timed::new();
    let limiter = store.limiter();
    let shadow = policy("shadow", "1/1h@exact").shadow();
    let mut times = Vec::new();
    for _ in 0..3 {
        let charges = calls("2/1s@exact", 1).into_iter();
        let charges = charges.chain([Charge::new(&shadow, ours(), 1)]);
        let decision = limiter.acquire(charges, LONG).await.unwrap();
        assert!(decision.is_allowed());
        let shadow = decision.usage().shadow().unwrap();
        times.push((store.now_ms(), shadow.is_allowed()));
    }
    assert_eq!(times, [(0, true), (0, false), (1_001, false)]);
    // The third caller has to ask twice.
    assert_eq!(store.asked_ms(), [0, 0, 0, 1_001]);
}
