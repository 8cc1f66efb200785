//! A failing store is called once in each interval. All requests call it again after the first answer.

use support::prelude::*;

const TIMEOUT: Duration = ms(100);
const SHORTEST: Duration = ms(125);
const LONGEST: Duration = ms(375);

fn charge() -> [Charge; 1] {
    let policy = policy("api", "1000/1d");
    [Charge::new(&policy, user("alice"), 1)]
}

/// Whether a store is up, and the store, which does not answer while it is down.
fn silent() -> (Arc<AtomicBool>, Arc<Scripted>) {
    let health = Arc::<AtomicBool>::default();
    let is_up = health.clone();
    let store = Scripted::new(move |check| match is_up.load(SeqCst) {
        true => StoreFuture::ready(allowed(check)),
        false => StoreFuture::pending(pending()),
    });
    (health, store)
}

async fn kind(limiter: &Limiter) -> Option<StoreErrorKind> {
    kind_of(limiter.check(charge()).await)
}

/// Five failures in a row open the breaker.
async fn assert_opens(limiter: &Limiter) {
    for _ in 0..5 {
        assert_eq!(kind(limiter).await, Some(StoreErrorKind::Timeout));
    }
    assert_eq!(kind(limiter).await, Some(StoreErrorKind::CircuitOpen));
}

