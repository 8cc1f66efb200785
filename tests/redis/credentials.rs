//! Passwords that expire: the source of credentials is asked in time, and no limit is lifted meanwhile.

use std::{error::Error, fs, future::pending, path::PathBuf};

use sluicegate::{Credentials, RedisServer};
use support::{
    sentinel::{Group, NAME, Sentinel},
    served::limited,
    trace::traced_here,
};
use tempfile::TempDir;
use tokio::{runtime::Builder, task::block_in_place};

use crate::{cluster::apart, prelude::*};

const ROTATION: Duration = Duration::from_secs(2);

/// The user `limiter` of some servers, with the least rights and one password at a time.
struct Rotating<'a> {
    servers: Vec<&'a Server>,
    newest: Arc<Mutex<String>>,
    file: PathBuf,
    asks: Arc<AtomicU32>,
    _folder: TempDir,
}

impl<'a> Rotating<'a> {
    fn new(servers: impl IntoIterator<Item = &'a Server>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let rotating = Self {
            servers: servers.into_iter().collect(),
            newest: Arc::default(),
            file: folder.path().join("password"),
            asks: Arc::default(),
            _folder: folder,
        };
        let rights = LEAST_RIGHTS.join(" ") + " +role +cluster|slots +asking +readonly";
        for server in &rotating.servers {
            server.run::<()>(&format!("ACL SETUSER limiter reset on {rights}"));
        }
        rotating.rotate();
        rotating
    }

    /// Gives the user another password, and closes the user's connections.
    fn rotate(&self) {
        let password = format!("{:032x}", fastrand::u128(..));
        for server in &self.servers {
            server.run::<()>(&format!("ACL SETUSER limiter resetpass >{password}"));
        }
        fs::write(&self.file, format!("{password}\n")).unwrap();
        *self.newest.lock().unwrap() = password;
        for server in &self.servers {
            server.run::<u64>("CLIENT KILL USER limiter");
        }
    }

    /// A server with the newest password, from a closure or from the file.
    fn server(&self, url: impl Into<RedisServer>, is_file: bool) -> RedisServer {
        if is_file {
            return url.into().password_file(&self.file);
        }
        let (newest, asks) = (Arc::clone(&self.newest), Arc::clone(&self.asks));
        url.into().credentials(move || {
            asks.fetch_add(1, Ordering::Relaxed);
            let newest = newest.lock().unwrap().clone();
            async { Ok::<_, Infallible>(Credentials::new("limiter", newest)) }
        })
    }

    /// Decides without a break for these users while the password rotates so often.
    async fn decides(&self, store: &RedisStore, users: &[String], rotations: u32) {
        const LIMIT: u64 = 1_000;
        let limiter = Limiter::new(store.clone()).timeout(Duration::from_millis(300));
        let policy = api(&format!("{LIMIT}/1d"));
        let is_over = AtomicBool::new(false);
        let story = async |name: &String| {
            let (mut admitted, mut decided, mut longest) = (0, Instant::now(), Duration::ZERO);
            while !is_over.load(Ordering::Relaxed) {
                if let Ok(decision) = limiter.check(one(&policy, name)).await {
                    admitted += u64::from(decision.is_allowed());
                    longest = longest.max(decided.elapsed());
                    decided = Instant::now();
                }
                sleep(Duration::from_millis(1)).await;
            }
            (admitted, longest.max(decided.elapsed()))
        };
        let rotate = async {
            for _ in 0..rotations {
                sleep(ROTATION).await;
                block_in_place(|| self.rotate());
            }
            sleep(SOON).await;
            is_over.store(true, Ordering::Relaxed);
        };
        let (stories, ()) = futures::join!(join_all(users.iter().map(story)), rotate);
        for (admitted, longest) in stories {
            println!(
                "{rotations} rotations: the longest gap {longest:?}, {admitted} of {LIMIT} admitted"
            );
            assert!(admitted <= LIMIT, "{admitted}");
            assert!(longest < SOON, "a gap of {longest:?}");
        }
        assert!(store.ping().await.unwrap() < SOON);
    }
}

fn users() -> Vec<String> {
    [1, 2, 3, 4].map(|it| format!("bob-{it}")).to_vec()
}

async fn one_server(rotations: u32) {
    for is_file in [false, true] {
        let server = Server::start();
        let rotating = Rotating::new([&server]);
        let url = server.url().replace("//", "//limiter@");
        let store = RedisStore::connect(rotating.server(url, is_file)).await;
        rotating.decides(&store.unwrap(), &users(), rotations).await;
    }
}

