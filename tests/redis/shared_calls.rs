//! Shared calls: folded checks, callers that leave, and the other callers when a call fails.

use futures::{FutureExt, future::BoxFuture};
use proptest::prelude::*;
use support::{
    history::{Act, History, Player, few_cases, move_clock, wild},
    outcome::Outcome,
    served::fresh,
};
use tokio::task::yield_now;

use crate::prelude::*;

fn units(policy: &Policy, name: impl std::fmt::Display, cost: u64) -> Check {
    check([charge(policy, name, cost)])
}

fn rest(decision: &Decision) -> u64 {
    remaining(decision.usage())
}

pub(crate) type Answer<T = Decision> = BoxFuture<'static, Result<T, StoreError>>;

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
    settle_down().await;
    begun
}

/// Lets the tasks of the new calls run.
async fn settle_down() {
    for _ in 0..20 {
        yield_now().await;
    }
}

/// A held call that occupies the store. Later callers have to wait.
async fn in_flight(store: &RedisStore) -> Answer {
    let occupies = units(&policy("occupies", "1000000/1d"), "nobody", 1);
    begin([store.check(&occupies)]).await.remove(0)
}

async fn all(futures: Vec<Answer>) -> Vec<Decision> {
    let results = join_all(futures).await.into_iter();
    results.map(Result::unwrap).collect()
}

/// A store that is occupied by as many calls as may be in flight, on a server that is held.
pub(crate) struct Busy<'a> {
    server: &'a Server,
    held: Held<'a>,
    first: Vec<Answer>,
    asked: u64,
}

impl<'a> Busy<'a> {
    pub(crate) async fn hold(server: &'a Server, store: &RedisStore, in_flight: usize) -> Self {
        let held = Held::hold(server);
        let mut first = Vec::new();
        for _ in 0..in_flight {
            first.push(self::in_flight(store).await);
        }
        let asked = server.calls("evalsha");
        Self {
            server,
            held,
            first,
            asked,
        }
    }

    /// The decisions about these checks, and the number of calls that were made for them.
    pub(crate) async fn go_on(self, gathered: Vec<Answer>) -> (Vec<Decision>, u64) {
        let occupied = self.first.len() as u64;
        let (results, calls) = self.go_on_to(gathered).await;
        let decisions = results.into_iter().map(Result::unwrap);
        (decisions.collect(), calls - occupied)
    }

    /// The results, and the number of all calls that were counted: those that were held count only now.
    async fn go_on_to<T>(self, gathered: Vec<Answer<T>>) -> (Vec<Result<T, StoreError>>, u64) {
        self.held.go_on();
        let results = join_all(gathered).await;
        all(self.first).await;
        (results, self.server.calls("evalsha") - self.asked)
    }
}

async fn served(in_flight: usize) -> (Server, RedisStore) {
    let server = Server::start();
    let store = connect(&server).await.in_flight(in_flight);
    (server, store)
}

#[tokio::test]
async fn identical_checks_are_decided_in_one_operation_as_if_one_after_another() {
    let server = Server::start();
    let (store, clock) = fresh(&server).await;
    let (store, alone) = (store.clone().in_flight(1), store.in_flight(0));
    clock.set(1_000_000);
    let (api, trial) = (api("5/1h,7/1d"), policy("trial", "3/1h").shadow());
    let both = |name| check([charge(&api, name, 1), charge(&trial, name, 1)]);

    let mut right = Vec::new();
    for _ in 0..9 {
        let check = both("alice").enforce_blocks(true);
        right.push(Outcome::from(&alone.check(&check).await.unwrap()));
    }
    let busy = Busy::hold(&server, &store, 1).await;
    let check = both("bob").enforce_blocks(true);
    let gathered = begin((0..9).map(|_| store.check(&check))).await;
    let (said, calls) = busy.go_on(gathered).await;
    assert_eq!(said.iter().map(Outcome::from).collect::<Vec<_>>(), right);
    assert_eq!(calls, 1);
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
        let busy = Busy::hold(server, store, 1).await;
        let gathered = begin(checks.iter().map(|it| store.check(it))).await;
        let (said, _) = busy.go_on(gathered).await;
        let said: Vec<_> = said.iter().map(Outcome::from).collect();
        assert_eq!(said, right, "{steps:?}");
    }
}

#[tokio::test]
async fn first_come_first_served_and_few_who_wait_go_eight_charges_at_a_time() {
    let (server, store) = served(3).await;
    let api = api("20/1h");
    let busy = Busy::hold(&server, &store, 3).await;
    // Each check has another cost, so that none are folded: 1 to 5 add up to 15, and neither 6 nor a later one fits.
    let checks = (1..=20).map(|cost| store.check(&units(&api, "alice", cost)));
    let (decisions, calls) = busy.go_on(begin(checks).await).await;
    let allowed = decisions.iter().filter(|it| it.is_allowed());
    let counts = (allowed.count(), calls);
    assert_eq!(counts, (5, 3), "20 charges, 8 in each call");
}