/// Asks once a millisecond until there is a decision. Returns the time that this took.
async fn recovers(limiter: &Limiter) -> Duration {
    let start = Instant::now();
    let decides = async || limiter.check(charge()).await.is_ok();
    until(decides, async || sleep(ms(1)).await).await;
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn after_five_failures_in_a_row_one_probe_waits_each_interval_and_all_others_fail_at_once() {
    let (_, store) = silent();
    let limiter = support::limiter(store.clone());
    for _ in 0..5 {
        assert_eq!(kind(&limiter).await, Some(StoreErrorKind::Timeout));
    }
    let start = Instant::now();
    let (mut probes, mut others) = (0_u32, 0_u32);
    while start.elapsed() < Duration::from_secs(10) {
        let asked = Instant::now();
        match kind(&limiter).await.unwrap() {
            StoreErrorKind::Timeout => {
                assert_eq!(asked.elapsed(), TIMEOUT);
                probes += 1;
            }
            StoreErrorKind::CircuitOpen => {
                assert_eq!(asked.elapsed(), Duration::ZERO);
                others += 1;
                advance(ms(1)).await;
            }
            other => panic!("{other:?}"),
        }
    }
    // The interval between two probes is 125 to 375 ms.
    assert!((26..=80).contains(&probes), "{probes}");
    assert!(others > 1_000, "{others}");
    assert_eq!(store.checks().len(), 5 + probes as usize);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_decision_keeps_it_closed_too() {
    let limiter = support::limiter(Fated::new(MemoryStore::new(), |asked| match asked {
        Asked::Execute(Operation::Reset { .. }) => Fate::Answered,
        _ => Fate::Hangs,
    }));
    let [charge] = charge();
    for _ in 0..10 {
        for _ in 0..4 {
            assert_eq!(kind(&limiter).await, Some(StoreErrorKind::Timeout));
        }
        let reset = limiter.reset(charge.policy(), charge.key());
        reset.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn callers_who_wait_in_vain_while_others_are_answered_do_not_open_it() {
    let (health, store) = silent();
    let answers_late = health.clone();
    let store = Scripted::new(move |check| {
        let (decision, answer) = (allowed(check), store.check(check));
        match answers_late.swap(false, SeqCst) {
            true => StoreFuture::pending(async {
                sleep(TIMEOUT / 2).await;
                decision
            }),
            false => answer,
        }
    });
    let limiter = support::limiter(store);
    for _ in 0..9 {
        health.store(true, SeqCst);
        let all = join_all((0..20).map(|_| kind(&limiter))).await;
        let late = |it: &&Option<StoreErrorKind>| **it == Some(StoreErrorKind::Timeout);
        assert_eq!(all.iter().filter(late).count(), 19);
    }
    // A store that answers none of several simultaneous callers has failed.
    for _ in 0..5 {
        join_all((0..20).map(|_| kind(&limiter))).await;
    }
    assert_eq!(kind(&limiter).await, Some(StoreErrorKind::CircuitOpen));
}

#[tokio::test(start_paused = true)]
async fn failures_count_once_in_each_half_timeout() {
    let store = Scripted::new(|_| StoreFuture::ready(Err(unavailable())));
    let limiter = support::limiter(store).timeout(TIMEOUT);
    let start = Instant::now();
    let is_open = async || kind(&limiter).await == Some(StoreErrorKind::CircuitOpen);
    until(is_open, async || advance(ms(1)).await).await;
    // The first counts at once, and the fifth opens it for the next caller.
    assert_eq!(start.elapsed(), 2 * TIMEOUT + ms(1));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_back_is_asked_by_all_again_after_one_probe() {
    for _ in 0..20 {
        let (health, store) = silent();
        let limiter = support::limiter(store);
        assert_opens(&limiter).await;
        health.store(true, SeqCst);
        let time = recovers(&limiter).await;
        assert!((SHORTEST..=LONGEST + ms(1)).contains(&time), "{time:?}");
        for _ in 0..20 {
            assert_eq!(kind(&limiter).await, None);
        }
        // After that, five failures open the breaker again.
        health.store(false, SeqCst);
        assert_opens(&limiter).await;
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_that_lost_the_store_together_do_not_come_back_together() {
    let (health, store) = silent();
    let replicas: Vec<Limiter> = (0..40).map(|_| support::limiter(store.clone())).collect();
    for _ in 0..5 {
        join_all(replicas.iter().map(kind)).await;
    }
    health.store(true, SeqCst);
    let mut times = join_all(replicas.iter().map(recovers)).await;
    times.sort();
    // Forty random times within 250 ms: spread over more than half of that, with few at the same time.
    assert!(times[39] - times[0] > ms(125), "{times:?}");
    times.dedup();
    assert!(times.len() > 20, "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn callers_who_go_away_do_not_count_as_failures_and_do_not_keep_the_probe() {
    let (health, store) = silent();
    let limiter = support::limiter(store);
    let hang_up = || async {
        let left = timeout(ms(50), limiter.check(charge())).await;
        left.unwrap_err();
    };
    for _ in 0..50 {
        hang_up().await;
    }
    for _ in 0..5 {
        assert_eq!(kind(&limiter).await, Some(StoreErrorKind::Timeout));
    }
    advance(LONGEST).await;
    hang_up().await;
    assert_eq!(kind(&limiter).await, Some(StoreErrorKind::CircuitOpen));
    health.store(true, SeqCst);
    assert!(recovers(&limiter).await <= LONGEST);
}

#[tokio::test(start_paused = true)]
async fn calls_from_before_a_switch_change_nothing_after_it() {
    let (health, store) = silent();
    let limiter = support::limiter(store).timeout(Duration::from_secs(10));
    let early = [(); 4].map(|()| {
        let limiter = limiter.clone();
        tokio::spawn(async move { kind(&limiter).await })
    });
    sleep(Duration::from_secs(9)).await;
    let hasty = limiter.clone().timeout(TIMEOUT);
    for _ in 0..5 {
        hasty.check(charge()).await.unwrap_err();
    }
    health.store(true, SeqCst);
    recovers(&hasty).await;
    for failure in early {
        assert_eq!(failure.await.unwrap(), Some(StoreErrorKind::Timeout));
    }
    // This would be the fifth failure, if the early ones counted.
    health.store(false, SeqCst);
    assert_eq!(kind(&hasty).await, Some(StoreErrorKind::Timeout));
    health.store(true, SeqCst);
    assert_eq!(kind(&hasty).await, None);
}

#[tokio::test(start_paused = true)]
async fn lost_waits_open_it_and_answers_do_not_whatever_they_say() {
    for (failure, opens) in [
        (StoreErrorKind::Timeout, true),
        (StoreErrorKind::Unavailable, true),
        (StoreErrorKind::Refused, false),
        (StoreErrorKind::AccessDenied, false),
        (StoreErrorKind::Full, false),
        (StoreErrorKind::Protocol, false),
        (StoreErrorKind::InvalidRequest, false),
    ] {
        let store =
            Scripted::new(move |_| StoreFuture::ready(Err(StoreError::new(failure, "told to"))));
        let limiter = support::limiter(store);
        for _ in 0..5 {
            assert_eq!(kind(&limiter).await, Some(failure));
            advance(TIMEOUT / 2).await;
        }
        let expected = [failure, StoreErrorKind::CircuitOpen][usize::from(opens)];
        assert_eq!(kind(&limiter).await, Some(expected), "{failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_between_two_lost_waits_is_an_answer_and_closes_an_open_one() {
    for kind in [StoreErrorKind::Refused, StoreErrorKind::AccessDenied] {
        let answers = Arc::new(AtomicBool::new(false));
        let store = Scripted::new({
            let answers = answers.clone();
            move |_| match answers.load(SeqCst) {
                true => StoreFuture::ready(Err(StoreError::new(kind, "told to"))),
                false => StoreFuture::pending(pending()),
            }
        });
        let limiter = support::limiter(store);
        for _ in 0..9 {
            for _ in 0..4 {
                assert_eq!(self::kind(&limiter).await, Some(StoreErrorKind::Timeout));
            }
            answers.store(true, SeqCst);
            assert_eq!(self::kind(&limiter).await, Some(kind));
            answers.store(false, SeqCst);
        }
        assert_opens(&limiter).await;
        answers.store(true, SeqCst);
        advance(LONGEST).await;
        for _ in 0..20 {
            assert_eq!(self::kind(&limiter).await, Some(kind));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn all_calls_of_a_limiter_and_its_clones_go_through_one_breaker() {
    let (health, store) = silent();
    let limiter = support::limiter(store);
    let clone = limiter.clone().on_failure(FailurePolicy::Closed);
    health.store(true, SeqCst);
    let usage = limiter.check(charge()).await.unwrap().usage().clone();
    health.store(false, SeqCst);
    for _ in 0..2 {
        limiter.check(charge()).await.unwrap_err();
        clone.peek(charge()).await.unwrap_err();
    }
    assert!(!clone.try_acquire(charge()).await);
    let start = Instant::now();
    let [one] = charge();
    for kind in [
        kind_of(limiter.check(charge()).await),
        kind_of(limiter.peek(charge()).await),
        kind_of(limiter.settle(&usage, |_| 0).await),
        kind_of(limiter.reset(one.policy(), one.key()).await),
        kind_of(clone.acquire(charge(), Duration::ZERO).await),
    ] {
        assert_eq!(kind, Some(StoreErrorKind::CircuitOpen));
    }
    assert!(limiter.try_acquire(charge()).await);
    assert!(!clone.try_acquire(charge()).await);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_the_breaker_kept_back_can_be_made_later() {
    let (health, store) = silent();
    let limiter = support::limiter(store);
    health.store(true, SeqCst);
    let settled_late = limiter.check(charge()).await.unwrap().usage().clone();
    let lost = limiter.check(charge()).await.unwrap().usage().clone();
    health.store(false, SeqCst);
    // The store may have executed a settlement that was sent.
    let error = limiter.settle(&lost, |_| 0).await.unwrap_err();
    assert!(!error.is_unsent(), "{error}");
    let error = limiter.settle(&lost, |_| 0).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidRequest);
    for _ in 0..4 {
        limiter.check(charge()).await.unwrap_err();
    }
    for _ in 0..2 {
        let error = limiter.settle(&settled_late, |_| 0).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::CircuitOpen);
        assert!(error.is_unsent());
    }
}

#[tokio::test(start_paused = true)]
async fn with_an_interval_of_zero_every_request_asks() {
    let store = Scripted::new(|_| StoreFuture::ready(Err(unavailable())));
    let limiter = support::limiter(store.clone()).probe_interval(Duration::ZERO);
    for _ in 0..100 {
        assert_eq!(kind(&limiter).await, Some(StoreErrorKind::Unavailable));
    }
    assert_eq!(store.checks().len(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_given_up_under_a_timeout_that_the_timer_is_coarse_for() {
    for timeout_us in [1_000, 2_000, 3_000] {
        let (_, store) = silent();
        let limiter = support::limiter(store).timeout(Duration::from_micros(timeout_us));
        // The timer counts whole milliseconds, and this wait begins between two of them.
        advance(Duration::from_micros(100)).await;
        for _ in 0..9 {
            let _ = kind(&limiter).await;
            advance(Duration::from_micros(100)).await;
        }
        let last = kind(&limiter).await;
        assert_eq!(last, Some(StoreErrorKind::CircuitOpen), "{timeout_us} us");
    }
}
