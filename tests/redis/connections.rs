//! `RedisStore` returns to a server after an outage, over every kind of connection.

use tokio::io::copy_bidirectional;

use crate::prelude::*;

fn plenty() -> Policy {
    api("1000000/1d")
}

/// Charges one unit. Returns the number of units that were charged before.
async fn charge_one(limiter: &Limiter) -> Result<u64, StoreError> {
    let decision = in_time(SOON, limiter.check(one(&plenty(), "alice"))).await?;
    assert!(decision.is_allowed());
    Ok(1_000_000 - remaining(decision.usage()) - 1)
}

/// A busy machine may take longer than the default timeout, and libraries wait even longer before they try again.
///
/// Without a breaker, because these tests are about the store.
fn limiter(store: RedisStore) -> Limiter {
    let limiter = support::limiter(store).probe_interval(Duration::ZERO);
    limiter.timeout(Duration::from_millis(300))
}

/// A limiter for requests that have to wait for another request.
fn patient(store: &RedisStore) -> Limiter {
    support::limiter(store.clone()).timeout(SOON)
}

/// Charges eight units, of which each finds those before it.
async fn charge_eight(limiter: &Limiter, name: &str) {
    for charged_before in 0..8 {
        assert_eq!(
            charge_one(limiter).await.expect(name),
            charged_before,
            "{name}"
        );
    }
}

#[tokio::test]
async fn requests_fail_soon_while_the_server_is_down_and_the_very_next_ones_work_when_it_is_back() {
    let mut server = Server::start();
    let mut stores = stores::all(&server).await;
    let socket = RedisStore::connect(server.socket_url()).await.unwrap();
    stores.push(("unix socket", socket));
    for (name, store) in stores {
        let limiter = limiter(store);
        for traffic in [false, true] {
            charge_eight(&limiter, name).await;
            server.kill();
            let start = Instant::now();
            for _ in 0..if traffic { 20 } else { 0 } {
                charge_one(&limiter).await.expect_err(name);
            }
            assert!(start.elapsed() < SOON, "{name}: {:?}", start.elapsed());
            server.restart();
            charge_eight(&limiter, name).await;
            server.run::<()>("FLUSHALL");
        }
    }
}

#[tokio::test]
async fn every_kind_of_connection_knows_blocks_and_contributors() {
    let server = Server::start();
    for (place, (name, store)) in (1..).zip(stores::all(&server).await) {
        let limiter = patient(&store);
        let block = limiter.block(&user("bob"), Until::Forever).await.unwrap();
        assert_eq!(block, Block::new(u64::MAX, BlockedBy::Operator), "{name}");
        assert!(
            is_blocked(&take(&limiter, &plenty(), "bob").await),
            "{name}"
        );
        limiter.unblock(&user("bob")).await.unwrap();
        let charge = charge(&plenty(), "acme", 1).with_contributor(user("bob"));
        let decision = limiter.check([charge]).await.unwrap();
        assert!(decision.is_allowed(), "{name}");
        let told = limiter.contributors(&plenty(), &user("acme")).await;
        assert_eq!(told.unwrap().total(), place, "{name}");
    }
}

#[tokio::test]
async fn one_attempt_to_connect_serves_all_and_outlives_the_request_that_started_it() {
    let server = Server::start();
    let store = RedisStore::connect_lazy(server.url()).unwrap();
    let before = server.connections_made();
    server.stop();
    let hasty = Limiter::new(store.clone()).timeout(Duration::from_millis(10));
    assert_eq!(
        kind(charge_one(&hasty).await),
        Some(StoreErrorKind::Timeout)
    );
    let waiting = (0..50).map(|_| {
        let limiter = patient(&store);
        tokio::spawn(async move { charge_one(&limiter).await })
    });
    let waiting: Vec<_> = waiting.collect();
    yield_now().await;
    server.cont();
    for task in waiting {
        task.await.unwrap().unwrap();
    }
    assert_eq!(server.connections_made() - before, 1);
}

