//! A store without scripts: the contract, and other requirements of transactions.

use std::thread;

use proptest::prelude::*;
use sluicegate::{block::BlockRequest, store::redis::transactions::TransactionStore};
use support::{
    history::{
        History, agree, calls, calls_of_all_kinds, few_cases, large, taken_back, wild, wild_kinds,
    },
    served::{limited_apart, shared_server},
    stores::Pool,
};

use crate::prelude::*;

mod without_rights_to_scripts {
    use super::start;

    support::contract!(start);
    support::calls!(start);
    support::blocks!(start);
    support::kinds!(start);
}

/// The rights that the documentation of `store::redis::transactions` gives a user: `acl` tests them.
pub(crate) const RIGHTS: [&str; 8] = [
    "~sluicegate:*",
    "+watch",
    "+get",
    "+time",
    "+multi",
    "+set",
    "+del",
    "+exec",
];

/// The rights that concurrency rules need as well.
pub(crate) const SLOTS_RIGHTS: [&str; 3] = ["+zrange", "+zadd", "+pexpire"];

pub(crate) async fn pool(url: String) -> Pool {
    stores::pool(url, |it| it.max_size(8).test_on_check_out(false)).await
}

async fn pooled(server: &Server) -> (Pool, Limiter) {
    let pool = pool(server.url()).await;
    let limiter = patient(RedisStore::transactions(pool.clone()));
    (pool, limiter)
}

