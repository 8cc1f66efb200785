//! The time that a `RedisStore` waits for a slow server, and the fate of replies to callers that have left. The
//! runtime's clock is paused, so no real time passes.

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    time::Instant,
};

use crate::prelude::*;

/// A server that answers everything after a delay. It also plays a sentinel, a primary and a node of a cluster.
#[derive(Clone)]
struct SlowServer {
    address: SocketAddr,
    delay: Duration,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    connections: usize,
    /// Whether the first call of the script is never answered.
    forgets_first: bool,
    commands: Vec<String>,
    /// The primaries, each with one half of the slots.
    nodes: Vec<SocketAddr>,
}

impl SlowServer {
    async fn start(delay: Duration) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            delay,
            seen: Arc::default(),
        };
        let this = server.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // Without this, the second of two replies waits for an acknowledgement, by a clock that is not paused.
                client.set_nodelay(true).unwrap();
                this.seen.lock().unwrap().connections += 1;
                tokio::spawn(this.clone().serve(client));
            }
        });
        server
    }

    fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections
    }

    fn calls(&self, command: &str) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.commands.iter().filter(|it| *it == command).count()
    }

    async fn serve(self, client: TcpStream) {
        let mut client = BufReader::new(client);
        while let Some(command) = next_command(&mut client).await {
            self.seen.lock().unwrap().commands.push(command.clone());
            sleep(self.delay).await;
            if self.forgets(&command) {
                pending::<()>().await;
            }
            let reply = self.reply(&command);
            if client.get_mut().write_all(reply.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn forgets(&self, command: &str) -> bool {
        let forgets_first = self.seen.lock().unwrap().forgets_first;
        forgets_first && command == "EVALSHA" && self.calls(command) == 1
    }

    fn reply(&self, command: &str) -> String {
        let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        match command {
            "PING" => "+PONG\r\n".into(),
            "ROLE" => format!("*1\r\n{}", bulk("master")),
            "SENTINEL" => {
                let host = bulk(&self.address.ip().to_string());
                let port = bulk(&self.address.port().to_string());
                format!("*2\r\n{host}{port}")
            }
            "CLUSTER" => {
                let nodes = self.seen.lock().unwrap().nodes.clone();
                let ranges = nodes.iter().enumerate().map(|(at, node)| {
                    let (first, last) = (at * 8_192, at * 8_192 + 8_191);
                    let (host, port) = (bulk(&node.ip().to_string()), node.port());
                    format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n{host}:{port}\r\n")
                });
                format!("*{}\r\n{}", nodes.len(), ranges.collect::<String>())
            }
            _ => "-OOM that is all it knows of scripts\r\n".into(),
        }
    }
}

async fn next_command(client: &mut BufReader<TcpStream>) -> Option<String> {
    let count = number(client, '*').await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; number(client, '$').await? + 2];
        client.read_exact(&mut word).await.ok()?;
        words.push(String::from_utf8_lossy(&word).trim_end().to_owned());
    }
    words.into_iter().next()
}

async fn number(client: &mut BufReader<TcpStream>, begin: char) -> Option<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    line.strip_prefix(begin)?.trim_end().parse().ok()
}

fn unit(name: &str) -> [Charge; 1] {
    one(&api("10/1d"), name)
}

/// Whether the result is the server's answer after a long enough wait.
fn is_an_answer<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    let error = result.unwrap_err();
    let answer = (error.kind(), error.code());
    assert_eq!(answer, (StoreErrorKind::Refused, Some("OOM")));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_two_seconds_is_two_seconds() {
    let server = SlowServer::start(Duration::from_millis(900)).await;
    let store = RedisStore::connect_lazy(server.url()).unwrap();
    let limiter = Limiter::new(store.clone()).timeout(2 * SOON);
    // An attempt to connect and a reply. Each takes longer than 500 ms.
    for _ in 0..3 {
        is_an_answer(limiter.check(unit("alice")).await);
    }
    // Two at a time: while one waits for its reply, the other does not drop the connection.
    let both = [(); 2].map(|()| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.check(unit("alice")).await })
    });
    for result in both {
        is_an_answer(result.await.unwrap());
    }
    // An attempt to connect that took longer than 500 ms was repeated once, and the first success was used.
    assert_eq!(server.connections(), 2);

    // A shorter timeout over a clone of the store does not shorten the wait for this store.
    let hasty = Limiter::new(store).timeout(Duration::from_millis(100));
    let result = hasty.check(unit("alice")).await;
    assert_eq!(kind(result), Some(StoreErrorKind::Timeout));
    sleep(2 * SOON).await;
    is_an_answer(limiter.check(unit("alice")).await);
    assert_eq!(server.connections(), 2);
}

#[tokio::test(start_paused = true)]
async fn sentinels_and_the_primary_have_their_shares_of_the_timeout() {
    let server = SlowServer::start(Duration::from_millis(500)).await;
    let store = RedisStore::connect_lazy_sentinel([server.url()], "mymaster").unwrap();
    let limiter = Limiter::new(store).timeout(4 * SOON);
    is_an_answer(limiter.check(unit("alice")).await);
}

