//! A store without scripts: the contract, and other requirements of transactions.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bb8_redis::RedisConnectionManager;
use futures::future::join_all;
use proptest::prelude::*;
use sluicegate::{
    Charge, Decision, Key, Limiter, MemoryStore, Policy, RedisStore, Store, StoreError,
    block::{BlockRequest, Until},
    error::StoreErrorKind,
    manual_clock::ManualClock,
    store::{
        CallFuture, Check, Leases, Operation, Reply, Slots, StoreExt, StoreFuture,
        redis::transactions::TransactionStore,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

use support::{
    contract::patient,
    history::{
        History, agree, calls, calls_of_all_kinds, few_cases, hot, large, steady, wild, wild_kinds,
    },
    promise::{admitted, assert_promise},
    redis::Server,
    served::{BLOCKS_RIGHTS, Served, limited, limited_apart, shared_server},
    sharing::wait,
    vectors::{replay_all, replay_blocks, replay_kinds},
};

mod without_rights_to_scripts {
    use super::start;

    support::contract!(start);
    support::calls!(start);
    support::blocks!(start);
    support::kinds!(start);
}

mod under_leases {
    use sluicegate::store::Leases;

    use std::sync::Arc;

    use super::{ManualClock, Served, Server, TransactionStore, start};

    support::contract!(apart new);
    support::calls!(new);
    support::blocks!(new);
    support::kinds!(new);

    async fn new() -> (Leases, ManualClock) {
        let (store, clock): (Served<Arc<Server>, TransactionStore>, _) = start().await;
        (Leases::new(store).clock(clock.clone()), clock)
    }
}

/// The rights that the documentation of `store::redis::transactions` gives a user.
const RIGHTS: [&str; 8] = [
    "~sluicegate:*",
    "+watch",
    "+get",
    "+time",
    "+multi",
    "+set",
    "+del",
    "+exec",
];

type Pool = bb8::Pool<RedisConnectionManager>;

async fn pool(url: String) -> Pool {
    let pool = bb8::Pool::builder().max_size(8).test_on_check_out(false);
    let manager = RedisConnectionManager::new(url).unwrap();
    pool.build(manager).await.unwrap()
}

/// A store with a user that has only the needed rights, and those for slots and lists of blocks.
async fn start() -> (Served<Arc<Server>, TransactionStore>, ManualClock) {
    let server = shared_server();
    let (url, prefix) = limited_apart(
        &server,
        &[&RIGHTS[..], &SLOTS_RIGHTS, &BLOCKS_RIGHTS].concat(),
    );
    let clock = ManualClock::new(0);
    let store = RedisStore::transactions(pool(url).await).prefix(&prefix);
    (Served::by(server, store.clock(clock.clone())), clock)
}

/// An empty store and its clock.
fn fresh(pool: &Pool) -> (TransactionStore, ManualClock) {
    static STORES: AtomicU32 = AtomicU32::new(0);
    let clock = ManualClock::new(0);
    let prefix = format!("store-{}", STORES.fetch_add(1, Ordering::Relaxed));
    let store = RedisStore::transactions(pool.clone()).prefix(&prefix);
    (store.clock(clock.clone()), clock)
}

#[tokio::test]
async fn transactions_agree_with_the_vectors() {
    let server = Server::start();
    let pool = pool(server.socket_url()).await;
    replay_all(async || fresh(&pool)).await;
    replay_blocks(async || fresh(&pool)).await;
    replay_kinds(async || fresh(&pool)).await;
}

/// Two processes over one server that call in turn: one by the script, one by transactions.
#[derive(Debug)]
struct Both {
    script: RedisStore,
    transactions: TransactionStore,
    calls: AtomicU32,
}

impl Both {
    fn next(&self) -> &dyn Store {
        match self.calls.fetch_add(1, Ordering::Relaxed) % 3 {
            1 => &self.script,
            _ => &self.transactions,
        }
    }
}

impl Store for Both {
    fn check(&self, check: &Check) -> StoreFuture<Decision> {
        self.next().check(check)
    }

    fn execute(&self, operation: Operation) -> StoreFuture<Reply> {
        self.next().execute(operation)
    }

    fn call(&self, operations: Vec<Operation>) -> CallFuture {
        self.next().call(operations)
    }
}

#[test]
fn transactions_and_the_script_on_one_server_agree_with_the_memory_store_whatever_happens() {
    agree_on_one_server(&ProptestConfig::default(), wild());
}

#[test]
fn transactions_and_the_script_agree_about_all_kinds_of_rules() {
    agree_on_one_server(&ProptestConfig::default(), wild_kinds());
}

#[test]
fn transactions_and_the_script_agree_however_much_is_charged() {
    agree_on_one_server(&ProptestConfig::default(), large());
}

#[test]
fn transactions_and_the_script_agree_about_calls_of_several_operations() {
    agree_on_one_server(&few_cases(), calls());
    agree_on_one_server(&few_cases(), calls_of_all_kinds());
}

fn agree_on_one_server(config: &ProptestConfig, histories: impl Strategy<Value = History>) {
    let (server, runtime) = (Server::start(), support::runtime());
    let pool = runtime.block_on(pool(server.socket_url()));
    let script = runtime.block_on(RedisStore::connect(server.socket_url()));
    let (script, stores) = (script.unwrap(), AtomicU32::new(0));
    proptest!(config.clone(), |(history in histories)| {
        runtime.block_on(async {
            let clock = ManualClock::new(0);
            let prefix = format!("both-{}", stores.fetch_add(1, Ordering::Relaxed));
            let transactions = RedisStore::transactions(pool.clone()).prefix(&prefix);
            let both = Both {
                script: script.clone().prefix(&prefix).clock(clock.clone()),
                transactions: transactions.clock(clock.clone()),
                calls: AtomicU32::new(0),
            };
            let memory = MemoryStore::new().clock(clock.clone());
            agree(&both, &memory, &clock, &history).await;
        });
    });
}

/// The fast path of the script takes what transactions have written: it counts in place, or opens a step.
#[tokio::test]
async fn a_value_of_transactions_is_written_in_place_by_the_script() {
    let server = Server::start();
    let pool = pool(server.url()).await;
    let mut rules = vec!["9/1d@fixed", "9/1m,99/1h", "99+10/1s@bucket"];
    if cfg!(feature = "calendar") {
        rules.push("9/year@UTC");
    }
    for (rules, place) in rules.into_iter().zip(1..) {
        let (policy, clock) = (api(rules), ManualClock::new(1_700_000_000_000));
        let prefix = format!("rules-{place}");
        let transactions = RedisStore::transactions(pool.clone()).prefix(&prefix);
        let transactions = patient(transactions.clock(clock.clone()));
        let script = RedisStore::connect(server.url()).await.unwrap();
        let script = patient(script.prefix(&prefix).clock(clock.clone()));
        for (call, limiter) in [&transactions, &script, &transactions, &script]
            .into_iter()
            .enumerate()
        {
            // The third call begins a step, which the fourth counts in.
            clock.advance(Duration::from_secs(70 * u64::from(call == 2)));
            let before = server.calls("setrange");
            let decision = limiter.check(charge(&policy, "alice")).await.unwrap();
            let rule = *decision.usage().rules().next().unwrap();
            assert!(rule.remaining() < rule.rule().limit(), "{rules}");
            let in_place = u64::from(call % 2 == 1);
            assert_eq!(
                server.calls("setrange") - before,
                in_place,
                "{rules}: {call}"
            );
        }
    }
}

#[tokio::test]
async fn the_tool_reads_what_transactions_write_and_lists_their_blocks() {
    let server = Server::start();
    let store = RedisStore::transactions(pool(server.url()).await);
    let script = RedisStore::connect(server.url()).await.unwrap();
    let (inspector, alice) = (script.inspector(), Key::new("user", "alice"));
    let (limiter, policy) = (patient(store.clone()), api("10/1m,5+1/1h@bucket"));
    for _ in 0..3 {
        limiter.check(charge(&policy, "alice")).await.unwrap();
    }
    let value = inspector.read(&inspector.name(&alice, "api")).await;
    let (value, now_ms) = (
        value.unwrap().unwrap().unwrap(),
        inspector.now_ms(&alice).await.unwrap(),
    );
    for rule in policy.rules() {
        assert_eq!(value.section(rule).unwrap().used(now_ms), 3, "{rule}");
    }
    let request = BlockRequest::new(Duration::from_secs(60))
        .reason("why")
        .author("kim");
    let block = store.block(&alice, request).await.unwrap();
    let (held, details) = inspector.block(&alice).await.unwrap().unwrap().unwrap();
    assert_eq!(
        (held, details.reason(), details.author()),
        (block, Some("why"), Some("kim"))
    );
    for listed in [store.blocks(9).await, script.blocks(9).await] {
        assert_eq!(listed.unwrap()[0].block(), block);
    }
    assert!(
        !script
            .check(
                &Check::new(charge(&policy, "alice"))
                    .unwrap()
                    .enforce_blocks(true)
            )
            .await
            .unwrap()
            .is_allowed()
    );
    script.unblock(&alice).await.unwrap();
    assert!(store.blocks(9).await.unwrap().is_empty());
    assert!(
        limiter
            .check(charge(&policy, "alice"))
            .await
            .unwrap()
            .is_allowed()
    );
}

/// Two processes, each with leases, over one server.
#[test]
fn under_leases_no_span_of_a_window_holds_more_than_the_limit() {
    let (server, runtime) = (Server::start(), support::runtime());
    let pool = runtime.block_on(pool(server.socket_url()));
    proptest!(few_cases(), |(steady in steady(), hot in hot())| {
        runtime.block_on(async {
            for history in [steady, hot] {
                let (store, clock) = fresh(&pool);
                let [first, second] =
                    [&store, &store].map(|store| Leases::new(store.clone()).clock(clock.clone()));
                assert_promise(&history, &admitted(&[&first, &second], &clock, &history).await);
            }
        });
    });
}

fn api(rules: &str) -> Policy {
    Policy::parse("api", rules).unwrap()
}

fn charge(policy: &Policy, user: &str) -> [Charge; 1] {
    [Charge::new(policy, Key::new("user", user), 1)]
}

async fn remaining(limiter: &Limiter, policy: &Policy, user: &str) -> u64 {
    let usage = limiter.peek(charge(policy, user)).await.unwrap();
    usage.rules().next().unwrap().remaining()
}

/// The key with alice's counts.
const COUNTS: &str = "sluicegate:{user=alice}:api";

/// All operations of a limiter, each with the least rights.
async fn everything(store: &TransactionStore) -> Result<(), StoreError> {
    let (policy, alice) = (api("10/1d"), Key::new("user", "alice"));
    let limiter = patient(store.clone());
    let decision = limiter.check(charge(&policy, "alice")).await?;
    limiter.settle(decision.usage(), |_| 2).await?;
    limiter.block(&alice, Duration::from_secs(60)).await?;
    let blocked = limiter.check(charge(&policy, "alice")).await?;
    assert!(matches!(blocked, Decision::Blocked(_)));
    limiter.unblock(&alice).await?;
    assert_eq!(remaining(&limiter, &policy, "alice").await, 8);
    limiter.reset(&policy, &alice).await
}

#[tokio::test]
async fn without_any_one_of_the_rights_something_fails_and_says_so_and_nothing_is_charged() {
    for missing in RIGHTS {
        let server = Server::start();
        let rights: Vec<_> = RIGHTS.into_iter().filter(|&it| it != missing).collect();
        let store = RedisStore::transactions(pool(limited(&server, &rights)).await);
        let error = everything(&store).await.expect_err(missing);
        assert_eq!(error.kind(), StoreErrorKind::AccessDenied, "{missing}");
        assert_eq!(error.code(), Some("NOPERM"), "{missing}");
        if missing != "+del" {
            assert_eq!(server.run::<u64>("DBSIZE"), 0, "{missing}");
        }
    }
}

#[tokio::test]
async fn with_all_of_them_everything_works() {
    let server = Server::start();
    let store = RedisStore::transactions(pool(limited(&server, &RIGHTS)).await);
    everything(&store).await.unwrap();
}

/// The rights that concurrency rules need as well.
const SLOTS_RIGHTS: [&str; 4] = ["+zrange", "+zrem", "+zadd", "+pexpire"];

#[tokio::test]
async fn slots_need_four_rights_more() {
    let jobs = Policy::parse("jobs", "3/1h@concurrent").unwrap();
    for missing in SLOTS_RIGHTS.into_iter().map(Some).chain([None]) {
        let server = Server::start();
        let rights = RIGHTS.into_iter().chain(SLOTS_RIGHTS);
        let rights: Vec<_> = rights.filter(|&it| Some(it) != missing).collect();
        let store = RedisStore::transactions(pool(limited(&server, &rights)).await);
        let every_operation = async || {
            let check = Check::new([Charge::new(&jobs, Key::new("user", "alice"), 2)])?;
            let decision = store.check(&check).await?;
            for slots in Slots::of(decision.usage()) {
                store.execute(Operation::Renew(slots.clone())).await?;
                store.execute(Operation::Return(slots)).await?;
            }
            store.check(&check).await
        };
        let done = every_operation().await;
        let refused = done.err().map(|error| error.kind());
        let expected = missing.map(|_| StoreErrorKind::AccessDenied);
        assert_eq!(refused, expected, "{missing:?}");
    }
}

#[tokio::test]
async fn a_list_of_blocks_needs_four_rights_more_and_without_them_blocks_hold_all_the_same() {
    for missing in BLOCKS_RIGHTS {
        let server = Server::start();
        let rights = RIGHTS.into_iter().chain(BLOCKS_RIGHTS);
        let rights: Vec<_> = rights.filter(|&it| it != missing).collect();
        let store = RedisStore::transactions(pool(limited(&server, &rights)).await);
        everything(&store).await.expect(missing);
        let hour = Until::After(Duration::from_secs(3_600));
        let alice = Key::new("user", "alice");
        store.block(&alice, hour.into()).await.unwrap();
        let listed = store.blocks(10).await;
        match missing {
            "+zscan" => assert_eq!(listed.unwrap_err().kind(), StoreErrorKind::AccessDenied),
            "+zadd" => assert_eq!(listed.unwrap().len(), 0),
            _ => assert_eq!(listed.unwrap().len(), 1, "{missing}"),
        }
    }
}

#[test]
fn the_documentation_names_these_rights() {
    let page = include_str!("../../docs/guide/transactions.md");
    assert!(page.contains(&format!(">PASSWORD {}\n", RIGHTS.join(" "))));
    assert!(page.contains(&format!("and\n`{}` to", BLOCKS_RIGHTS.join(" "))));
    assert!(page.contains(&format!("also `{}`.", SLOTS_RIGHTS.join(" "))));
}

/// Each process has its own runtime and pool, and two of them call the script. Their joint counts are exact, and none of
/// them starves.
#[test]
fn eight_processes_on_one_hot_key_are_exact_and_none_starves() {
    const PROCESSES: u64 = 8;
    const TASKS: u64 = 4;
    const CHECKS: u64 = 40;
    const ALL: u64 = PROCESSES * TASKS * CHECKS;
    let server = Server::start();
    let (plenty, scarce) = (
        api("1000000/1d"),
        Policy::parse("scarce", "100/1h,70/1d").unwrap(),
    );
    let process = async |process: u64| {
        let limiter = if process < 2 {
            patient(RedisStore::connect(server.url()).await.unwrap())
        } else {
            patient(RedisStore::transactions(pool(server.url()).await))
        };
        let task = async || {
            let (mut admitted, mut longest) = (0, Duration::ZERO);
            for _ in 0..CHECKS {
                let begun = Instant::now();
                let decision = limiter.check(charge(&plenty, "alice")).await.unwrap();
                assert!(decision.is_allowed());
                longest = longest.max(begun.elapsed());
                let both = [charge(&plenty, "bob"), charge(&scarce, "bob")].concat();
                admitted += u64::from(limiter.check(both).await.unwrap().is_allowed());
            }
            (admitted, longest)
        };
        join_all((0..TASKS).map(|_| task())).await
    };
    let run = &|number| support::runtime().block_on(process(number));
    let told: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..PROCESSES)
            .map(|number| scope.spawn(move || run(number)))
            .collect();
        threads
            .into_iter()
            .flat_map(|it| it.join().unwrap())
            .collect()
    });
    assert_eq!(told.iter().map(|it| it.0).sum::<u64>(), 70);
    let longest = told.iter().map(|it| it.1).max().unwrap();
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    support::runtime().block_on(async {
        let limiter = patient(RedisStore::transactions(pool(server.url()).await));
        assert_eq!(remaining(&limiter, &plenty, "alice").await, 1_000_000 - ALL);
        assert_eq!(remaining(&limiter, &plenty, "bob").await, 1_000_000 - 70);
    });
    let attempts = server.calls("exec");
    println!(
        "{attempts} attempts for {} checks; the longest took {longest:?}",
        ALL + 70
    );
}