/// A store with a user that has only the needed rights, and those for slots and lists of blocks.
async fn start() -> (Served<Arc<Server>, TransactionStore>, ManualClock) {
    let server = shared_server();
    let rights = [&RIGHTS[..], &SLOTS_RIGHTS, &BLOCKS_RIGHTS].concat();
    let (url, prefix) = limited_apart(&server, &rights);
    let clock = ManualClock::new(0);
    let store = RedisStore::transactions(pool(url).await).prefix(&prefix);
    (Served::by(server, store.clock(clock.clone())), clock)
}

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
fn transactions_and_the_script_take_back_alike() {
    agree_on_one_server(&few_cases(), taken_back());
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

/// The plain part of the script takes values that transactions have written, and its fast path those that it has written
/// itself since.
#[tokio::test]
async fn a_value_of_transactions_is_rewritten_by_the_script_and_then_in_place() {
    let server = Server::start();
    let pool = pool(server.url()).await;
    let mut rules = vec!["9/1d@fixed", "9/1m,99/1h", "99+10/1s@bucket"];
    if cfg!(feature = "calendar") {
        rules.push("9/year@UTC");
    }
    for (place, rules) in rules.into_iter().enumerate() {
        let (policy, clock) = (api(rules), ManualClock::new(1_700_000_000_000));
        let prefix = format!("rules-{place}");
        let script = connect(&server).await.prefix(&prefix);
        let script = patient(script.clock(clock.clone()));
        let store = RedisStore::transactions(pool.clone()).prefix(&prefix);
        let limiters = [patient(store.clock(clock.clone())), script];
        for call in 0..6 {
            let before = server.calls("setrange");
            let decision = take(&limiters[usize::from(call % 3 > 0)], &policy, "alice").await;
            assert!(
                remaining(decision.usage()) < policy.rules()[0].limit(),
                "{rules}"
            );
            let in_place = server.calls("setrange") - before;
            assert_eq!(in_place, u64::from(call % 3 == 2), "{rules}: {call}");
        }
    }
}

#[tokio::test]
async fn the_tool_reads_what_transactions_write_and_lists_their_blocks() {
    let server = Server::start();
    let store = RedisStore::transactions(pool(server.url()).await);
    let script = connect(&server).await;
    let (inspector, alice) = (script.inspector(), user("alice"));
    let (limiter, policy) = (patient(store.clone()), api("10/1m,5+1/1h@bucket"));
    for _ in 0..3 {
        take(&limiter, &policy, "alice").await;
    }
    let value = inspector.read(&inspector.name(&alice, "api")).await;
    let value = value.unwrap().unwrap().unwrap();
    let now_ms = inspector.now_ms(&alice).await.unwrap();
    for rule in policy.rules() {
        assert_eq!(value.section(rule).unwrap().used(now_ms), 3, "{rule}");
    }
    let request = BlockRequest::new(HOUR).reason("why").author("kim");
    let block = store.block(&alice, request).await.unwrap();
    let held = inspector.block(&alice).await.unwrap().unwrap().unwrap();
    let (held, details) = (held.block, held.details);
    let told = (held, details.reason(), details.author());
    assert_eq!(told, (block, Some("why"), Some("kim")));
    for listed in [store.blocks(9).await, script.blocks(9).await] {
        assert_eq!(listed.unwrap()[0].block(), block);
    }
    let enforcing = check(one(&policy, "alice")).enforce_blocks(true);
    assert!(is_blocked(&script.check(&enforcing).await.unwrap()));
    script.unblock(&alice).await.unwrap();
    assert!(store.blocks(9).await.unwrap().is_empty());
    assert!(take(&limiter, &policy, "alice").await.is_allowed());
}

const COUNTS: &str = "sluicegate:{user=alice}:api~1";

/// Each process has its own runtime and pool, and two of them call the script. Their joint counts are exact, and none of
/// them starves.
#[test]
fn eight_processes_on_one_hot_key_are_exact_and_none_starves() {
    const PROCESSES: u64 = 8;
    const TASKS: u64 = 4;
    const CHECKS: u64 = 40;
    const ALL: u64 = PROCESSES * TASKS * CHECKS;
    let server = Server::start();
    let (plenty, scarce) = (api("1000000/1d"), policy("scarce", "100/1h,70/1d"));
    let work = async |number: u64| {
        let limiter = match number {
            0..2 => process(&server).await,
            _ => pooled(&server).await.1,
        };
        let task = async || {
            let (mut admitted, mut longest) = (0, Duration::ZERO);
            for _ in 0..CHECKS {
                let begun = Instant::now();
                assert!(take(&limiter, &plenty, "alice").await.is_allowed());
                longest = longest.max(begun.elapsed());
                let both = [one(&plenty, "bob"), one(&scarce, "bob")].concat();
                admitted += u64::from(limiter.check(both).await.unwrap().is_allowed());
            }
            (admitted, longest)
        };
        join_all((0..TASKS).map(|_| task())).await
    };
    let run = &|number| support::runtime().block_on(work(number));
    let told: Vec<_> = thread::scope(|scope| {
        let threads = (0..PROCESSES).map(|number| scope.spawn(move || run(number)));
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .flat_map(|it| it.join().unwrap())
            .collect()
    });
    assert_eq!(told.iter().map(|it| it.0).sum::<u64>(), 70);
    let longest = told.iter().map(|it| it.1).max().unwrap();
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    support::runtime().block_on(async {
        let (_, limiter) = pooled(&server).await;
        assert_eq!(used(&limiter, &plenty, "alice").await, ALL);
        assert_eq!(used(&limiter, &plenty, "bob").await, 70);
    });
}

/// The callers name the keys in different orders, and no two of them wait for each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_callers_of_a_process_wait_for_each_other_and_none_tries_again() {
    let server = Server::start();
    let (_, limiter) = pooled(&server).await;
    let policy = api("1000/1d");
    let check = |number| {
        let mut both = ["alice", "bob"].map(|name| charge(&policy, name, 1));
        both.rotate_left(number % 2);
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.check(both).await })
    };
    for decision in join_all((0..200_usize).map(check)).await {
        assert!(decision.unwrap().unwrap().is_allowed());
    }
    assert_eq!(server.calls("exec"), 200);
    for name in ["alice", "bob"] {
        assert_eq!(left(&limiter, &policy, name).await, 800);
    }
}

#[tokio::test]
async fn a_caller_that_does_not_go_on_keeps_no_other_from_the_same_key() {
    let server = Server::start();
    let (_, limiter) = pooled(&server).await;
    let policy = api("10/1d");
    let mut waits = [0; 2].map(|_| Box::pin(limiter.check(one(&policy, "alice"))));
    for caller in &mut waits {
        assert!(futures::poll!(caller).is_pending());
    }
    take(&limiter, &policy, "alice").await;
    for caller in waits {
        assert!(caller.await.unwrap().is_allowed());
    }
    assert_eq!(left(&limiter, &policy, "alice").await, 7);
}

#[tokio::test]
async fn a_caller_that_waits_for_the_same_key_has_sent_nothing() {
    let server = Server::start();
    let (_, limiter) = pooled(&server).await;
    let policy = api("10/1d");
    take(&limiter, &policy, "alice").await;
    let limiter = limiter.timeout(SOON / 10);
    server.stop();
    let both = join_all([0; 2].map(|_| limiter.check(one(&policy, "alice")))).await;
    server.cont();
    let unsent = both.into_iter().map(|it| it.unwrap_err().is_unsent());
    assert_eq!(unsent.collect::<Vec<_>>(), [false, true]);
}

