//! Shared calls: folded checks, callers that leave, and the other callers when a call fails.

use std::{sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use proptest::prelude::*;
use sluicegate::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, RedisStore, Store, StoreError,
    error::StoreErrorKind,
    manual_clock::ManualClock,
    store::{Check, Leases, Settlement, Slots, StoreExt},
};
use tokio::task::yield_now;

use support::{
    history::{Act, History, Player, few_cases, move_clock, wild},
    outcome::Outcome,
    redis::Server,
    served::fresh,
    trace::traced,
};

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

fn charge(policy: &Policy, user: &str, cost: u64) -> Charge {
    Charge::new(policy, Key::new("user", user), cost)
}

fn check(policy: &Policy, user: &str, cost: u64) -> Check {
    Check::new([charge(policy, user, cost)]).unwrap()
}

fn remaining(decision: &Decision) -> u64 {
    decision.usage().rules().next().unwrap().remaining()
}

/// A server that executes no scripts until `go_on`, so that calls stay in flight.
struct Held<'a>(&'a Server);

impl<'a> Held<'a> {
    fn hold(server: &'a Server) -> Self {
        server.run::<()>("CLIENT PAUSE 60000 WRITE");
        Self(server)
    }

    fn go_on(self) {
        self.0.run::<()>("CLIENT UNPAUSE");
    }
}

/// Begins these futures in order.
async fn begin<T: Send + 'static>(
    futures: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<BoxFuture<'static, T>> {
    let mut begun = Vec::new();
    for future in futures {
        let mut future = future.boxed();
        assert!(futures::poll!(&mut future).is_pending());
        begun.push(future);
    }
    // Let the tasks of the new calls run.
    for _ in 0..20 {
        yield_now().await;
    }
    begun
}

/// A held call that occupies the store. Later callers have to wait.
async fn in_flight(store: &RedisStore) -> BoxFuture<'static, Result<Decision, StoreError>> {
    let occupies = check(&policy("occupies", "1000000/1d"), "nobody", 1);
    begin([store.check(&occupies)]).await.remove(0)
}

async fn all(futures: Vec<BoxFuture<'static, Result<Decision, StoreError>>>) -> Vec<Decision> {
    let results = join_all(futures).await.into_iter();
    results.map(Result::unwrap).collect()
}

#[tokio::test]
async fn identical_checks_are_decided_in_one_operation_as_if_one_after_another() {
    let server = Server::start();
    let (store, clock) = fresh(&server).await;
    let (store, alone) = (store.clone().in_flight(1), store.in_flight(0));
    clock.set(1_000_000);
    let (api, trial) = (policy("api", "5/1h,7/1d"), policy("trial", "3/1h").shadow());
    let both = |user| Check::new([charge(&api, user, 1), charge(&trial, user, 1)]).unwrap();

    let mut right = Vec::new();
    for _ in 0..9 {
        let decision = alone
            .check(&both("alice").enforce_blocks(true))
            .await
            .unwrap();
        right.push(Outcome::from(&decision));
    }
    let held = Held::hold(&server);
    let first = in_flight(&store).await;
    let asked = server.calls("evalsha");
    let gathered = begin((0..9).map(|_| store.check(&both("bob").enforce_blocks(true)))).await;
    held.go_on();
    let said: Vec<_> = all(gathered).await.iter().map(Outcome::from).collect();
    assert_eq!(said, right);
    first.await.unwrap();
    // Two calls: the one in flight counts only now, because it was held.
    assert_eq!(server.calls("evalsha") - asked, 2);
}

#[test]
fn checks_that_gather_are_decided_as_if_one_after_another() {
    let server = Server::start();
    let runtime = support::runtime();
    proptest!(few_cases(), |(history in wild(), together in 2..12_usize)| {
        runtime.block_on(async {
            let (store, clock) = fresh(&server).await;
            clock.set(history.start_ms);
            agree_gathered(&server, &store.in_flight(1), &clock, &history, together).await;
        });
    });
}

