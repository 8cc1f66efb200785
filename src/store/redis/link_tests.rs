use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{Client, Cmd, RedisError, Value, aio::ConnectionManagerConfig};
use tokio::time::timeout;

use super::{RedisStore, link::Link};

#[allow(dead_code, reason = "no test needs everything")]
#[path = "../../../tests/common/redis.rs"]
mod server;

use server::Server;

/// What a limiter allows by default.
const DEADLINE: Duration = Duration::from_millis(100);

/// Much more than anything takes here, and less than any wait of a library.
const SOON: Duration = Duration::from_secs(1);

async fn own(server: &Server) -> Link {
    RedisStore::connect(server.url()).await.unwrap().link
}

async fn manager(server: &Server) -> Link {
    let config = ConnectionManagerConfig::new()
        .set_number_of_retries(0)
        .set_connection_timeout(Some(Duration::from_millis(500)))
        .set_response_timeout(Some(Duration::from_millis(500)));
    let client = Client::open(server.url()).unwrap();
    Link::manager(
        client
            .get_connection_manager_with_config(config)
            .await
            .unwrap(),
    )
}

#[cfg(feature = "bb8")]
async fn pool(server: &Server, test_on_check_out: bool) -> Link {
    let manager = bb8_redis::RedisConnectionManager::new(server.url()).unwrap();
    let pool = bb8::Pool::builder()
        .max_size(4)
        .min_idle(4)
        .test_on_check_out(test_on_check_out);
    RedisStore::from(pool.build(manager).await.unwrap()).link
}

async fn links(server: &Server) -> Vec<(&'static str, Link)> {
    vec![
        ("own", own(server).await),
        ("manager", manager(server).await),
        #[cfg(feature = "bb8")]
        ("pool", pool(server, false).await),
        #[cfg(feature = "bb8")]
        ("pool with test_on_check_out", pool(server, true).await),
    ]
}

fn incr() -> Cmd {
    let mut cmd = redis::cmd("INCR");
    cmd.arg("n");
    cmd
}

/// One command, as a limiter sends it.
async fn send(link: &Link) -> Option<Result<Value, RedisError>> {
    timeout(DEADLINE, link.send(&incr())).await.ok()
}

async fn works(link: &Link) -> bool {
    matches!(send(link).await, Some(Ok(Value::Int(_))))
}

#[tokio::test]
async fn after_a_restart_without_traffic_the_next_commands_work() {
    let mut server = Server::start();
    for (name, link) in links(&server).await {
        for _ in 0..8 {
            assert!(works(&link).await, "{name}");
        }
        server.kill();
        server.restart();
        for _ in 0..8 {
            assert!(works(&link).await, "{name}");
        }
        assert_eq!(server.run::<u64>("GET n"), 8, "{name}: once each");
    }
}

#[tokio::test]
async fn commands_fail_soon_while_the_server_is_down_and_work_at_once_when_it_is_back() {
    let mut server = Server::start();
    for (name, link) in links(&server).await {
        assert!(works(&link).await, "{name}");
        server.kill();
        let start = Instant::now();
        for _ in 0..5 {
            assert!(!works(&link).await, "{name}");
        }
        assert!(start.elapsed() < SOON, "{name}: {:?}", start.elapsed());
        server.restart();
        for _ in 0..8 {
            assert!(works(&link).await, "{name}");
        }
    }
}

#[tokio::test]
async fn a_stopped_server_is_used_again_when_it_goes_on() {
    let server = Server::start();
    for (name, link) in links(&server).await {
        assert!(works(&link).await, "{name}");
        server.stop();
        for _ in 0..8 {
            let start = Instant::now();
            assert!(
                send(&link).await.is_none_or(|result| result.is_err()),
                "{name}"
            );
            assert!(start.elapsed() < SOON, "{name}: {:?}", start.elapsed());
        }
        server.cont();
        assert!(
            timeout(SOON, link.send(&incr())).await.unwrap().is_ok(),
            "{name}"
        );
        assert!(works(&link).await, "{name}");
    }
}

