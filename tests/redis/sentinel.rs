//! Requests end in time whatever happens to a primary with sentinels, and the new primary decides them at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use sluicegate::{Charge, Key, Limiter, Policy, RedisStore, error::StoreErrorKind};
use support::{
    redis::Server,
    sentinel::{Group, NAME, Parrot, Sentinel, ask},
};
use tokio::task::{JoinHandle, block_in_place};

/// Far longer than the timeout of 100 ms on a busy machine, and shorter than any wait of a library.
const SOON: Duration = Duration::from_secs(1);

const PLENTY: u64 = 1_000_000;

fn charge(user: &str, limit: u64) -> [Charge; 1] {
    let policy = Policy::parse("api", &format!("{limit}/1d")).unwrap();
    [Charge::new(&policy, Key::new("user", user), 1)]
}

async fn store(group: &Group) -> RedisStore {
    RedisStore::sentinel(group.urls(), NAME).await.unwrap()
}

async fn works(store: &RedisStore) -> bool {
    let limiter = Limiter::new(store.clone()).timeout(Duration::from_millis(300));
    limiter.check(charge("alice", PLENTY)).await.is_ok()
}

/// Requests without a break, from four tasks, until `done`.
struct Traffic {
    done: Arc<AtomicBool>,
    decided: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Duration>>,
}

impl Traffic {
    fn start(store: &RedisStore) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let decided = Arc::new(AtomicU64::new(0));
        let limiter = Limiter::new(store.clone());
        let task = |_| tokio::spawn(ask_on(limiter.clone(), done.clone(), decided.clone()));
        let tasks = (0..4).map(task).collect();
        Self {
            done,
            decided,
            tasks,
        }
    }

    /// Waits until requests are decided again. This must take less than a second.
    async fn recovers(&self) {
        let start = Instant::now();
        let before = self.decided.load(Relaxed);
        while self.decided.load(Relaxed) < before + 100 {
            assert!(start.elapsed() < SOON, "no decisions within a second");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        eprintln!("100 decisions {:?} after the promotion", start.elapsed());
    }

    /// Fails if a request panicked, or took longer than its timeout plus the delay of a busy machine.
    async fn end(self) {
        self.done.store(true, Relaxed);
        for task in self.tasks {
            let longest = task.await.unwrap();
            assert!(longest < SOON, "{longest:?}");
        }
    }
}

