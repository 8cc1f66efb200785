//! `RedisStore` returns to a server after an outage, over every kind of connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use sluicegate::{
    Charge, Key, Limiter, Policy, RedisStore, Store, StoreError,
    error::StoreErrorKind,
    store::{Check, Operation},
};
use support::{redis::Server, stores};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

/// Much more than any timeout here on a busy machine.
const SOON: Duration = Duration::from_secs(1);

const LIMIT: u64 = 1_000_000;

fn charge(cost: u64) -> [Charge; 1] {
    let policy = Policy::parse("api", &format!("{LIMIT}/1d")).unwrap();
    [Charge::new(&policy, Key::new("user", "alice"), cost)]
}

/// Charges one unit. Returns the number of units that were charged before.
async fn charge_one(limiter: &Limiter) -> Result<u64, StoreError> {
    let start = Instant::now();
    let result = limiter.check(charge(1)).await;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let decision = result?;
    assert!(decision.is_allowed());
    let remaining = decision.usage().rules().next().unwrap().remaining();
    Ok(LIMIT - remaining - 1)
}

/// A busy machine may take longer than the default timeout, and libraries wait even longer before they try again.
///
/// Without a breaker, because these tests are about the store.
fn limiter(store: RedisStore) -> Limiter {
    let limiter = Limiter::new(store).probe_interval(Duration::ZERO);
    limiter.timeout(Duration::from_millis(300))
}

/// A limiter for requests that have to wait for another request.
fn patient(store: &RedisStore) -> Limiter {
    Limiter::new(store.clone()).timeout(SOON)
}

#[tokio::test]
async fn after_a_restart_without_traffic_the_very_next_requests_work() {
    let mut server = Server::start();
    for (name, store) in stores::all(&server).await {
        let limiter = limiter(store);
        for _ in 0..8 {
            charge_one(&limiter).await.expect(name);
        }
        server.kill();
        server.restart();
        for charged_before in 0..8 {
            assert_eq!(
                charge_one(&limiter).await.expect(name),
                charged_before,
                "{name}"
            );
        }
    }
}

#[tokio::test]
async fn requests_fail_soon_while_the_server_is_down_and_work_at_once_when_it_is_back() {
    let mut server = Server::start();
    for (name, store) in stores::all(&server).await {
        let limiter = limiter(store);
        charge_one(&limiter).await.expect(name);
        server.kill();
        let start = Instant::now();
        for _ in 0..20 {
            charge_one(&limiter).await.expect_err(name);
        }
        assert!(start.elapsed() < SOON, "{name}: {:?}", start.elapsed());
        server.restart();
        for charged_before in 0..8 {
            assert_eq!(
                charge_one(&limiter).await.expect(name),
                charged_before,
                "{name}"
            );
        }
    }
}

#[tokio::test]
async fn one_attempt_to_connect_serves_all_and_outlives_the_request_that_started_it() {
    let server = Server::start();
    let store = RedisStore::connect_lazy(server.url()).unwrap();
    let before = connections_made(&server);
    server.stop();
    let hasty = Limiter::new(store.clone()).timeout(Duration::from_millis(10));
    assert_eq!(
        charge_one(&hasty).await.unwrap_err().kind(),
        StoreErrorKind::Timeout
    );
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let limiter = patient(&store);
            tokio::spawn(async move { charge_one(&limiter).await })
        })
        .collect();
    tokio::task::yield_now().await;
    server.cont();
    for task in waiting {
        task.await.unwrap().unwrap();
    }
    assert_eq!(connections_made(&server) - before, 1);
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
    tokio::task::yield_now().await;
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
    let store = RedisStore::connect(server.url()).await.unwrap();
    let before = connections_made(&server);
    server.stop();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(700) {
        charge_one(&limiter(store.clone())).await.unwrap_err();
    }
    server.cont();
    charge_one(&patient(&store)).await.unwrap();
    assert!(connections_made(&server) > before);
    assert_eq!(connections_open(&server), 1);
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_left() {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let limiter = limiter(store);
    charge_one(&limiter).await.unwrap();
    let before = connections_made(&server);
    server.run::<()>("REPLICAOF 127.0.0.1 1");
    charge_one(&limiter).await.unwrap_err();
    server.run::<()>("REPLICAOF NO ONE");
    charge_one(&limiter).await.unwrap();
    assert_eq!(connections_made(&server) - before, 1);
}

