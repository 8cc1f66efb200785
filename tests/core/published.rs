//! Proves when policies are published, that a failed attempt is repeated, and that no request waits for this.

use sluicegate::policies::{Policies, PolicyHandle, PublishedPolicy, ReloadablePolicies};
use support::prelude::*;

/// A memory store that accepts publications after refusing this number of them.
#[derive(Clone, Debug, Default)]
struct Publishing {
    store: MemoryStore,
    refuses: Arc<AtomicUsize>,
    /// How long each publication takes.
    takes_ms: Arc<AtomicU64>,
    reconnects: Arc<AtomicU64>,
    /// The time of each publication, and the number of policies.
    publications: Arc<Mutex<Vec<(Instant, usize)>>>,
    last: Arc<Mutex<Vec<PublishedPolicy>>>,
}

impl Store for Publishing {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.store.check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        match operation {
            Operation::Publish(policies) => {
                let (result, takes_ms) = (self.publish(&policies), self.takes_ms.load(SeqCst));
                if policies.is_empty() || takes_ms == 0 {
                    return StoreFuture::ready(result);
                }
                StoreFuture::pending(async move {
                    sleep(ms(takes_ms)).await;
                    result
                })
            }
            other => self.store.execute(other),
        }
    }
}

impl Publishing {
    fn publish(&self, policies: &[PublishedPolicy]) -> Result<Reply, StoreError> {
        // A new limiter asks whether the store accepts publications.
        if policies.is_empty() {
            return Ok(Reply::Publish(self.reconnects.load(SeqCst)));
        }
        let mut publications = self.publications.lock().unwrap();
        publications.push((Instant::now(), policies.len()));
        *self.last.lock().unwrap() = policies.to_vec();
        let one_less = |left: usize| left.checked_sub(1);
        match self.refuses.fetch_update(SeqCst, SeqCst, one_less) {
            Ok(_) => Err(StoreError::new(StoreErrorKind::Unavailable, "down")),
            Err(_) => Ok(Reply::Publish(self.reconnects.load(SeqCst))),
        }
    }

    /// The seconds from a time to each publication.
    fn seconds_after(&self, start: Instant) -> Vec<f64> {
        let publications = self.publications.lock().unwrap();
        let seconds = publications.iter().map(|it| (it.0 - start).as_secs_f64());
        seconds.collect()
    }

    fn sizes(&self) -> Vec<usize> {
        let publications = self.publications.lock().unwrap();
        publications.iter().map(|(_, policies)| *policies).collect()
    }
}

async fn charge(limiter: &Limiter, policy: &Policy) {
    let charge = Charge::new(policy, user("alice"), 1);
    limiter.check([charge]).await.unwrap();
}

async fn pass(seconds: u64) {
    for _ in 0..seconds * 4 {
        pass_quarter().await;
    }
}

async fn pass_quarter() {
    advance(ms(250)).await;
    others_run().await;
}

/// A store, and a limiter over that.
fn publishing() -> (Publishing, Limiter) {
    let store = Publishing::default();
    (store.clone(), support::limiter(store))
}