async fn primary_of_sentinels(rotations: u32) {
    let group = Group::start(&[]);
    let rotating = Rotating::new(&group.servers);
    let primary = rotating.server(format!("redis://limiter@{NAME}"), false);
    let store = RedisStore::sentinel(group.urls(), primary).await.unwrap();
    rotating.decides(&store, &users(), rotations).await;
}

async fn cluster(rotations: u32) {
    let cluster = Cluster::start(Duration::from_secs(60));
    let rotating = Rotating::new(&cluster.nodes);
    let users = apart(&cluster);
    let urls = cluster.urls().into_iter();
    let nodes = urls.map(|url| rotating.server(url.replace("//", "//limiter@"), true));
    let store = RedisStore::cluster(nodes).await.unwrap();
    rotating.decides(&store, &users, rotations).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_of_one_server_rotate_under_load() {
    one_server(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_of_a_primary_of_sentinels_rotate_under_load() {
    primary_of_sentinels(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_of_a_cluster_rotate_under_load() {
    cluster(3).await;
}

/// The long form: a minute for each way to give the password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes six minutes"]
async fn passwords_rotate_for_minutes() {
    one_server(30).await;
    primary_of_sentinels(30).await;
    cluster(30).await;
}

/// A source of the password of `limited`, and the number of asks so far.
fn counted(
    server: &Server,
    answer: impl Fn(u32) -> Result<Credentials, String> + Send + Sync + 'static,
) -> (RedisServer, Arc<AtomicU32>) {
    limited(server, &LEAST_RIGHTS);
    let asks = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&asks);
    let source = move || {
        let answer = answer(counter.fetch_add(1, Ordering::Relaxed));
        async { answer }
    };
    let server = RedisServer::parse(&server.url()).unwrap();
    (server.credentials(source), asks)
}

fn sesame() -> Credentials {
    Credentials::new("limiter", "sesame")
}

#[tokio::test]
async fn connections_log_in_again_before_a_password_ends_and_stay_if_that_is_refused() {
    let server = Server::start();
    let (url, asks) = counted(&server, |ask| match ask {
        1 => Ok(Credentials::new("limiter", "wrong")),
        2 => Err("the vault is sealed".to_owned()),
        _ => Ok(sesame().valid_for(SOON)),
    });
    let store = RedisStore::connect(url).await.unwrap();
    let (before, begin) = (server.connections_made(), Instant::now());
    let limiter = patient(store);
    let is_renewed = async || {
        take(&limiter, &api("1000000/1d"), "alice").await;
        asks.load(Ordering::Relaxed) == 5
    };
    until("it is renewed twice", is_renewed).await;
    assert!(begin.elapsed() >= 2 * SOON / 5 * 4, "{:?}", begin.elapsed());
    assert_eq!(server.connections_made(), before);
    // The ask that failed sent nothing.
    eventually("it has logged in", || server.calls("auth") == 4).await;
    let log: Vec<redis::Value> = server.run("ACL LOG");
    assert_eq!(format!("{log:?}").matches("\"auth\"").count(), 1, "{log:?}");
}

#[tokio::test]
async fn a_connection_that_is_lost_while_the_source_fails_logs_in_with_the_password_that_still_holds()
 {
    let server = Server::start();
    let (url, asks) = counted(&server, |ask| match ask {
        0 => Ok(sesame().valid_for(10 * SOON)),
        _ => Err("the vault is sealed".to_owned()),
    });
    let limiter = patient(RedisStore::connect(url).await.unwrap());
    eventually("the source has failed", || asks.load(SeqCst) == 2).await;
    server.run::<u64>("CLIENT KILL USER limiter");
    take(&limiter, &api("9/1d"), "alice").await;
    assert_eq!(server.calls("auth"), 2);
}

#[tokio::test]
async fn a_source_that_fails_or_panics_is_warned_about_once_and_asked_again() {
    for panics in [false, true] {
        let (trace, _guard) = traced_here();
        let server = Server::start();
        let is_sealed = Arc::new(AtomicBool::new(true));
        let sealed = Arc::clone(&is_sealed);
        let (url, asks) = counted(&server, move |_| match sealed.load(Ordering::Relaxed) {
            true if panics => panic!("the vault is sealed"),
            true => Err("the vault is sealed".to_owned()),
            false => Ok(sesame()),
        });
        let refused = RedisStore::connect(url.clone()).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::AccessDenied);
        assert_eq!(
            refused.to_string(),
            "the source of credentials gives none that the server accepts"
        );
        let cause = refused.source().unwrap().to_string();
        assert!(cause.contains("the vault is sealed"), "{cause}");

        let store = RedisStore::connect_lazy(url).unwrap();
        let limiter = Limiter::new(store).on_failure(FailurePolicy::Closed);
        let layer = RateLimitLayer::new(limiter.clone()).limit(api("9/1d"), user("alice"));
        let status = async || send(&layer, to("/")).await.status();
        let begin = Instant::now();
        while begin.elapsed() < 5 * SOON {
            assert_eq!(status().await, StatusCode::SERVICE_UNAVAILABLE);
        }
        let asked = || asks.load(Ordering::Relaxed);
        let before = asked();
        assert!((2..=23).contains(&before), "{before} asks"); // 250 ms apart
        let lines = trace.lines.lock().unwrap().clone();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("the vault is sealed"), "{lines:?}");

        let waits =
            tokio::spawn(async move { limiter.acquire(one(&api("9/1d"), "bob"), HOUR).await });
        eventually("it asks again", || asked() >= before + 2).await;
        assert!(!waits.is_finished());
        is_sealed.store(false, Ordering::Relaxed);
        let is_back = async || status().await == StatusCode::OK;
        assert!(until("it is back", is_back).await < SOON);
        assert!(waits.await.unwrap().unwrap().is_allowed());
    }
}

#[tokio::test]
async fn no_caller_waits_longer_than_the_timeout_for_a_source_that_hangs_and_it_is_asked_once() {
    let server = Server::start();
    let asks = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&asks);
    let url = RedisServer::from(server.url()).credentials(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        pending::<Result<Credentials, Infallible>>()
    });
    let connected = in_time(2 * SOON, RedisStore::connect(url.clone())).await;
    assert_eq!(kind(connected), Some(StoreErrorKind::Timeout));

    let limiter = Limiter::new(RedisStore::connect_lazy(url).unwrap());
    let limiter = limiter.timeout(Duration::from_millis(100));
    let policy = api("9/1d");
    for _ in 0..5 {
        let checks = (0..10).map(|_| limiter.check(one(&policy, "alice")));
        let answers = in_time(SOON, join_all(checks)).await;
        assert!(answers.into_iter().all(|it| it.is_err()));
    }
    assert_eq!(asks.load(Ordering::Relaxed), 1);
}

