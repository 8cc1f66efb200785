//! Proves that a `RedisStore` over a cluster keeps the contract, also while the cluster changes or fails.

use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use support::{
    first_of::{self, CREDITS, PLAN, credits, plan, rush},
    history::{agree, steady},
    sharing,
};

use tokio::sync::MutexGuard;

use crate::{load::Load, prelude::*};

/// More than a busy machine needs for a decision, and less than a client's wait for a silent node.
const TIMEOUT: Duration = Duration::from_millis(500);

/// The time from a promotion to normal decisions.
const HEALED: Duration = Duration::from_secs(1);

/// For clusters that must not fail over a node, even on a busy machine.
const NEVER: Duration = Duration::from_secs(60);

fn much() -> Policy {
    policy("much", "1000000/1h")
}

/// The first users with this primary as their home.
pub(crate) fn users_at(cluster: &Cluster, primary: usize, count: usize) -> Vec<String> {
    let users = (0..).map(|user| user.to_string());
    let at_home = users.filter(|user| cluster.home(&format!("user={user}")) == primary);
    at_home.take(count).collect()
}

pub(crate) fn apart(cluster: &Cluster) -> [String; 3] {
    [0, 1, 2].map(|at| users_at(cluster, at, 1).remove(0))
}

fn two_each(cluster: &Cluster) -> Vec<String> {
    (0..3).flat_map(|at| users_at(cluster, at, 2)).collect()
}

fn all<'a>(policy: &Policy, names: impl IntoIterator<Item = &'a String>) -> Vec<Charge> {
    names
        .into_iter()
        .flat_map(|name| one(policy, name))
        .collect()
}

async fn store(cluster: &Cluster) -> RedisStore {
    static STORES: AtomicU32 = AtomicU32::new(0);
    let store = RedisStore::cluster(cluster.urls()).await.unwrap();
    let number = STORES.fetch_add(1, Ordering::Relaxed);
    store.prefix(format!("store-{number}"))
}

/// An empty store, and a limiter over it that waits for as long as it takes, and calls it each time: these tests are
/// about the store.
async fn waiting(cluster: &Cluster) -> (RedisStore, Limiter) {
    let store = store(cluster).await;
    let limiter = Limiter::new(store.clone()).probe_interval(Duration::ZERO);
    (store, limiter.timeout(NEVER))
}

async fn hasty(cluster: &Cluster) -> Limiter {
    waiting(cluster).await.1.timeout(TIMEOUT)
}

/// The cluster of all tests that run now and change nothing there. Each test has a separate prefix or users.
fn shared() -> Arc<Cluster> {
    static RUNNING: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
    sharing::shared(&RUNNING, || Cluster::start(NEVER))
}

