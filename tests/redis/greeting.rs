//! The errors of a server that does not let a connection in are named by their own texts.

use std::error::Error;

use redis::{Client, Connection};
use sluicegate::error::StoreErrorKind::{AccessDenied, CircuitOpen, Refused, Unavailable};
use support::sentinel::NAME;

use crate::prelude::*;

const NO_ROOM: &str = "the Redis server has no room for a further connection";
const WRONG_PASSWORD: &str = "the Redis server refuses this user or password";
const NO_PASSWORD: &str = "the Redis server wants a password";

/// A server whose two connections are taken.
struct Full {
    server: Server,
    taken: Option<[Connection; 2]>,
}

impl Full {
    fn start(args: &[&str]) -> Self {
        let server = Server::with(&[args, &["--maxclients", "2"]].concat());
        let taken = None;
        let mut full = Self { server, taken };
        full.take();
        full
    }

    /// Takes both connections as soon as others have left them.
    fn take(&mut self) {
        let client = Client::open(self.server.url().replace("//", "//:sesame@")).unwrap();
        let bare = Client::open(self.server.url()).unwrap();
        let ping = |mut it: Connection| redis::cmd("PING").exec(&mut it).is_ok().then_some(it);
        let connect = || {
            let connection = client.get_connection().or_else(|_| bare.get_connection());
            connection.ok().and_then(ping)
        };
        wait("there is room for both", || {
            let both = connect().zip(connect());
            self.taken = both.map(|(one, other)| [one, other]);
            self.taken.is_some()
        });
    }

    fn rejected(&mut self) -> u64 {
        let [one, _] = self.taken.as_mut().unwrap();
        let info: String = redis::cmd("INFO").arg("stats").query(one).unwrap();
        let mut lines = info.lines();
        let line = lines.find_map(|it| it.strip_prefix("rejected_connections:"));
        line.unwrap().parse().unwrap()
    }

    fn urls(&self, login: &str) -> [String; 4] {
        let url = self.server.url().replace("//", &format!("//{login}"));
        ["/", "/1", "/?protocol=resp3", "/1?protocol=resp3"].map(|rest| format!("{url}{rest}"))
    }
}

fn unit() -> [Charge; 1] {
    one(&api("1000000/1d"), "alice")
}

/// Asserts the error of a connection that is made now, and of one that is made for the first check.
async fn is_refused(url: &str, kind: StoreErrorKind, message: &str) -> StoreError {
    let lazy = Limiter::new(RedisStore::connect_lazy(url).unwrap());
    let late = lazy.timeout(SOON).check(unit()).await.expect_err(url);
    let error = RedisStore::connect(url).await.expect_err(url);
    for error in [&late, &error] {
        says(error, kind, message);
    }
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("sesame"), "{shown}");
    assert!(late.is_unsent(), "{url}: {late}");
    error
}

fn says(error: &StoreError, kind: StoreErrorKind, message: &str) {
    assert_eq!((error.kind(), &*error.to_string()), (kind, message));
}

/// No breaker stops these calls.
#[tokio::test]
async fn a_server_that_refuses_the_password_is_not_called_often() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    let server = Server::with(&["--requirepass", "sesame"]);
    let url = server.url().replace("//", "//:mellon@");
    let limiter = Limiter::new(RedisStore::connect_lazy(url).unwrap()).timeout(TIMEOUT);
    let before = server.connections_made();
    let start = Instant::now();
    while start.elapsed() < 4 * TIMEOUT {
        for answer in join_all((0..50).map(|_| limiter.check(unit()))).await {
            assert_eq!(kind(answer), Some(AccessDenied));
        }
    }
    // Attempts to connect are 25 ms apart.
    let most = start.elapsed().as_millis() / 25 + 2;
    let attempts = server.connections_made() - before;
    assert!(u128::from(attempts) <= most, "{attempts}, not {most}");
}

#[tokio::test]
async fn a_server_without_a_free_connection_is_waited_for_and_not_called_often() {
    for (args, login) in [(&[][..], ""), (&["--requirepass", "sesame"], ":sesame@")] {
        let mut full = Full::start(args);
        for url in full.urls(login) {
            is_refused(&url, Unavailable, NO_ROOM).await;
            let limiter = Limiter::new(RedisStore::connect_lazy(url.as_str()).unwrap());
            let before = full.rejected();
            for _ in 0..200 {
                let error = limiter.check(unit()).await.unwrap_err();
                let is_right = matches!(error.kind(), Unavailable | CircuitOpen);
                assert!(is_right, "{url}: {error}");
            }
            // The breaker opens after two timeouts of 100 ms, and two attempts to connect are 25 ms apart.
            assert!((5..20).contains(&(full.rejected() - before)), "{url}");

            let patient = Limiter::new(RedisStore::connect_lazy(url.as_str()).unwrap());
            let started = Instant::now();
            let waiting = tokio::spawn(async move {
                let patient = patient.timeout(SOON);
                patient.acquire(unit(), Duration::from_secs(8)).await
            });
            let before = full.rejected();
            until("it has tried again", async || {
                yield_now().await;
                full.rejected() >= before + 3
            })
            .await;
            // It pauses for 125 ms or more between two attempts: at most 30 in 3 s.
            assert!(started.elapsed() >= Duration::from_millis(200), "{url}");
            full.taken = None;
            assert!(waiting.await.unwrap().unwrap().is_allowed(), "{url}");
            full.take();
        }
    }
}