#[tokio::test]
async fn calls_grow_with_what_waits_up_to_256_charges() {
    let (server, store) = served(1).await;
    let policies = ["one", "two", "three"].map(|name| policy(name, "1/1h"));
    let three = |it: u32| check(policies.each_ref().map(|policy| charge(policy, it, 1)));
    for (waiting, expected) in [(0..60, 1), (100..300, 3)] {
        let busy = Busy::hold(&server, &store, 1).await;
        let gathered = begin(waiting.map(|it| store.check(&three(it)))).await;
        let (decisions, calls) = busy.go_on(gathered).await;
        assert!(decisions.iter().all(Decision::is_allowed));
        assert_eq!(calls, expected);
    }
}

#[tokio::test]
async fn a_check_of_many_charges_goes_by_itself() {
    // With nine calls in flight, the share of each call is less than the large operation.
    const IN_FLIGHT: usize = 9;
    let (server, store) = served(IN_FLIGHT).await;
    let api = api("1/1h");
    let large = check((0..64).map(|it| charge(&api, it, 1)));
    let small = |it| units(&api, it, 1);
    let busy = Busy::hold(&server, &store, IN_FLIGHT).await;
    let gathered = [small(100), large, small(0)].map(|it| store.check(&it));
    let (decisions, calls) = busy.go_on(begin(gathered).await).await;
    let allowed: Vec<_> = decisions.iter().map(Decision::is_allowed).collect();
    // Calls beside each other may arrive in any order: the last two charge the same unit.
    assert!(allowed[0] && allowed[1] != allowed[2], "{allowed:?}");
    assert_eq!(calls, 3);
}