#[tokio::test]
async fn a_pool_whose_connections_others_hold_is_not_waited_for() {
    let server = Server::start();
    let manager = bb8_redis::RedisConnectionManager::new(server.url()).unwrap();
    let pool = bb8::Pool::builder().max_size(1).build(manager).await;
    let pool = pool.unwrap();
    let limiter = limiter(RedisStore::from(pool.clone()));
    let _held = pool.get().await.unwrap();
    charge_one(&limiter).await.unwrap();
    charge_one(&limiter).await.unwrap();
    assert_eq!(connections_open(&server), 2);
}

#[tokio::test]
async fn a_unix_socket_will_do() {
    let mut server = Server::start();
    let limiter = limiter(RedisStore::connect(server.socket_url()).await.unwrap());
    charge_one(&limiter).await.unwrap();
    server.kill();
    charge_one(&limiter).await.unwrap_err();
    server.restart();
    charge_one(&limiter).await.unwrap();
}

#[tokio::test]
async fn an_idle_connection_is_looked_at_without_a_round_trip() {
    let server = Server::start();
    let limiter = limiter(RedisStore::connect(server.url()).await.unwrap());
    let before = server.calls("ping");
    for _ in 0..20 {
        charge_one(&limiter).await.unwrap();
        // For a millisecond after an answer, the store uses a connection unchecked.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(server.calls("ping"), before);
}

#[test]
fn a_store_outlives_the_runtime_it_was_made_in() {
    let server = Server::start();
    let block_on = |store: Option<RedisStore>| {
        let runtime = support::runtime();
        runtime.block_on(async {
            let store = store.unwrap_or_else(|| RedisStore::connect_lazy(server.url()).unwrap());
            charge_one(&patient(&store))
                .await
                .map(|charged| (store, charged))
        })
    };
    let (store, _) = block_on(None).unwrap();
    // For a millisecond after an answer, the store uses a connection unchecked.
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(block_on(Some(store)).unwrap().1, 1);
}

#[test]
fn a_runtime_that_is_shut_down_while_it_connects_fails_nobody_of_another() {
    let server = Server::start();
    let (runs, goes) = (support::runtime(), support::runtime());
    let limiter = limiter(RedisStore::connect_lazy(server.url()).unwrap());
    goes.block_on(async {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.check(charge(1)).await });
        tokio::task::yield_now().await;
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
        let policy = Policy::parse("api", "9/1d").unwrap();
        let charges = ["alice", "bob"].map(|user| Charge::new(&policy, Key::new("user", user), 1));
        let check = Check::new(charges).unwrap();
        let error = futures::executor::block_on(store.check(&check)).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(error.to_string().contains("outside of a tokio runtime"));
        assert!(error.is_unsent(), "{error}");
        // A call is not shared, and is sent in the task of its caller.
        let reset = Operation::Reset {
            policy,
            key: Key::new("user", "alice"),
        };
        let error = futures::executor::block_on(store.call(vec![reset]));
        let error = error.and_then(|mut replies| replies.remove(0)).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(error.is_unsent(), "{error}");
    }
}

/// A proxy that loses all replies once `is_silent`, except those of later connections.
async fn nat(server: &Server, is_silent: Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await;
    let listener = listener.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let to = server.address();
    tokio::spawn(async move {
        let mut connections = 0;
        while let Ok((client, _)) = listener.accept().await {
            connections += 1;
            let is_silent = (connections == 1).then(|| Arc::clone(&is_silent));
            tokio::spawn(carry(client, to, is_silent));
        }
    });
    url
}

async fn carry(client: TcpStream, to: std::net::SocketAddr, is_silent: Option<Arc<AtomicBool>>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = TcpStream::connect(to).await.unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = tokio::io::copy(&mut from_client, &mut to_server);
    let replies = async {
        let mut bytes = vec![0; 4_096];
        loop {
            let length = from_server.read(&mut bytes).await.unwrap_or(0);
            let is_silent = is_silent.as_ref();
            if length == 0 {
                return;
            }
            if !is_silent.is_some_and(|it| it.load(Ordering::Relaxed)) {
                to_client.write_all(&bytes[..length]).await.unwrap();
            }
        }
    };
    let _ = tokio::join!(requests, replies);
}

