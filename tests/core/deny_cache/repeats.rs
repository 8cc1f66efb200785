//! Repeated refusals: the events that end them, and the reports about them.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::FutureExt;
use http::{Request, Response};
use sluicegate::{
    Charge, Decision, Denial, Header, Key, Limiter, MemoryStore, Policy, RateLimitLayer, Store,
    StoreError,
    block::{Ban, Until},
    error::StoreErrorKind,
    manual_clock::ManualClock,
    observe::{Event, Observer},
    store::{Check, Operation, Reply, StoreExt, StoreFuture},
};
use tokio::sync::Notify;
use tower::{Layer, ServiceExt, service_fn};

const START_MS: u64 = 1_700_006_400_000;

/// Counts the checks that reach a memory store. Can let them fail or wait.
#[derive(Clone, Debug)]
struct Counting {
    store: MemoryStore,
    checks: Arc<AtomicU64>,
    fails: Arc<AtomicBool>,
    waits: Arc<AtomicBool>,
    answers: Arc<Notify>,
}

impl Counting {
    fn checks(&self) -> u64 {
        self.checks.load(Relaxed)
    }
}

impl Store for Counting {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.checks.fetch_add(1, Relaxed);
        if self.fails.load(Relaxed) {
            let error = StoreError::new(StoreErrorKind::Unavailable, "told to fail");
            return StoreFuture::ready(Err(error));
        }
        let answer = self.store.check(check);
        if !self.waits.load(Relaxed) {
            return answer;
        }
        let answers = Arc::clone(&self.answers);
        StoreFuture::pending(async move {
            answers.notified().await;
            answer.await
        })
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        let answer = self.store.execute(operation);
        match self.waits.load(Relaxed) {
            true => StoreFuture::pending(std::future::pending()),
            false => answer,
        }
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }
}

struct Site {
    limiter: Limiter,
    store: Counting,
    clock: ManualClock,
}

fn site() -> Site {
    let clock = ManualClock::new(START_MS);
    let store = Counting {
        store: MemoryStore::new().clock(clock.clone()),
        checks: Arc::default(),
        fails: Arc::default(),
        waits: Arc::default(),
        answers: Arc::default(),
    };
    Site {
        limiter: cached(store.clone(), &clock),
        store,
        clock,
    }
}

fn cached(store: Counting, clock: &ManualClock) -> Limiter {
    let limiter = Limiter::new(store).cache_denials(true);
    limiter.denial_clock(clock.clone())
}

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

fn user(name: &str) -> Key {
    Key::new("user", name)
}

fn charge(policy: &Policy, key: &str) -> Charge {
    Charge::new(policy, user(key), 1)
}

fn check(charges: impl IntoIterator<Item = Charge>) -> Vec<Charge> {
    charges.into_iter().collect()
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

    fn advance_ms(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }
}

/// Whether a refusal was repeated.
fn is_cached(decision: &Decision) -> bool {
    assert!(!decision.is_allowed());
    decision.usage().is_cached()
}

fn denial(decision: &Decision) -> &Denial {
    match decision {
        Decision::Denied(denial) => denial,
        other => panic!("not denied: {other:?}"),
    }
}

