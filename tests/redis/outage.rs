//! Under traffic, a Redis server that is stopped, killed or not yet started costs one timeout in each interval. Local
//! decisions within the shares replace those of the server, until a second after the server is back at the latest.

use std::{
    convert::Infallible,
    future::ready,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use http::{Request, Response, StatusCode};
use sluicegate::{
    Charge, FailurePolicy, Key, Limiter, MemoryStore, Policy, RateLimitLayer, RedisStore,
    error::StoreErrorKind,
    observe::{Event, Observer},
};
use support::redis::Server;
use tower::{Layer, ServiceExt, service_fn};

const TASKS: usize = 64;

/// More than a busy machine needs for an answer.
const TIMEOUT: Duration = Duration::from_millis(500);
const SECOND: Duration = Duration::from_secs(1);

/// The minimum time between two probes.
const INTERVAL: Duration = Duration::from_millis(125);

/// Counts events.
#[derive(Clone, Debug, Default)]
struct Counts(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    timeouts: AtomicU64,
    /// The timeouts of requests that began while the breaker was open.
    probes: AtomicU64,
    opened: Mutex<Option<Instant>>,
    circuit_open: AtomicU64,
    local: AtomicU64,
    shared: AtomicU64,
    switches: Mutex<Vec<bool>>,
}

impl Observer for Counts {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Decision { decision, .. } if decision.is_local() => {
                self.0.local.fetch_add(1, SeqCst);
            }
            Event::Decision { .. } => {
                self.0.shared.fetch_add(1, SeqCst);
            }
            Event::Error { error, .. } if error.kind() == StoreErrorKind::CircuitOpen => {
                self.0.circuit_open.fetch_add(1, SeqCst);
            }
            Event::Error { timing, .. } => {
                let began = Instant::now() - timing.latency;
                let is_probe = self.0.opened.lock().unwrap().is_some_and(|at| began > at);
                self.0.probes.fetch_add(u64::from(is_probe), SeqCst);
                self.0.timeouts.fetch_add(1, SeqCst);
            }
            Event::BreakerOpened { .. } => self.switched(true),
            Event::BreakerClosed => self.switched(false),
            _ => {}
        }
    }
}

impl Counts {
    fn switched(&self, is_open: bool) {
        *self.0.opened.lock().unwrap() = is_open.then(Instant::now);
        self.0.switches.lock().unwrap().push(is_open);
    }

    fn timeouts(&self) -> u64 {
        self.0.timeouts.load(SeqCst)
    }

    fn probes(&self) -> u64 {
        self.0.probes.load(SeqCst)
    }

    fn shared(&self) -> u64 {
        self.0.shared.load(SeqCst)
    }

    fn switches(&self) -> Vec<bool> {
        self.0.switches.lock().unwrap().clone()
    }
}

fn charge(user: &str, limit: u64) -> [Charge; 1] {
    let policy = Policy::parse("api", &format!("{limit}/1d")).unwrap();
    [Charge::new(&policy, Key::new("user", user), 1)]
}

/// The results of all requests.
struct Traffic {
    until: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<Duration>>,
}