#[tokio::test]
async fn an_attempt_to_connect_that_is_older_than_the_request_does_not_fail_it() {
    let server = Server::start();
    let address = server.address();
    let door = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("redis://{}", door.local_addr().unwrap());
    let limiter = patient(&RedisStore::connect_lazy(url).unwrap());
    let request = || {
        let limiter = limiter.clone();
        tokio::spawn(async move { charge_one(&limiter).await })
    };
    let early = request();
    let (attempt, _) = door.accept().await.unwrap();
    // The next connection leads to the server.
    tokio::spawn(async move {
        let (mut client, _) = door.accept().await.unwrap();
        let mut server = TcpStream::connect(address).await.unwrap();
        copy_bidirectional(&mut client, &mut server).await
    });
    let late = request();
    yield_now().await;
    drop(attempt);
    // The late request may begin the next attempt before the early one wakes, which then waits for that attempt.
    if let Err(error) = early.await.unwrap() {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    }
    late.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_is_down_gets_at_most_200_attempts_to_connect_a_second() {
    let mut server = Server::start();
    let stores = stores::all(&server).await;
    server.kill();
    let listener = std::net::TcpListener::bind(server.address()).unwrap();
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    std::thread::spawn(move || {
        for attempt in listener.incoming() {
            drop(attempt);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    for (name, store) in stores {
        let before = attempts.load(Ordering::Relaxed);
        let limiter = limiter(store);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            charge_one(&limiter).await.unwrap_err();
        }
        let attempts = attempts.load(Ordering::Relaxed) - before;
        let at_most = u32::try_from(start.elapsed().as_millis()).unwrap() / 5 + 2;
        assert!(
            (2..=at_most).contains(&attempts),
            "{name}: {attempts} of {at_most}"
        );
    }
}

#[tokio::test]
async fn a_connection_that_owes_an_answer_for_too_long_is_replaced() {
    let server = Server::start();
    let store = connect(&server).await;
    let before = server.connections_made();
    server.stop();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(700) {
        charge_one(&limiter(store.clone())).await.unwrap_err();
    }
    server.cont();
    charge_one(&patient(&store)).await.unwrap();
    assert!(server.connections_made() > before);
    // The lost one is closed in this runtime.
    eventually("the lost one is closed", || connections_open(&server) == 1).await;
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_left() {
    let server = Server::start();
    let limiter = limiter(connect(&server).await);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        charge_one(&limiter).await.unwrap(); // a young connection would be kept
    }
    let before = server.connections_made();
    server.run::<()>("REPLICAOF 127.0.0.1 1");
    charge_one(&limiter).await.unwrap_err();
    server.run::<()>("REPLICAOF NO ONE");
    charge_one(&limiter).await.unwrap();
    assert_eq!(server.connections_made() - before, 1);
}

#[tokio::test]
async fn a_pool_whose_connections_others_hold_is_not_waited_for() {
    let server = Server::start();
    let pool = pool(server.url(), |it| it.max_size(1)).await;
    let limiter = limiter(RedisStore::from(pool.clone()));
    let _held = pool.get().await.unwrap();
    charge_one(&limiter).await.unwrap();
    charge_one(&limiter).await.unwrap();
    assert_eq!(connections_open(&server), 2);
}

#[tokio::test]
async fn an_idle_connection_is_looked_at_without_a_round_trip() {
    let server = Server::start();
    let limiter = limiter(connect(&server).await);
    let before = server.calls("ping");
    for _ in 0..20 {
        charge_one(&limiter).await.unwrap();
        // For a millisecond after an answer, the store uses a connection unchecked.
        sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(server.calls("ping"), before);
}

#[test]
fn a_store_outlives_the_runtime_it_was_made_in() {
    let server = Server::start();
    let store = RedisStore::connect_lazy(server.url()).unwrap();
    for charged_before in [0, 1] {
        let charged = support::runtime().block_on(charge_one(&patient(&store)));
        assert_eq!(charged.unwrap(), charged_before);
        // For a millisecond after an answer, the store uses a connection unchecked.
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_runtime_that_is_shut_down_while_it_connects_fails_nobody_of_another() {
    let server = Server::start();
    let (runs, goes) = (support::runtime(), support::runtime());
    let limiter = limiter(RedisStore::connect_lazy(server.url()).unwrap());
    goes.block_on(async {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.check(one(&plenty(), "alice")).await });
        yield_now().await;
    });
    drop(goes);
    runs.block_on(charge_one(&limiter)).unwrap();
}

#[test]
fn a_store_that_is_called_outside_of_a_runtime_answers_with_an_error() {
    let url = "redis://127.0.0.1:1/";
    for store in [
        RedisStore::connect_lazy(url).unwrap(),
        RedisStore::connect_lazy_cluster([url]).unwrap(),
    ] {
        let check = check(["alice", "bob"].map(|name| charge(&plenty(), name, 1)));
        let error = block_on(store.check(&check)).unwrap_err();
        assert!(error.to_string().contains("outside of a tokio runtime"));
        // A call is not shared, and is sent in the task of its caller.
        let reset = Operation::Reset {
            policy: plenty(),
            key: user("alice"),
        };
        let call = block_on(store.call(vec![reset]));
        let call = call.and_then(|mut replies| replies.remove(0)).unwrap_err();
        for error in [error, call] {
            assert_eq!(error.kind(), StoreErrorKind::Unavailable);
            assert!(error.is_unsent(), "{error}");
        }
    }
}

/// Something else that uses a store.
type Beside = fn(&RedisStore);

/// Sequential requests fail for less than a second after their connection became silent, also if others use the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_fell_silent_is_replaced_within_a_second() {
    let beside: [(&str, Beside); 3] = [
        ("nothing", |_| ()),
        ("an inspector", |store| drop(store.inspector())),
        ("a job with a long timeout", |store| {
            let job = Limiter::new(store.clone()).timeout(8 * SOON);
            tokio::spawn(async move { job.check(one(&plenty(), "alice")).await });
        }),
    ];
    for (name, beside) in beside {
        let server = Server::start();
        let proxy = Proxy::new(server.address(), Duration::ZERO).await;
        let store = RedisStore::connect(proxy.url()).await.unwrap();
        beside(&store);
        let limiter = limiter(store).timeout(Duration::from_millis(100));
        charge_one(&limiter).await.unwrap();
        proxy.fall_silent();
        let works = async || charge_one(&limiter).await.is_ok();
        assert!(until("it works again", works).await < SOON, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_are_returned_behind_a_silent_connection_come_back_over_another() {
    let server = Server::start();
    let proxy = Proxy::new(server.address(), Duration::ZERO).await;
    let store = RedisStore::connect(proxy.url()).await;
    let limiter = limiter(store.unwrap());
    let jobs = policy("jobs", "20/30s@concurrent");
    let mut slots = Vec::new();
    for _ in 0..20 {
        let slot = limiter
            .acquire_slot(one(&jobs, "alice"), Duration::ZERO)
            .await;
        slots.push(slot.unwrap().unwrap());
    }
    proxy.fall_silent();
    drop(slots);
    // Another process: none of its calls replaces the connection.
    let other = process(&server).await;
    let are_back = async || left(&other, &jobs, "alice").await == 20;
    assert!(until("all are back", are_back).await < 10 * SOON);
}

#[tokio::test(start_paused = true)]
async fn a_check_for_which_no_connection_was_made_was_not_sent() {
    // Accepts connections, and never answers.
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let store = RedisStore::connect_lazy(url).unwrap();
    let error = store
        .check(&check(one(&plenty(), "alice")))
        .await
        .unwrap_err();
    assert!(error.is_unsent(), "{error}");
}

/// The kernel's list of connections names the timer of each: 2 is keepalive.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_kernel_asks_whether_an_idle_connection_is_open() {
    let server = Server::start();
    let store = connect(&server).await;
    let port = format!(":{:04X}", server.address().port());
    wait("keepalive is on", || {
        let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
        connections.lines().any(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields[2].ends_with(&port) && fields[3] == "01" && fields[5].starts_with("02:")
        })
    });
    drop(store);
}

#[tokio::test]
async fn connecting_to_nobody_fails_at_once_and_to_a_mute_server_in_seconds_and_lazily_not_at_all()
{
    let mut server = Server::start();
    let refused_within = async |url: String, expected, seconds| {
        let refused = in_time(seconds * SOON, RedisStore::connect(url)).await;
        assert_eq!(kind(refused), Some(expected));
    };
    server.stop();
    refused_within(server.url(), StoreErrorKind::Timeout, 3).await;
    server.kill();
    refused_within(server.url(), StoreErrorKind::Unavailable, 1).await;

    let limiter = limiter(RedisStore::connect_lazy(server.url()).unwrap());
    charge_one(&limiter).await.unwrap_err();
    server.restart();
    charge_one(&limiter).await.unwrap();
}

#[test]
fn a_url_that_makes_no_sense_is_refused_with_the_mend_and_not_repeated() {
    for (url, mend) in [
        ("http://:sesame@localhost", ""),
        ("redis://:sesame@localhost:port", ""),
        ("sesame", ""),
        ("redis://localhost/?db=3", "redis://HOST:PORT/3"),
        (
            "redis://localhost?db=3&protocol=resp3",
            "redis://HOST:PORT/3",
        ),
        ("rediss://localhost/?user=sesame", "unix:// alone"),
        (
            "unix:///tmp/redis.sock?db=3&timeout=sesame",
            "the parameters are",
        ),
        ("redis://limiter:12?sesame@localhost/", "%3F"),
        ("redis://limiter:12#sesame@localhost/", "%23"),
        ("redis://localhost/#insecure", "only rediss:// may"),
        ("unix:///tmp/redis.sock#sesame", "%23"),
    ] {
        let mut stores = vec![
            RedisStore::connect_lazy(url),
            RedisStore::connect_lazy(url.to_owned()),
        ];
        if !mend.is_empty() {
            let primary = url.replace("localhost", "mymaster");
            stores.push(RedisStore::connect_lazy_cluster([url]));
            stores.push(RedisStore::connect_lazy_sentinel([url], "mymaster"));
            stores.push(RedisStore::connect_lazy_sentinel(
                ["redis://localhost"],
                primary,
            ));
        }
        for store in stores {
            let error = store.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::AccessDenied, "{url}");
            assert!(error.to_string().contains(mend), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("sesame"), "{url}");
        }
    }
    for url in [
        "redis://limiter:a%3Fb%23c@localhost:6379/3?protocol=resp3",
        "rediss://localhost/#insecure",
        "valkey://localhost?protocol=2",
        "unix:///tmp/redis.sock?db=3&user=limiter&pass=sesame&protocol=3",
    ] {
        RedisStore::connect_lazy(url).unwrap();
    }
}

/// The number of connections without that of the test.
fn connections_open(server: &Server) -> u64 {
    server.info("clients", "connected_clients") - 1
}