/// The cluster of tests that disturb its nodes, one after the other, and leave it as it was.
async fn disturbed() -> (Arc<Cluster>, MutexGuard<'static, ()>) {
    static RUNNING: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let cluster = sharing::shared(&RUNNING, || Cluster::start(NEVER));
    (cluster, TURN.lock().await)
}

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
    let (_, limiter) = waiting(&cluster).await;
    let users = apart(&cluster);
    // The answer is the later block, whether a limit also denies or not.
    for (name, seconds) in users.iter().zip([600, 900, 300]) {
        let span = Duration::from_secs(seconds);
        limiter.block(&user(name), span).await.unwrap();
    }
    let full = charge(&policy("none", "0/1h"), "zoe", 1);
    for denied in [None, Some(full)] {
        let charges = all(&much(), &users).into_iter().chain(denied);
        let Decision::Blocked(it) = limiter.check(charges).await.unwrap() else {
            panic!("not blocked");
        };
        assert_eq!(it.key(), &user(&users[1]));
    }
    for name in &users {
        assert_eq!(used(&limiter, &much(), name).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_alternatives_in_several_slots_one_is_charged_and_denied_tries_are_rolled_back() {
    let cluster = shared();
    let (_, limiter) = waiting(&cluster).await;
    let [alice, bob, _] = apart(&cluster).map(user);
    let charged = rush(&[limiter.clone(), limiter.clone()], &alice, &bob).await;
    assert_eq!(charged.plan + charged.credits + charged.denied, 48);
    // A try that is being rolled back may make another look denied for a moment, so not all need be used up.
    assert!((PLAN / 2..=PLAN).contains(&charged.plan) && charged.credits <= CREDITS);
    let every = policy("all", "1000000/1h");
    let everybody = Key::new("service", "all");
    until("the denied are rolled back", async || {
        first_of::used(&limiter, &plan(), &alice).await == charged.plan
            && first_of::used(&limiter, &credits(), &bob).await == charged.credits
            && first_of::used(&limiter, &every, &everybody).await == charged.plan + charged.credits
    })
    .await;
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
    let (store, limiter) = waiting(&cluster).await;
    let (few, none) = (policy("few", "10000/1h"), policy("none", "0/1h"));
    let users = apart(&cluster);
    let refused = [&users[0], &users[1]].map(|name| format!("{name}-denied"));
    let fits = check(all(&few, &users));
    let denied = check([all(&few, &refused), all(&none, [&users[2]])].concat());
    for patience in 0..200 {
        let patience = Duration::from_micros(patience * 20);
        let _ = timeout(patience, store.check(&fits)).await;
        let _ = timeout(patience, store.check(&denied)).await;
    }
    let counts = async || {
        let names = users.iter().chain(&refused);
        join_all(names.map(|name| used(&limiter, &few, name))).await
    };
    let is_whole = async || {
        let all = counts().await;
        all[..3] == [all[0]; 3] && all[3..] == [0, 0]
    };
    until("each check is done wholly or not at all", is_whole).await;
    assert!(counts().await[0] > 0, "none was charged");
}

#[tokio::test]
async fn two_stored_forms_count_apart_over_several_slots_and_share_blocks() {
    let cluster = shared();
    let one = store(&cluster).await;
    let next = one.clone().stored_form(2);
    let (policy, names) = (api("5/1d"), apart(&cluster));
    let check = check(all(&policy, &names)).enforce_blocks(true);
    let mut admitted = [0, 0];
    for _ in 0..7 {
        for (form, store) in [&one, &next].into_iter().enumerate() {
            admitted[form] += u32::from(store.check(&check).await.unwrap().is_allowed());
        }
    }
    assert_eq!(admitted, [5, 5]);
    let blocked = user(&names[2]);
    for (blocks, asks) in [(&next, &one), (&one, &next)] {
        blocks.block(&blocked, HOUR.into()).await.unwrap();
        assert!(is_blocked(&asks.check(&check).await.unwrap()));
        asks.unblock(&blocked).await.unwrap();
        assert!(!is_blocked(&blocks.check(&check).await.unwrap()));
    }
}

fn batch(check: Check, count: u16) -> Operation {
    Operation::CheckBatch(CheckBatch::new(check, count))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_that_fails_in_one_slot_is_charged_in_none_also_if_that_slot_answers_later() {
    let (cluster, _turn) = disturbed().await;
    let (store, limiter) = waiting(&cluster).await;
    let [one, _, other] = apart(&cluster);
    let mute = &cluster.nodes[2];
    take(&limiter, &policy("any", "9/1h"), &other).await; // the server knows the script
    for answers_later in [false, true] {
        let (held, before) = (Held::hold(mute), mute.calls("evalsha"));
        let deciding = store.check(&check(all(&much(), [&one, &other])));
        let deciding = tokio::spawn(deciding);
        is_charged(&limiter, &one, 1).await;
        if !answers_later {
            mute.run::<u32>("CLIENT KILL TYPE normal");
        }
        let error = deciding.await.unwrap().unwrap_err();
        assert!(!error.is_unsent(), "{error}");
        is_rolled_back(&limiter, &one, 0).await;
        held.go_on();
        if answers_later {
            assert_eq!(error.kind(), StoreErrorKind::Timeout);
            wait("the check and its roll-back", || {
                mute.calls("evalsha") >= before + 2
            });
        }
        is_rolled_back(&limiter, &other, 0).await;
    }
}

#[tokio::test]
async fn a_caller_that_polls_a_check_of_several_slots_once_and_holds_it_delays_no_roll_back() {
    let (cluster, _turn) = disturbed().await;
    let (store, limiter) = waiting(&cluster).await;
    let [one, _, other] = apart(&cluster);
    let mute = &cluster.nodes[2];
    take(&limiter, &policy("any", "9/1h"), &other).await; // the server knows the script
    let held = Held::hold(mute);
    let mut deciding = store.check(&check(all(&much(), [&one, &other])));
    assert!(poll!(&mut deciding).is_pending());
    is_charged(&limiter, &one, 1).await;
    mute.run::<u32>("CLIENT KILL TYPE normal");
    is_rolled_back(&limiter, &one, 0).await;
    held.go_on();
    assert!(deciding.await.is_err());
}

/// In calls that callers share, and without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_check_and_no_settlement_that_was_sent_to_several_slots_is_called_unsent() {
    let (cluster, _turn) = disturbed().await;
    let [one, _, other] = apart(&cluster);
    for in_flight in [4, 0] {
        let store = store(&cluster).await.in_flight(in_flight);
        let limiter = Limiter::new(store).probe_interval(Duration::ZERO);
        let limiter = limiter.timeout(TIMEOUT);
        let charges = || all(&much(), [&one, &other]);
        let admitted = limiter.check(charges()).await.unwrap();
        let held = Held::hold(&cluster.nodes[2]);
        let unsettled = limiter.settle(admitted.usage(), |_| 0).await;
        let undecided = limiter.check(charges()).await;
        held.go_on();
        for error in [unsettled.unwrap_err(), undecided.unwrap_err()] {
            assert!(!error.is_unsent(), "{error} with {in_flight}");
        }
    }
}

/// Waits until these units are charged.
async fn is_charged(limiter: &Limiter, name: &str, units: u64) {
    let is_done = async || used(limiter, &much(), name).await >= units;
    until("it is charged", is_done).await;
}

/// Waits until no more than these units stay charged.
async fn is_rolled_back(limiter: &Limiter, name: &str, stay: u64) {
    let is_done = async || used(limiter, &much(), name).await <= stay;
    until("it is rolled back", is_done).await;
}

fn with_shadow(name: &str, shadowed: &str) -> Check {
    let trial = policy("trial", "1000/1h").shadow();
    check([charge(&much(), name, 1), charge(&trial, shadowed, 1)])
}

#[tokio::test]
async fn a_shadow_whose_node_hangs_delays_no_admission_until_the_timeout() {
    let (cluster, _turn) = disturbed().await;
    let store = store(&cluster).await;
    let [name, _, shadowed] = apart(&cluster);
    let _held = Held::hold(&cluster.nodes[2]);
    let decision = store.check(&with_shadow(&name, &shadowed));
    let decision = timeout(20 * SOON, decision).await;
    let decision = decision.expect("the pause is longer").unwrap();
    assert!(decision.is_allowed() && decision.usage().shadow().is_none());
}

/// The decisions about this many identical checks.
async fn check_batch(store: &RedisStore, check: &Check, count: u16) -> Vec<Decision> {
    match store.execute(batch(check.clone(), count)).await {
        Ok(Reply::CheckBatch(decisions)) => decisions,
        other => panic!("{other:?}"),
    }
}

/// The number of admitted checks, which come first.
fn admitted(decisions: &[Decision]) -> usize {
    let admitted = decisions.iter().take_while(|it| it.is_allowed()).count();
    assert!(decisions[admitted..].iter().all(|it| !it.is_allowed()));
    admitted
}

#[tokio::test]
async fn a_batch_of_several_slots_is_its_checks_one_after_another() {
    let cluster = shared();
    let (store, limiter) = waiting(&cluster).await;
    let (plenty, little) = (
        policy("plenty", "1000/1h"),
        policy("little", "70/1h,500/1d"),
    );
    let trial = policy("trial", "10/1h").shadow();
    let [one, other, third] = apart(&cluster);
    let twice = charge(&little, &other, 2);
    let check = check([charge(&plenty, &one, 1), twice, charge(&trial, &third, 1)]);
    let mut before = 0;
    for (count, expected) in [(0, 0), (20, 20), (200, 15), (9, 0)] {
        let decisions = check_batch(&store, &check, count).await;
        assert_eq!(decisions.len(), usize::from(count));
        assert_eq!(admitted(&decisions), expected);
        for (place, decision) in decisions.iter().enumerate() {
            // Each admission is the next charge, and a denial follows the last.
            let charged = before + (place + 1).min(expected) as u64;
            let left: Vec<u64> = decision.usage().rules().map(|it| it.remaining()).collect();
            let expected = [1_000 - charged, 70 - 2 * charged, 500 - 2 * charged];
            assert_eq!(left, expected, "{place} of {count}");
        }
        before += expected as u64;
        let shadows = decisions.iter().filter_map(|it| it.usage().shadow());
        let shadows = shadows.filter(|it| it.is_allowed()).count();
        assert_eq!(shadows, if count == 20 { 10 } else { 0 });
    }
    assert_eq!(used(&limiter, &plenty, &one).await, 35);
    assert_eq!(used(&limiter, &little, &other).await, 70);
}

/// Waits until each of these users gets a decision again. Returns the time that this took.
async fn healing(limiter: &Limiter, users: &[String]) -> Duration {
    let mut took = Duration::ZERO;
    for name in users {
        let answers = async || limiter.peek(one(&much(), name)).await.is_ok();
        took += until(name, answers).await;
    }
    took
}

async fn until_all_are_admitted_again(limiter: &Limiter, users: &[String]) {
    let took = healing(limiter, users).await;
    assert!(took < HEALED, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_is_moved_under_load_loses_no_count() {
    let cluster = Cluster::start(NEVER);
    let limiter = hasty(&cluster).await;
    let (first, second) = (policy("first", "300/1h"), policy("second", "1000000/1h"));
    let names = users_at(&cluster, 0, 2);
    let others: Vec<String> = (1..3).flat_map(|at| users_at(&cluster, at, 2)).collect();
    let slot = cluster.slot(&format!("user={}", names[0]));
    // One user has one key, so the cluster never answers TRYAGAIN. The other has two.
    let one = Load::start(&limiter, [&first], &names[..1]);
    let two = Load::start(&limiter, [&policy("third", "300/1h"), &second], &names[..1]);
    let others = Load::start(&limiter, [&first], &others);
    // While the slot moves, a user with two keys may get no decision.
    let counts = async || used(&limiter, &second, &names[0]).await > 0;
    until("something counts", counts).await;
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        cluster.begin_move(slot, from, to);
        for _ in 0..2 {
            sleep(Duration::from_millis(100)).await;
            cluster.move_a_key(slot, from, to);
        }
        sleep(Duration::from_millis(100)).await;
        cluster.end_move(slot, from, to);
    }
    let (one, two, others) = (one.end().await, two.end().await, others.end().await);
    one.counts(&limiter, &first).await;
    assert_eq!(others.errors, []);
    let (admitted, counted) = (
        two.admitted[&names[0]],
        used(&limiter, &second, &names[0]).await,
    );
    assert!(
        (1..=300).contains(&admitted) && counted >= admitted,
        "{counted}"
    );
}

/// The keys of one identity move one by one, and blocks exist on neither side.
#[tokio::test]
async fn a_slot_that_is_being_moved_is_decided_with_blocks_and_several_policies() {
    let cluster = Cluster::start(NEVER);
    let (store, limiter) = waiting(&cluster).await;
    let limiter = limiter.enforce_blocks(true);
    let little = policy("little", "9/1h");
    let [name, ..] = apart(&cluster);
    let slot = cluster.slot(&format!("user={name}"));
    let both = || [charge(&much(), &name, 1), charge(&little, &name, 1)].to_vec();
    let check = async |charges: Vec<Charge>| limiter.check(charges).await.unwrap();
    let are_charged = async |units| {
        assert_eq!(used(&limiter, &much(), &name).await, units);
        assert_eq!(used(&limiter, &little, &name).await, units);
    };
    assert!(check(both()).await.is_allowed());
    cluster.begin_move(slot, 0, 1);
    // Both keys are here, then one, then none. The other node creates new keys.
    let mut admitted = 1;
    for moved in 0..3 {
        let fresh = policy(&format!("fresh-{moved}"), "2/1h");
        for allowed in [true, true, false] {
            let decision = take(&limiter, &fresh, &name).await;
            assert_eq!(decision.is_allowed(), allowed, "{moved}: {decision:?}");
        }
        for _ in 0..2 {
            assert!(check(both()).await.is_allowed());
            admitted += 1;
        }
        let full = [&both()[..], &one(&fresh, &name)].concat();
        assert!(!check(full).await.is_allowed(), "it is charged nowhere");
        are_charged(admitted).await;

        let span = Duration::from_secs(600);
        limiter.block(&user(&name), span).await.unwrap();
        for charges in [both(), one(&much(), &name).to_vec()] {
            let decision = check(charges).await;
            let Decision::Blocked(blocked) = &decision else {
                panic!("not blocked: {decision:?}");
            };
            let left = blocked.retry_after().unwrap();
            assert!(left > span - Duration::from_secs(100) && left <= span);
        }
        limiter.unblock(&user(&name)).await.unwrap();
        let decision = take(&limiter, &much(), &name).await;
        limiter.settle(decision.usage(), |_| 0).await.unwrap();
        cluster.move_a_key(slot, 0, 1);
    }
    cluster.end_move(slot, 0, 1);
    are_charged(admitted).await;

    // A batch is its checks.
    let name = users_at(&cluster, 0, 2).remove(1);
    let slot = cluster.slot(&format!("user={name}"));
    let seven = &policy("seven", "7/1h");
    let check = self::check([charge(&much(), &name, 1), charge(seven, &name, 1)]);
    assert!(store.check(&check).await.unwrap().is_allowed());
    cluster.begin_move(slot, 0, 1);
    cluster.move_a_key(slot, 0, 1);
    let decisions = check_batch(&store, &check, 100).await;
    assert_eq!((decisions.len(), self::admitted(&decisions)), (100, 6));
    assert_eq!(used(&limiter, &much(), &name).await, 7);
    assert_eq!(used(&limiter, seven, &name).await, 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_killed_under_load_is_followed_by_its_replica_which_knows_its_blocks() {
    let mut cluster = Cluster::start(Duration::from_millis(500));
    let limiter = hasty(&cluster).await;
    let lost = users_at(&cluster, 1, 3);
    let blocked = users_at(&cluster, 1, 4).remove(3);
    let others = [0, 2].map(|at| users_at(&cluster, at, 2)).concat();
    limiter.block(&user(&blocked), HOUR).await.unwrap();
    let (replica, primary) = (&cluster.nodes[4], &cluster.nodes[1]);
    wait("the replica knows of it", || primary.has_told(replica));
    let load = Load::start(&limiter, [&much()], &lost);
    let other_load = Load::start(&limiter, [&much()], &others);
    until_all_are_admitted_again(&limiter, &lost).await;
    cluster.nodes[1].kill();
    cluster.wait_for_promotion(1);
    until_all_are_admitted_again(&limiter, &lost).await;
    let decision = take(&limiter, &much(), &blocked).await;
    assert!(is_blocked(&decision), "{decision:?}");
    assert!(!decision.usage().is_local(), "the store keeps it");
    limiter.unblock(&user(&blocked)).await.unwrap();
    assert!(take(&limiter, &much(), &blocked).await.is_allowed());
    load.end().await.suffered();
    other_load.end().await.counts(&limiter, &much()).await;
}

/// The rights in the documentation of `store::redis`.
#[tokio::test]
async fn the_least_rights_are_enough_on_a_cluster_and_on_a_slot_on_its_way_and_none_can_be_left_out()
 {
    let cluster = Cluster::start(NEVER);
    let [mover, ..] = apart(&cluster);
    let rights = [&LEAST_RIGHTS[..], &["+cluster|slots", "+asking"]].concat();
    let connect = async |rights: &[&str]| {
        let urls = cluster.nodes.iter().map(|node| limited(node, rights));
        RedisStore::cluster(urls.collect::<Vec<_>>()).await
    };
    let store = connect(&rights).await.unwrap();
    let limiter = Limiter::new(store.clone()).timeout(TIMEOUT);
    for at in 0..3 {
        let name = users_at(&cluster, at, 2).remove(1);
        take(&limiter, &much(), name).await;
    }
    let slot = cluster.slot(&format!("user={mover}"));
    cluster.begin_move(slot, 0, 1);
    take(&limiter, &much(), &mover).await;
    connect(&rights[..rights.len() - 1]).await.unwrap();
    // Each node closes a user's connections when the rights of that user change.
    let refused = async || kind(limiter.check(one(&much(), &mover)).await);
    let mut error = refused().await;
    for _ in 0..2 * cluster.nodes.len() {
        if error == Some(StoreErrorKind::Unavailable) {
            error = refused().await;
        }
    }
    assert_eq!(error, Some(StoreErrorKind::AccessDenied));
    let without_slots = connect(&LEAST_RIGHTS).await;
    assert_eq!(kind(without_slots), Some(StoreErrorKind::AccessDenied));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_stands_though_another_slot_has_no_answer() {
    let (cluster, _turn) = disturbed().await;
    let limiter = hasty(&cluster).await;
    let single = policy("one", "1/1h");
    let users = apart(&cluster);
    let full = &users[0];
    assert!(take(&limiter, &single, full).await.is_allowed());
    let blocked = users_at(&cluster, 2, 2).remove(1);
    limiter.block(&user(&blocked), HOUR).await.unwrap();
    cluster.nodes[2].stop();
    for _ in 0..3 {
        let decision = limiter.check(all(&single, &users)).await.unwrap();
        assert!(!decision.is_allowed());
        let rules = || decision.usage().rules();
        assert_eq!(
            rules().map(|it| it.remaining()).collect::<Vec<_>>(),
            [0, 1, 1]
        );
        assert_eq!(rules().filter(|it| it.is_exceeded()).count(), 1);
    }
    // A block stays known while the node of the identity does not answer.
    let both = limiter.check(all(&single, [full, &blocked])).await.unwrap();
    assert!(matches!(both, Decision::Denied(_)), "{both:?}");
    assert!(is_blocked(&take(&limiter, &single, &blocked).await));
    cluster.nodes[2].cont();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_hangs_costs_its_own_slots_alone() {
    let (cluster, _turn) = disturbed().await;
    let limiter = hasty(&cluster).await;
    let other = policy("other", "1000000/1h");
    let mute = users_at(&cluster, 2, 3);
    let others = [0, 1].map(|at| users_at(&cluster, at, 2)).concat();
    let load = Load::start(&limiter, [&much()], &mute);
    let other_load = Load::start(&limiter, [&much()], &others);
    until_all_are_admitted_again(&limiter, &mute).await;
    cluster.nodes[2].stop();
    for _ in 0..4 {
        let both = limiter.check(all(&other, [&mute[0], &others[0]])).await;
        assert_eq!(kind(both), Some(StoreErrorKind::Timeout));
    }
    cluster.nodes[2].cont();
    until_all_are_admitted_again(&limiter, &mute).await;
    load.end().await.suffered();
    assert_eq!(other_load.end().await.errors, []);
    // Charges beside the silent node were refunded, or the silent node was charged as well.
    support::finished(&limiter).await;
    let healthy = used(&limiter, &other, &others[0]).await;
    assert!(
        healthy <= used(&limiter, &other, &mute[0]).await,
        "{healthy}"
    );
}

#[tokio::test]
async fn a_roll_back_that_may_have_been_done_is_not_made_again() {
    let (cluster, _turn) = disturbed().await;
    let (store, limiter) = waiting(&cluster).await;
    let [name, _, other] = apart(&cluster);
    for _ in 0..2 {
        take(&limiter, &much(), &name).await;
    }
    let held = Held::hold(&cluster.nodes[2]);
    let deciding = tokio::spawn(store.check(&check(all(&much(), [&name, &other]))));
    is_charged(&limiter, &name, 3).await;
    cluster.nodes[0].stop();
    cluster.nodes[2].run::<u32>("CLIENT KILL TYPE normal");
    assert!(deciding.await.unwrap().is_err());
    sleep(5 * SOON / 2).await; // longer than the answer of a part is waited for
    cluster.nodes[0].cont();
    held.go_on();
    is_rolled_back(&limiter, &name, 2).await;
    assert_eq!(used(&limiter, &much(), &name).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_back_that_was_surely_not_done_is_tried_again() {
    let (cluster, _turn) = disturbed().await;
    let (store, limiter) = waiting(&cluster).await;
    let [name, _, other] = apart(&cluster);
    let full = &cluster.nodes[0];
    // A unit that stays: the key of the other would be deleted, which needs no memory.
    take(&limiter, &much(), &name).await;
    let held = Held::hold(&cluster.nodes[2]);
    let deciding = tokio::spawn(store.check(&check(all(&much(), [&name, &other]))));
    is_charged(&limiter, &name, 2).await;
    full.run::<()>("CONFIG RESETSTAT");
    full.run::<()>("CONFIG SET maxmemory 1");
    cluster.nodes[2].run::<u32>("CLIENT KILL TYPE normal");
    // Redis 6.2 counts the errors that a script meets under no code.
    let refused = ["errorstat_OOM", "errorstat_ERR"][usize::from(full.version() < 7)];
    wait("the roll-back is refused", || {
        full.run::<String>("INFO errorstats").contains(refused)
    });
    full.run::<()>("CONFIG SET maxmemory 0");
    is_rolled_back(&limiter, &name, 1).await;
    assert!(deciding.await.unwrap().is_err());
    held.go_on();
}

/// No task runs before the last check is asked, and all end with their runtime.
#[test]
fn beyond_the_bound_of_checks_over_several_slots_one_is_surely_not_sent() {
    let (cluster, stays, ends) = (shared(), support::runtime(), support::runtime());
    let store = stays.block_on(store(&cluster));
    let apart = check(all(&much(), &apart(&cluster)));
    let mut asked: Vec<_> = (0..16_384).map(|_| store.check(&apart)).collect();
    let error = ends.block_on(async {
        for one in &mut asked {
            assert!(poll!(one).is_pending());
        }
        store.check(&apart).await.unwrap_err()
    });
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.is_unsent(), "{error}");
    drop((asked, ends));
    let there_is_room = stays.block_on(store.check(&apart)).unwrap();
    assert!(there_is_room.is_allowed());
}

#[tokio::test]
async fn shadows_in_other_slots_are_decided_after_the_charges_that_count() {
    let cluster = shared();
    let (_, limiter) = waiting(&cluster).await;
    let (two, trial) = (policy("two", "2/1h"), policy("trial", "1/1h").shadow());
    let users = apart(&cluster);
    for (charged, shadowed, expected) in [
        (Some(0), &[1][..], (true, Some(true))),
        (Some(0), &[1], (true, Some(false))),
        (Some(0), &[1], (false, None)),
        // A shadow that denies in one slot is charged in no slot.
        (Some(1), &[1, 2], (true, Some(false))),
        (None, &[2], (true, Some(true))),
    ] {
        let counting = all(&two, charged.map(|it: usize| &users[it]));
        let shadows = all(&trial, shadowed.iter().map(|&it: &usize| &users[it]));
        let decision = limiter.check([counting, shadows].concat()).await.unwrap();
        let shadow = decision.usage().shadow().map(Decision::is_allowed);
        let case = format!("{charged:?} {shadowed:?}");
        assert_eq!((decision.is_allowed(), shadow), expected, "{case}");
    }
}

#[tokio::test]
async fn the_operations_of_a_call_are_answered_one_by_one_and_in_order_or_fail_alone() {
    let cluster = shared();
    let store = RedisStore::cluster(cluster.urls())
        .await
        .unwrap()
        .prefix("one-by-one");
    let two = policy("two", "2/1h");
    let users = two_each(&cluster);
    let of = |places: &[usize]| check(all(&two, places.iter().map(|&at| &users[at])));
    let admitted = store.check(&of(&[0])).await.unwrap();
    let settlement = Settlement::new(admitted.usage(), |_| 2).unwrap();
    let operations = vec![
        Operation::Check(of(&[0])),
        Operation::Settle(settlement),
        Operation::Check(of(&[0])),
        Operation::Check(of(&[1, 2, 4])),
        batch(of(&[3]), 4),
        batch(of(&[4, 5]), 3),
        Operation::Check(of(&[])),
        Operation::Check(of(&[1])),
    ];
    let replies = store.call(operations).await.unwrap();
    let told = replies.into_iter().map(|reply| match reply.unwrap() {
        Reply::Check(decision) => vec![decision.is_allowed()],
        Reply::CheckBatch(decisions) => decisions.iter().map(Decision::is_allowed).collect(),
        Reply::Settle(usage) => vec![remaining(&usage) == 0],
        other => panic!("not asked for: {other:?}"),
    });
    let told: Vec<Vec<bool>> = told.collect();
    // The settlement came before the second check of the first user.
    assert_eq!(told[..4], [[true], [true], [false], [true]]);
    assert_eq!(told[4], [true, true, false, false]);
    // Decided at the same time as the check that charges one of the users.
    assert!(told[5][2..] == [false] && told[5][0], "{told:?}");
    assert_eq!(told[6..], [[true], [true]]);

    let trial = policy("trial", "2/1h");
    let [broken, sound, _] = apart(&cluster);
    let name = format!("one-by-one:{{user={broken}}}:trial~1");
    cluster.nodes[0].run::<()>(&format!("RPUSH {name} 1"));
    let reset = Operation::Reset {
        policy: trial.clone(),
        key: user(&broken),
    };
    let [broken, sound] = [broken, sound].map(|name| ask(&trial, name));
    let operations = vec![broken.clone(), sound, reset, broken];
    let replies = store.call(operations).await.unwrap().into_iter();
    let failed = replies.map(kind).collect::<Vec<_>>();
    assert_eq!(failed, [Some(StoreErrorKind::Protocol), None, None, None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_forget_the_script_are_told_it_again() {
    let (cluster, _turn) = disturbed().await;
    let limiter = hasty(&cluster).await;
    let users = two_each(&cluster);
    let load = Load::start(&limiter, [&much()], &users);
    for round in 0..60 {
        let () = cluster.nodes[round % 3].run("SCRIPT FLUSH");
        let charges = users
            .iter()
            .map(|name| charge(&much(), format!("{name}-{round}"), 1));
        assert!(limiter.check(charges).await.unwrap().is_allowed());
    }
    load.end().await.counts(&limiter, &much()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_a_lost_connection_may_have_executed_is_not_repeated() {
    let (cluster, _turn) = disturbed().await;
    let limiter = hasty(&cluster).await;
    let [alice, ..] = apart(&cluster);
    let (mut admitted, mut lost) = (0, 0);
    let start = Instant::now();
    while lost < 100 {
        assert!(start.elapsed() < Duration::from_secs(30), "nothing is lost");
        cluster.nodes[0].stop();
        let checks = (0..20).map(|_| {
            let (limiter, charge) = (limiter.clone(), one(&much(), &alice));
            tokio::spawn(async move { limiter.check(charge).await })
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
    let counted = used(&limiter, &much(), &alice).await;
    let is_right = (admitted..=admitted + lost).contains(&counted);
    assert!(
        is_right,
        "{admitted} admitted, {lost} lost, {counted} counted"
    );
}

#[tokio::test]
async fn a_service_starts_while_the_cluster_is_down() {
    let mut cluster = Cluster::start(NEVER);
    let urls = cluster.urls();
    cluster.nodes.iter_mut().for_each(Server::kill);
    let refused = RedisStore::cluster(urls.clone()).await;
    assert_eq!(kind(refused), Some(StoreErrorKind::Unavailable));
    let limiter = Limiter::new(RedisStore::connect_lazy_cluster(urls).unwrap()).timeout(TIMEOUT);
    let undecided = limiter.check(one(&much(), 1)).await;
    assert_eq!(kind(undecided), Some(StoreErrorKind::Unavailable));
    let both = [1, 2].map(|name| charge(&much(), name, 1));
    assert!(limiter.try_acquire(both).await);
    cluster.restart();
    let users: Vec<_> = (0..20).map(|name| name.to_string()).collect();
    healing(&limiter, &users).await;
}

#[tokio::test]
async fn servers_that_can_never_work_are_errors_at_construction() {
    for nodes in [&[][..], &["http://127.0.0.1"], &["unix:///tmp/redis.sock"]] {
        let store = RedisStore::connect_lazy_cluster(nodes.to_vec());
        assert_eq!(kind(store), Some(StoreErrorKind::AccessDenied), "{nodes:?}");
    }
    let alone = Server::start();
    let error = RedisStore::cluster([alone.url()]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::AccessDenied);
    assert!(error.to_string().contains("cluster"), "{error}");
}

#[tokio::test]
async fn a_block_is_listed_though_the_node_of_the_index_answers_late() {
    let (cluster, _turn) = disturbed().await;
    let store = store(&cluster).await.prefix("late");
    let home = cluster.home("late:!blocks");
    let name = users_at(&cluster, (home + 1) % 3, 1).remove(0);
    cluster.nodes[home].run::<()>("CLIENT PAUSE 300");
    store.block(&user(&name), HOUR.into()).await.unwrap();
    // Each listing waits for the node, which may answer before the identity is added.
    let is_listed = async || {
        let listed = store.blocks(10).await.unwrap_or_default();
        listed
            .iter()
            .map(|it| it.identity())
            .eq([format!("user={name}")])
    };
    until("the block is listed", is_listed).await;
}

#[tokio::test]
async fn callers_share_calls_of_one_slot_and_wait_for_those_of_no_other() {
    let (cluster, _turn) = disturbed().await;
    let limiter = Limiter::new(store(&cluster).await.in_flight(1)).timeout(NEVER);
    let api = api("25/1h,1000/1d");
    let home = cluster.home("user=hot");
    let node = &cluster.nodes[home];
    let neighbours = users_at(&cluster, home, 8);
    assert_eq!(left(&limiter, &api, "hot").await, 25);
    let held = Held::hold(node);
    let before = node.calls("evalsha");
    let users = (0..30).map(|_| String::from("hot")).chain(neighbours);
    let checks = users.map(|name| {
        let (limiter, charge) = (limiter.clone(), one(&api, name));
        tokio::spawn(async move { limiter.check(charge).await })
    });
    let checks: Vec<_> = checks.collect();
    for _ in 0..100 {
        yield_now().await;
    }
    held.go_on();
    let mut admitted = 0;
    for check in checks {
        admitted += usize::from(check.await.unwrap().unwrap().is_allowed());
    }
    assert_eq!(admitted, 25 + 8);
    // One call with the first, one with all others, and one for each neighbour; some of these may share a slot.
    let calls = node.calls("evalsha") - before;
    assert!((3..=10).contains(&calls), "{calls}");
}

#[tokio::test]
async fn nodes_are_found_by_each_kind_of_endpoint() {
    let cluster = Cluster::start(NEVER);
    if cluster.nodes[0].version() < 7 {
        return not_tried("before Redis 7, nodes are known by address alone");
    }
    let set = |setting: &str| {
        for node in &cluster.nodes {
            node.run::<()>(&format!("CONFIG SET {setting}"));
        }
    };
    for (kind, hostname, named) in [
        ("ip", "", "127.0.0.1"),
        ("hostname", "", "\"?\""), // no name is known
        ("hostname", "localhost", "localhost"),
        ("unknown-endpoint", "", "nil"),
    ] {
        set(&format!("cluster-announce-hostname {hostname}"));
        set(&format!("cluster-preferred-endpoint-type {kind}"));
        wait("all nodes name each other so", || {
            let is_so = |node: &Server| {
                format!("{:?}", node.run::<redis::Value>("CLUSTER SLOTS"))
                    .matches(named)
                    .count()
                    >= 6
            };
            cluster.nodes[..3].iter().all(is_so)
        });
        let store = RedisStore::cluster([cluster.nodes[0].url()]).await;
        store.unwrap().ping().await.expect(kind);
    }
}