#[tokio::test]
async fn a_missing_password_is_not_a_wrong_one_nor_a_missing_database() {
    let server = Server::with(&["--requirepass", "mellon"]);
    let url = |login: &str, rest: &str| server.url().replace("//", &format!("//{login}")) + rest;
    for rest in ["/1", "/?protocol=resp3", "/1?protocol=resp3"] {
        is_refused(&url("", rest), AccessDenied, NO_PASSWORD).await;
    }
    for login in [":sesame@", "limiter:sesame@"] {
        for rest in ["/", "/1", "/?protocol=resp3", "/1?protocol=resp3"] {
            let error = is_refused(&url(login, rest), AccessDenied, WRONG_PASSWORD).await;
            let cause = error.source().unwrap().to_string();
            assert_eq!(cause, "the authentication failed");
        }
    }
    let open = Server::start();
    let url = open.url().replace("//", "//:sesame@");
    is_refused(&url, AccessDenied, WRONG_PASSWORD).await;
}

#[tokio::test]
async fn a_missing_database_is_named_and_so_is_a_missing_right() {
    let server = Server::start();
    let database = "the Redis server has no such database";
    for rest in ["/99", "/99?protocol=resp3", "/-1"] {
        is_refused(&(server.url() + rest), AccessDenied, database).await;
    }
    let rights = "the Redis user lacks rights that this store needs";
    let url = limited(&server, &["~*", "+@all", "-select"]) + "/1";
    let error = is_refused(&url, AccessDenied, rights).await;
    let cause = error.source().unwrap().to_string();
    assert_eq!(cause, "the right `+select` is missing");

    for (url, message) in [(server.url() + "/99", database), (url, rights)] {
        let manager = bb8_redis::RedisConnectionManager::new(url).unwrap();
        let pool = bb8::Pool::builder().build_unchecked(manager);
        let limiter = Limiter::new(RedisStore::from(pool)).timeout(SOON);
        let error = limiter.check(unit()).await.unwrap_err();
        says(&error, AccessDenied, message);
    }
}

/// A server that answers every command with this line. Those that let no connection in close it.
async fn answering(line: &'static str, closes: bool) -> String {
    listen(move |mut client| async move {
        let mut command = [0; 16_384];
        while let Ok(1..) = client.read(&mut command).await {
            let is_ping = command.windows(4).any(|word| word == b"PING");
            let line = if is_ping && !closes { "+PONG" } else { line };
            let _ = client.write_all(format!("{line}\r\n").as_bytes()).await;
            command.fill(0);
            if closes {
                return;
            }
        }
    })
    .await
}

#[tokio::test]
async fn every_other_reason_not_to_let_a_connection_in_is_named() {
    let denied = "-DENIED Redis is running in protected mode because protected mode is enabled";
    let protected =
        "the Redis server is in protected mode, and wants a password for other machines";
    let full = "-ERR max number of clients reached";
    let crowd = "-ERR max number of clients + cluster connections reached";
    let loads = "-LOADING Redis is loading the dataset in memory";
    let loading = "the Redis server is loading its data";
    let alone = "the Redis server is a replica that has lost its primary";
    for (line, kind, message) in [
        (denied, AccessDenied, protected),
        (full, Unavailable, NO_ROOM),
        (crowd, Unavailable, NO_ROOM),
        ("-ERR invalid password", AccessDenied, WRONG_PASSWORD),
        (loads, Refused, loading),
        ("-MASTERDOWN Link with MASTER is down", Refused, alone),
    ] {
        let url = answering(line, true).await.replace("//", "//:sesame@");
        for rest in ["", "/1", "/?protocol=resp3"] {
            is_refused(&format!("{url}{rest}"), kind, message).await;
        }
    }
    let unknown = "-ERR unknown command `HELLO`, with args beginning with: `3`";
    let old = answering(unknown, true).await + "?protocol=resp3";
    let message = "the Redis server does not speak RESP3";
    is_refused(&old, AccessDenied, message).await;
}

#[tokio::test]
async fn sentinels_and_nodes_without_a_free_connection_are_said_to_have_none() {
    let full = answering("-ERR max number of clients reached", true).await;
    for store in [
        RedisStore::sentinel([full.as_str()], NAME).await,
        RedisStore::sentinel([full.replace("//", "//:sesame@")], NAME).await,
        RedisStore::cluster([full.as_str()]).await,
        RedisStore::cluster([full.replace("//", "//:sesame@")]).await,
    ] {
        says(&store.unwrap_err(), Unavailable, NO_ROOM);
    }
}

#[tokio::test]
async fn a_service_refuses_above_its_quota_and_a_proxy_says_that_its_server_is_away() {
    let quota = "-ERR max requests limit exceeded. Limit: 500000, Usage: 500000";
    for (line, expected) in [
        (quota, Refused),
        ("-ERR max daily request limit exceeded", Refused),
        ("-upstream failure", Unavailable),
        ("-no upstream host", Unavailable),
        ("-ERR Connection refused", Unavailable),
    ] {
        let store = RedisStore::connect(answering(line, false).await).await;
        let limiter = Limiter::new(store.unwrap()).timeout(Duration::from_millis(300));
        assert_eq!(kind(limiter.check(unit()).await), Some(expected), "{line}");
    }
}
