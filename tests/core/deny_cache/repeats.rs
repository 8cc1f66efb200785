//! Repeated refusals: the events that end them, and the reports about them.

use sluicegate::{Header, block::Ban};
use support::prelude::*;

/// Counts the checks that reach a memory store. Can let them fail or wait.
struct Site {
    limiter: Limiter,
    checks: Arc<AtomicU64>,
    fails: Arc<AtomicBool>,
    waits: Arc<AtomicBool>,
    answers: Arc<Notify>,
}

fn site() -> Site {
    let (memory, clock) = memory();
    let checks = Arc::<AtomicU64>::default();
    let [fails, waits] = [(); 2].map(|()| Arc::<AtomicBool>::default());
    let answers = Arc::<Notify>::default();
    let (count, failing) = (checks.clone(), fails.clone());
    let (waiting, held) = (waits.clone(), answers.clone());
    let store = Fated::new(memory, move |asked| {
        let is_check = matches!(asked, Asked::Check(_));
        count.fetch_add(u64::from(is_check), SeqCst);
        match (is_check, waiting.load(SeqCst)) {
            (true, _) if failing.load(SeqCst) => Fate::unavailable(),
            (true, true) => Fate::Held(held.clone()),
            (false, true) => Fate::Late(HOUR),
            _ => Fate::Answered,
        }
    });
    let limiter = cached(store, &clock);
    Site {
        limiter,
        checks,
        fails,
        waits,
        answers,
    }
}

fn cached(store: impl Store, clock: &ManualClock) -> Limiter {
    let limiter = support::limiter(store).cache_denials(true);
    limiter.denial_clock(clock.clone())
}

impl Site {
    async fn check(&self, charges: &[Charge]) -> Decision {
        self.limiter.check(charges.to_vec()).await.unwrap()
    }

    /// Lets the store admit once and deny once.
    async fn exhaust(&self, charges: &[Charge]) -> Decision {
        let admitted = self.check(charges).await;
        assert!(admitted.is_allowed());
        assert!(!is_cached(&self.check(charges).await));
        assert!(is_cached(&self.check(charges).await));
        admitted
    }
}

/// Whether a refusal was repeated.
fn is_cached(decision: &Decision) -> bool {
    assert!(!decision.is_allowed());
    decision.usage().is_cached()
}

#[test]
fn each_row_about_a_cache_of_denials_holds() {
    hold(ROWS, |store, clock| cached(store.clone(), clock));
}

const ROWS: &str = "
A denial of weeks ends with a raised limit, with the second and with its period
 # The cache promises one second, however long the denial.
 small = quota 1/month@UTC; large = quota 2/month@UTC; small alice 1; small alice 1 !; small alice 1 !~; @999
 small alice 1 !1382399001~; @1s; small alice 1 !; small alice 1 !~; large alice 1
 # Units that come back elsewhere are seen after a second, and no denial outlasts the period.
 elsewhere reset small alice; small alice 1 !~; @2s; small alice 1; @2023-11-30T23:59:59.998Z
 small alice 1 !2; +1; small alice 1 !1; +1; small alice 1
A denial is repeated for a second and ages
 p = 5/200ms@exact,1/1h@exact; p alice 1; p alice 1 !3600001 = 4/201 0/3600001
 +1; p alice 1 !3600000~ = 4/200 0/3600000; +199; p alice 1 !3599801~ = 4/1 0/3599801
 +1; p alice 1 !3599800~ = 5/0 0/3599800; @999; p alice 1 !3599002~ = 5/0 0/3599002; @1s; p alice 1 !3599001
A rule that would admit by now denies no longer
 p = 1/100ms@exact,1/1h@exact; p alice 1; p alice 1 !; p alice 1 !~ = 0/101 0/3600001
 @100; p alice 1 !3599901~ = 0/1 0/3599901; @101; p alice 1 !3599900~ = 1/0 0/3599900
A cost that never fits is repeated as never fitting
 p = 1/1s; p alice 2 !never; p alice 2 !never~; @1s; p alice 2 !never