#[test]
fn runtimes_share_the_answers_of_a_source() {
    let server = Server::start();
    let (url, asks) = counted(&server, |_| Ok(sesame()));
    let store = RedisStore::connect_lazy(url).unwrap();
    for _ in 0..3 {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let limiter = patient(store.clone());
        runtime.block_on(take(&limiter, &api("9/1d"), "alice"));
    }
    assert_eq!(asks.load(Ordering::Relaxed), 1);
    assert_eq!(server.calls("auth"), 3);
}

/// Nodes of a cluster, each of which serves as many slots. One may refuse all logins.
#[derive(Default)]
struct Logins {
    ports: Mutex<Vec<u16>>,
    refusing: Option<usize>,
    taken: AtomicU32,
    refused: AtomicU32,
}

impl Logins {
    async fn start(self, nodes: usize) -> (Vec<String>, Arc<Self>) {
        let (this, mut urls) = (Arc::new(self), Vec::new());
        for node in 0..nodes {
            let of_node = Arc::clone(&this);
            urls.push(replying(move |sent| of_node.reply(sent, node)).await);
        }
        let port = |url: &String| url.rsplit(':').next().unwrap().parse().unwrap();
        *this.ports.lock().unwrap() = urls.iter().map(port).collect();
        (urls, this)
    }

    fn reply(&self, sent: &str, node: usize) -> String {
        if sent.contains("AUTH") {
            if self.refusing == Some(node) {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return "-WRONGPASS invalid username-password pair\r\n".to_owned();
            }
            self.taken.fetch_add(1, Ordering::Relaxed);
        } else if sent.contains("SLOTS") {
            let ports = self.ports.lock().unwrap().clone();
            let mut reply = format!("*{}\r\n", ports.len());
            let each = 16_384 / ports.len();
            for (port, at) in ports.into_iter().zip((0..).step_by(each)) {
                let last = at + each - 1;
                reply += &format!("*3\r\n:{at}\r\n:{last}\r\n*2\r\n$-1\r\n:{port}\r\n");
            }
            return reply;
        }
        "+OK\r\n".to_owned()
    }
}