/// The cache promises one second, however long the denial.
#[tokio::test]
async fn a_denial_of_weeks_ends_with_a_raised_limit_with_the_second_and_with_its_period() {
    let site = site();
    let small = check([charge(&policy("quota", "1/month@UTC"), "alice")]);
    let large = check([charge(&policy("quota", "2/month@UTC"), "alice")]);
    let end_ms = 1_701_388_800_000; // 2023-12-01, 16 days later
    site.exhaust(&small).await;
    let retry_after_ms = |decision: &Decision| denial(decision).retry_after().unwrap().as_millis();
    site.advance_ms(999);
    let repeated = site.check(&small).await;
    assert!(is_cached(&repeated));
    assert_eq!(
        retry_after_ms(&repeated),
        u128::from(end_ms - START_MS - 999)
    );
    site.advance_ms(1);
    assert!(!is_cached(&site.check(&small).await), "the second is over");
    // A raised limit is another policy: this cache asks the store at once, and so does another cache.
    assert!(is_cached(&site.check(&small).await));
    assert!(site.check(&large).await.is_allowed());
    let elsewhere = cached(site.store.clone(), &site.clock);
    assert!(!is_cached(&elsewhere.check(large).await.unwrap()));
    // Units that come back elsewhere are seen after a second.
    let key = user("alice");
    site.store.reset(small[0].policy(), &key).await.unwrap();
    assert!(is_cached(&site.check(&small).await));
    site.advance_ms(1_000);
    assert!(site.check(&small).await.is_allowed());
    // And no denial outlasts the period.
    site.clock.set(end_ms - 2);
    assert_eq!(retry_after_ms(&site.check(&small).await), 2);
    site.advance_ms(1);
    assert_eq!(retry_after_ms(&site.check(&small).await), 1);
    site.advance_ms(1);
    assert!(site.check(&small).await.is_allowed());
}

#[tokio::test]
async fn a_denial_is_repeated_for_a_second_and_ages() {
    let site = site();
    let check = check([charge(&policy("p", "5/200ms@exact,1/1h@exact"), "alice")]);
    assert!(site.check(&check).await.is_allowed());
    let first = site.check(&check).await;
    for age_ms in 1..1_000 {
        site.advance_ms(1);
        let decision = site.check(&check).await;
        assert!(is_cached(&decision));
        let retry_after = denial(&first).retry_after().unwrap() - Duration::from_millis(age_ms);
        assert_eq!(denial(&decision).retry_after(), Some(retry_after));
        let usage = decision.usage();
        assert_eq!(usage.decided_at_ms(), START_MS + age_ms);
        let left: Vec<_> = usage
            .rules()
            .map(|it| (it.remaining(), it.reset_after()))
            .collect();
        let short = match age_ms {
            201.. => (5, Duration::ZERO),
            _ => (4, Duration::from_millis(201 - age_ms)),
        };
        assert_eq!(left, [short, (0, retry_after)]);
    }
    assert_eq!(site.store.checks(), 2);
    site.advance_ms(1);
    assert!(!is_cached(&site.check(&check).await));
    assert_eq!(site.store.checks(), 3);
}

#[tokio::test]
async fn a_rule_that_would_admit_by_now_denies_no_longer() {
    let site = site();
    let check = check([charge(&policy("p", "1/100ms@exact,1/1h@exact"), "alice")]);
    site.exhaust(&check).await;
    for (at_ms, exceeded) in [(0, [true, true]), (100, [true, true]), (101, [false, true])] {
        site.clock.set(START_MS + at_ms);
        let decision = site.check(&check).await;
        assert!(is_cached(&decision));
        let rules = decision.usage().rules();
        assert_eq!(
            rules.map(|it| it.is_exceeded()).collect::<Vec<_>>(),
            exceeded
        );
        assert_eq!(denial(&decision).rule().rule().to_string(), "1/1h@exact");
    }
}

#[tokio::test]
async fn a_cost_that_never_fits_is_repeated_as_never_fitting() {
    let site = site();
    let check = check([Charge::new(&policy("p", "1/1s"), user("alice"), 2)]);
    assert!(!is_cached(&site.check(&check).await));
    let decision = site.check(&check).await;
    assert!(is_cached(&decision));
    assert_eq!(denial(&decision).retry_after(), None);
    site.advance_ms(1_000);
    assert!(!is_cached(&site.check(&check).await));
}