async fn agree_gathered(
    server: &Server,
    store: &RedisStore,
    clock: &ManualClock,
    history: &History,
    together: usize,
) {
    let memory = MemoryStore::new().clock(clock.clone());
    let mut player = Player::new(&memory, history);
    for steps in history.steps.chunks(together) {
        move_clock(clock, steps[0].gap_ms);
        let (mut checks, mut right) = (Vec::new(), Vec::new());
        for step in steps {
            if let Act::Check(charges) = &step.act {
                for _ in 0..=charges.len() % 3 {
                    checks.push(player.check_of(charges));
                    right.extend(player.play(&step.act).await);
                }
            }
        }
        let held = Held::hold(server);
        let first = in_flight(store).await;
        let gathered = begin(checks.iter().map(|it| store.check(it))).await;
        held.go_on();
        first.await.unwrap();
        let said: Vec<_> = all(gathered).await.iter().map(Outcome::from).collect();
        assert_eq!(said, right, "{steps:?}");
    }
}

#[tokio::test]
async fn first_come_first_served_and_few_who_wait_go_eight_charges_at_a_time() {
    let server = Server::start();
    let store = RedisStore::connect(server.url())
        .await
        .unwrap()
        .in_flight(3);
    let api = policy("api", "20/1h");
    let held = Held::hold(&server);
    let mut first = Vec::new();
    for _ in 0..3 {
        first.push(in_flight(&store).await);
    }
    let asked = server.calls("evalsha");
    // Each check has another cost, so that none are folded: 1 to 5 add up to 15, and neither 6 nor a later one fits.
    let gathered = begin((1..=20).map(|cost| store.check(&check(&api, "alice", cost)))).await;
    held.go_on();
    let allowed = all(gathered)
        .await
        .iter()
        .filter(|it| it.is_allowed())
        .count();
    assert_eq!(allowed, 5);
    join_all(first).await;
    // The three calls that were held, and 20 charges, 8 in each call.
    assert_eq!(server.calls("evalsha") - asked, 3 + 3);
}

#[tokio::test]
async fn calls_grow_with_what_waits_up_to_256_charges() {
    let server = Server::start();
    let store = RedisStore::connect(server.url())
        .await
        .unwrap()
        .in_flight(1);
    let policies = ["one", "two", "three"].map(|name| policy(name, "1/1h"));
    let three = |it: u32| {
        let user = format!("user-{it}");
        Check::new(policies.each_ref().map(|it| charge(it, &user, 1))).unwrap()
    };
    for (waiting, calls) in [(0..60, 1), (100..300, 3)] {
        let held = Held::hold(&server);
        let first = in_flight(&store).await;
        let asked = server.calls("evalsha");
        let gathered = begin(waiting.map(|it| store.check(&three(it)))).await;
        held.go_on();
        assert!(all(gathered).await.iter().all(Decision::is_allowed));
        first.await.unwrap();
        assert_eq!(server.calls("evalsha") - asked, 1 + calls);
    }
}

#[tokio::test]
async fn a_check_of_many_charges_goes_by_itself_and_in_its_turn() {
    // With nine calls in flight, the share of each call is less than the large operation.
    const IN_FLIGHT: usize = 9;
    let server = Server::start();
    let store = RedisStore::connect(server.url())
        .await
        .unwrap()
        .in_flight(IN_FLIGHT);
    let api = policy("api", "1/1h");
    let user = |it: u32| charge(&api, &format!("user-{it}"), 1);
    let large = Check::new((0..64).map(user)).unwrap();
    let small = |it| Check::new([user(it)]).unwrap();
    let held = Held::hold(&server);
    let mut first = Vec::new();
    for _ in 0..IN_FLIGHT {
        first.push(in_flight(&store).await);
    }
    let asked = server.calls("evalsha");
    let gathered = [small(100), large, small(0)].map(|it| store.check(&it));
    let gathered = begin(gathered).await;
    held.go_on();
    let allowed: Vec<_> = all(gathered)
        .await
        .iter()
        .map(Decision::is_allowed)
        .collect();
    assert_eq!(allowed, [true, true, false]);
    join_all(first).await;
    assert_eq!(server.calls("evalsha") - asked, IN_FLIGHT as u64 + 3);
}

#[tokio::test]
async fn fewer_than_the_number_in_flight_are_sent_at_once_and_none_share_at_zero() {
    for (in_flight, calls) in [(0, 12), (1, 2), (3, 4), (4, 5), (100, 12)] {
        let server = Server::start();
        let store = RedisStore::connect(server.url()).await.unwrap();
        let store = store.in_flight(in_flight);
        let api = policy("api", "12/1h");
        let held = Held::hold(&server);
        let begun = begin((0..12).map(|_| store.check(&check(&api, "alice", 1)))).await;
        held.go_on();
        assert!(all(begun).await.iter().all(Decision::is_allowed));
        // The first call has sent the script again as source.
        let sent = server.calls("evalsha") + server.calls("eval");
        let taught = server.calls("eval");
        assert_eq!(sent - taught, calls, "{in_flight}");
    }
}