/// Returns the time of the longest request.
async fn ask_on(limiter: Limiter, done: Arc<AtomicBool>, decided: Arc<AtomicU64>) -> Duration {
    let mut longest = Duration::ZERO;
    while !done.load(Relaxed) {
        let start = Instant::now();
        let result = limiter.check(charge("bob", PLENTY)).await;
        longest = longest.max(start.elapsed());
        match result {
            Ok(_) => {
                decided.fetch_add(1, Relaxed);
            }
            Err(error) => assert!(
                matches!(
                    error.kind(),
                    StoreErrorKind::Unavailable
                        | StoreErrorKind::Timeout
                        | StoreErrorKind::CircuitOpen
                ),
                "{error:?}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    longest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_on_request() {
    let group = Group::start(&[]);
    let store = store(&group).await;
    for _ in 0..2 {
        let traffic = Traffic::start(&store);
        block_in_place(|| group.fail_over());
        traffic.recovers().await;
        block_in_place(|| group.settle());
        traffic.end().await;
        assert!(works(&store).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_killed_or_hangs_and_comes_back_empty_or_as_a_replica() {
    for is_killed in [true, false] {
        let mut group = Group::start(&[]);
        let store = store(&group).await;
        let traffic = Traffic::start(&store);
        let old = group.primary();
        match is_killed {
            true => group.servers[old].kill(),
            false => group.servers[old].stop(),
        }
        block_in_place(|| group.promoted(old));
        traffic.recovers().await;

        match is_killed {
            true => group.servers[old].restart(),
            false => group.servers[old].cont(),
        }
        block_in_place(|| group.settle());
        traffic.recovers().await;
        traffic.end().await;
    }
}

/// Charges one key without a break. The remaining units in each answer show the charges that a new primary lacks.
struct Count {
    limiter: Limiter,
    limit: u64,
    left: u64,
    admitted: u64,
    lost: u64,
}

impl Count {
    fn new(store: &RedisStore, limit: u64) -> Self {
        Self {
            limiter: Limiter::new(store.clone()),
            limit,
            left: limit,
            admitted: 0,
            lost: 0,
        }
    }

    /// Whether the charge was admitted; `None` if there was no decision.
    async fn charge(&mut self) -> Option<bool> {
        let decision = self.limiter.check(charge("carol", self.limit)).await.ok()?;
        let left = decision.usage().rules().next().unwrap().remaining();
        let admitted = decision.is_allowed();
        let before = left + u64::from(admitted);
        self.lost += before.saturating_sub(self.left);
        self.admitted += u64::from(admitted);
        self.left = left;
        Some(admitted)
    }

    /// Charges until a denial. Asserts that at most the limit and the lost units were admitted.
    async fn use_up(mut self) {
        while self.charge().await != Some(false) {}
        let Self {
            limit,
            admitted,
            lost,
            ..
        } = self;
        eprintln!("{admitted} of {limit} admitted, {lost} of them lost");
        assert!(admitted <= limit + lost);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_primary_had_not_replicated_is_admitted_again_and_no_more() {
    let mut group = Group::start(&[]);
    let store = store(&group).await;
    let mut count = Count::new(&store, 3_000);
    for _ in 0..500 {
        count.charge().await;
    }
    let old = group.primary();
    group.servers[old].run::<()>("SET written last");
    assert_eq!(group.servers[old].run::<u32>("WAIT 2 10000"), 2);

    let replicated = count.admitted;
    for _ in 0..1_000 {
        count.charge().await;
    }
    let not_for_sure = count.admitted - replicated;
    group.servers[old].kill();
    block_in_place(|| group.promoted(old));
    while count.charge().await.is_none() {}
    assert!(
        count.lost <= not_for_sure,
        "{} of {not_for_sure}",
        count.lost
    );
    count.use_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_only_we_still_reach_is_left_when_another_is_named() {
    let group = Group::start(&[]);
    for server in &group.servers {
        server.run::<()>("ACL SETUSER limiter on nopass ~* +@all");
    }
    let url = format!("redis://limiter:any@{NAME}");
    let store = RedisStore::sentinel(group.urls(), url).await.unwrap();
    let old = group.primary();
    let mut count = Count::new(&store, 1_000_000);
    for _ in 0..100 {
        count.charge().await;
    }
    // The server now refuses the default user, as which the sentinels and replicas log in.
    let socket = group.servers[old].socket_url() + "?user=limiter&pass=any";
    ask::<()>(&socket, "ACL SETUSER default off").unwrap();
    ask::<()>(&socket, "CLIENT KILL TYPE replica").unwrap();
    ask::<()>(&socket, "CLIENT KILL USER default").unwrap();

    let promoted = async {
        while group.primary() == old {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Instant::now()
    };
    tokio::pin!(promoted);
    let at = loop {
        tokio::select! {
            biased;
            promoted = &mut promoted => break promoted,
            admitted = count.charge() => assert_eq!(admitted, Some(true)),
        }
    };
    let cut_off = count.admitted - 100;
    while count.lost == 0 {
        count.charge().await;
        assert!(at.elapsed() < 4 * SOON);
    }
    eprintln!(
        "{cut_off} admitted while cut off, {} lost, left after {:?}",
        count.lost,
        at.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_without_replicas_stops_when_told_to_need_one() {
    let group = Group::start(&[
        "--min-replicas-to-write",
        "1",
        "--min-replicas-max-lag",
        "1",
    ]);
    let store = store(&group).await;
    let primary = group.primary();
    for (index, server) in group.servers.iter().enumerate() {
        if index != primary {
            server.stop();
        }
    }
    let limiter = Limiter::new(store.clone());
    let start = Instant::now();
    let error = loop {
        if let Err(error) = limiter.check(charge("dave", PLENTY)).await {
            break error;
        }
        assert!(start.elapsed() < 5 * SOON);
    };
    eprintln!("stopped {:?} after the replicas", start.elapsed());
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    for server in &group.servers {
        server.cont();
    }
    while !works(&store).await {
        assert!(start.elapsed() < 20 * SOON);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_hang_or_are_gone_do_not_matter_while_one_answers() {
    let group = Group::start(&[]);
    group.sentinels[0].stop();
    group.sentinels[1].stop();
    let nobody = "redis://127.0.0.1:1".to_owned();
    let urls = [vec![nobody], group.urls()].concat();
    let start = Instant::now();
    let store = RedisStore::sentinel(urls, NAME).await.unwrap();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert!(works(&store).await);
    group.sentinels[0].cont();
    group.sentinels[1].cont();
}

#[tokio::test]
async fn what_the_sentinels_cannot_tell_is_said_clearly() {
    let server = Server::start();
    let nobody = RedisStore::sentinel(["redis://127.0.0.1:1"], NAME).await;
    assert_eq!(nobody.unwrap_err().kind(), StoreErrorKind::Unavailable);

    let no_sentinel = RedisStore::sentinel([server.url()], NAME).await;
    let parrot = Parrot::start(server.address());
    let unknown = RedisStore::sentinel([parrot.url()], "another").await;
    for error in [no_sentinel, unknown] {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::AccessDenied);
        assert!(error.to_string().contains("Sentinel"), "{error}");
    }
    for senseless in [
        RedisStore::connect_lazy_sentinel([""; 0], NAME),
        RedisStore::connect_lazy_sentinel(["nonsense"], NAME),
        RedisStore::connect_lazy_sentinel([parrot.url()], ""),
        RedisStore::connect_lazy_sentinel([parrot.url()], "http://mymaster"),
    ] {
        assert_eq!(senseless.unwrap_err().kind(), StoreErrorKind::AccessDenied);
    }
}

#[tokio::test]
async fn the_primary_has_a_user_and_a_password_of_its_own() {
    let server = Server::with(&["--requirepass", "sesame"]);
    let parrot = Parrot::start(server.address());
    let with =
        |password| RedisStore::sentinel([parrot.url()], format!("redis://:{password}@{NAME}"));
    assert!(works(&with("sesame").await.unwrap()).await);
    let wrong = with("mellon").await.unwrap_err();
    assert_eq!(wrong.kind(), StoreErrorKind::AccessDenied);
}

/// The rights in the documentation of `store::redis`.
#[tokio::test]
async fn the_least_rights_are_enough_behind_sentinels() {
    let server = Server::start();
    let sentinel = Sentinel::watch(server.address(), "");
    sentinel
        .ask::<()>("ACL SETUSER limiter reset on >sesame +sentinel|get-master-addr-by-name")
        .unwrap();
    let limited = |url: &str| url.replace("//", "//limiter:sesame@");
    let sentinels = || [limited(&sentinel.url())];
    let rights =
        "~sluicegate:* +evalsha +eval +time +get +getrange +exists +set +setrange +pexpireat +del";
    let primary = format!("redis://limiter:sesame@{NAME}");

    server.run::<()>(&format!("ACL SETUSER limiter reset on >sesame {rights}"));
    let no_role = RedisStore::sentinel(sentinels(), primary.as_str()).await;
    assert_eq!(no_role.unwrap_err().kind(), StoreErrorKind::AccessDenied);

    server.run::<()>("ACL SETUSER limiter +role");
    let store = RedisStore::sentinel(sentinels(), primary.as_str()).await;
    assert!(works(&store.unwrap()).await);
}

#[tokio::test]
async fn a_sentinel_that_still_names_the_old_primary_is_asked_again_and_not_in_a_storm() {
    let server = Server::start();
    let parrot = Parrot::start(server.address());
    let store = RedisStore::sentinel([parrot.url()], NAME).await.unwrap();
    assert!(works(&store).await);
    server.run::<()>("REPLICAOF 127.0.0.1 1");
    let before = server.info("stats", "total_connections_received");
    let start = Instant::now();
    while start.elapsed() < SOON {
        let limiter = Limiter::new(store.clone());
        let error = limiter.check(charge("erin", PLENTY)).await.unwrap_err();
        assert!(
            matches!(
                error.kind(),
                StoreErrorKind::Unavailable | StoreErrorKind::Timeout
            ),
            "{error}"
        );
    }
    let connections = server.info("stats", "total_connections_received") - before;
    assert!(
        connections <= 250,
        "{connections} connections within a second"
    );
    server.run::<()>("REPLICAOF NO ONE");
    assert!(works(&store).await);
}

#[tokio::test]
async fn a_replica_that_a_sentinel_names_is_passed_over() {
    let (primary, replica) = (
        Server::start(),
        Server::with(&["--replicaof", "127.0.0.1", "1"]),
    );
    let parrots = [
        Parrot::start(replica.address()),
        Parrot::start(primary.address()),
    ];
    for _ in 0..20 {
        let urls = parrots.each_ref().map(Parrot::url);
        let store = RedisStore::sentinel(urls, NAME).await.unwrap();
        assert!(works(&store).await);
    }
}

#[tokio::test]
async fn most_sentinels_are_believed_whoever_answers_first() {
    let (old, new) = (Server::start(), Server::start());
    let stale = Parrot::start(old.address());
    let right = [Parrot::start(new.address()), Parrot::start(new.address())];
    let urls = [stale.url(), right[0].url(), right[1].url()];
    for _ in 0..20 {
        let store = RedisStore::sentinel(urls.clone(), NAME).await.unwrap();
        assert!(works(&store).await);
    }
    assert_eq!(old.calls("evalsha"), 0);
    assert_eq!(new.calls("evalsha"), 20);
}