#[tokio::test]
async fn fewer_than_the_number_in_flight_are_sent_at_once_and_none_share_at_zero() {
    for (in_flight, calls) in [(0, 12), (1, 2), (3, 4), (4, 5), (100, 12)] {
        let (server, store) = served(in_flight).await;
        let api = api("12/1h");
        let held = Held::hold(&server);
        let begun = begin((0..12).map(|_| store.check(&units(&api, "alice", 1)))).await;
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
    let (server, store) = served(1).await;
    let api = api("9/1h");
    let busy = Busy::hold(&server, &store, 1).await;
    let ask = |name| store.check(&units(&api, name, 1));
    let mut gathered = begin(["alice", "alice", "bob", "alice"].map(ask)).await;
    // One of three callers, and the only caller.
    drop(gathered.remove(2));
    drop(gathered.remove(0));
    let (decisions, _) = busy.go_on(gathered).await;
    assert_eq!(decisions.iter().map(rest).collect::<Vec<_>>(), [8, 7]);
    assert_eq!(rest(&store.check(&units(&api, "bob", 0)).await.unwrap()), 9);
}

#[tokio::test]
async fn a_call_that_all_its_callers_have_left_gives_its_place_to_the_next() {
    let (server, store) = served(1).await;
    let api = api("9/1h");
    let held = Held::hold(&server);
    let first = in_flight(&store).await;
    let ask = || store.check(&units(&api, "alice", 1));
    let mut gathered = begin((0..3).map(|_| ask())).await;
    drop(first);
    // The call for the three is sent now, even though the server holds all calls.
    settle_down().await;
    // Two of the callers leave, but are charged; one stays.
    drop(gathered.remove(0));
    drop(gathered.remove(0));
    gathered.extend(begin([ask()]).await);
    held.go_on();
    let left: Vec<_> = all(gathered).await.iter().map(rest).collect();
    assert_eq!(left, [6, 5]);
}

fn two_runtimes() -> (tokio::runtime::Runtime, tokio::runtime::Runtime) {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    (runtime(), runtime())
}

#[test]
fn when_a_runtime_ends_its_calls_fail_at_once_and_the_next_one_runs_in_another() {
    let server = Server::start();
    let (stays, goes) = two_runtimes();
    let store = stays.block_on(connect(&server)).in_flight(1);
    let api = api("1000/1h");
    let ask = || store.check(&units(&api, "alice", 1));
    let held = Held::hold(&server);
    // One call in flight and many waiting callers, so that calls begin in a runtime that shuts down.
    let _first = goes.block_on(in_flight(&store));
    let waiting: Vec<_> = goes.block_on(begin((0..3_000).map(|_| ask())));
    let reset = store.reset(&api, &user("bob"));
    let others = stays.block_on(begin((0..3_000).map(|_| ask())));
    let last = stays.block_on(begin([reset]));
    goes.shutdown_background();
    // The server is still held: no reply ends their wait.
    for answer in waiting {
        let answer = stays.block_on(answer);
        assert_eq!(kind(answer), Some(StoreErrorKind::Unavailable));
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

/// The server serves no other client during a call.
#[tokio::test]
async fn slots_count_towards_the_size_of_a_call() {
    let (server, store) = served(1).await;
    let jobs = policy("jobs", "256/1h@concurrent");
    let many = |number: u32| units(&jobs, number, 248);
    let busy = Busy::hold(&server, &store, 1).await;
    let checks = begin((0..16).map(|it| store.check(&many(it)))).await;
    let (decisions, calls) = busy.go_on(checks).await;
    assert!(decisions.iter().all(Decision::is_allowed));
    assert_eq!(calls, 2, "8 slots are as much work as a charge");

    for renews in [true, false] {
        let busy = Busy::hold(&server, &store, 1).await;
        let slots = decisions.iter().map(|it| Slots::of(it.usage()).remove(0));
        let operation = match renews {
            true => Operation::Renew,
            false => Operation::Return,
        };
        let messages = begin(slots.map(|it| store.execute(operation(it)))).await;
        let (results, calls) = busy.go_on_to(messages).await;
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(calls - 1, 2, "{renews}");
    }
}

#[test]
fn a_caller_that_waits_in_another_runtime_is_answered_when_its_own_ends() {
    let mute = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("redis://{}", mute.local_addr().unwrap());
    let store = RedisStore::connect_lazy(url).unwrap().in_flight(1);
    let (stays, goes) = two_runtimes();
    let limiter = Limiter::new(store).timeout(Duration::from_secs(60));
    let mut waits = limiter.check(one(&api("9/1h"), "alice")).boxed();
    goes.block_on(async { assert!(futures::poll!(&mut waits).is_pending()) });
    goes.shutdown_background();
    let answer = async { timeout(60 * SOON, waits).await };
    let answer = stays.block_on(answer).expect("it is answered");
    let error = answer.unwrap_err();
    assert!(error.kind() == StoreErrorKind::Unavailable && error.is_unsent());
}

#[test]
fn callers_of_one_runtime_get_their_answers_whatever_becomes_of_those_of_another() {
    let server = Server::start();
    let store = RedisStore::connect_lazy(server.url()).unwrap().in_flight(1);
    let limiter = Limiter::new(store).timeout(Duration::from_secs(20));
    let api = api("1000000/1h");
    let parked = support::runtime();
    let mut never = limiter.check(one(&api, "alice")).boxed();
    // Nothing drives that runtime any more.
    parked.block_on(async { assert!(futures::poll!(&mut never).is_pending()) });
    let stays = support::runtime();
    for _ in 0..1_000 {
        let goes = support::runtime();
        let mut left = [(); 3].map(|()| limiter.check(one(&api, "alice")).boxed());
        goes.block_on(async {
            for it in &mut left {
                assert!(futures::poll!(it).is_pending());
            }
        });
        let asked = (0..3).map(|_| limiter.check(one(&api, "alice")));
        stays.block_on(async {
            let mut asked: Vec<_> = asked.map(FutureExt::boxed).collect();
            for it in &mut asked {
                assert!(futures::poll!(it).is_pending());
            }
            goes.shutdown_background();
            for answer in join_all(asked).await {
                assert!(answer.unwrap().is_allowed());
            }
        });
        drop(left);
    }
}

#[tokio::test]
async fn slots_of_a_key_are_renewed_by_one_write_and_those_of_many_keys_in_few_calls() {
    let server = Server::start();
    let store = connect(&server).await;
    let jobs = policy("jobs", "99/30s@concurrent");
    let mut slots = Vec::new();
    for name in 0..200 {
        let admitted = store.check(&units(&jobs, name, 3)).await;
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
    let (server, store) = served(2).await;
    let api = api("100/1h");
    let ask = |name| store.check(&units(&api, name, 1));
    all(begin(["alice", "bob"].map(ask)).await).await;
    let held = Held::hold(&server);
    let users = (0..30).map(|it| if it % 3 == 0 { "bob" } else { "alice" });
    let begun = begin(users.map(ask)).await;
    server.run::<()>("SCRIPT FLUSH");
    held.go_on();
    assert!(all(begun).await.iter().all(Decision::is_allowed));
    for (name, left) in [("alice", 79), ("bob", 89)] {
        let decision = store.check(&units(&api, name, 0)).await.unwrap();
        assert_eq!(rest(&decision), left);
    }
}

#[tokio::test]
async fn a_value_of_another_type_fails_its_own_check_alone() {
    let (server, store) = served(1).await;
    let api = api("9/1h");
    server.run::<()>("RPUSH sluicegate:{user=mallory}:api~1 1");
    let busy = Busy::hold(&server, &store, 1).await;
    let users = ["alice", "mallory", "bob", "mallory", "alice"];
    let gathered = begin(users.map(|name| store.check(&units(&api, name, 1)))).await;
    for (name, result) in users.iter().zip(busy.go_on_to(gathered).await.0) {
        assert!(result.as_ref().is_ok_and(Decision::is_allowed) == (*name != "mallory"));
        let expected = (*name == "mallory").then_some(StoreErrorKind::Protocol);
        assert_eq!(kind(result), expected);
    }
}

#[tokio::test]
async fn operations_of_all_kinds_share_calls_in_their_order() {
    let (server, store) = served(1).await;
    let api = api("3/1h");
    let one = units(&api, "alice", 1);
    let charged = store.check(&one).await.unwrap();
    let settlement = Settlement::new(charged.usage(), |_| 3).unwrap();
    let take = || Operation::Check(one.clone());
    let reset = Operation::Reset {
        policy: api.clone(),
        key: user("alice"),
    };
    let enforcing = Operation::Check(one.clone().enforce_blocks(true));
    let cases = [
        (take(), Some(1)),
        (Operation::Settle(settlement), Some(0)),
        (take(), None), // denied
        (reset, Some(3)),
        (take(), Some(2)),
        (take(), Some(1)),
        (enforcing, Some(0)),
    ];
    let (operations, expected): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    let busy = Busy::hold(&server, &store, 1).await;
    let gathered = begin(operations.into_iter().map(|it| store.execute(it))).await;
    let (replies, calls) = busy.go_on_to(gathered).await;
    let left = replies.into_iter().map(|reply| match reply.unwrap() {
        Reply::Check(decision) => decision.is_allowed().then(|| rest(&decision)),
        Reply::Settle(usage) => Some(remaining(&usage)),
        Reply::Reset => Some(3),
        other => panic!("{other:?}"),
    });
    assert_eq!(left.collect::<Vec<_>>(), expected);
    assert_eq!(
        calls, 2,
        "the call that was held, and one call with all others"
    );
}

#[tokio::test]
async fn stores_with_other_names_or_clocks_share_no_calls() {
    let (server, store) = served(1).await;
    let api = api("1/1h");
    let clock = ManualClock::new(5_000_000);
    let others = [
        store.clone(),
        store.clone().prefix("other"),
        store.clone().prefix("clock").clock(clock),
    ];
    let held = Held::hold(&server);
    let begun = others
        .each_ref()
        .map(|it| it.check(&units(&api, "alice", 1)));
    let begun = begin(begun).await;
    held.go_on();
    let decisions = all(begun).await;
    assert!(decisions.iter().all(Decision::is_allowed));
    assert_eq!(decisions[2].usage().decided_at_ms(), 5_000_000);
    assert_ne!(decisions[0].usage().decided_at_ms(), 5_000_000);
}

#[tokio::test]
async fn settlements_share_calls_as_checks_do() {
    let server = Server::start();
    let plain = connect(&server).await;
    let wrapped = Arc::new(Leases::new(plain.clone()));
    let api = api("1000000/1d");
    let trial = policy("trial", "1000000/1d").shadow();
    let stores: [Arc<dyn Store>; 2] = [Arc::new(plain), wrapped];
    for (number, store) in stores.into_iter().enumerate() {
        let limiter = Limiter::new(store).timeout(10 * SOON);
        let charges =
            |it: u32| [&api, &trial].map(|policy| charge(policy, format!("{number}-{it}"), 5));
        let asked = server.calls("evalsha");
        let admitted = join_all((0..400).map(|it| limiter.check(charges(it)))).await;
        let checks = server.calls("evalsha") - asked;
        let settlements = admitted.iter().map(|it| {
            let usage = it.as_ref().unwrap().usage();
            limiter.settle(usage, |_| 3)
        });
        let settled = join_all(settlements).await;
        let settlements = server.calls("evalsha") - asked - checks;
        let are_few = checks <= 200 && 4 * settlements <= 5 * checks;
        assert!(are_few, "{settlements} after {checks}");
        for usage in settled {
            let usage = usage.unwrap();
            let left = [&usage, usage.shadow().unwrap().usage()].map(remaining);
            assert_eq!(left, [999_997; 2]);
        }
    }
}

#[tokio::test]
async fn a_settlement_whose_connection_was_refused_can_be_tried_again() {
    let memory = Limiter::new(MemoryStore::new());
    let admitted = take(&memory, &api("10/1d"), "alice").await;
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