#[tokio::test]
async fn only_the_same_charges_are_refused() {
    let site = site();
    let api = policy("api", "1/1h");
    site.exhaust(&check([charge(&api, "alice")])).await;
    let others = [
        check([charge(&api, "bob")]),
        check([Charge::secret_twin(&api)]),
        check([Charge::new(&api, user("alice"), 2)]),
        check([charge(&policy("other", "1/1h"), "alice")]),
        check([charge(&policy("api", "2/1h"), "alice")]),
        check([charge(&api, "alice"), charge(&api, "bob")]),
    ];
    for other in others {
        let decision = site.check(&other).await;
        assert!(!decision.usage().is_cached(), "{other:?}");
    }
    let unblocked = site.limiter.clone().enforce_blocks(false);
    let decision = unblocked.check([charge(&api, "alice")]).await.unwrap();
    assert!(!decision.usage().is_cached());
    // These checks differ in parts that cannot change the decision.
    let alike = [
        check([charge(&api, "alice").with_contributor(user("carol"))]),
        check([
            charge(&api, "alice"),
            charge(&policy("s", "9/1h").shadow(), "alice"),
        ]),
        check([charge(&policy("api", "1/1h"), "alice")]),
    ];
    for alike in alike {
        let decision = site.check(&alike).await;
        assert!(is_cached(&decision));
        let counting = alike.iter().filter(|it| !it.policy().is_shadow());
        assert!(decision.usage().check().charges().iter().eq(counting));
    }
}

trait SecretTwin {
    fn secret_twin(policy: &Policy) -> Charge;
}

impl SecretTwin for Charge {
    fn secret_twin(policy: &Policy) -> Charge {
        Self::new(policy, Key::secret("user", "alice"), 1)
    }
}

#[tokio::test]
async fn peeks_are_answered_by_the_store() {
    let site = site();
    let api = policy("api", "1/1h");
    let alice = check([charge(&api, "alice")]);
    let admitted = site.exhaust(&alice).await;
    site.limiter.settle(admitted.usage(), |_| 3).await.unwrap();
    for _ in 0..3 {
        let usage = site.limiter.peek(alice.clone()).await.unwrap();
        assert!(!usage.is_cached());
    }
    assert_eq!(site.store.checks(), 5);
}

#[tokio::test]
async fn errors_are_not_remembered() {
    let site = site();
    let alice = check([charge(&policy("api", "1/1h"), "alice")]);
    site.store.fails.store(true, Relaxed);
    for _ in 0..2 {
        assert!(site.limiter.check(alice.clone()).await.is_err());
    }
    site.store.fails.store(false, Relaxed);
    site.exhaust(&alice).await;
    site.store.fails.store(true, Relaxed);
    assert!(is_cached(&site.check(&alice).await));
    site.advance_ms(1_000);
    assert!(site.limiter.check(alice).await.is_err());
}

#[tokio::test]
async fn refunds_through_the_limiter_are_seen_at_once() {
    let api = policy("api", "1/1h");
    let alice = || check([charge(&api, "alice")]);
    for way in 0..3 {
        let site = site();
        let admitted = site.exhaust(&alice()).await;
        let clone = site.limiter.clone();
        match way {
            0 => drop(clone.settle(admitted.usage(), |_| 0).await.unwrap()),
            1 => clone.reset(&api, &user("alice")).await.unwrap(),
            // A clone that repeats no denials itself.
            _ => {
                let reset = clone.cache_denials(false);
                reset.reset(&api, &user("alice")).await.unwrap();
            }
        }
        assert!(site.check(&alice()).await.is_allowed(), "{way}");
    }
}

/// The store has executed the reset, and the caller did not wait for the answer.
#[tokio::test]
async fn a_reset_whose_caller_has_left_is_seen_at_once() {
    let site = site();
    let api = policy("api", "1/1h");
    let alice = check([charge(&api, "alice")]);
    site.exhaust(&alice).await;
    site.store.waits.store(true, Relaxed);
    {
        let key = user("alice");
        let reset = site.limiter.reset(&api, &key);
        assert!(reset.now_or_never().is_none());
    }
    site.store.waits.store(false, Relaxed);
    assert!(site.check(&alice).await.is_allowed());
}

#[tokio::test]
async fn a_settlement_that_gives_nothing_back_ends_nothing() {
    for cost in [1, 7] {
        let site = site();
        let alice = check([charge(&policy("api", "1/1h"), "alice")]);
        let admitted = site.exhaust(&alice).await;
        let settled = site.limiter.settle(admitted.usage(), |_| cost);
        settled.await.unwrap();
        assert!(is_cached(&site.check(&alice).await));
    }
}