#[tokio::test]
async fn waiting_callers_of_a_process_share_transactions() {
    let server = Server::start();
    let limiter = patient(RedisStore::transactions(pool(server.url()).await));
    let policy = api("1000/1d");
    let decisions = join_all((0..500).map(|_| limiter.check(charge(&policy, "alice")))).await;
    assert!(decisions.into_iter().all(|it| it.unwrap().is_allowed()));
    assert_eq!(server.calls("exec"), 2);
    assert_eq!(remaining(&limiter, &policy, "alice").await, 500);
}

#[tokio::test]
async fn values_of_others_fail_alone_and_are_forgotten_by_a_reset() {
    let server = Server::start();
    let store = RedisStore::transactions(pool(server.url()).await);
    let limiter = patient(store.clone());
    let policy = api("10/1d");
    for (write, message) in [
        (
            "LPUSH {} 1",
            "a key holds a value of another type, not written by this crate",
        ),
        (
            "SET {} x",
            "a key holds a value that another version of this crate has written",
        ),
        (
            "SET {} x\u{1}",
            "a key holds a value that cannot be read, not written by this crate",
        ),
    ] {
        server.run::<()>(&write.replace("{}", COUNTS));
        let check = |users: &[&str]| {
            let charges = users.iter().flat_map(|user| charge(&policy, user));
            Operation::Check(Check::new(charges).unwrap())
        };
        let operations = vec![
            check(&["bob"]),
            check(&["alice"]),
            check(&["bob", "alice"]),
            check(&["bob"]),
        ];
        let replies = store.call(operations).await.unwrap();
        let failed: Vec<_> = replies
            .iter()
            .map(|it| it.as_ref().err().map(ToString::to_string))
            .collect();
        let error = Some(message.to_owned());
        assert_eq!(failed, [None, error.clone(), error, None]);
        limiter
            .reset(&policy, &Key::new("user", "alice"))
            .await
            .unwrap();
        assert_eq!(remaining(&limiter, &policy, "alice").await, 10);
    }
    assert_eq!(remaining(&limiter, &policy, "bob").await, 4);
}

