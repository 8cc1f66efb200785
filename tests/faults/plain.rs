//! Single answers: each request ends within the timeout, according to the failure policy, and the store recovers
//! without help.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use sluicegate::{
    Charge, Decision, FailurePolicy, Key, Limiter, Policy, RedisStore, error::StoreErrorKind,
};
use support::{redis::Server, stores};

/// Far longer than the timeout of 100 ms on a busy machine, and shorter than any wait of a library.
const SOON: Duration = Duration::from_secs(1);

fn charge(user: &str, limit: u64) -> [Charge; 1] {
    let policy = Policy::parse("api", &format!("{limit}/1d")).unwrap();
    [Charge::new(&policy, Key::new("user", user), 1)]
}

async fn works(store: &RedisStore) -> bool {
    // A busy machine may take longer than the default timeout, and libraries wait even longer before they try again.
    let limiter = Limiter::new(store.clone()).timeout(Duration::from_millis(300));
    limiter
        .check(charge("alice", 1_000_000))
        .await
        .is_ok_and(|decision| decision.is_allowed())
}

/// Makes checks that must fail, under both failure policies. Returns the kind of the error.
async fn fails(store: &RedisStore) -> StoreErrorKind {
    let open = Limiter::new(store.clone());
    let closed = open.clone().on_failure(FailurePolicy::Closed);
    let start = Instant::now();
    assert!(open.try_acquire(charge("alice", 1_000_000)).await);
    assert!(!closed.try_acquire(charge("alice", 1_000_000)).await);
    let error = open.check(charge("alice", 1_000_000)).await.unwrap_err();
    assert!(start.elapsed() < 3 * SOON, "{:?}", start.elapsed());

    let shown = format!("{error} {error:?}");
    assert!(
        !shown.contains("alice") && !shown.contains("sesame"),
        "{shown}"
    );
    assert!(!shown.contains("127.0.0.1"), "{shown}");
    error.kind()
}

/// Waits until the store has recovered without help.
async fn recovers(store: &RedisStore) {
    let start = Instant::now();
    while !works(store).await {
        assert!(start.elapsed() < 5 * SOON);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_are_not_noticed_and_every_request_counts_once() {
    const TASKS: u64 = 8;
    const REQUESTS: u64 = 250;
    let server = Server::start();
    for (name, store) in stores::all(&server).await {
        let limiter = Limiter::new(store).timeout(5 * SOON);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let flushing = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    server.run::<()>("SCRIPT FLUSH");
                }
            });
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(async {
                    let tasks: Vec<_> = (0..TASKS)
                        .map(|_| {
                            let limiter = limiter.clone();
                            tokio::spawn(async move {
                                for _ in 0..REQUESTS {
                                    limiter.check(charge(name, 1_000_000)).await.unwrap();
                                }
                            })
                        })
                        .collect();
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
            });
            done.store(true, Ordering::Relaxed);
            flushing.join().unwrap();
        });
        let usage = limiter.peek(charge(name, 1_000_000)).await.unwrap();
        let remaining = usage.rules().next().unwrap().remaining();
        assert_eq!(1_000_000 - remaining, TASKS * REQUESTS, "{name}");
    }
    assert!(server.calls("script|flush") + server.calls("script") > 100);
}

#[tokio::test]
async fn killed_and_started_again() {
    let mut server = Server::start();
    for (name, store) in stores::all(&server).await {
        assert!(works(&store).await, "{name}");
        server.kill();
        let kind = fails(&store).await;
        assert!(
            matches!(kind, StoreErrorKind::Unavailable | StoreErrorKind::Timeout),
            "{name}: {kind:?}"
        );
        server.restart();
        assert!(works(&store).await, "{name}");
    }
}

#[tokio::test]
async fn stopped_and_continued() {
    let server = Server::start();
    for (name, store) in stores::all(&server).await {
        assert!(works(&store).await, "{name}");
        server.stop();
        for _ in 0..3 {
            assert_eq!(fails(&store).await, StoreErrorKind::Timeout, "{name}");
        }
        server.cont();
        recovers(&store).await;
    }
}

#[tokio::test]
async fn slow() {
    let server = Server::start();
    for (name, store) in stores::all(&server).await {
        assert!(works(&store).await, "{name}");
        server.run::<()>("CLIENT PAUSE 1000 ALL");
        assert_eq!(fails(&store).await, StoreErrorKind::Timeout, "{name}");
        recovers(&store).await;
    }
}

#[tokio::test]
async fn out_of_memory_admits_nobody_and_still_denies() {
    let server = Server::start();
    for (name, store) in stores::all(&server).await {
        let limiter = Limiter::new(store.clone());
        let used_up = format!("used up over {name}");
        assert!(
            limiter
                .check(charge(&used_up, 1))
                .await
                .unwrap()
                .is_allowed(),
            "{name}"
        );
        server.run::<()>("CONFIG SET maxmemory 1");
        assert_eq!(fails(&store).await, StoreErrorKind::Unavailable, "{name}");
        let decision = limiter.check(charge(&used_up, 1)).await.unwrap();
        assert!(matches!(decision, Decision::Denied(_)), "{name}");
        server.run::<()>("CONFIG SET maxmemory 0");
        assert!(works(&store).await, "{name}");
    }
}

#[tokio::test]
async fn busy_with_a_script_that_does_not_end() {
    let server = Server::with(&["--lua-time-limit", "10"]);
    for (name, store) in stores::all(&server).await {
        assert!(works(&store).await, "{name}");
        let endless = endless_script(&server);
        let kind = fails(&store).await;
        assert!(
            matches!(kind, StoreErrorKind::Unavailable | StoreErrorKind::Timeout),
            "{name}: {kind:?}"
        );
        server.run::<()>("SCRIPT KILL");
        endless.join().unwrap();
        recovers(&store).await;
    }
}

