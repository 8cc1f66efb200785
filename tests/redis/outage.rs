//! While a Redis server is killed or not yet started, local decisions within the shares replace those of the server,
//! until a second after the server is back at the latest.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use sluicegate::{
    Charge, FailurePolicy, Key, Limiter, MemoryStore, Policy, RedisStore,
    observe::{Event, Observer},
};
use support::redis::Server;

const TASKS: usize = 64;

/// More than a busy machine needs for an answer.
const TIMEOUT: Duration = Duration::from_millis(500);
const SECOND: Duration = Duration::from_secs(1);

/// The number of decisions of the server, and whether the breaker opened or closed.
#[derive(Clone, Debug, Default)]
struct Counts(Arc<(AtomicU64, Mutex<Vec<bool>>)>);

impl Observer for Counts {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Decision { decision, .. } if !decision.is_local() => {
                self.0.0.fetch_add(1, SeqCst);
            }
            Event::BreakerOpened { .. } => self.0.1.lock().unwrap().push(true),
            Event::BreakerClosed => self.0.1.lock().unwrap().push(false),
            _ => {}
        }
    }
}

impl Counts {
    fn shared(&self) -> u64 {
        self.0.0.load(SeqCst)
    }

    fn switches(&self) -> Vec<bool> {
        self.0.1.lock().unwrap().clone()
    }
}

fn charge(user: &str, limit: u64) -> [Charge; 1] {
    let policy = Policy::parse("api", &format!("{limit}/1d")).unwrap();
    [Charge::new(&policy, Key::new("user", user), 1)]
}

fn local(store: RedisStore, replicas: u32, counts: &Counts) -> Limiter {
    Limiter::new(store)
        .timeout(TIMEOUT)
        .on_failure(FailurePolicy::Local)
        .replicas(replicas)
        .observer(counts.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_server_is_killed_the_shares_hold_exactly_and_when_it_is_back_it_decides_within_a_second()
 {
    const LIMIT: u64 = 1_000;
    let mut server = Server::start();
    let url = server.url();
    let counts: Vec<Counts> = (0..3).map(|_| Counts::default()).collect();
    let memory = MemoryStore::new();
    let mut replicas = Vec::new();
    for counts in &counts {
        let store = RedisStore::connect(url.as_str()).await.unwrap();
        replicas.push(local(store, 3, counts));
    }
    replicas[0] = replicas[0].clone().local_store(memory.clone());
    tokio::task::block_in_place(|| server.kill());

    let mut admitted = Vec::new();
    for replica in &replicas {
        let tasks = (0..TASKS).map(|_| {
            let limiter = replica.clone();
            tokio::spawn(async move {
                let mut admitted = 0_u64;
                for _ in 0..20 {
                    admitted += u64::from(limiter.try_acquire(charge("alice", LIMIT)).await);
                }
                admitted
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap();
        }
        admitted.push(sum);
    }
    assert_eq!(admitted, [LIMIT / 3; 3]);
    assert_eq!(memory.len(), 1);
    let begun = Instant::now();
    for (replica, counts) in replicas.iter().zip(&counts) {
        while counts.switches() != [true] {
            assert!(!replica.try_acquire(charge("alice", LIMIT)).await);
            assert!(begun.elapsed() < 9 * SECOND);
        }
    }

    tokio::task::block_in_place(|| server.restart());
    let healed = Instant::now();
    for (replica, counts) in replicas.iter().zip(&counts) {
        while counts.shared() == 0 {
            assert!(healed.elapsed() < SECOND);
            replica.check(charge("bob", LIMIT)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..20 {
            let decision = replica.check(charge("bob", LIMIT)).await.unwrap();
            assert!(!decision.usage().is_local());
        }
        assert_eq!(counts.switches(), [true, false]);
    }
}

#[tokio::test]
async fn a_service_starts_while_the_server_is_down_and_finds_it_when_it_is_up() {
    let mut server = Server::start();
    server.kill();
    let counts = Counts::default();
    let limiter = local(RedisStore::connect_lazy(server.url()).unwrap(), 2, &counts);
    let mut admitted = 0;
    for _ in 0..50 {
        admitted += u64::from(limiter.try_acquire(charge("alice", 10)).await);
    }
    assert_eq!(admitted, 5);
    server.restart();
    let start = Instant::now();
    while limiter.peek(charge("alice", 10)).await.unwrap().is_local() {
        assert!(start.elapsed() < SECOND);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let usage = limiter.peek(charge("alice", 10)).await.unwrap();
    assert_eq!(usage.rules().next().unwrap().remaining(), 10);
}
