//! Proves that a `RedisStore` over a cluster keeps the contract, also while the cluster changes or fails.

use std::{
    collections::HashMap,
    fmt::Display,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use sluicegate::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, RedisStore, Store,
    error::StoreErrorKind,
    manual_clock::ManualClock,
    store::{Check, CheckBatch, Operation, Reply, Settlement, StoreExt},
};
use support::{
    cluster::Cluster,
    first_of::{self, CREDITS, PLAN, credits, plan, rush},
    history::{START_MS, agree, steady},
    redis::Server,
    served::{LEAST_RIGHTS, Served, limited},
    sharing::{self, wait},
};
use tokio::task::JoinHandle;

/// More than a busy machine needs for a decision, and less than a client's wait for a silent node.
const TIMEOUT: Duration = Duration::from_millis(500);

/// The time that a busy machine may add to a timeout.
const SCHEDULING: Duration = Duration::from_millis(500);

/// The time from a promotion to normal decisions.
const HEALED: Duration = Duration::from_secs(1);

/// For clusters that must not fail over a node, even on a busy machine.
const NEVER: Duration = Duration::from_secs(60);

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

fn user(name: impl Display) -> Key {
    Key::new("user", format!("{name}"))
}

fn charge(policy: &Policy, name: impl Display) -> Charge {
    Charge::new(policy, user(name), 1)
}

/// The first users with this primary as their home.
fn users_at(cluster: &Cluster, primary: usize, count: usize) -> Vec<String> {
    let users = (0..).map(|user| user.to_string());
    let at_home = users.filter(|user| cluster.home(&format!("user={user}")) == primary);
    at_home.take(count).collect()
}

async fn left(limiter: &Limiter, policy: &Policy, name: impl Display) -> u64 {
    let usage = limiter.peek([charge(policy, name)]).await.unwrap();
    usage.rules().next().unwrap().remaining()
}

/// An empty store.
async fn store(cluster: &Cluster) -> RedisStore {
    static STORES: AtomicU32 = AtomicU32::new(0);
    let store = RedisStore::cluster(cluster.urls()).await.unwrap();
    let number = STORES.fetch_add(1, Ordering::Relaxed);
    store.prefix(&format!("store-{number}"))
}

/// Calls the store each time, without a breaker, because these tests are about the store.
async fn limiter(cluster: &Cluster) -> Limiter {
    Limiter::new(store(cluster).await).probe_interval(Duration::ZERO)
}

async fn patient(cluster: &Cluster) -> Limiter {
    limiter(cluster).await.timeout(NEVER)
}

/// The cluster of all tests that run now and change nothing there. Each test has a separate prefix or users.
fn shared() -> Arc<Cluster> {
    static RUNNING: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
    sharing::shared(&RUNNING, || Cluster::start(NEVER))
}

/// An empty store and its clock.
pub(crate) async fn fresh() -> (Served<Arc<Cluster>>, ManualClock) {
    let cluster = shared();
    let clock = ManualClock::new(0);
    let store = store(&cluster).await.clock(clock.clone());
    (Served::by(cluster, store), clock)
}

mod contract {
    use super::fresh;

    support::contract!(apart fresh);
    support::calls!(fresh);
    support::contributors!(fresh);
    support::denials!(fresh);
    support::blocks!(fresh);
    support::kinds!(fresh);
}