#[tokio::test]
async fn fifty_nodes_of_a_cluster_share_one_ask() {
    let (mut urls, nodes) = Logins::default().start(50).await;
    let asks = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&asks);
    let seed = RedisServer::from(urls.remove(0)).credentials(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        async {
            sleep(Duration::from_millis(100)).await;
            Ok::<_, Infallible>(sesame().valid_for(HOUR))
        }
    });
    // It connects to all primaries, and waits for one.
    let _store = RedisStore::cluster([seed]).await.unwrap();
    let are_in = || nodes.taken.load(SeqCst) > 50;
    eventually("all nodes have let it in", are_in).await;
    assert_eq!(asks.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_node_that_refuses_what_others_take_does_not_spend_it_for_all() {
    let cluster = Logins {
        refusing: Some(1),
        ..Logins::default()
    };
    let (mut urls, nodes) = cluster.start(3).await;
    let asks = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&asks);
    let seed = RedisServer::from(urls.remove(0)).credentials(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Infallible>(sesame()) }
    });
    let store = RedisStore::cluster([seed]).await.unwrap();
    let policy = api("9/1d");
    let mut names = (0..1_000).cycle();
    until("a node has refused many logins", async || {
        let _ = store
            .check(&check(one(&policy, names.next().unwrap())))
            .await;
        nodes.refused.load(Ordering::Relaxed) >= 40
    })
    .await;
    let asks = asks.load(Ordering::Relaxed);
    assert!(asks <= 3, "{asks} asks");
    assert!(nodes.taken.load(Ordering::Relaxed) >= 2);
}

#[tokio::test]
async fn a_server_that_has_forgotten_the_login_gets_another() {
    let logins = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&logins);
    let url = replying(move |sent| {
        let is_login = u32::from(sent.contains("AUTH"));
        counter.fetch_add(is_login, Ordering::Relaxed);
        match sent.contains("EVALSHA") {
            true => "-NOAUTH Authentication required.\r\n".to_owned(),
            false => "+OK\r\n".to_owned(),
        }
    })
    .await;
    let source = || async { Ok::<_, Infallible>(sesame()) };
    let store = RedisStore::connect(RedisServer::from(url).credentials(source)).await;
    let store = store.unwrap();
    for number in 1..=3 {
        let error = store.check(&check(one(&api("9/1d"), "alice"))).await;
        assert_eq!(error.unwrap_err().code(), Some("NOAUTH"));
        assert_eq!(logins.load(Ordering::Relaxed), number);
    }
}

#[tokio::test]
async fn sentinels_have_credentials_of_their_own() {
    let server = Server::with(&["--requirepass", "sesame"]);
    let sentinel = Sentinel::watch(server.address(), "");
    sentinel
        .ask::<()>("ACL SETUSER watcher reset on >mellon +sentinel|get-master-addr-by-name")
        .unwrap();
    sentinel.ask::<()>("ACL SETUSER default -sentinel").unwrap();
    let given = |user, password| {
        move || async move { Ok::<_, Infallible>(Credentials::new(user, password)) }
    };
    let primary = RedisServer::from(NAME).credentials(given("", "sesame"));
    let refused = RedisStore::sentinel([sentinel.url()], primary.clone()).await;
    assert_eq!(kind(refused), Some(StoreErrorKind::AccessDenied));
    // Those in a sentinel's own URL go first.
    let own = sentinel.url().replace("//", "//watcher:mellon@");
    for (sentinel, password) in [(sentinel.url(), "mellon"), (own, "wrong")] {
        let primary = primary
            .clone()
            .sentinel_credentials(given("watcher", password));
        let store = RedisStore::sentinel([sentinel], primary).await.unwrap();
        store.ping().await.unwrap();
    }
}

#[tokio::test]
async fn passwords_are_in_no_error_and_no_debug_text() {
    let server = Server::start();
    let source = || async { Ok::<_, Infallible>(Credentials::new("limiter", "sesame")) };
    let with = RedisServer::from(server.url()).credentials(source);
    let error = RedisStore::connect(with.clone()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::AccessDenied);
    assert_eq!(error.code(), Some("NOCREDENTIALS"));
    let store = RedisStore::connect_lazy(with.clone()).unwrap();
    for text in [
        format!("{error:?} {error}"),
        format!("{:?} {with:?} {store:?}", sesame()),
    ] {
        assert!(!text.contains("sesame"), "{text}");
    }
    let missing = RedisServer::from(server.url()).password_file("/nowhere/password");
    let error = RedisStore::connect(missing).await.unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert!(
        cause.starts_with("/nowhere/password: No such file"),
        "{cause}"
    );
    assert!(RedisServer::parse("redis://host/3?what=ever").is_err());
}