#[tokio::test]
async fn a_transaction_that_has_begun_goes_on_when_its_caller_leaves() {
    let server = Server::start();
    let (pool, limiter) = pooled(&server).await;
    let store = RedisStore::transactions(pool);
    let policy = api("10/1d");
    take(&limiter, &policy, "alice").await;
    server.stop();
    let asked = store.check(&check(one(&policy, "alice")));
    timeout(SOON / 20, asked).await.unwrap_err();
    server.cont();
    until("it is charged", async || {
        left(&limiter, &policy, "alice").await == 8
    })
    .await;
}

#[tokio::test]
async fn values_of_others_fail_alone_and_are_forgotten_by_a_reset() {
    let server = Server::start();
    let store = RedisStore::transactions(pool(server.url()).await);
    let limiter = patient(store.clone());
    let policy = api("10/1d");
    for (write, message) in [
        ("LPUSH {} 1", "of another type, not written by this crate"),
        ("SET {} x", "that cannot be read, not written by this crate"),
        (
            "SET {} x\u{1}",
            "that cannot be read, not written by this crate",
        ),
    ] {
        server.run::<()>(&write.replace("{}", COUNTS));
        let both = ["bob", "alice"].map(|name| charge(&policy, name, 1));
        let operations = vec![
            ask(&policy, "bob"),
            ask(&policy, "alice"),
            Operation::Check(check(both)),
            ask(&policy, "bob"),
        ];
        let replies = store.call(operations).await.unwrap().into_iter();
        let failed: Vec<_> = replies
            .map(|it| it.err().map(|it| it.to_string()))
            .collect();
        let error = Some(format!("a key holds a value {message}"));
        assert_eq!(failed, [None, error.clone(), error, None]);
        limiter.reset(&policy, &user("alice")).await.unwrap();
        assert_eq!(left(&limiter, &policy, "alice").await, 10);
    }
    assert_eq!(left(&limiter, &policy, "bob").await, 4);
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
            yield_now().await;
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
        let mut pipe = redis::pipe();
        for name in ["MULTI", "TIME", "EXEC"] {
            pipe.add_command(redis::cmd(name));
        }
        let replies: redis::RedisResult<Vec<redis::Value>> =
            pipe.query_async(&mut *connection).await;
        match replies {
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
    let (pool, limiter) = pooled(&server).await;
    let policy = api("1000000/1d");
    let (mut asked, mut answered) = (0, 0);
    for micros in (0..1_500).step_by(3) {
        let both = ["alice", "bob"].map(|name| charge(&policy, name, 1));
        asked += 1;
        let decision = timeout(Duration::from_micros(micros), limiter.check(both)).await;
        answered += u64::from(decision.is_ok());
    }
    let charged = ["alice", "bob"].map(|name| used(&limiter, &policy, name));
    let charged = join_all(charged).await;
    assert_eq!(charged[0], charged[1]);
    let is_right = (answered..=asked).contains(&charged[0]);
    assert!(is_right, "{answered} {charged:?} {asked}");
    watches_nothing(&pool).await;
    none_is_in_a_transaction(&server);
}

/// Others share the pool, and one of their runtimes shuts down. Its connections are closed with it.
#[test]
fn a_runtime_that_is_shut_down_leaves_no_transaction() {
    const USERS: u32 = 4;
    let server = Server::start();
    let mut of_pool = tokio::runtime::Builder::new_multi_thread();
    let of_pool = of_pool.worker_threads(1).enable_all().build().unwrap();
    let policy = api("1000000/1d");
    for micros in (0..1_000).step_by(20) {
        let eight = |it: bb8::Builder<_>| it.max_size(8).min_idle(8).test_on_check_out(false);
        let pool = of_pool.block_on(stores::pool(server.url(), eight));
        let limiter = patient(RedisStore::transactions(pool.clone()));
        let runtime = support::runtime();
        let check = async || {
            let checks = (0..USERS).map(|user| limiter.check(one(&policy, user)));
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
async fn callers_behind_a_transaction_that_takes_all_its_time_get_another() {
    let server = Server::start();
    let limiter = pooled(&server).await.1.timeout(Duration::from_secs(10));
    let limiter = limiter.probe_interval(Duration::ZERO);
    let policy = api("1000000/1d");
    take(&limiter, &policy, "alice").await;
    server.stop();
    for result in join_all((0..3).map(|_| limiter.check(one(&policy, "alice")))).await {
        assert_eq!(kind(result), Some(StoreErrorKind::Timeout));
    }
}

#[tokio::test]
async fn a_server_that_was_started_again_is_found_without_an_error() {
    let mut server = Server::start();
    let (_, limiter) = pooled(&server).await;
    let policy = api("10/1d");
    for _ in 0..3 {
        take(&limiter, &policy, "alice").await;
        server.kill();
        let result = limiter.check(one(&policy, "alice")).await;
        assert_eq!(kind(result), Some(StoreErrorKind::Unavailable));
        server.restart();
        take(&limiter, &policy, "alice").await;
        assert_eq!(left(&limiter, &policy, "alice").await, 9);
    }
}

/// As after an outage of the network: the servers answer to new connections alone.
#[tokio::test]
async fn one_check_fails_when_all_connections_of_the_pool_fall_silent() {
    let server = Server::start();
    let proxy = Proxy::new(server.address(), Duration::ZERO).await;
    let four = |it: bb8::Builder<_>| it.max_size(4).min_idle(4).test_on_check_out(false);
    let pool = stores::pool(proxy.url(), four).await;
    let limiter = patient(RedisStore::transactions(pool)).probe_interval(Duration::ZERO);
    let policy = api("100/1d");
    take(&limiter, &policy, "alice").await;
    proxy.fall_silent();
    let mut failed = 0;
    for _ in 0..8 {
        failed += u32::from(limiter.check(one(&policy, "alice")).await.is_err());
    }
    assert_eq!(failed, 1);
}

#[tokio::test]
async fn a_dead_connection_is_replaced_although_its_caller_leaves_before_the_new_one_answers() {
    let server = Server::start();
    let proxy = Proxy::new(server.address(), Duration::ZERO).await;
    let one_by_one = |it: bb8::Builder<_>| it.max_size(1).test_on_check_out(false);
    let pool = stores::pool(proxy.url(), one_by_one).await;
    let limiter = patient(RedisStore::transactions(pool)).probe_interval(Duration::ZERO);
    let policy = api("100/1d");
    take(&limiter, &policy, "alice").await;
    proxy.fall_silent();
    proxy.set_weather(Weather::Cut);
    let limiter = limiter.timeout(Duration::from_millis(50));
    until("a new connection is dialled", async || {
        assert!(limiter.check(one(&policy, "alice")).await.is_err());
        proxy.dials() == 2
    })
    .await;
    proxy.set_weather(Weather::Clear);
    until("the new connection is used", async || {
        limiter.check(one(&policy, "alice")).await.is_ok()
    })
    .await;
    assert_eq!(proxy.dials(), 2);
}

#[tokio::test]
async fn a_check_that_got_no_connection_of_the_pool_was_not_sent() {
    let server = Server::start();
    let pool = stores::pool(server.url(), |it| it.max_size(1)).await;
    let _held = pool.get().await.unwrap();
    let limiter = patient(RedisStore::transactions(pool.clone()));
    let error = limiter
        .check(one(&api("10/1d"), "alice"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    assert!(error.is_unsent(), "{error}");
}

/// All have to wait, since the only connection is in use.
#[tokio::test]
async fn a_caller_that_leaves_before_its_turn_makes_room_for_the_next() {
    let server = Server::start();
    let pool = stores::pool(server.url(), |it| it.max_size(1)).await;
    let _held = pool.get().await.unwrap();
    let store = RedisStore::transactions(pool.clone());
    let check = check(one(&api("10/1d"), "alice"));
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    for _ in 0..3 {
        timeout(SOON / 10, store.check(&check)).await.unwrap_err();
    }
    let error = store.check(&check).await.unwrap_err();
    assert!(error.is_unsent(), "{error}");
    assert!(begun.elapsed() < 2 * SOON, "{:?}", begun.elapsed());
}

const READ_ONLY: [&str; 2] = ["REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"];
const FULL: [&str; 2] = ["CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"];

/// With the script as with transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_that_has_certainly_changed_nothing_can_be_made_again() {
    let server = Server::start();
    let policy = api("10/1d");
    for limiter in [process(&server).await, pooled(&server).await.1] {
        let limiter = limiter.probe_interval(Duration::ZERO);
        // A refund that leaves nothing deletes the key, which needs no memory.
        take(&limiter, &policy, "alice").await;
        let [away, back] = [
            format!("RENAME {COUNTS} kept"),
            format!("RENAME kept {COUNTS}"),
        ];
        for ([refuse, allow], code) in [
            (FULL, Some("OOM")),
            (READ_ONLY, Some("READONLY")),
            ([&*away, &back], None),
        ] {
            let admitted = take(&limiter, &policy, "alice").await;
            let before = left(&limiter, &policy, "alice").await;
            server.run::<()>(refuse);
            if refuse == away {
                server.run::<()>(&format!("HSET {COUNTS} of another_type"));
            }
            let error = limiter.settle(admitted.usage(), |_| 0).await.unwrap_err();
            assert!(error.is_unsent(), "{refuse}: {error}");
            let undecided = limiter.check(one(&policy, "alice")).await.unwrap_err();
            for error in code.into_iter().flat_map(|_| [&error, &undecided]) {
                let expected = (StoreErrorKind::Refused, code);
                assert_eq!((error.kind(), error.code()), expected, "{refuse}");
            }
            server.run::<()>(allow);
            none_is_in_a_transaction(&server);
            assert_eq!(left(&limiter, &policy, "alice").await, before);
            limiter.settle(admitted.usage(), |_| 0).await.unwrap();
            assert_eq!(left(&limiter, &policy, "alice").await, before + 1);
            take(&limiter, &policy, "alice").await;
        }
    }
}

/// The store cannot know whether the server executed the charge, and must not try again.
#[tokio::test]
async fn a_reply_to_exec_that_is_lost_is_an_error_and_charges_once() {
    let server = Server::start();
    let pool = pool(proxy(server.address(), AtExec::LoseReply).await).await;
    let limiter = patient(RedisStore::transactions(pool)).probe_interval(Duration::ZERO);
    let (_, direct) = pooled(&server).await;
    let policy = api("10/1d");
    for times in 1..=3 {
        let result = limiter.check(one(&policy, "alice")).await;
        assert_eq!(kind(result), Some(StoreErrorKind::Unavailable));
        assert_eq!(used(&direct, &policy, "alice").await, times);
    }
}

#[derive(Clone, Copy)]
enum AtExec {
    /// The server executes it, and then the connection ends.
    LoseReply,
    /// Another client changes the watched keys just before, and 50 ms pass.
    Disturb,
}

/// A proxy that interferes with each EXEC that ends a transaction.
async fn proxy(server: SocketAddr, at_exec: AtExec) -> String {
    listen(move |client| carry(client, server, at_exec)).await
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
                    advance(Duration::from_millis(50)).await;
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
    let (_, direct) = pooled(&server).await;
    take(&direct, &policy, "alice").await;
    let pool = pool(proxy(server.address(), AtExec::Disturb).await).await;
    let store = RedisStore::transactions(pool.clone());
    // The clock stands while a thread waits, and only the proxy moves it.
    let (_ends, waits) = std::sync::mpsc::channel::<()>();
    let _stands = tokio::task::spawn_blocking(move || waits.recv());
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    let undecided = store.check(&check(one(&policy, "alice"))).await;
    let error = undecided.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let message = "others have changed the same keys at each attempt";
    assert_eq!(error.to_string(), message);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(server.calls("exec") > 10);
    assert_eq!(left(&direct, &policy, "alice").await, 9);
    watches_nothing(&pool).await;
}

#[tokio::test]
async fn a_node_of_a_cluster_is_an_error_that_says_so() {
    let server = node_with_all_slots();
    let (_, limiter) = pooled(&server).await;
    let policy = api("10/1d");
    take(&limiter, &policy, "alice").await;
    let both = ["alice", "bob"].map(|name| charge(&policy, name, 1));
    let error = limiter.check(both).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::AccessDenied);
    let message = "transactions need a server that keeps all keys, and this is a node of a cluster";
    assert_eq!(error.to_string(), message);
}

#[tokio::test]
async fn counts_are_kept_as_long_as_they_count_and_shared_with_the_script() {
    let server = Server::start();
    let policy = api("10/1m@1s");
    let (limiter, script) = (pooled(&server).await.1, process(&server).await);
    for (limiter, left) in [(&limiter, 9), (&script, 8), (&limiter, 7)] {
        let decision = take(limiter, &policy, "alice").await;
        assert_eq!(remaining(decision.usage()), left);
        let ttl: u64 = server.run(&format!("PTTL {COUNTS}"));
        assert!((60_000..=122_000).contains(&ttl), "{ttl}");
    }
    take(&limiter, &self::policy("brief", "1/1ms"), "alice").await;
    wait("it expires", || server.run::<u64>("DBSIZE") == 1);
}