Looks are answered by the store
 p = 1/1h; x: p alice 1; p alice 1 !; p alice 1 !~; settle x 3; 3* p alice = 0
Errors are not remembered
 p = 1/1h; down; 2* p alice 1 !error; up; p alice 1; p alice 1 !; p alice 1 !~; down; p alice 1 !~
 @1s; p alice 1 !error
A settlement that gives back is seen at once
 p = 1/1h; x: p alice 1; p alice 1 !; p alice 1 !~; settle x 0; p alice 1
A reset is seen at once
 p = 1/1h; p alice 1; p alice 1 !; p alice 1 !~; reset p alice; p alice 1
A settlement that gives nothing back ends nothing
 p = 1/1h; x: p alice 1; p alice 1 !; settle x 1; p alice 1 !~; y: p bob 1; p bob 1 !; settle y 7; p bob 1 !~
What is given back to others or to what fits ends nothing
 # Many callers settle a shared limit. Only refunds to the denying limit matter.
 p = 1/1h; all = 100/1h; p alice 1 & all all 1; p alice 1 & all all 1 !; x: p bob 1 & all all 1; settle x 0
 p alice 1 & all all 1 !~
Blocked identities are refused until their block ends
 p = 9/1h; block alice 500; p alice 1 !operator:500; @498; p alice 1 !operator:2~; @499; p alice 1 !operator:1
 # An extension takes effect at once, and so does the end of all blocks.
 block alice forever; p alice 1 !operator:never; p alice 1 !operator:never~; unblock alice; p alice 1
A block is told at once where a limit has denied
 p = 1/1h; p alice 1; p alice 1 !; p alice 1 !~; block alice forever; p alice 1 !operator:never
A denial for want of a slot is repeated for at most 100 ms
 # Another process returns a slot in the same millisecond.
 e = 1/30s@concurrent; elsewhere x: e alice 1; e alice 1 !; return x; @98; e alice 1 !~; @100; e alice 1
A denial for want of a slot beside a rate is repeated for at most 100 ms
 rate = 9/1m; e = 1/30s@concurrent; elsewhere x: rate alice 1 & e alice 1; rate alice 1 & e alice 1 !; return x
 @98; rate alice 1 & e alice 1 !~; @100; rate alice 1 & e alice 1
A denial is not repeated when a slot has expired
 e = 1/30s@concurrent; elsewhere e alice 1; e alice 1 !30s; @29960; e alice 1 !40; @29998; e alice 1 !2~; @30s; e alice 1
A denial by a rate beside a missing slot is repeated as long as the rate denies
 rate = 1/1m; e = 1/30s@concurrent; elsewhere rate alice 1 & e alice 1; rate alice 1 & e alice 1 !
 @998; rate alice 1 & e alice 1 !~; @1s; rate alice 1 & e alice 1 !
";

/// A clone that repeats no denials itself.
#[tokio::test]
async fn a_reset_by_a_clone_is_seen_at_once() {
    let (site, api) = (site(), policy("api", "1/1h"));
    site.exhaust(&[charge(&api, "alice", 1)]).await;
    let clone = site.limiter.clone().cache_denials(false);
    clone.reset(&api, &user("alice")).await.unwrap();
    assert!(admits(&site.limiter, &api, "alice", 1).await);
}

