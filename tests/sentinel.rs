//! Whatever befalls a primary that has sentinels, requests end in time, and are decided by the new primary at once.
#![cfg(feature = "sentinel")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use common::{
    redis::Server,
    sentinel::{Group, NAME, eventually},
};
use sluicegate::{Charge, Key, Limiter, Policy, RedisStore, StoreErrorKind};
use tokio::task::{JoinHandle, block_in_place};

/// Much more than the deadline of 100 ms on a busy machine, and less than any wait of a library.
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
    let limiter = Limiter::new(store.clone()).deadline(Duration::from_millis(300));
    limiter.check(charge("alice", PLENTY)).await.is_ok()
}

async fn recovers(store: &RedisStore) {
    let start = Instant::now();
    while !works(store).await {
        assert!(start.elapsed() < SOON, "no decision within a second");
    }
}

/// Requests that keep coming, from four tasks, until they are told to end.
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

    /// Waits until requests are decided again, which they must be within a second.
    async fn recovers(&self) {
        let start = Instant::now();
        let before = self.decided.load(Relaxed);
        while self.decided.load(Relaxed) < before + 100 {
            assert!(start.elapsed() < SOON, "no decisions within a second");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        eprintln!("100 decisions {:?} after the promotion", start.elapsed());
    }

    /// No request panicked, and none took longer than its deadline and what a busy machine adds.
    async fn end(self) {
        self.done.store(true, Relaxed);
        for task in self.tasks {
            let longest = task.await.unwrap();
            assert!(longest < SOON, "{longest:?}");
        }
    }
}

/// Answers how long the longest request took.
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
                    StoreErrorKind::Unavailable | StoreErrorKind::Timeout
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
async fn a_primary_that_is_killed_and_comes_back_empty() {
    let mut group = Group::start(&[]);
    let store = store(&group).await;
    let traffic = Traffic::start(&store);
    let old = group.primary();
    group.servers[old].kill();
    block_in_place(|| group.promoted(old));
    traffic.recovers().await;

    group.servers[old].restart();
    block_in_place(|| group.settle());
    traffic.recovers().await;
    traffic.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_hangs_and_comes_back_as_a_replica() {
    let group = Group::start(&[]);
    let store = store(&group).await;
    let traffic = Traffic::start(&store);
    let old = group.primary();
    group.servers[old].stop();
    block_in_place(|| group.promoted(old));
    traffic.recovers().await;

    group.servers[old].cont();
    block_in_place(|| group.settle());
    traffic.recovers().await;
    traffic.end().await;
}