#[tokio::test]
async fn an_identity_blocked_in_one_slot_is_charged_in_none() {
    let cluster = shared();
    let limiter = patient(&cluster).await;
    let much = policy("much", "100/1h");
    let users = [0, 1, 2].map(|at| users_at(&cluster, at, 1).remove(0));
    let all = || users.iter().map(|it| charge(&much, it));
    // The answer is the later block, whether a limit also denies or not.
    let none = policy("none", "0/1h");
    for (name, seconds) in users.iter().zip([600, 900, 300]) {
        limiter
            .block(&user(name), Duration::from_secs(seconds))
            .await
            .unwrap();
    }
    for charges in [
        all().collect::<Vec<_>>(),
        all().chain([charge(&none, "zoe")]).collect(),
    ] {
        let Decision::Blocked(it) = limiter.check(charges).await.unwrap() else {
            panic!("not blocked");
        };
        assert_eq!(it.key(), &user(&users[1]));
    }
    for name in &users {
        assert_eq!(left(&limiter, &much, name).await, 100);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_alternatives_in_several_slots_one_is_charged_and_denied_tries_are_rolled_back() {
    let cluster = shared();
    let store = store(&cluster).await;
    let limiters = [0, 1].map(|_| Limiter::new(store.clone()).timeout(NEVER));
    let [alice, bob] = [0, 1].map(|at| user(users_at(&cluster, at, 1).remove(0)));
    let charged = rush(&limiters, &alice, &bob).await;
    assert_eq!(charged.plan + charged.credits + charged.denied, 48);
    // A try that is being rolled back may make another look denied for a moment, so not all need be used up.
    let (few, many) = (PLAN / 2, [PLAN, CREDITS]);
    assert!((few..=many[0]).contains(&charged.plan) && charged.credits <= many[1]);
    let all = policy("all", "1000000/1h");
    let everybody = Key::new("service", "all");
    let expected = [
        charged.plan,
        charged.credits,
        charged.plan + charged.credits,
    ];
    let limiter = &limiters[0];
    let rolled_back = async {
        loop {
            let of_plan = first_of::used(limiter, &plan(), &alice).await;
            let of_credits = first_of::used(limiter, &credits(), &bob).await;
            let of_all = first_of::used(limiter, &all, &everybody).await;
            if [of_plan, of_credits, of_all] == expected {
                return;
            }
        }
    };
    let rolled_back = tokio::time::timeout(NEVER, rolled_back).await;
    assert!(rolled_back.is_ok(), "{expected:?}");
}

#[tokio::test]
async fn an_identity_struck_in_several_slots_is_banned_in_each() {
    let cluster = shared();
    let limiter = patient(&cluster).await;
    let login = policy("login", "1/1h").ban("2/1h=1h".parse().unwrap());
    let users = [0, 1, 2].map(|at| users_at(&cluster, at, 1).remove(0));
    for _ in 0..2 {
        let all = users.iter().map(|name| Charge::new(&login, user(name), 2));
        let decision = limiter.check(all).await.unwrap();
        assert!(matches!(decision, Decision::Denied(_)), "{decision:?}");
        limiter.strikes_counted().await;
    }
    for name in &users {
        let decision = limiter.check([charge(&login, name)]).await.unwrap();
        assert!(matches!(decision, Decision::Blocked(_)), "{decision:?}");
    }
}

/// Sequential histories with checks of many slots, settlements and clocks that step back.
#[test]
fn a_cluster_agrees_with_the_memory_store_whatever_happens() {
    let cluster = shared();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut random = TestRunner::deterministic();
    for _ in 0..40 {
        // The clock must not step back: a denied check charges some slots for a moment, so that the script forgets
        // released steps, which such a clock would count again.
        let history = steady().new_tree(&mut random).unwrap().current();
        runtime.block_on(async {
            let clock = ManualClock::new(START_MS);
            let store = store(&cluster).await.clock(clock.clone());
            let memory = MemoryStore::new().clock(clock.clone());
            agree(&store, &memory, &clock, &history).await;
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_caller_leaves_no_half_done_check() {
    let cluster = shared();
    let store = store(&cluster).await;
    let limiter = Limiter::new(store.clone()).timeout(NEVER);
    let (much, none) = (policy("much", "10000/1h"), policy("none", "0/1h"));
    let users: Vec<String> = (0..3)
        .map(|at| users_at(&cluster, at, 1).remove(0))
        .collect();
    let fits = Check::new(users.iter().map(|name| charge(&much, name))).unwrap();
    let denied = users[..2]
        .iter()
        .map(|name| charge(&much, format!("{name}-denied")));
    let denied = Check::new(denied.chain([charge(&none, &users[2])])).unwrap();
    for patience in 0..200 {
        let patience = Duration::from_micros(patience * 20);
        let _ = tokio::time::timeout(patience, store.check(&fits)).await;
        let _ = tokio::time::timeout(patience, store.check(&denied)).await;
    }
    let start = Instant::now();
    loop {
        let mut all = Vec::new();
        for name in &users {
            all.push(left(&limiter, &much, name).await);
        }
        for name in &users[..2] {
            all.push(10_000 - left(&limiter, &much, format!("{name}-denied")).await);
        }
        if all[..3] == [all[0]; 3] && all[3..] == [0, 0] {
            assert!(all[0] < 10_000, "none was charged");
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{all:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fill_of_several_slots_that_fails_or_whose_caller_leaves_charges_nothing() {
    let cluster = Cluster::start(NEVER);
    let store = store(&cluster).await;
    let limiter = Limiter::new(store.clone()).timeout(NEVER);
    let much = policy("much", "1000/1h");
    for fails in [false, true] {
        let users = [0, 2].map(|at| users_at(&cluster, at, 1).remove(0));
        let check = Check::new(users.iter().map(|name| charge(&much, name))).unwrap();
        cluster.nodes[2].run::<()>("CLIENT PAUSE 60000 WRITE");
        let fill = store.execute(Operation::CheckBatch(CheckBatch::new(check, 300)));
        let filling = tokio::spawn(fill);
        while used(&limiter, &much, &users[0]).await < 300 {}
        if fails {
            cluster.nodes[2].run::<u32>("CLIENT KILL TYPE normal");
            let error = filling.await.unwrap().unwrap_err();
            assert!(!error.is_unsent(), "{error}");
        } else {
            filling.abort();
        }
        let start = Instant::now();
        while used(&limiter, &much, &users[0]).await > 0 {
            assert!(start.elapsed() < Duration::from_secs(20));
        }
        cluster.nodes[2].run::<()>("CLIENT UNPAUSE");
        while used(&limiter, &much, &users[1]).await > 0 {
            assert!(start.elapsed() < Duration::from_secs(20));
        }
    }
}

#[tokio::test]
async fn callers_who_leave_while_a_shadow_is_decided_are_charged_nothing() {
    let cluster = Cluster::start(NEVER);
    let store = store(&cluster).await;
    let limiter = Limiter::new(store.clone()).timeout(NEVER);
    let (much, trial) = (
        policy("much", "1000/1h"),
        policy("trial", "1000/1h").shadow(),
    );
    let shadowed = users_at(&cluster, 2, 1).remove(0);
    for count in [1, 300] {
        for name in users_at(&cluster, 0, 20) {
            let check = Check::new([charge(&much, &name), charge(&trial, &shadowed)]).unwrap();
            cluster.nodes[2].run::<()>("CLIENT PAUSE 60000 WRITE");
            let deciding =
                tokio::spawn(store.execute(Operation::CheckBatch(CheckBatch::new(check, count))));
            while used(&limiter, &much, &name).await < u64::from(count) {}
            deciding.abort();
            let has_left = deciding.await.is_err();
            cluster.nodes[2].run::<()>("CLIENT UNPAUSE");
            if has_left {
                let start = Instant::now();
                while used(&limiter, &much, &name).await > 0 {
                    assert!(start.elapsed() < Duration::from_secs(20));
                }
                break; // otherwise the store gave the shadow up just before
            }
        }
    }
}

#[tokio::test]
async fn a_shadow_whose_node_hangs_delays_no_admission_until_the_timeout() {
    let cluster = Cluster::start(NEVER);
    let store = store(&cluster).await;
    let (much, trial) = (
        policy("much", "1000/1h"),
        policy("trial", "1000/1h").shadow(),
    );
    let [name, shadowed] = [0, 2].map(|at| users_at(&cluster, at, 1).remove(0));
    let check = Check::new([charge(&much, &name), charge(&trial, &shadowed)]).unwrap();
    cluster.nodes[2].run::<()>("CLIENT PAUSE 60000 WRITE");
    let decision = tokio::time::timeout(Duration::from_secs(20), store.check(&check));
    let decision = decision.await.expect("the pause is longer").unwrap();
    assert!(decision.is_allowed() && decision.usage().shadow().is_none());
}

/// The decisions about this many identical checks.
async fn fill(store: &RedisStore, check: &Check, count: u16) -> Vec<Decision> {
    let check = check.clone();
    match store
        .execute(Operation::CheckBatch(CheckBatch::new(check, count)))
        .await
    {
        Ok(Reply::CheckBatch(decisions)) => decisions,
        other => panic!("{other:?}"),
    }
}

/// The number of admitted checks, which come first.
fn admitted(decisions: &[Decision]) -> usize {
    let admitted = decisions.iter().position(|it| !it.is_allowed());
    let admitted = admitted.unwrap_or(decisions.len());
    assert!(decisions[admitted..].iter().all(|it| !it.is_allowed()));
    admitted
}

#[tokio::test]
async fn a_fill_of_several_slots_admits_as_many_as_fit_in_each() {
    let cluster = shared();
    let store = store(&cluster).await;
    let limiter = Limiter::new(store.clone()).timeout(NEVER);
    let (much, little) = (policy("much", "1000/1h"), policy("little", "70/1h,500/1d"));
    let trial = policy("trial", "10/1h").shadow();
    let [one, other, third] = [0, 1, 2].map(|at| users_at(&cluster, at, 1).remove(0));
    let twice = Charge::new(&little, user(&other), 2);
    let charges = [charge(&much, &one), twice, charge(&trial, &third)];
    let check = Check::new(charges).unwrap();
    let mut before = 0;
    for (count, expected) in [(0, 0), (20, 20), (200, 15), (9, 0)] {
        let decisions = fill(&store, &check, count).await;
        assert_eq!(decisions.len(), usize::from(count));
        assert_eq!(admitted(&decisions), expected);
        for (place, decision) in decisions.iter().enumerate() {
            // Each admission is the next charge, and a denial follows the last.
            let charged = before + (place + 1).min(expected) as u64;
            let usages = decision.usage().rules().map(|rule| rule.remaining());
            let usages: Vec<u64> = usages.collect();
            let expected = [1_000 - charged, 70 - 2 * charged, 500 - 2 * charged];
            assert_eq!(usages, expected, "{place} of {count}");
        }
        before += expected as u64;
        let shadows = decisions.iter().filter_map(|it| it.usage().shadow());
        let shadows = shadows.filter(|it| it.is_allowed()).count();
        assert_eq!(shadows, if count == 20 { 10 } else { 0 });
    }
    assert_eq!(used(&limiter, &much, &one).await, 35);
    assert_eq!(used(&limiter, &little, &other).await, 70);
}

/// The results of users with the same home.
#[derive(Clone, Debug, Default)]
struct Story {
    admitted: HashMap<String, u64>,
    errors: Vec<StoreErrorKind>,
    slowest: Duration,
}

/// Requests without a break, one after another for each user.
struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<(String, JoinHandle<Story>)>,
}

impl Load {
    fn start<const N: usize>(limiter: &Limiter, policies: [&Policy; N], users: &[String]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = users.iter().map(|name| {
            let charges = policies.map(|policy| charge(policy, name));
            let story = story(
                limiter.clone(),
                charges.to_vec(),
                name.clone(),
                Arc::clone(&stop),
            );
            (name.clone(), tokio::spawn(story))
        });
        Self {
            tasks: tasks.collect(),
            stop,
        }
    }

    /// Ends the load and returns the results. Fails if a request panicked or took too long.
    async fn end(self) -> Story {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Story::default();
        for (_, task) in self.tasks {
            let story = task.await.unwrap();
            all.admitted.extend(story.admitted);
            all.errors.extend(story.errors);
            all.slowest = all.slowest.max(story.slowest);
        }
        assert!(all.slowest < TIMEOUT + SCHEDULING, "{:?}", all.slowest);
        all
    }
}

async fn story(
    limiter: Limiter,
    charges: Vec<Charge>,
    name: String,
    stop: Arc<AtomicBool>,
) -> Story {
    let mut story = Story::default();
    let mut admitted = 0;
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        let result = limiter.check(charges.clone()).await;
        story.slowest = story.slowest.max(start.elapsed());
        match result {
            Ok(decision) => admitted += u64::from(decision.is_allowed()),
            Err(error) => story.errors.push(error.kind()),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    story.admitted.insert(name, admitted);
    story
}

/// Whether all errors are those of a server that is away.
fn are_outages(errors: &[StoreErrorKind]) -> bool {
    use StoreErrorKind::{Timeout, Unavailable};
    errors
        .iter()
        .all(|kind| matches!(kind, Unavailable | Timeout))
}

/// Waits until each of these users gets a decision again. Returns the time that this took.
async fn healing(limiter: &Limiter, policy: &Policy, users: &[String]) -> Duration {
    let start = Instant::now();
    for name in users {
        while limiter.peek([charge(policy, name)]).await.is_err() {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "{name} does not answer"
            );
        }
    }
    start.elapsed()
}

async fn until_all_are_admitted_again(load: &Limiter, policy: &Policy, users: &[String]) {
    let took = healing(load, policy, users).await;
    println!("normal decisions after {took:?}");
    assert!(took < HEALED, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_is_moved_under_load_loses_no_count() {
    let cluster = Cluster::start(NEVER);
    let limiter = limiter(&cluster).await.timeout(TIMEOUT);
    let (first, second) = (policy("first", "300/1h"), policy("second", "1000000/1h"));
    let names = users_at(&cluster, 0, 2);
    let others: Vec<String> = (1..3).flat_map(|at| users_at(&cluster, at, 2)).collect();
    let slot = cluster.slot(&format!("user={}", names[0]));
    // One user has one key, so the cluster never answers TRYAGAIN. The other has two.
    let one = Load::start(&limiter, [&first], &names[..1]);
    let two = Load::start(&limiter, [&policy("third", "300/1h"), &second], &names[..1]);
    let others = Load::start(&limiter, [&first], &others);
    // While the slot moves, a user with two keys may get no decision.
    let start = Instant::now();
    while left(&limiter, &second, &names[0]).await == 1_000_000 {
        assert!(start.elapsed() < Duration::from_secs(30), "nothing counts");
    }
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        cluster.begin_move(slot, from, to);
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            cluster.move_a_key(slot, from, to);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        cluster.end_move(slot, from, to);
    }
    let (one, two, others) = (one.end().await, two.end().await, others.end().await);
    println!("{:?} {:?}", one.errors, two.errors);
    assert_eq!((&one.errors, &others.errors), (&vec![], &vec![]));
    assert!(are_outages(&two.errors), "{:?}", two.errors);
    assert_eq!(
        300 - left(&limiter, &first, &names[0]).await,
        one.admitted[&names[0]]
    );
    let counted = 1_000_000 - left(&limiter, &second, &names[0]).await;
    assert!(two.admitted[&names[0]] > 0 && two.admitted[&names[0]] <= 300);
    assert!(counted >= two.admitted[&names[0]], "{counted}");
}

/// The keys of one identity move one by one, and blocks exist on neither side.
#[tokio::test]
async fn a_slot_that_is_being_moved_is_decided_with_blocks_and_several_policies() {
    let cluster = Cluster::start(NEVER);
    let limiter = patient(&cluster).await.enforce_blocks(true);
    let (much, little) = (policy("much", "1000/1h"), policy("little", "9/1h"));
    let name = users_at(&cluster, 0, 1).remove(0);
    let slot = cluster.slot(&format!("user={name}"));
    let both = || [charge(&much, &name), charge(&little, &name)];
    let check = async |charges: Vec<Charge>| limiter.check(charges).await.unwrap();
    assert!(check(both().to_vec()).await.is_allowed());
    cluster.begin_move(slot, 0, 1);
    // Both keys are here, then one, then none. The other node creates new keys.
    let mut admitted = 1;
    for moved in 0..3 {
        let fresh = policy(&format!("fresh-{moved}"), "2/1h");
        for allowed in [true, true, false] {
            let decision = check(vec![charge(&fresh, &name)]).await;
            assert_eq!(decision.is_allowed(), allowed, "{moved}: {decision:?}");
        }
        for _ in 0..2 {
            assert!(check(both().to_vec()).await.is_allowed());
            admitted += 1;
        }
        let full = both().into_iter().chain([charge(&fresh, &name)]).collect();
        assert!(!check(full).await.is_allowed(), "it is charged nowhere");
        assert_eq!(used(&limiter, &much, &name).await, admitted);
        assert_eq!(used(&limiter, &little, &name).await, admitted);

        limiter
            .block(&user(&name), Duration::from_secs(600))
            .await
            .unwrap();
        for charges in [both().to_vec(), vec![charge(&much, &name)]] {
            let decision = check(charges).await;
            let Decision::Blocked(blocked) = &decision else {
                panic!("not blocked: {decision:?}");
            };
            let left = blocked.retry_after().unwrap();
            assert!(left > Duration::from_secs(500) && left <= Duration::from_secs(600));
        }
        limiter.unblock(&user(&name)).await.unwrap();
        let decision = check(vec![charge(&much, &name)]).await;
        limiter.settle(decision.usage(), |_| 0).await.unwrap();
        cluster.move_a_key(slot, 0, 1);
    }
    cluster.end_move(slot, 0, 1);
    assert_eq!(used(&limiter, &much, &name).await, admitted);
    assert_eq!(used(&limiter, &little, &name).await, admitted);
}

/// A call for each key, and one for the difference, whatever the number of checks.
#[tokio::test]
async fn identical_checks_are_decided_together_while_their_slot_is_moved() {
    let cluster = Cluster::start(NEVER);
    let store = store(&cluster).await;
    let limiter = Limiter::new(store.clone()).timeout(NEVER);
    let (much, little) = (policy("much", "1000/1h"), policy("little", "70/1h"));
    let name = users_at(&cluster, 0, 1).remove(0);
    let slot = cluster.slot(&format!("user={name}"));
    let check = Check::new([charge(&much, &name), charge(&little, &name)]).unwrap();
    assert!(store.check(&check).await.unwrap().is_allowed());
    cluster.begin_move(slot, 0, 1);
    cluster.move_a_key(slot, 0, 1);
    let nodes = &cluster.nodes[..2];
    let calls = || nodes.iter().map(|node| node.calls("evalsha")).sum::<u64>();
    let before = calls();
    assert_eq!(admitted(&fill(&store, &check, 100).await), 69);
    let calls = calls() - before;
    assert!(calls < 10, "{calls}");
    assert_eq!(used(&limiter, &much, &name).await, 70);
    assert_eq!(used(&limiter, &little, &name).await, 70);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_killed_under_load_is_followed_by_its_replica() {
    let mut cluster = Cluster::start(Duration::from_millis(500));
    let limiter = limiter(&cluster).await.timeout(TIMEOUT);
    let much = policy("much", "1000000/1h");
    let (lost, others) = (
        users_at(&cluster, 1, 3),
        [0, 2].map(|at| users_at(&cluster, at, 2)).concat(),
    );
    let load = Load::start(&limiter, [&much], &lost);
    let other_load = Load::start(&limiter, [&much], &others);
    until_all_are_admitted_again(&limiter, &much, &lost).await;
    cluster.nodes[1].kill();
    cluster.wait_for_promotion(1);
    until_all_are_admitted_again(&limiter, &much, &lost).await;
    let (story, other_story) = (load.end().await, other_load.end().await);
    assert!(are_outages(&story.errors), "{:?}", story.errors);
    assert!(!story.errors.is_empty());
    assert_eq!(other_story.errors, []);
    for name in &others {
        assert_eq!(
            1_000_000 - left(&limiter, &much, name).await,
            other_story.admitted[name]
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_outlasts_its_primary() {
    let mut cluster = Cluster::start(Duration::from_millis(500));
    let limiter = limiter(&cluster).await.timeout(TIMEOUT);
    let much = policy("much", "1000000/1h");
    let names = users_at(&cluster, 1, 2);
    limiter
        .block(&user(&names[0]), Duration::from_secs(3_600))
        .await
        .unwrap();
    wait("the replica knows of it", || {
        cluster.nodes[1].has_told(&cluster.nodes[4])
    });
    cluster.nodes[1].kill();
    cluster.wait_for_promotion(1);
    until_all_are_admitted_again(&limiter, &much, &names[1..]).await;
    let decision = limiter.check([charge(&much, &names[0])]).await.unwrap();
    assert!(matches!(decision, Decision::Blocked(_)), "{decision:?}");
    assert!(!decision.usage().is_local(), "the store keeps it");
    limiter.unblock(&user(&names[0])).await.unwrap();
    let decision = limiter.check([charge(&much, &names[0])]).await.unwrap();
    assert!(decision.is_allowed());
}

/// The rights in the documentation of `store::redis`.
#[tokio::test]
async fn the_least_rights_are_enough_on_a_cluster_and_on_a_slot_on_its_way_and_none_can_be_left_out()
 {
    let cluster = Cluster::start(NEVER);
    let much = policy("much", "1000000/1h");
    let mover = users_at(&cluster, 0, 1).remove(0);
    let users = [0, 1, 2].map(|at| users_at(&cluster, at, 2).remove(1));
    let rights = [&LEAST_RIGHTS[..], &["+cluster|slots", "+asking"]].concat();
    let connect = async |rights: &[&str]| {
        let urls = cluster.nodes.iter().map(|node| limited(node, rights));
        RedisStore::cluster(urls.collect::<Vec<_>>()).await
    };
    let store = connect(&rights).await.unwrap();
    let limiter = Limiter::new(store.clone()).timeout(TIMEOUT);
    let check = async |user: &str| limiter.check([charge(&much, user)]).await.map(drop);
    for user in &users {
        check(user).await.unwrap();
    }
    let slot = cluster.slot(&format!("user={mover}"));
    cluster.begin_move(slot, 0, 1);
    check(&mover).await.unwrap();
    connect(&rights[..rights.len() - 1]).await.unwrap();
    // Each node closes a user's connections when the rights of that user change.
    let mut error = check(&mover).await.unwrap_err();
    for _ in 0..2 * cluster.nodes.len() {
        if error.kind() == StoreErrorKind::Unavailable {
            error = check(&mover).await.unwrap_err();
        }
    }
    assert_eq!(error.kind(), StoreErrorKind::AccessDenied, "{error}");

    let without_slots = connect(&LEAST_RIGHTS).await.unwrap_err();
    assert_eq!(
        without_slots.kind(),
        StoreErrorKind::AccessDenied,
        "{without_slots}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_stands_though_another_slot_has_no_answer() {
    let cluster = Cluster::start(NEVER);
    let limiter = limiter(&cluster).await.timeout(TIMEOUT);
    let one = policy("one", "1/1h");
    let [full, fresh, mute] = [0, 1, 2].map(|at| users_at(&cluster, at, 1).remove(0));
    assert!(
        limiter
            .check([charge(&one, &full)])
            .await
            .unwrap()
            .is_allowed()
    );
    let blocked = users_at(&cluster, 2, 2).remove(1);
    let hour = Duration::from_secs(3_600);
    limiter.block(&user(&blocked), hour).await.unwrap();
    cluster.nodes[2].stop();
    for _ in 0..3 {
        let charges = [&full, &fresh, &mute].map(|user| charge(&one, user));
        let decision = limiter.check(charges).await.unwrap();
        assert!(!decision.is_allowed());
        let left: Vec<u64> = decision.usage().rules().map(|it| it.remaining()).collect();
        assert_eq!(left, [0, 1, 1]);
        assert_eq!(
            decision
                .usage()
                .rules()
                .filter(|it| it.is_exceeded())
                .count(),
            1
        );
    }
    // The block of an identity whose node did not answer stays known.
    let both = [&full, &blocked].map(|user| charge(&one, user));
    let decision = limiter.check(both).await.unwrap();
    assert!(matches!(decision, Decision::Denied(_)), "{decision:?}");
    let decision = limiter.check([charge(&one, &blocked)]).await.unwrap();
    assert!(matches!(decision, Decision::Blocked(_)), "{decision:?}");
    cluster.nodes[2].cont();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_costs_its_own_slots_alone() {
    let cluster = Cluster::start(NEVER);
    let limiter = limiter(&cluster).await.timeout(TIMEOUT);
    let (much, other) = (policy("much", "1000000/1h"), policy("other", "1000000/1h"));
    let (mute, others) = (
        users_at(&cluster, 2, 3),
        [0, 1].map(|at| users_at(&cluster, at, 2)).concat(),
    );
    let load = Load::start(&limiter, [&much], &mute);
    let other_load = Load::start(&limiter, [&much], &others);
    until_all_are_admitted_again(&limiter, &much, &mute).await;
    cluster.nodes[2].stop();
    for _ in 0..4 {
        let kind = limiter
            .check([charge(&other, &mute[0]), charge(&other, &others[0])])
            .await;
        assert_eq!(kind.unwrap_err().kind(), StoreErrorKind::Timeout);
    }
    cluster.nodes[2].cont();
    until_all_are_admitted_again(&limiter, &much, &mute).await;
    let (story, other_story) = (load.end().await, other_load.end().await);
    assert!(are_outages(&story.errors), "{:?}", story.errors);
    assert!(!story.errors.is_empty());
    assert_eq!(other_story.errors, []);
    // Charges beside the silent node were refunded, or the silent node was charged as well.
    let (healthy, mute) = (
        left(&limiter, &other, &others[0]).await,
        left(&limiter, &other, &mute[0]).await,
    );
    assert!(healthy >= mute, "{healthy} {mute}");
}

/// The units of a user that count now.
async fn used(limiter: &Limiter, policy: &Policy, name: &str) -> u64 {
    policy.rules()[0].limit() - left(limiter, policy, name).await
}

/// The time that a busy machine may need for a round trip, less than the timeout of the call for one slot.
const ROUND_TRIP: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_a_node_that_hangs_nothing_stays_charged() {
    let cluster = Cluster::start(NEVER);
    let store = store(&cluster).await;
    let limiter = Limiter::new(store.clone()).probe_interval(Duration::ZERO);
    let watch = Limiter::new(store).timeout(NEVER);
    let much = policy("much", "1000000/1h");
    let [shared, mute] = [0, 2].map(|at| users_at(&cluster, at, 1).remove(0));
    let charges = || [charge(&much, &shared), charge(&much, &mute)];
    assert!(watch.check(charges()).await.unwrap().is_allowed());
    cluster.nodes[2].stop();
    // Before and after the store knows that the node hangs.
    for _ in 0..12 {
        limiter.check(charges()).await.unwrap_err();
        let start = Instant::now();
        while used(&watch, &much, &shared).await > 1 {
            assert!(start.elapsed() < ROUND_TRIP, "it stays charged");
        }
    }
    cluster.nodes[2].cont();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_back_that_was_surely_not_done_is_tried_again() {
    let cluster = Cluster::start(NEVER);
    let store = store(&cluster).await;
    let limiter = Limiter::new(store.clone()).timeout(NEVER);
    let much = policy("much", "1000/1h");
    let users = [0, 2].map(|at| users_at(&cluster, at, 1).remove(0));
    let check = Check::new(users.iter().map(|name| charge(&much, name))).unwrap();
    let full = &cluster.nodes[0];
    // A unit that stays: the key of the other would be deleted, which needs no memory.
    limiter.check([charge(&much, &users[0])]).await.unwrap();
    cluster.nodes[2].run::<()>("CLIENT PAUSE 60000 WRITE");
    let deciding = tokio::spawn(store.check(&check));
    while used(&limiter, &much, &users[0]).await < 2 {}
    full.run::<()>("CONFIG SET maxmemory 1");
    deciding.abort();
    wait("the roll-back is refused", || {
        full.run::<String>("INFO errorstats")
            .contains("errorstat_OOM")
    });
    full.run::<()>("CONFIG SET maxmemory 0");
    let start = Instant::now();
    while used(&limiter, &much, &users[0]).await > 1 {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "it stays charged"
        );
    }
    cluster.nodes[2].run::<()>("CLIENT UNPAUSE");
}

#[tokio::test]
async fn shadows_in_other_slots_are_decided_after_the_charges_that_count() {
    let cluster = shared();
    let limiter = patient(&cluster).await;
    let (two, trial) = (policy("two", "2/1h"), policy("trial", "1/1h").shadow());
    let [one, other, third] = [0, 1, 2].map(|at| users_at(&cluster, at, 1).remove(0));
    let told = async |charges: Vec<Charge>| {
        let decision = limiter.check(charges).await.unwrap();
        let shadow = decision.usage().shadow().map(Decision::is_allowed);
        (decision.is_allowed(), shadow)
    };
    let charges = || vec![charge(&two, &one), charge(&trial, &other)];
    assert_eq!(told(charges()).await, (true, Some(true)));
    assert_eq!(told(charges()).await, (true, Some(false)));
    assert_eq!(told(charges()).await, (false, None));
    // A shadow that denies in one slot is charged in no slot.
    let charges = vec![
        charge(&two, &other),
        charge(&trial, &other),
        charge(&trial, &third),
    ];
    assert_eq!(told(charges).await, (true, Some(false)));
    let fresh = vec![charge(&trial, &third)];
    assert_eq!(told(fresh).await, (true, Some(true)));
}

#[tokio::test]
async fn the_operations_of_a_call_are_answered_one_by_one_and_in_order() {
    let cluster = shared();
    let store = store(&cluster).await;
    let two = policy("two", "2/1h");
    let users: Vec<String> = (0..3).flat_map(|at| users_at(&cluster, at, 2)).collect();
    let check =
        |names: &[&String]| Check::new(names.iter().map(|name| charge(&two, name))).unwrap();
    let one = |at: usize| check(&[&users[at]]);
    let admitted = store.check(&one(0)).await.unwrap();
    let settlement = Settlement::new(admitted.usage(), |_| 2).unwrap();
    let operations = vec![
        Operation::Check(one(0)),
        Operation::Settle(settlement),
        Operation::Check(one(0)),
        Operation::Check(check(&[&users[1], &users[2], &users[4]])),
        Operation::CheckBatch(CheckBatch::new(one(3), 4)),
        Operation::CheckBatch(CheckBatch::new(check(&[&users[4], &users[5]]), 3)),
        Operation::Check(Check::new([]).unwrap()),
        Operation::Check(one(1)),
    ];
    let replies = store.call(operations).await.unwrap();
    let told = replies.into_iter().map(|reply| match reply.unwrap() {
        Reply::Check(decision) => vec![decision.is_allowed()],
        Reply::CheckBatch(decisions) => decisions.iter().map(Decision::is_allowed).collect(),
        Reply::Settle(usage) => {
            assert_eq!(usage.rules().next().unwrap().remaining(), 0);
            vec![]
        }
        other => panic!("not asked for: {other:?}"),
    });
    let told: Vec<Vec<bool>> = told.collect();
    assert_eq!(told[0], [true]);
    assert_eq!(told[2], [false], "the settlement came before it");
    assert_eq!(told[3], [true]);
    assert_eq!(told[4], [true, true, false, false]);
    // Decided at the same time as the check that charges one of the users.
    assert!(told[5][2..] == [false] && told[5][0], "{told:?}");
    assert_eq!((&told[6][..], &told[7][..]), (&[true][..], &[true][..]));
}

#[tokio::test]
async fn an_operation_of_a_call_that_cannot_be_done_fails_alone() {
    let cluster = Cluster::start(NEVER);
    let store = RedisStore::cluster(cluster.urls()).await.unwrap();
    let two = policy("two", "2/1h");
    let [sound, broken] = [0, 1].map(|at| users_at(&cluster, at, 1).remove(0));
    let one = |name: &str| Operation::Check(Check::new([charge(&two, name)]).unwrap());
    let home = &cluster.nodes[cluster.home(&format!("user={broken}"))];
    home.run::<()>(&format!("RPUSH sluicegate:{{user={broken}}}:two 1"));
    let reset = Operation::Reset {
        policy: two.clone(),
        key: user(&broken),
    };
    let replies = store.call(vec![one(&broken), one(&sound)]).await.unwrap();
    let error = replies[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Protocol, "{error}");
    assert!(matches!(&replies[1], Ok(Reply::Check(it)) if it.is_allowed()));
    let replies = store.call(vec![reset, one(&broken)]).await.unwrap();
    assert!(matches!(&replies[0], Ok(Reply::Reset)));
    assert!(matches!(&replies[1], Ok(Reply::Check(it)) if it.is_allowed()));
}

#[tokio::test]
async fn callers_who_leave_do_not_have_the_topology_asked_for() {
    let cluster = Cluster::start(NEVER);
    let store = RedisStore::cluster(cluster.urls()).await.unwrap();
    let much = policy("much", "1000000/1h");
    let users: Vec<String> = (0..3).flat_map(|at| users_at(&cluster, at, 2)).collect();
    let check = |name: &String| Check::new([charge(&much, name)]).unwrap();
    for name in &users {
        store.check(&check(name)).await.unwrap();
    }
    let asked = || {
        let nodes = cluster.nodes.iter();
        nodes.map(|node| node.calls("cluster|slots")).sum::<u64>()
    };
    let before = asked();
    for _ in 0..20 {
        for name in &users {
            let _ = tokio::time::timeout(Duration::ZERO, store.check(&check(name))).await;
            store.check(&check(name)).await.unwrap();
        }
    }
    assert_eq!(asked(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_forget_the_script_are_told_it_again() {
    let cluster = Cluster::start(NEVER);
    let limiter = limiter(&cluster).await.timeout(TIMEOUT);
    let much = policy("much", "1000000/1h");
    let users: Vec<String> = (0..3).flat_map(|at| users_at(&cluster, at, 2)).collect();
    let load = Load::start(&limiter, [&much], &users);
    for round in 0..60 {
        let () = cluster.nodes[round % 3].run("SCRIPT FLUSH");
        let charges = users
            .iter()
            .map(|name| charge(&much, format!("{name}-{round}")));
        assert!(limiter.check(charges).await.unwrap().is_allowed());
    }
    let story = load.end().await;
    assert_eq!(story.errors, []);
    for (name, admitted) in story.admitted {
        assert_eq!(1_000_000 - left(&limiter, &much, name).await, admitted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_a_lost_connection_may_have_executed_is_not_repeated() {
    let cluster = Cluster::start(NEVER);
    let limiter = limiter(&cluster).await.timeout(TIMEOUT);
    let much = policy("much", "1000000/1h");
    let alice = users_at(&cluster, 0, 1).remove(0);
    let (mut admitted, mut lost) = (0, 0);
    let start = Instant::now();
    while lost < 100 {
        assert!(start.elapsed() < Duration::from_secs(30), "nothing is lost");
        cluster.nodes[0].stop();
        let checks = (0..20).map(|_| {
            let (limiter, charge) = (limiter.clone(), charge(&much, &alice));
            tokio::spawn(async move { limiter.check([charge]).await })
        });
        let checks: Vec<_> = checks.collect();
        // The server finds the checks together with the order to cut their connection before an answer.
        tokio::task::block_in_place(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| cluster.nodes[0].run::<u32>("CLIENT KILL TYPE normal"));
                std::thread::sleep(Duration::from_millis(20));
                cluster.nodes[0].cont();
            });
        });
        for check in checks {
            match check.await.unwrap() {
                Ok(_) => admitted += 1,
                Err(_) => lost += 1,
            }
        }
    }
    let counted = 1_000_000 - left(&limiter, &much, &alice).await;
    assert!(
        (admitted..=admitted + lost).contains(&counted),
        "{admitted} admitted, {lost} lost, {counted} counted"
    );
    println!("{admitted} admitted, {lost} lost, {counted} counted");
}

#[tokio::test]
async fn a_service_starts_while_the_cluster_is_down() {
    let mut cluster = Cluster::start(NEVER);
    let urls = cluster.urls();
    cluster.nodes.iter_mut().for_each(Server::kill);
    let error = RedisStore::cluster(urls.clone()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let limiter = Limiter::new(RedisStore::connect_lazy_cluster(urls).unwrap()).timeout(TIMEOUT);
    let much = policy("much", "1000000/1h");
    let error = limiter.check([charge(&much, 1)]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(
        limiter
            .try_acquire([charge(&much, 1), charge(&much, 2)])
            .await
    );
    cluster.restart();
    healing(
        &limiter,
        &much,
        &(0..20).map(|name| name.to_string()).collect::<Vec<_>>(),
    )
    .await;
}

#[tokio::test]
async fn servers_that_can_never_work_are_errors_at_construction() {
    for nodes in [&[][..], &["http://127.0.0.1"], &["unix:///tmp/redis.sock"]] {
        let error = RedisStore::connect_lazy_cluster(nodes.to_vec()).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::AccessDenied, "{nodes:?}");
    }
    let alone = Server::start();
    let error = RedisStore::cluster([alone.url()]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::AccessDenied);
    assert!(error.to_string().contains("cluster"), "{error}");
}

#[tokio::test]
async fn a_block_is_listed_though_the_node_of_the_index_answers_late() {
    let cluster = Cluster::start(NEVER);
    let store = store(&cluster).await.prefix("late");
    let home = cluster.home("late:!blocks");
    let name = users_at(&cluster, (home + 1) % 3, 1).remove(0);
    cluster.nodes[home].run::<()>("CLIENT PAUSE 300");
    let hour = Duration::from_secs(3_600);
    store.block(&user(&name), hour.into()).await.unwrap();
    // Each listing waits for the node, which may answer before the identity is added.
    for _ in 0..200 {
        let listed = store.blocks(10).await.unwrap_or_default();
        if let [only] = &listed[..] {
            assert_eq!(only.identity(), format!("user={name}"));
            return;
        }
    }
    panic!("the block is not listed");
}

#[tokio::test]
async fn callers_share_calls_of_one_slot_and_wait_for_those_of_no_other() {
    let cluster = Cluster::start(NEVER);
    let limiter = Limiter::new(store(&cluster).await.in_flight(1)).timeout(NEVER);
    let api = policy("api", "25/1h,1000/1d");
    let home = cluster.home("user=hot");
    let node = &cluster.nodes[home];
    let neighbours = users_at(&cluster, home, 8);
    assert_eq!(left(&limiter, &api, "hot").await, 25);
    node.run::<()>("CLIENT PAUSE 60000 WRITE");
    let before = node.calls("evalsha");
    let users = (0..30).map(|_| String::from("hot")).chain(neighbours);
    let checks: Vec<_> = users
        .map(|user| {
            let (limiter, charge) = (limiter.clone(), charge(&api, user));
            tokio::spawn(async move { limiter.check([charge]).await })
        })
        .collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    node.run::<()>("CLIENT UNPAUSE");
    let mut admitted = 0;
    for check in checks {
        admitted += usize::from(check.await.unwrap().unwrap().is_allowed());
    }
    assert_eq!(admitted, 25 + 8);
    // One call with the first, one with all others, and one for each neighbour; some of these may share a slot.
    let calls = node.calls("evalsha") - before;
    assert!((3..=10).contains(&calls), "{calls}");
}