impl Traffic {
    /// Starts tasks that send requests one after the other, without end.
    fn start(limiter: &Limiter, limit: u64) -> Self {
        let until = Arc::new(AtomicBool::new(false));
        let tasks = (0..TASKS).map(|_| {
            let (limiter, until) = (limiter.clone(), until.clone());
            tokio::spawn(async move {
                let mut longest = Duration::ZERO;
                while !until.load(SeqCst) {
                    let start = Instant::now();
                    limiter.try_acquire(charge("alice", limit)).await;
                    longest = longest.max(start.elapsed());
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                longest
            })
        });
        Self {
            tasks: tasks.collect(),
            until,
        }
    }

    /// Ends the traffic. Fails if a request took longer than the timeout plus the delay of a busy machine.
    async fn end(self) {
        self.until.store(true, SeqCst);
        for task in self.tasks {
            let longest = task.await.unwrap();
            assert!(longest < TIMEOUT + SECOND, "{longest:?}");
        }
    }
}

async fn until(what: &str, within: Duration, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < within, "{what}: not within {within:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn local(store: RedisStore, replicas: u32, counts: &Counts) -> Limiter {
    Limiter::new(store)
        .timeout(TIMEOUT)
        .on_failure(FailurePolicy::Local)
        .replicas(replicas)
        .observer(counts.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stopped_under_traffic_costs_one_deadline_each_interval() {
    let server = Server::start();
    let counts = Counts::default();
    let limiter = local(RedisStore::connect(server.url()).await.unwrap(), 4, &counts);
    let traffic = Traffic::start(&limiter, 1_000_000);
    until("decisions", 5 * SECOND, || counts.shared() > 1_000).await;
    assert_eq!(counts.timeouts(), 0);

    server.stop();
    let stopped = Instant::now();
    until("the breaker opens", 5 * SECOND, || {
        counts.switches() == [true]
    })
    .await;
    let opened = Instant::now();
    let before = counts.0.circuit_open.load(SeqCst);
    until("many are spared, some probe", 60 * SECOND, || {
        counts.0.circuit_open.load(SeqCst) > before + 10_000 && counts.probes() > 1
    })
    .await;
    let (waited, probes) = (counts.timeouts(), counts.probes());
    let whole = |span: Duration, part: Duration| u64::try_from(span.as_millis() / part.as_millis());
    let intervals = whole(opened.elapsed(), INTERVAL).unwrap();
    server.cont();

    // Before the breaker opens, there is one timeout for each task and timeout. Afterwards there is one in each
    // interval.
    let most_probes = intervals + 1;
    assert!(probes <= most_probes, "{probes} of {most_probes}");
    let rounds = whole(opened - stopped, TIMEOUT).unwrap() + 1;
    let most = rounds * TASKS as u64 + most_probes;
    assert!((5..=most).contains(&waited), "{waited} of {most}");
    let spared = counts.0.circuit_open.load(SeqCst) - before;
    assert!(spared > 5 * most, "{spared}");
    // A request's error is counted before its local decision.
    until("local decisions", SECOND, || {
        counts.0.local.load(SeqCst) >= spared + waited
    })
    .await;

    let shared = counts.shared();
    until("decisions of the server", SECOND, || {
        counts.shared() > shared + 100
    })
    .await;
    // The breaker notifies its observer after it has closed.
    until("the breaker's event", SECOND, || {
        counts.switches() == [true, false]
    })
    .await;
    traffic.end().await;
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

#[tokio::test]
async fn a_decision_is_settled_where_it_was_made_also_after_the_server_went_and_came() {
    let mut server = Server::start();
    let counts = Counts::default();
    let limiter = local(RedisStore::connect(server.url()).await.unwrap(), 2, &counts);
    let by_server = limiter.check(charge("alice", 10)).await.unwrap();
    server.stop();
    let by_memory = limiter.check(charge("alice", 10)).await.unwrap();
    assert!(!by_server.usage().is_local() && by_memory.usage().is_local());
    limiter.settle(by_memory.usage(), |_| 3).await.unwrap();
    server.cont();
    let start = Instant::now();
    while limiter.peek(charge("alice", 10)).await.unwrap().is_local() {
        assert!(start.elapsed() < SECOND);
    }
    // The server may have charged the check that timed out, because the check was sent.
    let left = |usage: &sluicegate::Usage| usage.rules().next().unwrap().remaining();
    let before = left(&limiter.peek(charge("alice", 10)).await.unwrap());
    assert!((8..=9).contains(&before), "{before}");
    let settled = limiter.settle(by_server.usage(), |_| 0).await.unwrap();
    assert_eq!((settled.is_local(), left(&settled)), (false, before + 1));
    server.kill();
    let usage = limiter.peek(charge("alice", 10)).await.unwrap();
    assert_eq!((usage.is_local(), left(&usage)), (true, 2));
}

#[tokio::test]
async fn a_response_passes_and_its_charge_stays_when_the_server_cannot_settle_it() {
    let server = Arc::new(Server::start());
    let store = RedisStore::connect(server.url()).await.unwrap();
    let policy = Policy::parse("api", "9/1d").unwrap();
    let counts = Counts::default();
    let limiter = Limiter::new(store.clone()).timeout(TIMEOUT);
    let layer = RateLimitLayer::new(limiter.observer(counts.clone()))
        .limit(policy.clone(), Key::new("user", "alice"))
        .settle(|_, _| 0);
    let makes_it_read_only = service_fn({
        let server = Arc::clone(&server);
        move |_: Request<()>| {
            server.run::<()>("REPLICAOF 127.0.0.1 1");
            ready(Ok::<_, Infallible>(Response::new(String::from("ok"))))
        }
    });
    let response = layer.layer(makes_it_read_only).oneshot(Request::default());
    let response = response.await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let left = response.headers()["ratelimit"].to_str().unwrap();
    assert!(left.starts_with(r#""api";r=8;"#), "{left}");
    assert_eq!(counts.timeouts(), 1);

    server.run::<()>("REPLICAOF NO ONE");
    let limiter = Limiter::new(store).timeout(TIMEOUT);
    let usage = limiter.peek([Charge::new(&policy, Key::new("user", "alice"), 0)]);
    let usage = usage.await.unwrap();
    assert_eq!(usage.rules().next().unwrap().remaining(), 8);
}