/// Many callers settle a shared limit. Only refunds to the denying limit matter.
#[tokio::test]
async fn what_is_given_back_to_others_or_to_what_fits_ends_nothing() {
    let site = site();
    let (api, all) = (policy("api", "1/1h"), policy("all", "100/1h"));
    let of = |name| check([charge(&api, name), charge(&all, "all")]);
    site.exhaust(&of("alice")).await;
    let bob = site.check(&of("bob")).await;
    site.limiter.settle(bob.usage(), |_| 0).await.unwrap();
    assert!(is_cached(&site.check(&of("alice")).await));
}

#[tokio::test]
async fn a_denial_that_was_on_its_way_when_something_was_given_back_is_not_remembered() {
    let site = site();
    let api = policy("api", "1/1h");
    let alice = check([charge(&api, "alice")]);
    assert!(site.check(&alice).await.is_allowed());
    site.store.waits.store(true, Relaxed);
    let limiter = site.limiter.clone();
    let denied = tokio::spawn(async move { limiter.check(alice).await });
    tokio::task::yield_now().await;
    site.store.waits.store(false, Relaxed);
    site.limiter.reset(&api, &user("alice")).await.unwrap();
    site.store.answers.notify_one();
    assert!(!is_cached(&denied.await.unwrap().unwrap()));
    let alice = check([charge(&api, "alice")]);
    assert!(site.check(&alice).await.is_allowed());
}

#[tokio::test]
async fn blocked_identities_are_refused_until_their_block_ends() {
    let site = site();
    let alice = check([charge(&policy("api", "9/1h"), "alice")]);
    let block = |ms| Until::After(Duration::from_millis(ms));
    let is_blocked = async |ms: Option<u64>, repeated: bool| {
        let decision = site.check(&alice).await;
        assert_eq!(decision.usage().is_cached(), repeated);
        let Decision::Blocked(blocked) = decision else {
            panic!("it is not blocked");
        };
        assert_eq!(blocked.retry_after(), ms.map(Duration::from_millis));
    };
    let made = site.limiter.block(&user("alice"), block(500)).await;
    made.unwrap();
    is_blocked(Some(500), false).await;
    site.advance_ms(498);
    is_blocked(Some(2), true).await;
    site.advance_ms(1);
    is_blocked(Some(1), false).await;
    // An extension takes effect at once, and so does the end of all blocks.
    let made = site.limiter.block(&user("alice"), Until::Forever).await;
    made.unwrap();
    is_blocked(None, false).await;
    is_blocked(None, true).await;
    site.limiter.unblock(&user("alice")).await.unwrap();
    assert!(site.check(&alice).await.is_allowed());
}

#[tokio::test]
async fn a_block_is_told_at_once_where_a_limit_has_denied() {
    let site = site();
    let alice = check([charge(&policy("api", "1/1h"), "alice")]);
    site.exhaust(&alice).await;
    let made = site.limiter.block(&user("alice"), Until::Forever).await;
    made.unwrap();
    assert!(matches!(site.check(&alice).await, Decision::Blocked(_)));
}

#[tokio::test]
async fn denials_that_take_much_room_are_not_remembered() {
    let site = site();
    let api = policy("api", "1/1h");
    let big = [
        check([charge(&api, &"a".repeat(1_025))]),
        check((0..17).map(|it| charge(&api, &it.to_string()))),
    ];
    for big in big {
        assert!(site.check(&big).await.is_allowed());
        for _ in 0..2 {
            assert!(!is_cached(&site.check(&big).await));
        }
    }
}

/// An observer that records whether decisions were repeated.
#[derive(Clone, Debug, Default)]
struct Told {
    decisions: Arc<Mutex<Vec<bool>>>,
    completions: Arc<Mutex<Vec<bool>>>,
}

impl Observer for Told {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Decision { decision, .. } => {
                self.decisions.lock().unwrap().push(decision.is_cached());
            }
            Event::Completion { local, .. } => self.completions.lock().unwrap().push(*local),
            _ => {}
        }
    }
}