#[tokio::test]
async fn a_caller_dropped_before_the_call_is_sent_is_not_charged_and_the_others_are() {
    let server = Server::start();
    let store = RedisStore::connect(server.url())
        .await
        .unwrap()
        .in_flight(1);
    let api = policy("api", "9/1h");
    let held = Held::hold(&server);
    let first = in_flight(&store).await;
    let ask = |user| store.check(&check(&api, user, 1));
    let mut gathered = begin(["alice", "alice", "bob", "alice"].map(ask)).await;
    // One of three callers, and the only caller.
    drop(gathered.remove(2));
    drop(gathered.remove(0));
    held.go_on();
    let left: Vec<_> = all(gathered).await.iter().map(remaining).collect();
    assert_eq!(left, [8, 7]);
    first.await.unwrap();
    assert_eq!(
        remaining(&store.check(&check(&api, "bob", 0)).await.unwrap()),
        9
    );
}

#[tokio::test]
async fn a_call_that_all_its_callers_have_left_gives_its_place_to_the_next() {
    let server = Server::start();
    let store = RedisStore::connect(server.url())
        .await
        .unwrap()
        .in_flight(1);
    let api = policy("api", "9/1h");
    let held = Held::hold(&server);
    let first = in_flight(&store).await;
    let mut gathered = begin((0..3).map(|_| store.check(&check(&api, "alice", 1)))).await;
    drop(first);
    // The call for the three is sent now, even though the server holds all calls.
    for _ in 0..20 {
        yield_now().await;
    }
    // Two of the callers leave, but are charged; one stays.
    drop(gathered.remove(0));
    drop(gathered.remove(0));
    let next = begin([store.check(&check(&api, "alice", 1))]).await;
    held.go_on();
    assert_eq!(
        all(gathered)
            .await
            .iter()
            .map(remaining)
            .collect::<Vec<_>>(),
        [6]
    );
    assert_eq!(
        all(next).await.iter().map(remaining).collect::<Vec<_>>(),
        [5]
    );
}

#[test]
fn when_a_runtime_ends_its_calls_fail_at_once_and_the_next_one_runs_in_another() {
    let server = Server::start();
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (stays, goes) = (runtime(), runtime());
    let store = stays.block_on(RedisStore::connect(server.url())).unwrap();
    let store = store.in_flight(1);
    let api = policy("api", "1000/1h");
    let ask = || store.check(&check(&api, "alice", 1));
    let held = Held::hold(&server);
    // One call in flight and many waiting callers, so that calls begin in a runtime that shuts down.
    let _first = goes.block_on(in_flight(&store));
    let waiting: Vec<_> = goes.block_on(begin((0..3_000).map(|_| ask())));
    let reset = store.reset(&api, &Key::new("user", "bob"));
    let others = stays.block_on(begin((0..3_000).map(|_| ask())));
    let last = stays.block_on(begin([reset]));
    goes.shutdown_background();
    // The server is still held: no reply ends their wait.
    for answer in waiting {
        let error = stays.block_on(answer).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    }
    held.go_on();
    let others = stays.block_on(join_all(others));
    // A call that began in the other runtime may have taken some of them along.
    let failed = others.iter().filter_map(|it| it.as_ref().err());
    let kinds: Vec<_> = failed.map(StoreError::kind).collect();
    assert!(kinds.len() < 1_024, "{}", kinds.len());
    assert!(kinds.iter().all(|it| *it == StoreErrorKind::Unavailable));
    for result in stays.block_on(join_all(last)) {
        result.unwrap();
    }
}

#[test]
fn a_caller_whose_runtime_ends_is_answered_in_time_in_another() {
    let mute = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("redis://{}", mute.local_addr().unwrap());
    let store = RedisStore::connect_lazy(url).unwrap().in_flight(1);
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let (stays, goes) = (runtime(), runtime());
    let api = policy("api", "9/1h");
    let _first = stays.block_on(in_flight(&store));
    let limiter = Limiter::new(store).timeout(Duration::from_millis(300));
    let mut waits = limiter.check([charge(&api, "alice", 1)]).boxed();
    let begun = std::time::Instant::now();
    goes.block_on(async { assert!(futures::poll!(&mut waits).is_pending()) });
    goes.shutdown_background();
    let error =
        stays.block_on(async { tokio::time::timeout(Duration::from_secs(60), waits).await });
    let error = error.expect("it is answered").unwrap_err();
    assert!(error.kind() == StoreErrorKind::Timeout && error.is_unsent());
    assert!(begun.elapsed() >= Duration::from_millis(300));
}