#[tokio::test(start_paused = true)]
async fn a_pool_gives_up_no_reply_before_the_timeout() {
    let server = SlowServer::start(Duration::from_millis(900)).await;
    let info = redis::IntoConnectionInfo::into_connection_info(server.url()).unwrap();
    let quiet = redis::RedisConnectionInfo::default().set_skip_set_lib_name();
    let info = info.set_redis_settings(quiet);
    let manager = bb8_redis::RedisConnectionManager::new(info).unwrap();
    let pool = bb8::Pool::builder().build_unchecked(manager);
    let limiter = Limiter::new(RedisStore::from(pool)).timeout(2 * SOON);
    is_an_answer(limiter.check(unit("alice")).await);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_costs_no_connection() {
    let server = SlowServer::start(Duration::from_millis(20)).await;
    let store = RedisStore::connect_lazy(server.url()).unwrap();
    let check = check(unit("alice"));
    store.check(&check).await.unwrap_err();
    for _ in 0..3 {
        let left = timeout(Duration::from_millis(10), store.check(&check)).await;
        assert!(left.is_err(), "the caller did not leave");
        // The reply comes after the caller has left.
        sleep(Duration::from_secs(60)).await;
        is_an_answer(store.check(&check).await);
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_over_a_lost_connection_does_not_keep_others_from_being_sent() {
    let server = SlowServer::start(Duration::from_millis(1)).await;
    server.seen.lock().unwrap().forgets_first = true;
    let store = RedisStore::connect_lazy(server.url()).unwrap().in_flight(1);
    let reset = |name| store.reset(&api("10/1d"), &user(name));
    let begun = Instant::now();
    let never = tokio::spawn(reset("alice"));
    yield_now().await;
    is_an_answer(reset("bob").await);
    assert!(begun.elapsed() < 2 * SOON);
    assert!(!never.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_given_up_although_all_callers_leave() {
    let server = SlowServer::start(Duration::from_secs(3_600)).await;
    let store = RedisStore::connect_lazy(server.url()).unwrap();
    let check = check(unit("alice"));
    for _ in 0..20 {
        let left = timeout(Duration::from_millis(100), store.check(&check)).await;
        assert!(!left.is_ok_and(|it| it.is_ok()));
    }
    let connections = server.connections();
    assert!((3..=5).contains(&connections), "{connections}");
}

#[tokio::test(start_paused = true)]
async fn limiters_with_other_timeouts_share_a_store_and_each_is_answered_in_time() {
    let server = SlowServer::start(Duration::from_secs(3_600)).await;
    let store = RedisStore::connect_lazy(server.url()).unwrap();
    let wait = |(after, timeout)| {
        let limiter = Limiter::new(store.clone()).timeout(Duration::from_millis(timeout));
        async move {
            sleep(Duration::from_millis(after)).await;
            let begun = Instant::now();
            let result = limiter.check(unit("alice")).await;
            assert_eq!(kind(result), Some(StoreErrorKind::Timeout));
            let late = begun.elapsed() - Duration::from_millis(timeout);
            assert!(late <= Duration::from_millis(5), "{late:?} after {timeout}");
        }
    };
    // The second time, nobody has waited for a while.
    for _ in 0..2 {
        let begins = [0, 0, 0, 1, 50, 99, 150].into_iter();
        join_all(begins.zip([200, 100, 30, 7, 51, 102, 400]).map(wait)).await;
        sleep(Duration::from_secs(60)).await;
    }
}

/// Nodes are so far away that the store also asks another one.
#[tokio::test(start_paused = true)]
async fn a_topology_that_several_nodes_were_asked_for_is_not_asked_for_again() {
    let nodes = [
        SlowServer::start(Duration::from_millis(90)).await,
        SlowServer::start(Duration::from_millis(100)).await,
    ];
    for node in &nodes {
        node.seen.lock().unwrap().nodes = nodes.iter().map(|it| it.address).collect();
    }
    let store = RedisStore::connect_lazy_cluster(nodes.each_ref().map(SlowServer::url)).unwrap();
    let calls = |node: &SlowServer| node.calls("CLUSTER");
    let refreshes = || nodes.iter().map(calls).sum::<usize>();
    let limiter = Limiter::new(store.clone()).timeout(2 * SOON);
    for user in ["alice", "bob", "carol", "dave"] {
        is_an_answer(limiter.check(unit(user)).await);
    }
    let asked = refreshes();
    assert!((1..=2).contains(&asked), "{asked}");

    // The same if callers leave.
    for user in ["alice", "bob", "carol", "dave"] {
        let check = check(unit(user));
        let left = timeout(Duration::from_millis(10), store.check(&check)).await;
        assert!(left.is_err(), "the caller did not leave");
        sleep(Duration::from_secs(1)).await;
        is_an_answer(limiter.check(unit(user)).await);
    }
    assert_eq!(refreshes(), asked);
}