#[tokio::test]
async fn only_the_same_charges_are_refused() {
    let site = site();
    let api = policy("api", "1/1h");
    site.exhaust(&[charge(&api, "alice", 1)]).await;
    let others = [
        vec![charge(&api, "bob", 1)],
        vec![Charge::new(&api, Key::secret("user", "alice"), 1)],
        vec![charge(&api, "alice", 2)],
        vec![charge(&policy("other", "1/1h"), "alice", 1)],
        vec![charge(&policy("api", "2/1h"), "alice", 1)],
        vec![charge(&api, "alice", 1), charge(&api, "bob", 1)],
    ];
    for other in others {
        let decision = site.check(&other).await;
        assert!(!decision.usage().is_cached(), "{other:?}");
    }
    let unblocked = site.limiter.clone().enforce_blocks(false);
    let decision = unblocked.check([charge(&api, "alice", 1)]).await.unwrap();
    assert!(!decision.usage().is_cached());
    // These checks differ in parts that cannot change the decision.
    let alike = [
        vec![charge(&api, "alice", 1).with_contributor(user("carol"))],
        vec![
            charge(&api, "alice", 1),
            charge(&policy("s", "9/1h").shadow(), "alice", 1),
        ],
        vec![charge(&policy("api", "1/1h"), "alice", 1)],
    ];
    for alike in alike {
        let decision = site.check(&alike).await;
        assert!(is_cached(&decision));
        let counting = alike.iter().filter(|it| !it.policy().is_shadow());
        assert!(decision.usage().check().charges().iter().eq(counting));
    }
}

/// The store has executed the reset, and the caller did not wait for the answer.
#[tokio::test]
async fn a_reset_whose_caller_has_left_is_seen_at_once() {
    let site = site();
    let api = policy("api", "1/1h");
    let alice = vec![charge(&api, "alice", 1)];
    site.exhaust(&alice).await;
    site.waits.store(true, SeqCst);
    {
        let key = user("alice");
        let reset = site.limiter.reset(&api, &key);
        assert!(reset.now_or_never().is_none());
    }
    site.waits.store(false, SeqCst);
    assert!(site.check(&alice).await.is_allowed());
}

#[tokio::test]
async fn a_denial_that_was_on_its_way_when_something_was_given_back_is_not_remembered() {
    let site = site();
    let api = policy("api", "1/1h");
    let alice = vec![charge(&api, "alice", 1)];
    assert!(site.check(&alice).await.is_allowed());
    site.waits.store(true, SeqCst);
    let limiter = site.limiter.clone();
    let denied = tokio::spawn(async move { limiter.check(alice).await });
    yield_now().await;
    site.waits.store(false, SeqCst);
    site.limiter.reset(&api, &user("alice")).await.unwrap();
    site.answers.notify_one();
    assert!(!is_cached(&denied.await.unwrap().unwrap()));
    let alice = vec![charge(&api, "alice", 1)];
    assert!(site.check(&alice).await.is_allowed());
}

#[tokio::test]
async fn a_denial_from_before_a_refund_reached_the_store_is_not_repeated_after_it() {
    let ((memory, clock), arrives) = (memory(), Arc::<Notify>::default());
    let travels = arrives.clone();
    let store = Fated::new(memory, move |asked| match asked {
        Asked::Execute(Operation::Settle(_)) => Fate::Delayed(travels.clone()),
        _ => Fate::Answered,
    });
    let (limiter, api) = (cached(store, &clock), policy("api", "1/1h"));
    let admitted = check(&limiter, &api, "alice", 1).await;
    let mut refund = pin!(limiter.settle(admitted.usage(), |_| 0));
    assert!(poll!(&mut refund).is_pending());
    assert!(!is_cached(&check(&limiter, &api, "alice", 1).await));
    arrives.notify_one();
    refund.await.unwrap();
    assert!(admits(&limiter, &api, "alice", 1).await);
}

#[tokio::test]
async fn denials_that_take_much_room_are_not_remembered() {
    let site = site();
    let api = policy("api", "1/1h");
    let big = [
        vec![charge(&api, &"a".repeat(1_025), 1)],
        (0..17).map(|it| charge(&api, &it.to_string(), 1)).collect(),
    ];
    for big in big {
        assert!(site.check(&big).await.is_allowed());
        for _ in 0..2 {
            assert!(!is_cached(&site.check(&big).await));
        }
    }
}