#[test]
fn a_call_in_a_runtime_that_nothing_drives_is_warned_about_once() {
    let parked = support::paused_runtime();
    let store = RedisStore::connect_lazy("redis://127.0.0.1:1/").unwrap();
    let limiter = Limiter::new(store.in_flight(1)).probe_interval(Duration::ZERO);
    let api = policy("api", "9/1h");
    // Nothing looks after its deadline either, nor after others in that runtime.
    let mut never_answered = limiter.check([charge(&api, "alice", 1)]).boxed();
    parked.block_on(async { assert!(futures::poll!(&mut never_answered).is_pending()) });
    let lines = traced(false, async {
        for _ in 0..50 {
            let error = limiter.check([charge(&api, "alice", 1)]).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Timeout);
            assert!(error.is_unsent());
        }
    });
    let warned = lines.iter().filter(|it| it.contains("nothing drives"));
    assert_eq!(warned.count(), 1, "{lines:?}");
}

#[tokio::test]
async fn slots_of_a_key_are_renewed_by_one_write_and_those_of_many_keys_in_few_calls() {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let jobs = policy("jobs", "99/30s@concurrent");
    let mut slots = Vec::new();
    for user in 0..200 {
        let admitted = store
            .check(&check(
                &jobs,
                &user.to_string(),
                if user == 0 { 60 } else { 1 },
            ))
            .await;
        slots.extend(Slots::of(admitted.unwrap().usage()));
    }
    let calls = || ["evalsha", "zadd"].map(|command| server.calls(command));
    let before = calls();
    let renewed = join_all(slots.iter().map(|slots| store.renew(slots))).await;
    assert!(renewed.iter().all(|it| it.as_ref().unwrap().are_held()));
    let after = calls();
    let (calls, writes) = (after[0] - before[0], after[1] - before[1]);
    assert!(calls <= 20, "{calls}"); // each has a share of those that wait
    assert_eq!(writes, 200);
}

#[tokio::test]
async fn a_server_that_forgets_the_script_is_told_it_again_and_charges_once() {
    let server = Server::start();
    let store = RedisStore::connect(server.url())
        .await
        .unwrap()
        .in_flight(2);
    let api = policy("api", "100/1h");
    let ask = |user| store.check(&check(&api, user, 1));
    all(begin(["alice", "bob"].map(ask)).await).await;
    let held = Held::hold(&server);
    let users = (0..30).map(|it| if it % 3 == 0 { "bob" } else { "alice" });
    let begun = begin(users.map(ask)).await;
    server.run::<()>("SCRIPT FLUSH");
    held.go_on();
    assert!(all(begun).await.iter().all(Decision::is_allowed));
    for (user, left) in [("alice", 79), ("bob", 89)] {
        let decision = store.check(&check(&api, user, 0)).await.unwrap();
        assert_eq!(remaining(&decision), left);
    }
}

#[tokio::test]
async fn a_value_of_another_type_fails_its_own_check_alone() {
    let server = Server::start();
    let store = RedisStore::connect(server.url())
        .await
        .unwrap()
        .in_flight(1);
    let api = policy("api", "9/1h");
    server.run::<()>("RPUSH sluicegate:{user=mallory}:api 1");
    let held = Held::hold(&server);
    let first = in_flight(&store).await;
    let users = ["alice", "mallory", "bob", "mallory", "alice"];
    let gathered = begin(users.map(|user| store.check(&check(&api, user, 1)))).await;
    held.go_on();
    for (user, result) in users.iter().zip(join_all(gathered).await) {
        match result {
            Ok(decision) => assert!(decision.is_allowed() && *user != "mallory"),
            Err(error) => assert_eq!((*user, error.kind()), ("mallory", StoreErrorKind::Protocol)),
        }
    }
    first.await.unwrap();
}