#[tokio::test(start_paused = true)]
async fn policies_are_published_some_seconds_after_their_first_use_and_again_later() {
    let (store, limiter) = publishing();
    let [api, login] = ["api", "login"].map(|name| Policy::parse(name, "1000/1h").unwrap());
    let start = Instant::now();
    charge(&limiter, &api).await;
    charge(&limiter, &login).await;
    assert_eq!(Instant::now(), start, "no request waits");
    pass(3).await;
    assert_eq!(store.sizes(), [0; 0]);
    pass(4).await;
    assert_eq!(store.sizes(), [2], "both at once");
    pass(20).await;
    let published = store.sizes().len();
    for _ in 0..100 {
        charge(&limiter, &api).await;
    }
    pass(100).await;
    assert_eq!(store.sizes().len(), published, "nothing is new");
    pass(400).await;
    assert!(store.sizes().len() > published, "each stays fresh");
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_another_has_replaced_is_not_published_again() {
    let (store, limiter) = publishing();
    let [before, after] = ["300/1m", "900/1m"].map(|rules| policy("ip", rules));
    charge(&limiter, &before).await;
    pass(20).await;
    for _ in 0..3 {
        charge(&limiter, &after).await;
        pass(400).await;
    }
    let sizes = store.sizes();
    let are_single = sizes.iter().all(|size| *size == 1);
    assert!(sizes.len() >= 3 && are_single, "{sizes:?}");
}

/// The names and rules of the last publication, and whether each is taken back.
fn last(store: &Publishing) -> Vec<(String, bool)> {
    let last = store.last.lock().unwrap();
    let last = last.iter().map(|it| {
        let (policy, is_replaced) = (&it.policy, it.is_replaced);
        (format!("{} {policy}", policy.name()), is_replaced)
    });
    let mut last: Vec<_> = last.collect();
    last.sort_unstable();
    last
}

#[tokio::test(start_paused = true)]
async fn a_reload_takes_the_policy_back_that_it_replaces() {
    let (store, limiter) = publishing();
    let other = support::limiter(store.clone());
    let of = |rules| Policies::new([policy("ip", rules), policy("login", "5/1m")]).unwrap();
    let live = ReloadablePolicies::new(of("300/1m"));
    let [ip, login] = ["ip", "login"].map(|name| live.policy(name).unwrap());
    let ask = async |limiter: &Limiter, policy: &PolicyHandle| {
        let charge = Charge::new(policy, user("alice"), 1);
        limiter.check([charge]).await.unwrap();
    };
    for limiter in [&limiter, &other] {
        for policy in [&ip, &login] {
            ask(limiter, policy).await;
        }
        pass(10).await;
    }
    let now = |rules| (format!("ip {rules}"), false);
    assert_eq!(last(&store), [now("300/1m"), ("login 5/1m".into(), false)]);
    live.replace(of("900/1m")).unwrap();
    for limiter in [&limiter, &other] {
        ask(limiter, &ip).await;
        pass(10).await;
        let over = ("ip 300/1m".into(), true);
        assert_eq!(last(&store), [over, now("900/1m")]);
    }
    ask(&limiter, &ip).await;
    pass(400).await;
    assert_eq!(last(&store), [now("900/1m")]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_connects_again_gets_the_policies_again() {
    let (store, limiter) = publishing();
    let [api, login] = ["api", "login"].map(|name| policy(name, "1000/1h"));
    charge(&limiter, &api).await;
    charge(&limiter, &login).await;
    pass(10).await;
    charge(&limiter, &api).await;
    pass(20).await;
    assert_eq!(store.sizes(), [2]);
    store.reconnects.store(1, SeqCst);
    pass(2).await;
    assert_eq!(store.sizes(), [2, 2]);
    charge(&limiter, &api).await;
    pass(20).await;
    assert_eq!(store.sizes(), [2, 2], "once");
}

/// Each has a number of its own.
#[tokio::test(start_paused = true)]
async fn two_limiters_of_one_policy_both_publish_it_and_both_reset_it() {
    let stores = [(); 2].map(|()| Publishing::default());
    let limiters = stores.clone().map(support::limiter);
    let api = policy("api", "1000/1h");
    for _ in 0..600 {
        for limiter in &limiters {
            charge(limiter, &api).await;
        }
    }
    pass(10).await;
    for (store, limiter) in stores.iter().zip(&limiters) {
        assert_eq!(store.sizes(), [1]);
        limiter.reset_all(&user("alice")).await.unwrap();
        assert_eq!(left(limiter, &api, "alice").await, 1_000);
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_publishes_nothing() {
    let (store, limiter) = publishing();
    let policy = policy("probe", "1/1m");
    let look = [Charge::new(&policy, Key::new("server", "start"), 0)];
    limiter.peek(look).await.unwrap();
    pass(400).await;
    assert_eq!(store.sizes(), [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_policy_is_published_as_it_is_first_used_and_not_as_a_look_was_before() {
    let store = Publishing::default();
    let limiter = support::limiter(store.clone()).on_failure(FailurePolicy::Local);
    let api = policy("api", "9/1m");
    let probe = limiter.clone().on_failure(FailurePolicy::Closed);
    let look = [Charge::new(&api, Key::new("server", "start"), 0)];
    probe.enforce_blocks(true).peek(look).await.unwrap();
    let limiter = limiter.enforce_blocks(false);
    charge(&limiter, &api).await;
    pass(10).await;
    let last = store.last.lock().unwrap();
    let on_failure = last[0].policy.failure_policy();
    assert_eq!(on_failure, Some(FailurePolicy::Local));
    assert_eq!(last[0].kinds, ["user"].map(Into::into).into());
    assert!(!last[0].enforces_blocks);
}

#[tokio::test(start_paused = true)]
async fn a_publication_that_fails_is_tried_again_less_and_less_often() {
    let store = Publishing::default();
    store.refuses.store(3, SeqCst);
    let limiter = support::limiter(store.clone());
    let start = Instant::now();
    charge(&limiter, &policy("api", "1000/1h")).await;
    pass(120).await;
    let at = store.seconds_after(start);
    let pauses: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // Each pause is twice as long, and up to 6.25 s longer.
    for (pause, least) in pauses.iter().zip([10.0, 20.0, 40.0]) {
        assert!((least..least + 8.0).contains(pause), "{pauses:?}");
    }
    assert!(store.refuses.load(SeqCst) == 0 && at.len() >= 4, "{at:?}");
}

#[tokio::test(start_paused = true)]
async fn a_limiter_that_is_dropped_publishes_no_more() {
    let (store, limiter) = publishing();
    charge(&limiter, &policy("api", "1000/1h")).await;
    drop(limiter);
    pass(10).await;
    assert_eq!(store.sizes(), [0; 0]);
    assert_eq!(Arc::strong_count(&store.publications), 1);
}

#[tokio::test(start_paused = true)]
async fn a_policy_first_used_during_a_publication_is_published_soon_after() {
    let store = Publishing::default();
    store.takes_ms.store(600, SeqCst);
    let limiter = support::limiter(store.clone());
    let [api, login] = ["api", "login"].map(|name| Policy::parse(name, "1000/1h").unwrap());
    charge(&limiter, &api).await;
    until(async || !store.sizes().is_empty(), pass_quarter).await;
    charge(&limiter, &login).await;
    pass(10).await;
    assert_eq!(store.sizes(), [1, 1]);
    pass(100).await;
    assert_eq!(store.sizes(), [1, 1], "the first is not repeated");
}