#[tokio::test]
async fn observers_are_told_and_bans_count_each_refusal() {
    let site = site();
    let told = Log::of(|event| match event {
        Event::Decision { decision, .. } => Some(format!("cached {}", decision.is_cached())),
        Event::Completion { local, .. } => Some(format!("local {local}")),
        _ => None,
    });
    let limiter = site.limiter.clone().observer(told.clone());
    let ban: Ban = "4/10m=1h".parse().unwrap();
    let api = policy("api", "1/1h").ban(ban);
    for _ in 0..5 {
        let decision = check(&limiter, &api, "alice", 1).await;
        assert!(!is_blocked(&decision));
        limiter.strikes_counted().await;
    }
    for _ in 0..2 {
        let decision = check(&limiter, &api, "alice", 1).await;
        assert!(is_blocked(&decision));
    }
    let (decisions, completions): (Vec<_>, Vec<_>) = told
        .take()
        .into_iter()
        .partition(|it| it.starts_with("cached"));
    let repeated = decisions.iter().map(|it| it == "cached true");
    assert!(repeated.eq([false, false, true, true, true]));
    assert_eq!(completions, ["local false", "local true"]);
}

#[tokio::test]
async fn a_repeated_refusal_does_not_close_the_breaker() {
    let site = site();
    // The breaker counts one failure in each half of the timeout.
    let limiter = site.limiter.clone().timeout(Duration::from_nanos(1));
    let api = policy("api", "1/1h");
    site.exhaust(&[charge(&api, "alice", 1)]).await;
    site.fails.store(true, SeqCst);
    for _ in 0..5 {
        assert!(!admits(&limiter, &api, "alice", 1).await);
        assert!(limiter.check([charge(&api, "bob", 1)]).await.is_err());
    }
    let error = limiter.check([charge(&api, "bob", 1)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CircuitOpen);
    // The store would still deny the checks of a moment ago.
    let denied = check(&limiter, &api, "alice", 1).await;
    assert!(is_cached(&denied));
}

#[tokio::test(start_paused = true)]
async fn who_waits_hears_what_is_given_back_and_is_admitted_in_time() {
    let limiter = support::limiter(MemoryStore::new()).cache_denials(true);
    let api = policy("api", "1/1h");
    let alice = || [charge(&api, "alice", 1)];
    for _ in 0..3 {
        drop(limiter.check(alice()).await.unwrap());
    }
    let waiting = limiter.acquire(alice(), Duration::from_secs(7_200));
    let reset = async {
        sleep(ms(300)).await;
        limiter.reset(&api, &user("alice")).await.unwrap();
    };
    let start = Instant::now();
    let (admitted, ()) = tokio::join!(waiting, reset);
    assert!(admitted.unwrap().is_allowed());
    assert!(start.elapsed() < ms(310));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_at_once_are_admitted_no_more_and_no_less() {
    let site = Arc::new(site());
    let limiter = site.limiter.clone();
    let api = policy("api", "5/1h");
    for round in 1..=20 {
        let tasks = (0..64).map(|_| {
            let (limiter, charges) = (limiter.clone(), [charge(&api, "alice", 1)]);
            tokio::spawn(async move { limiter.try_acquire(charges).await })
        });
        let mut admitted = 0;
        for task in tasks.collect::<Vec<_>>() {
            admitted += usize::from(task.await.unwrap());
        }
        assert_eq!(admitted, 5, "{round}");
        limiter.reset(&api, &user("alice")).await.unwrap();
    }
    assert!(site.checks.load(SeqCst) < 20 * 64);
}

#[tokio::test]
async fn an_address_with_ever_new_keys_is_refused_without_a_call_by_a_layer_of_its_own() {
    let site = site();
    let address = user("203.0.113.7");
    let by_key =
        support::layer(site.limiter.clone()).limit(policy("key", "9/1m"), Header::new("x-api-key"));
    let by_address = support::layer(site.limiter.clone()).limit(policy("ip", "1/1h"), address);
    let service = by_address.layer(by_key.layer(hello()));
    for (key, status, checks) in [("a", 200, 2), ("b", 429, 3), ("c", 429, 3), ("d", 429, 3)] {
        let request = Request::get("/").header("x-api-key", key);
        let request = request.body(String::new()).unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "{key}");
        assert_eq!(site.checks.load(SeqCst), checks, "{key}");
    }
}