/// Waits until the server reports no connection in a transaction. Callers that left may have left one under way.
fn none_is_in_a_transaction(server: &Server) {
    wait("no connection is in a transaction", || {
        let clients: String = server.run("CLIENT LIST");
        let mut flags = clients.split(' ').filter(|it| it.starts_with("flags="));
        flags.all(|it| !it.contains('x'))
    });
}

/// Asserts that watched keys do not disturb other commands of a pool's connections.
async fn watches_nothing(pool: &Pool) {
    // A caller gets the answer a moment before the connection goes back to the pool.
    let is_idle = async {
        while pool.state().idle_connections == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(5), is_idle).await.unwrap();
    let (sound, closed) = idle_ones_of(pool).await;
    assert!(sound > 0 && closed == 0, "{sound} {closed}");
}

/// The number of idle connections that can serve another transaction, and the number of closed ones.
async fn idle_ones_of(pool: &Pool) -> (u32, u32) {
    let idle = pool.state().idle_connections;
    let (mut sound, mut closed) = (0, 0);
    for mut connection in join_all((0..idle).map(|_| async { pool.get().await.unwrap() })).await {
        let cmd = |name| redis::cmd(name);
        let mut pipe = redis::pipe();
        pipe.add_command(cmd("MULTI"))
            .add_command(cmd("TIME"))
            .add_command(cmd("EXEC"));
        match pipe
            .query_async::<Vec<redis::Value>>(&mut *connection)
            .await
        {
            Err(error) if error.is_io_error() => closed += 1,
            replies => {
                let replies = replies.unwrap();
                assert!(matches!(replies[2], redis::Value::Array(_)), "{replies:?}");
                sound += 1;
            }
        }
    }
    (sound, closed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_who_leave_leave_no_transaction_and_are_charged_wholly_or_not_at_all() {
    let server = Server::start();
    let pool = pool(server.url()).await;
    let limiter = patient(RedisStore::transactions(pool.clone()));
    let policy = api("1000000/1d");
    let (mut asked, mut answered) = (0, 0);
    for micros in (0..1_500).step_by(3) {
        let both = ["alice", "bob"].map(|user| charge(&policy, user)).concat();
        let check = limiter.check(both);
        asked += 1;
        let decision = timeout(Duration::from_micros(micros), check).await;
        answered += u64::from(decision.is_ok());
    }
    let charged = ["alice", "bob"].map(|user| remaining(&limiter, &policy, user));
    let charged = join_all(charged).await;
    assert_eq!(charged[0], charged[1]);
    let charged = 1_000_000 - charged[0];
    assert!(
        (answered..=asked).contains(&charged),
        "{answered} {charged} {asked}"
    );
    watches_nothing(&pool).await;
    none_is_in_a_transaction(&server);
}

/// Others share the pool, and one of their runtimes shuts down. Its connections are closed with it.
#[test]
fn a_runtime_that_is_shut_down_leaves_no_transaction() {
    const USERS: u32 = 4;
    let server = Server::start();
    let of_pool = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let policy = api("1000000/1d");
    for micros in (0..1_000).step_by(20) {
        let manager = RedisConnectionManager::new(server.url()).unwrap();
        let pool = bb8::Pool::builder().max_size(8).min_idle(8);
        let pool = of_pool.block_on(pool.test_on_check_out(false).build(manager));
        let pool = pool.unwrap();
        let limiter = patient(RedisStore::transactions(pool.clone()));
        let runtime = support::runtime();
        let check = async || {
            let checks = (0..USERS).map(|user| limiter.check(charge(&policy, &user.to_string())));
            let _ = timeout(Duration::from_micros(micros), join_all(checks)).await;
        };
        runtime.block_on(check());
        drop(runtime);
        let (sound, closed) = of_pool.block_on(idle_ones_of(&pool));
        assert!(sound >= 8 - USERS, "{sound} {closed}");
    }
    none_is_in_a_transaction(&server);
}

#[tokio::test]
async fn callers_behind_an_attempt_that_takes_all_its_time_get_another() {
    let server = Server::start();
    let store = RedisStore::transactions(pool(server.url()).await);
    let limiter = Limiter::new(store).timeout(Duration::from_secs(10));
    let limiter = limiter.probe_interval(Duration::ZERO);
    let policy = api("1000000/1d");
    limiter.check(charge(&policy, "alice")).await.unwrap();
    server.stop();
    let all = join_all((0..50).map(|_| limiter.check(charge(&policy, "alice")))).await;
    for result in all {
        assert_eq!(result.unwrap_err().kind(), StoreErrorKind::Timeout);
    }
}

#[tokio::test]
async fn a_stopped_server_is_given_up_in_time_and_goes_on_without_a_transaction() {
    let server = Server::start();
    let pool = pool(server.url()).await;
    let limiter = Limiter::new(RedisStore::transactions(pool.clone()));
    let limiter = limiter
        .timeout(Duration::from_millis(50))
        .probe_interval(Duration::ZERO);
    let policy = api("1000000/1d");
    limiter.check(charge(&policy, "alice")).await.unwrap();
    server.stop();
    let begun = Instant::now();
    for _ in 0..3 {
        let error = limiter.check(charge(&policy, "alice")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Timeout);
    }
    assert!(begun.elapsed() < Duration::from_secs(2));
    server.cont();
    comes_back(&limiter, &policy).await;
    let charged = 1_000_000
        - remaining(
            &patient(RedisStore::transactions(pool.clone())),
            &policy,
            "alice",
        )
        .await;
    assert!((2..=50).contains(&charged), "{charged}");
    watches_nothing(&pool).await;
    none_is_in_a_transaction(&server);
}

async fn comes_back(limiter: &Limiter, policy: &Policy) {
    let begun = Instant::now();
    while limiter.check(charge(policy, "alice")).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(5));
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_server_that_was_started_again_is_found_without_an_error() {
    let mut server = Server::start();
    let pool = pool(server.url()).await;
    let limiter = patient(RedisStore::transactions(pool));
    let policy = api("10/1d");
    for _ in 0..3 {
        limiter.check(charge(&policy, "alice")).await.unwrap();
        server.kill();
        let error = limiter.check(charge(&policy, "alice")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        server.restart();
        limiter.check(charge(&policy, "alice")).await.unwrap();
        assert_eq!(remaining(&limiter, &policy, "alice").await, 9);
    }
}

#[tokio::test]
async fn a_check_that_got_no_connection_of_the_pool_was_not_sent() {
    let server = Server::start();
    let pool = bb8::Pool::builder().max_size(1);
    let manager = RedisConnectionManager::new(server.url()).unwrap();
    let pool = pool.build(manager).await.unwrap();
    let _held = pool.get().await.unwrap();
    let limiter = patient(RedisStore::transactions(pool.clone()));
    let error = limiter.check(charge(&api("10/1d"), "alice")).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    assert!(error.is_unsent(), "{error}");
}

/// Like after a failover: the primary's address leads to a replica, and then to a primary again.
#[tokio::test]
async fn a_server_that_is_read_only_or_full_charges_nothing_and_says_so() {
    let server = Server::start();
    let pool = pool(server.url()).await;
    let limiter = patient(RedisStore::transactions(pool.clone())).probe_interval(Duration::ZERO);
    let policy = api("10/1d");
    for (refuse, allow, code) in [
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "READONLY"),
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "OOM"),
    ] {
        server.run::<()>(refuse);
        let error = limiter.check(charge(&policy, "alice")).await.unwrap_err();
        assert_eq!(error.code(), Some(code));
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        server.run::<()>(allow);
        assert_eq!(remaining(&limiter, &policy, "alice").await, 10);
        none_is_in_a_transaction(&server);
    }
    limiter.check(charge(&policy, "alice")).await.unwrap();
    watches_nothing(&pool).await;
}

/// With the script as with transactions.
#[tokio::test]
async fn a_settlement_that_has_certainly_changed_nothing_can_be_made_again() {
    let server = Server::start();
    let script = RedisStore::connect(server.url()).await.unwrap();
    let transactions = RedisStore::transactions(pool(server.url()).await);
    let policy = api("10/1d");
    for (limiter, name) in [(patient(script), COUNTS), (patient(transactions), COUNTS)] {
        let limiter = limiter.probe_interval(Duration::ZERO);
        // A refund that leaves nothing deletes the key, which needs no memory.
        limiter.check(charge(&policy, "alice")).await.unwrap();
        for (refuse, allow) in [
            ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
            ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
            (
                &format!("RENAME {name} kept"),
                &format!("RENAME kept {name}"),
            ),
        ] {
            let admitted = limiter.check(charge(&policy, "alice")).await.unwrap();
            let left = remaining(&limiter, &policy, "alice").await;
            server.run::<()>(refuse);
            if refuse.starts_with("RENAME") {
                server.run::<()>(&format!("HSET {name} of another_type"));
            }
            let error = limiter.settle(admitted.usage(), |_| 0).await.unwrap_err();
            assert!(error.is_unsent(), "{refuse}: {error}");
            server.run::<()>(allow);
            assert_eq!(remaining(&limiter, &policy, "alice").await, left);
            limiter.settle(admitted.usage(), |_| 0).await.unwrap();
            assert_eq!(remaining(&limiter, &policy, "alice").await, left + 1);
            limiter.check(charge(&policy, "alice")).await.unwrap();
        }
    }
}

/// The store cannot know whether the server executed the charge, and must not try again.
#[tokio::test]
async fn a_reply_to_exec_that_is_lost_is_an_error_and_charges_once() {
    let server = Server::start();
    let pool = pool(proxy(server.address(), AtExec::LoseReply).await).await;
    let limiter = patient(RedisStore::transactions(pool)).probe_interval(Duration::ZERO);
    let direct = patient(RedisStore::transactions(self::pool(server.url()).await));
    let policy = api("10/1d");
    for times in 1..=3 {
        let error = limiter.check(charge(&policy, "alice")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert_eq!(remaining(&direct, &policy, "alice").await, 10 - times);
    }
}

#[derive(Clone, Copy)]
enum AtExec {
    /// The server executes it, and then the connection ends.
    LoseReply,
    /// Another client changes the watched keys just before.
    Disturb,
}

/// A proxy that interferes with each EXEC that ends a transaction.
async fn proxy(server: SocketAddr, at_exec: AtExec) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(async move { carry(client, server, at_exec).await });
        }
    });
    format!("redis://{address}")
}