#[tokio::test]
async fn operations_of_all_kinds_share_calls_in_their_order() {
    let server = Server::start();
    let store = RedisStore::connect(server.url())
        .await
        .unwrap()
        .in_flight(1);
    let api = policy("api", "3/1h");
    let alice = Key::new("user", "alice");
    let one = check(&api, "alice", 1);
    let charged = store.check(&one).await.unwrap();
    let settlement = Settlement::new(charged.usage(), |_| 3).unwrap();

    let held = Held::hold(&server);
    let first = in_flight(&store).await;
    let asked = server.calls("evalsha");
    let before = begin([store.check(&one)]).await;
    let settled = begin([store.settle(&settlement)]).await;
    let denied = begin([store.check(&one)]).await;
    let reset = begin([store.reset(&api, &alice)]).await;
    let after = begin([store.check(&one), store.check(&one)]).await;
    let enforces = begin([store.check(&one.clone().enforce_blocks(true))]).await;
    held.go_on();
    assert_eq!(remaining(&all(before).await[0]), 1);
    let left = join_all(settled).await.remove(0).unwrap();
    assert_eq!(left.rules().next().unwrap().remaining(), 0);
    assert!(!all(denied).await[0].is_allowed());
    join_all(reset).await.remove(0).unwrap();
    assert_eq!(
        all(after).await.iter().map(remaining).collect::<Vec<_>>(),
        [2, 1]
    );
    assert_eq!(remaining(&all(enforces).await[0]), 0);
    first.await.unwrap();
    // The call that was held, and one call with all others.
    assert_eq!(server.calls("evalsha") - asked, 2);
}

#[tokio::test]
async fn stores_with_other_names_or_clocks_share_no_calls() {
    let server = Server::start();
    let store = RedisStore::connect(server.url())
        .await
        .unwrap()
        .in_flight(1);
    let api = policy("api", "1/1h");
    let clock = ManualClock::new(5_000_000);
    let others = [
        store.clone(),
        store.clone().prefix("other"),
        store.clone().prefix("clock").clock(clock),
    ];
    let held = Held::hold(&server);
    let begun = others.iter().map(|it| it.check(&check(&api, "alice", 1)));
    let begun = begin(begun.collect::<Vec<_>>()).await;
    held.go_on();
    let decisions = all(begun).await;
    assert!(decisions.iter().all(Decision::is_allowed));
    assert_eq!(decisions[2].usage().decided_at_ms(), 5_000_000);
    assert_ne!(decisions[0].usage().decided_at_ms(), 5_000_000);
}

#[tokio::test]
async fn settlements_share_calls_as_checks_do() {
    let server = Server::start();
    let plain = RedisStore::connect(server.url()).await.unwrap();
    let wrapped = Arc::new(Leases::new(plain.clone()));
    let api = policy("api", "1000000/1d");
    let trial = policy("trial", "1000000/1d").shadow();
    let stores: [Arc<dyn Store>; 2] = [Arc::new(plain), wrapped];
    for (number, store) in stores.into_iter().enumerate() {
        let limiter = Limiter::new(store).timeout(Duration::from_secs(10));
        let charges = |it: u32| {
            let user = format!("user-{number}-{it}");
            [charge(&api, &user, 5), charge(&trial, &user, 5)]
        };
        let asked = server.calls("evalsha");
        let checks = (0..400).map(|it| limiter.check(charges(it)));
        let admitted = join_all(checks).await;
        let checks = server.calls("evalsha") - asked;
        let settlements = admitted.iter().map(|it| {
            let usage = it.as_ref().unwrap().usage();
            limiter.settle(usage, |_| 3)
        });
        let settled = join_all(settlements).await;
        let settlements = server.calls("evalsha") - asked - checks;
        assert!(
            checks <= 200 && 4 * settlements <= 5 * checks,
            "{settlements} after {checks}"
        );
        for usage in settled {
            let usage = usage.unwrap();
            let left = [&usage, usage.shadow().unwrap().usage()];
            let left = left.map(|it| it.rules().next().unwrap().remaining());
            assert_eq!(left, [999_997; 2]);
        }
    }
}

#[tokio::test]
async fn a_settlement_whose_connection_was_refused_can_be_tried_again() {
    let api = policy("api", "10/1d");
    let memory = Limiter::new(MemoryStore::new());
    let admitted = memory.check([charge(&api, "alice", 1)]).await.unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", nobody.local_addr().unwrap());
    drop(nobody);
    let limiter = Limiter::new(RedisStore::connect_lazy(url).unwrap());
    for _ in 0..2 {
        let error = limiter.settle(admitted.usage(), |_| 0).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(error.is_unsent(), "{error}");
    }
    assert!(memory.settle(admitted.usage(), |_| 0).await.is_ok());
}