/// The time for which sequential requests fail after their connection became silent.
async fn outage(beside: impl FnOnce(&RedisStore)) -> Duration {
    let server = Server::start();
    let is_silent = Arc::default();
    let store = RedisStore::connect(nat(&server, Arc::clone(&is_silent)).await);
    let store = store.await.unwrap();
    beside(&store);
    let limiter = limiter(store).timeout(Duration::from_millis(100));
    charge_one(&limiter).await.unwrap();
    is_silent.store(true, Ordering::Relaxed);
    let start = Instant::now();
    while charge_one(&limiter).await.is_err() {}
    start.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_fell_silent_is_replaced_within_a_second() {
    let took = outage(|_| {}).await;
    assert!(took < SOON, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inspector_does_not_make_others_wait_for_a_silent_connection() {
    let took = outage(|store| drop(store.inspector())).await;
    assert!(took < SOON, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_with_a_long_timeout_does_not_make_others_wait_for_a_silent_connection() {
    let took = outage(|store| {
        let job = Limiter::new(store.clone()).timeout(Duration::from_secs(8));
        tokio::spawn(async move { job.check(charge(1)).await });
    });
    let took = took.await;
    assert!(took < SOON, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_are_returned_behind_a_silent_connection_come_back_over_another() {
    let server = Server::start();
    let is_silent = Arc::default();
    let store = RedisStore::connect(nat(&server, Arc::clone(&is_silent)).await);
    let limiter = limiter(store.await.unwrap());
    let jobs = Policy::parse("jobs", "20/30s@concurrent").unwrap();
    let job = |cost| [Charge::new(&jobs, Key::new("user", "alice"), cost)];
    let mut slots = Vec::new();
    for _ in 0..20 {
        let slot = limiter.acquire_slot(job(1), Duration::ZERO).await.unwrap();
        slots.push(slot.unwrap().unwrap());
    }
    is_silent.store(true, Ordering::Relaxed);
    drop(slots);
    // Another process: none of its calls replaces the connection.
    let other = Limiter::new(RedisStore::connect(server.url()).await.unwrap());
    let (start, mut left) = (Instant::now(), 0);
    while left < 20 && start.elapsed() < 10 * SOON {
        let usage = other.peek(job(0)).await.unwrap();
        left = usage.rules().next().unwrap().remaining();
    }
    assert_eq!(left, 20);
}

#[tokio::test(start_paused = true)]
async fn a_check_for_which_no_connection_was_made_was_not_sent() {
    // Accepts connections, and never answers.
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let store = RedisStore::connect_lazy(url).unwrap();
    let check = Check::new(charge(1)).unwrap();
    let error = store.check(&check).await.unwrap_err();
    assert!(error.is_unsent(), "{error}");
}

/// The kernel's list of connections names the timer of each: 2 is keepalive.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_kernel_asks_whether_an_idle_connection_is_open() {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let port = format!(":{:04X}", server.address().port());
    let has_keepalive = || {
        let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let mut fields = connections.lines().map(|line| line.split_whitespace());
        fields.any(|mut fields| {
            let remote_and_state = (fields.nth(2), fields.next());
            remote_and_state.0.is_some_and(|it| it.ends_with(&port))
                && remote_and_state.1 == Some("01")
                && fields.nth(1).is_some_and(|timer| timer.starts_with("02:"))
        })
    };
    support::sharing::wait("keepalive is on", has_keepalive);
    drop(store);
}

#[tokio::test]
async fn connecting_to_nobody_fails_at_once_and_being_lazy_about_it_does_not() {
    let mut server = Server::start();
    server.kill();
    let start = Instant::now();
    let error = RedisStore::connect(server.url()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(start.elapsed() < SOON);

    let limiter = limiter(RedisStore::connect_lazy(server.url()).unwrap());
    charge_one(&limiter).await.unwrap_err();
    server.restart();
    charge_one(&limiter).await.unwrap();
}

#[tokio::test]
async fn connecting_to_a_mute_server_ends_within_seconds() {
    let server = Server::start();
    server.stop();
    let start = Instant::now();
    let error = RedisStore::connect(server.url()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_url_that_makes_no_sense_is_refused_and_not_repeated() {
    for url in [
        "http://:sesame@localhost",
        "redis://:sesame@localhost:port",
        "sesame",
    ] {
        let error = RedisStore::connect_lazy(url).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::AccessDenied, "{url}");
        assert!(!format!("{error} {error:?}").contains("sesame"), "{url}");
    }
}

#[test]
fn a_part_of_a_url_that_is_not_known_is_refused_with_the_mend() {
    for (url, mend) in [
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
        let (primary, nodes) = (url.replace("localhost", "mymaster"), [url]);
        for store in [
            RedisStore::connect_lazy(url),
            RedisStore::connect_lazy(url.to_owned()),
            RedisStore::connect_lazy_cluster(nodes),
            RedisStore::connect_lazy_sentinel(nodes, "mymaster"),
            RedisStore::connect_lazy_sentinel(["redis://localhost"], primary),
        ] {
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

fn connections_made(server: &Server) -> u64 {
    server.info("stats", "total_connections_received")
}

/// The number of connections without that of the test.
fn connections_open(server: &Server) -> u64 {
    server.info("clients", "connected_clients") - 1
}