#[tokio::test]
async fn one_attempt_to_connect_serves_all_and_outlives_who_started_it() {
    let server = Server::start();
    let link = RedisStore::lazy(server.url()).unwrap().link;
    let before = server.info("stats", "total_connections_received");
    server.stop();
    assert!(
        timeout(Duration::from_millis(10), link.send(&incr()))
            .await
            .is_err()
    );
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let link = link.clone();
            tokio::spawn(async move { link.send(&incr()).await })
        })
        .collect();
    tokio::task::yield_now().await;
    server.cont();
    for task in waiting {
        assert!(task.await.unwrap().is_ok());
    }
    let after = server.info("stats", "total_connections_received");
    assert_eq!(after - before, 2, "one of the link's, one of this test's");
}

#[tokio::test]
async fn a_connection_that_owes_an_answer_for_too_long_is_replaced() {
    let mut server = Server::start();
    let link = own(&server).await;
    server.stop();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(600) {
        assert!(!works(&link).await);
    }
    server.cont();
    assert!(timeout(SOON, link.send(&incr())).await.unwrap().is_ok());
    assert_eq!(clients(&server), 1, "the mute one was closed");
    server.kill();
}

#[tokio::test]
async fn a_demoted_primary_is_left() {
    let server = Server::start();
    let link = own(&server).await;
    assert!(works(&link).await);
    server.run::<()>("REPLICAOF 127.0.0.1 1");
    let before = server.info("stats", "total_connections_received");
    let error = send(&link).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some("READONLY"));
    server.run::<()>("REPLICAOF NO ONE");
    assert!(works(&link).await);
    assert_eq!(
        server.info("stats", "total_connections_received") - before,
        3,
        "a new one, and two of this test's"
    );
}

#[cfg(feature = "bb8")]
#[tokio::test]
async fn a_pool_whose_connections_others_hold_makes_callers_wait() {
    let server = Server::start();
    let manager = bb8_redis::RedisConnectionManager::new(server.url()).unwrap();
    let pool = bb8::Pool::builder()
        .max_size(1)
        .build(manager)
        .await
        .unwrap();
    let link = RedisStore::from(pool.clone()).link;
    let held = pool.get().await.unwrap();
    assert!(send(&link).await.is_none());
    drop(held);
    assert!(works(&link).await);
    assert_eq!(clients(&server), 1);
}

#[tokio::test]
async fn a_unix_socket_will_do() {
    let mut server = Server::start();
    let link = RedisStore::connect(server.socket_url()).await.unwrap().link;
    assert!(works(&link).await);
    server.kill();
    assert!(!works(&link).await);
    server.restart();
    assert!(works(&link).await);
}

#[tokio::test]
async fn an_open_connection_sends_no_pings_of_its_own() {
    let server = Server::start();
    let link = own(&server).await;
    let before = server.calls("ping");
    for _ in 0..100 {
        assert!(works(&link).await);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(server.calls("ping"), before);
}

#[test]
fn a_link_outlives_the_runtime_it_was_made_in() {
    let server = Server::start();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let link = runtime().block_on(own(&server));
    // A connection is trusted for a millisecond after an answer.
    std::thread::sleep(Duration::from_millis(2));
    assert!(runtime().block_on(works(&link)));
}

#[tokio::test]
async fn no_debug_output_shows_the_password() {
    let server = Server::with(&["--requirepass", "sesame"]);
    let url = server.url().replace("//", "//:sesame@");
    let store = RedisStore::connect(url.as_str()).await.unwrap();
    let shared: Arc<dyn std::fmt::Debug> = Arc::new(store);
    assert!(!format!("{shared:?}").contains("sesame"));
    let error = RedisStore::connect(url.replace("sesame", "mellon").as_str())
        .await
        .unwrap_err();
    assert!(!format!("{error:?} {error}").contains("mellon"));
    assert_eq!(error.kind(), crate::StoreErrorKind::Refused);
}

/// How many clients are connected, the asking one left out.
fn clients(server: &Server) -> u64 {
    server.info("clients", "connected_clients") - 1
}