async fn carry(mut client: TcpStream, server: SocketAddr, at_exec: AtExec) {
    let other = redis::Client::open(format!("redis://{server}")).unwrap();
    let mut other = other.get_multiplexed_async_connection().await.unwrap();
    let mut server = TcpStream::connect(server).await.unwrap();
    let (mut asked, mut replied) = ([0; 4_096], [0; 4_096]);
    loop {
        tokio::select! {
            length = client.read(&mut asked) => {
                let bytes = &asked[..length.unwrap_or(0)];
                let is_exec = bytes.windows(4).any(|it| it == b"EXEC");
                if is_exec && matches!(at_exec, AtExec::Disturb) {
                    let mut touch = redis::cmd("PEXPIRE");
                    let () = touch.arg(COUNTS).arg(100_000).query_async(&mut other).await.unwrap();
                }
                server.write_all(bytes).await.unwrap();
                if bytes.is_empty() || is_exec && matches!(at_exec, AtExec::LoseReply) {
                    let _ = server.read(&mut replied).await;
                    return;
                }
            }
            length = server.read(&mut replied) => {
                client.write_all(&replied[..length.unwrap()]).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn attempts_that_others_always_disturb_end_in_time() {
    let server = Server::start();
    let policy = api("10/1d");
    let direct = patient(RedisStore::transactions(pool(server.url()).await));
    direct.check(charge(&policy, "alice")).await.unwrap();
    let pool = pool(proxy(server.address(), AtExec::Disturb).await).await;
    let check = Check::new(charge(&policy, "alice")).unwrap();
    let begun = Instant::now();
    let error = RedisStore::transactions(pool.clone())
        .check(&check)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert_eq!(
        error.to_string(),
        "others have changed the same keys at each attempt"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
    assert!(server.calls("exec") > 10);
    assert_eq!(remaining(&direct, &policy, "alice").await, 9);
    watches_nothing(&pool).await;
}

#[tokio::test]
async fn a_node_of_a_cluster_is_an_error_that_says_so() {
    let server = loop {
        let server = Server::with(&["--cluster-enabled", "yes"]);
        if server.answers() {
            break server;
        }
    };
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    server.run::<()>(&format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
    let limiter = patient(RedisStore::transactions(pool(server.url()).await));
    let policy = api("10/1d");
    while server
        .run::<String>("CLUSTER INFO")
        .contains("cluster_state:fail")
    {}
    limiter.check(charge(&policy, "alice")).await.unwrap();
    let both = ["alice", "bob"].map(|user| charge(&policy, user)).concat();
    let error = limiter.check(both).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::AccessDenied);
    assert_eq!(
        error.to_string(),
        "transactions need a server that keeps all keys, and this is a node of a cluster"
    );
}

#[tokio::test]
async fn counts_are_kept_as_long_as_they_count_and_shared_with_the_script() {
    let server = Server::start();
    let policy = api("10/1m@1s");
    let limiter = patient(RedisStore::transactions(pool(server.url()).await));
    let script = patient(RedisStore::connect(server.url()).await.unwrap());
    for (limiter, left) in [(&limiter, 9), (&script, 8), (&limiter, 7)] {
        let decision = limiter.check(charge(&policy, "alice")).await.unwrap();
        let rule = *decision.usage().rules().next().unwrap();
        assert_eq!(rule.remaining(), left);
        let ttl: u64 = server.run(&format!("PTTL {COUNTS}"));
        assert!((60_000..=122_000).contains(&ttl), "{ttl}");
    }
    let limiter = Limiter::new(RedisStore::transactions(pool(server.url()).await));
    let brief = Policy::parse("brief", "1/1ms").unwrap();
    limiter.check(charge(&brief, "alice")).await.unwrap();
    let begun = Instant::now();
    while server.run::<u64>("DBSIZE") > 1 {
        assert!(begun.elapsed() < Duration::from_secs(5), "it never expires");
    }
}