#[tokio::test]
async fn observers_are_told_and_bans_count_each_refusal() {
    let site = site();
    let told = Told::default();
    let limiter = site.limiter.clone().observer(told.clone());
    let ban: Ban = "4/10m=1h".parse().unwrap();
    let api = policy("api", "1/1h").ban(ban);
    for _ in 0..5 {
        let decision = limiter.check([charge(&api, "alice")]).await.unwrap();
        assert!(!matches!(decision, Decision::Blocked(_)));
        limiter.strikes_counted().await;
    }
    for _ in 0..2 {
        let decision = limiter.check([charge(&api, "alice")]).await.unwrap();
        assert!(matches!(decision, Decision::Blocked(_)));
    }
    let repeated = told.decisions.lock().unwrap().clone();
    assert_eq!(repeated, [false, false, true, true, true]);
    assert_eq!(*told.completions.lock().unwrap(), [false, true]);
}

#[tokio::test]
async fn a_repeated_refusal_does_not_close_the_breaker() {
    let site = site();
    // The breaker counts one failure in each half of the timeout.
    let limiter = site.limiter.clone().timeout(Duration::from_nanos(1));
    let api = policy("api", "1/1h");
    site.exhaust(&[charge(&api, "alice")]).await;
    site.store.fails.store(true, Relaxed);
    for _ in 0..5 {
        assert!(
            !limiter
                .check([charge(&api, "alice")])
                .await
                .unwrap()
                .is_allowed()
        );
        assert!(limiter.check([charge(&api, "bob")]).await.is_err());
    }
    let error = limiter.check([charge(&api, "bob")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::CircuitOpen);
    // The store would still deny the checks of a moment ago.
    let denied = limiter.check([charge(&api, "alice")]).await.unwrap();
    assert!(is_cached(&denied));
}

#[tokio::test(start_paused = true)]
async fn who_waits_hears_what_is_given_back_and_is_admitted_in_time() {
    let limiter = Limiter::new(MemoryStore::new()).cache_denials(true);
    let api = policy("api", "1/1h");
    let alice = || [charge(&api, "alice")];
    for _ in 0..3 {
        drop(limiter.check(alice()).await.unwrap());
    }
    let waiting = limiter.acquire(alice(), Duration::from_secs(7_200));
    let reset = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        limiter.reset(&api, &user("alice")).await.unwrap();
    };
    let start = tokio::time::Instant::now();
    let (admitted, ()) = tokio::join!(waiting, reset);
    assert!(admitted.unwrap().is_allowed());
    assert!(start.elapsed() < Duration::from_millis(310));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_at_once_are_admitted_no_more_and_no_less() {
    let site = Arc::new(site());
    let limiter = site.limiter.clone();
    let api = policy("api", "5/1h");
    for round in 1..=20 {
        let tasks = (0..64).map(|_| {
            let (limiter, charges) = (limiter.clone(), [charge(&api, "alice")]);
            tokio::spawn(async move { limiter.try_acquire(charges).await })
        });
        let mut admitted = 0;
        for task in tasks.collect::<Vec<_>>() {
            admitted += usize::from(task.await.unwrap());
        }
        assert_eq!(admitted, 5, "{round}");
        limiter.reset(&api, &user("alice")).await.unwrap();
    }
    assert!(site.store.checks() < 20 * 64);
}

#[tokio::test]
async fn an_address_with_ever_new_keys_is_refused_without_a_call_by_a_layer_of_its_own() {
    let site = site();
    let address = user("203.0.113.7");
    let by_key = RateLimitLayer::new(site.limiter.clone())
        .limit(policy("key", "9/1m"), Header::new("x-api-key"));
    let by_address = RateLimitLayer::new(site.limiter.clone()).limit(policy("ip", "1/1h"), address);
    let hello =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let service = by_address.layer(by_key.layer(hello));
    for (key, status, checks) in [("a", 200, 2), ("b", 429, 3), ("c", 429, 3), ("d", 429, 3)] {
        let request = Request::get("/").header("x-api-key", key);
        let request = request.body(String::new()).unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(
            (response.status().as_u16(), site.store.checks()),
            (status, checks),
            "{key}"
        );
    }
}