/// Runs until it is killed. Returns when the server rejects all other commands.
fn endless_script(server: &Server) -> std::thread::JoinHandle<()> {
    let client = redis::Client::open(server.url()).unwrap();
    let mut running = client.get_connection().unwrap();
    let mut asking = client.get_connection().unwrap();
    let thread = std::thread::spawn(move || {
        let ended = redis::cmd("EVAL")
            .arg("while true do end")
            .arg(0)
            .exec(&mut running);
        assert!(ended.unwrap_err().to_string().contains("killed"));
    });
    let is_busy =
        |result: redis::RedisResult<()>| result.is_err_and(|error| error.code() == Some("BUSY"));
    while !is_busy(redis::cmd("PING").exec(&mut asking)) {}
    thread
}

#[tokio::test]
async fn read_only() {
    let server = Server::start();
    for (name, store) in stores::all(&server).await {
        assert!(works(&store).await, "{name}");
        server.run::<()>("REPLICAOF 127.0.0.1 1");
        assert_eq!(fails(&store).await, StoreErrorKind::Unavailable, "{name}");
        server.run::<()>("REPLICAOF NO ONE");
        assert!(works(&store).await, "{name}");
    }
}

#[tokio::test]
async fn a_replica_says_so_and_goes_on_where_its_primary_was_when_it_is_promoted() {
    let primary = Server::start();
    let port = primary.address().port().to_string();
    let replica = Server::with(&["--replicaof", "127.0.0.1", &port]);
    let start = Instant::now();
    while !replica
        .run::<String>("INFO replication")
        .contains("master_link_status:up")
    {
        assert!(start.elapsed() < 30 * SOON);
    }
    let store = RedisStore::connect(primary.url()).await.unwrap();
    assert!(works(&store).await);
    primary.run::<()>("SET written last");
    assert_eq!(primary.run::<u32>("WAIT 1 10000"), 1);

    for (name, store) in stores::all(&replica).await {
        assert_eq!(fails(&store).await, StoreErrorKind::Unavailable, "{name}");
        let error = Limiter::new(store).check(charge("alice", 1_000_000)).await;
        assert!(
            error.unwrap_err().to_string().contains("read-only replica"),
            "{name}"
        );
    }
    let store = RedisStore::connect(replica.url()).await.unwrap();
    replica.run::<()>("REPLICAOF NO ONE");
    let usage = Limiter::new(store)
        .peek(charge("alice", 1_000_000))
        .await
        .unwrap();
    assert_eq!(usage.rules().next().unwrap().remaining(), 999_999);
}

#[tokio::test]
async fn without_the_replicas_that_it_needs() {
    let server = Server::start();
    for (name, store) in stores::all(&server).await {
        assert!(works(&store).await, "{name}");
        server.run::<()>("CONFIG SET min-replicas-to-write 1");
        assert_eq!(fails(&store).await, StoreErrorKind::Unavailable, "{name}");
        server.run::<()>("CONFIG SET min-replicas-to-write 0");
        assert!(works(&store).await, "{name}");
    }
}

#[tokio::test]
async fn with_a_wrong_password() {
    let server = Server::with(&["--requirepass", "mellon"]);
    let url = server.url().replace("//", "//:sesame@");
    let error = RedisStore::connect(url.as_str()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::AccessDenied);
    let error = RedisStore::connect(server.url()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::AccessDenied);

    let store = RedisStore::connect_lazy(url.as_str()).unwrap();
    assert!(!format!("{store:?}").contains("sesame"));
    assert_eq!(fails(&store).await, StoreErrorKind::AccessDenied);
    server.run::<()>("CONFIG SET requirepass sesame");
    assert!(works(&store).await);
}

#[tokio::test]
async fn with_a_wrong_password_in_a_pool() {
    let server = Server::with(&["--requirepass", "mellon"]);
    let url = server.url().replace("//", "//:sesame@");
    let manager = bb8_redis::RedisConnectionManager::new(url).unwrap();
    let store = RedisStore::from(bb8::Pool::builder().build(manager).await.unwrap());
    assert_eq!(fails(&store).await, StoreErrorKind::AccessDenied);
    server.run::<()>("CONFIG SET requirepass sesame");
    assert!(works(&store).await);
}

#[tokio::test]
async fn a_value_of_another_type_under_the_limiters_key() {
    let server = Server::start();
    for (name, store) in stores::all(&server).await {
        assert!(works(&store).await, "{name}");
        let [key]: [String; 1] = server.run("KEYS *alice*");
        server.run::<()>(&format!("DEL {key}"));
        server.run::<()>(&format!("LPUSH {key} 1"));
        assert_eq!(fails(&store).await, StoreErrorKind::Protocol, "{name}");
        server.run::<()>(&format!("DEL {key}"));
        assert!(works(&store).await, "{name}");
    }
}

#[tokio::test]
async fn without_the_rights_it_needs() {
    let server = Server::start();
    server.run::<()>("ACL SETUSER limiter on >sesame resetkeys ~other:* +@all");
    let url = server.url().replace("//", "//limiter:sesame@");
    let store = RedisStore::connect(url.as_str()).await.unwrap();
    assert_eq!(fails(&store).await, StoreErrorKind::AccessDenied);
    server.run::<()>("ACL SETUSER limiter ~sluicegate:*");
    assert!(works(&store).await);
}
