//! Slots of several processes over a real server: held, renewed, returned, and released when a process dies.

use std::{
    convert::Infallible,
    future::ready,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures::future::{BoxFuture, join_all};
use http::{Request, Response, StatusCode};
use sluicegate::{
    Charge, Decision, FailurePolicy, Key, Limiter, Policy, RateLimitLayer, RedisStore, Rule, Store,
    StoreError,
    error::StoreErrorKind,
    limiter::{Slot, SlotWatch},
    middleware::{CostMeter, FollowedBody, ProblemJson, ToBodyEnd},
    observe::{CallKind, Event, Observer},
    policies::{Policies, ReloadablePolicies},
    store::Check,
};
use support::{cut_checks::cut_checks, redis::Server};
use tokio::{
    runtime::{Builder, Runtime},
    time::{sleep, timeout},
};
use tower::{Layer, ServiceExt, service_fn};

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn streams_that_handlers_check_leave_no_slot_and_cost_what_was_metered_under_each_policy() {
    let server = Server::start();
    let limiter = process(&server).await.timeout(PATIENCE);
    cut_checks(limiter, 2_000).await;
}

/// One slot, which expires a second after its last renewal.
fn job() -> [Charge; 1] {
    let jobs = Policy::parse("jobs", "1/1s@concurrent").unwrap();
    [Charge::new(&jobs, Key::new("tenant", "acme"), 1)]
}

async fn process(server: &Server) -> Limiter {
    Limiter::new(RedisStore::connect(server.url()).await.unwrap())
}

async fn acquire(limiter: &Limiter, max_wait: Duration) -> Option<Slot> {
    let slot = limiter.acquire_slot(job(), max_wait).await.unwrap();
    slot.ok().map(|slot| slot.expect("the policy has slots"))
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

#[tokio::test]
async fn one_process_waits_until_another_returns_its_slot() {
    let server = Server::start();
    let (first, second) = (process(&server).await, process(&server).await);
    let slot = acquire(&first, Duration::ZERO).await.unwrap();
    assert!(acquire(&second, Duration::ZERO).await.is_none());
    // Longer than the expiry: it is renewed.
    assert!(
        acquire(&second, Duration::from_millis(2_500))
            .await
            .is_none()
    );
    assert!(slot.is_held());

    let waiting = tokio::spawn(async move { acquire(&second, PATIENCE).await.is_some() });
    drop(slot);
    assert!(waiting.await.unwrap());
    assert!(acquire(&first, PATIENCE).await.is_some());
}

#[test]
fn the_slot_of_a_process_that_dies_is_released() {
    let server = Server::start();
    let (dying, living) = (runtime(), runtime());
    let slot = dying.block_on(async {
        let limiter = process(&server).await;
        acquire(&limiter, Duration::ZERO).await.unwrap()
    });
    let limiter = living.block_on(process(&server));
    assert!(living.block_on(acquire(&limiter, Duration::ZERO)).is_none());
    dying.shutdown_background(); // its renewals end, and nothing is returned
    let taken = living.block_on(acquire(&limiter, PATIENCE));
    assert!(taken.is_some());
    assert!(!slot.is_held());
}

/// Longer than the timeout of a limiter.
const STALL: Duration = Duration::from_millis(300);

/// A server that is stopped while it owes answers to all calls that may be in flight: the next call has to wait.
struct Stalled<'a> {
    server: &'a Server,
    in_flight: Vec<BoxFuture<'static, Result<Decision, StoreError>>>,
}

impl<'a> Stalled<'a> {
    async fn stop(server: &'a Server, store: &RedisStore) -> Self {
        let policy = Policy::parse("occupies", "1000000/1d").unwrap();
        server.stop();
        let mut in_flight: Vec<BoxFuture<'static, _>> = Vec::new();
        for call in 0..4 {
            let key = Key::new("call", call.to_string());
            let check = Check::new([Charge::new(&policy, key, 1)]).unwrap();
            let mut answer: BoxFuture<'static, _> = Box::pin(store.check(&check));
            assert!(futures::poll!(&mut answer).is_pending());
            in_flight.push(answer);
        }
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        Self { server, in_flight }
    }

    async fn go_on(self) {
        self.server.cont();
        for answer in join_all(self.in_flight).await {
            assert!(answer.unwrap().is_allowed());
        }
    }
}

fn tokens() -> Policy {
    Policy::parse("tokens", "10000/1h").unwrap()
}

fn acme() -> Key {
    Key::new("tenant", "acme")
}

async fn left(limiter: &Limiter, policy: &Policy) -> u64 {
    let usage = limiter
        .peek([Charge::new(policy, acme(), 0)])
        .await
        .unwrap();
    usage.rules().next().unwrap().remaining()
}

#[tokio::test]
async fn a_settlement_that_has_left_the_queue_can_be_made_again() {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let limiter = Limiter::new(store.clone());
    let trial = Policy::parse("trial", "100/1h").unwrap().shadow();
    for shadows in [vec![], vec![Charge::new(&trial, acme(), 50)]] {
        limiter.reset(&tokens(), &acme()).await.unwrap();
        let charges = [Charge::new(&tokens(), acme(), 50)]
            .into_iter()
            .chain(shadows);
        let admitted = limiter.check(charges).await.unwrap();
        let stalled = Stalled::stop(&server, &store).await;
        let error = limiter.settle(admitted.usage(), |_| 7).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Timeout);
        assert!(error.is_unsent());
        stalled.go_on().await;
        assert_eq!(left(&limiter, &tokens()).await, 9_950);
        limiter.settle(admitted.usage(), |_| 7).await.unwrap();
        assert_eq!(left(&limiter, &tokens()).await, 9_993);
    }
}

#[tokio::test]
async fn a_settlement_that_was_sent_cannot_be_made_again_after_its_timeout() {
    let server = Server::start();
    let limiter = process(&server).await;
    let admitted = limiter
        .check([Charge::new(&tokens(), acme(), 50)])
        .await
        .unwrap();
    server.stop();
    let error = limiter.settle(admitted.usage(), |_| 7).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    assert!(!error.is_unsent());
    server.cont();
    let again = limiter.settle(admitted.usage(), |_| 7).await.unwrap_err();
    assert_eq!(again.kind(), StoreErrorKind::InvalidRequest);
    assert_eq!(left(&limiter, &tokens()).await, 9_993);
}

/// A layer that takes one of this many slots, and 50 tokens until the response has ended.
fn chats(limiter: Limiter, slots: u64) -> RateLimitLayer<ProblemJson, ToBodyEnd> {
    RateLimitLayer::new(limiter)
        .limit_concurrent(chat_slots(slots), acme())
        .limit(tokens(), acme())
        .cost(|_, policy| if policy.name() == "tokens" { 50 } else { 1 })
        .meter_costs_under("tokens")
}

fn chat_slots(slots: u64) -> Policy {
    Policy::new("chats", [Rule::concurrent(slots)]).unwrap()
}

/// The response, and whether its handler held a slot.
async fn chat(
    layer: &RateLimitLayer<ProblemJson, ToBodyEnd>,
) -> (Response<FollowedBody<String>>, bool) {
    let service = layer.layer(service_fn(|request: Request<()>| {
        request.extensions().get::<CostMeter>().unwrap().set(7);
        let mut response = Response::new("hello".to_owned());
        if let Some(watch) = request.extensions().get::<SlotWatch>() {
            response.extensions_mut().insert(watch.clone());
        }
        ready(Ok::<_, Infallible>(response))
    }));
    let response = service.oneshot(Request::new(())).await.unwrap();
    let holds = response.extensions().get().is_some_and(SlotWatch::is_held);
    (response, holds)
}

#[tokio::test]
async fn a_response_that_ends_while_the_server_stalls_leaves_no_slot_and_costs_what_was_metered() {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    for waits_in_queue in [true, false] {
        let limiter = Limiter::new(store.clone());
        limiter.reset(&tokens(), &acme()).await.unwrap();
        let layer = chats(limiter.clone(), 1);
        let (response, _) = chat(&layer).await;
        assert_eq!(response.status(), StatusCode::OK);
        let stalled = if waits_in_queue {
            Some(Stalled::stop(&server, &store).await)
        } else {
            server.stop();
            None
        };
        drop(response);
        sleep(STALL).await;
        match stalled {
            Some(stalled) => stalled.go_on().await,
            None => server.cont(),
        }
        limiter.return_slots().await; // waits for what goes on in the background
        assert_eq!(left(&limiter, &tokens()).await, 9_993);
        assert_eq!(left(&limiter, &chat_slots(1)).await, 1);
    }
}

/// The settlements and renewals that failed, and the renewals that were done.
#[derive(Clone, Default)]
struct Outcomes(Arc<Mutex<(Vec<CallKind>, usize)>>);

impl Outcomes {
    /// How many settlements and renewals failed.
    fn failed(&self) -> (usize, usize) {
        let failed = &self.0.lock().unwrap().0;
        let count = |kind| failed.iter().filter(|it| **it == kind).count();
        (count(CallKind::Settle), count(CallKind::Renew))
    }

    fn renewed(&self) -> usize {
        self.0.lock().unwrap().1
    }
}

impl Observer for Outcomes {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Error { call, error, .. } => {
                assert_eq!(error.code(), Some("OOM"));
                self.0.lock().unwrap().0.push(call.kind);
            }
            Event::Completion { call, .. } => {
                let is_renewal = call.kind == CallKind::Renew;
                self.0.lock().unwrap().1 += usize::from(is_renewal);
            }
            _ => {}
        }
    }
}

async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("it never holds");
}

/// Two responses end without memory, and three slots that are held have to be renewed.
#[tokio::test]
async fn a_second_without_memory_loses_no_cost_and_no_slot() {
    let server = Server::start();
    let outcomes = Outcomes::default();
    let limiter = process(&server).await.observer(outcomes.clone());
    let limiter = limiter.probe_interval(Duration::ZERO); // each failure is that of the server
    let layer = chats(limiter.clone(), 2);
    let responses = [chat(&layer).await, chat(&layer).await];
    // The renewal of two slots of one key frees their memory first. That of one fails.
    let exports =
        ["1/3s@concurrent", "2/3s@concurrent"].map(|it| Policy::parse(&it[..1], it).unwrap());
    let export = |place: usize| {
        limiter.acquire_slot([Charge::new(&exports[place], acme(), 1)], Duration::ZERO)
    };
    let mut held = Vec::new();
    for place in [0, 1, 1] {
        held.push(export(place).await.unwrap().unwrap().unwrap());
    }
    assert_eq!(left(&limiter, &chat_slots(2)).await, 0);

    server.run::<()>("CONFIG SET maxmemory 1");
    drop(responses);
    until(|| matches!(outcomes.failed(), (2.., 1..))).await;
    server.run::<()>("CONFIG SET maxmemory 0");
    let before = outcomes.renewed();
    until(|| outcomes.renewed() > before + 1).await;
    assert!(held.iter().all(Slot::is_held));
    for place in [0, 1] {
        let denied = export(place).await.unwrap();
        assert!(denied.is_err(), "the store has them, too");
    }
    limiter.return_slots().await; // waits for what goes on in the background
    assert_eq!(left(&limiter, &chat_slots(2)).await, 2);
    assert_eq!(left(&limiter, &tokens()).await, 10_000 - 2 * 7);
    drop(held);
}

#[tokio::test]
async fn a_check_whose_caller_has_left_the_queue_takes_no_slot() {
    let server = Server::start();
    let store = RedisStore::connect(server.url()).await.unwrap();
    let limiter = Limiter::new(store.clone());
    drop(acquire(&limiter, Duration::ZERO).await); // the server knows the script
    limiter.return_slots().await;
    let stalled = Stalled::stop(&server, &store).await;
    let mut asking: BoxFuture<'static, _> = Box::pin({
        let limiter = limiter.clone();
        async move { acquire(&limiter, Duration::ZERO).await.is_some() }
    });
    assert!(futures::poll!(&mut asking).is_pending());
    drop(asking);
    stalled.go_on().await;
    limiter.return_slots().await;
    // The four in flight, after three for a slot that came and went: what was not sent needs no return.
    assert_eq!(server.calls("evalsha") + server.calls("eval"), 7);
    assert!(acquire(&limiter, Duration::ZERO).await.is_some());
}

#[tokio::test]
async fn while_the_server_is_away_the_failure_policy_decides_about_slots() {
    let server = Server::start();
    let by = async |policy, replicas| {
        let limiter = process(&server).await;
        chats(limiter.on_failure(policy).replicas(replicas), 4)
    };
    let open = by(FailurePolicy::Open, 1).await;
    let closed = by(FailurePolicy::Closed, 1).await;
    let (half, none) = (
        by(FailurePolicy::Local, 2).await,
        by(FailurePolicy::Local, 9).await,
    );
    let layers = [&open, &closed, &half, &none];
    for layer in layers {
        assert!(chat(layer).await.1);
    }

    server.stop();
    for _ in 0..6 {
        let (response, holds) = chat(&open).await;
        assert_eq!((response.status(), holds), (StatusCode::OK, false));
        let (response, _) = chat(&closed).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    // The share of this process, and at least one.
    for (layer, share) in [(&half, 2), (&none, 1)] {
        for _ in 0..2 {
            let mut held = Vec::new();
            for _ in 0..share {
                let (response, holds) = chat(layer).await;
                assert_eq!((response.status(), holds), (StatusCode::OK, true));
                held.push(response);
            }
            let (denied, _) = chat(layer).await;
            assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
            drop(held);
            tokio::task::yield_now().await; // returned in the background, to the memory of this process
        }
    }

    server.cont();
    let back = Instant::now();
    for layer in layers {
        // A probe of the breaker finds the server again.
        while !chat(layer).await.1 || back.elapsed() < Duration::from_millis(500) {
            assert!(back.elapsed() < PATIENCE);
            sleep(Duration::from_millis(10)).await;
        }
        let (response, holds) = chat(layer).await;
        assert_eq!((response.status(), holds), (StatusCode::OK, true));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_die_take_no_slot_along() {
    let (lasts, kills) = (Duration::from_secs(2), Duration::from_millis(200));
    connections_die(lasts, kills).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long form"]
async fn connections_that_die_for_twenty_seconds_take_no_slot_along() {
    connections_die(Duration::from_secs(20), Duration::from_secs(1)).await;
}

/// Two processes, each with 32 callers, whose connections die all at once, again and again.
async fn connections_die(lasts: Duration, kills: Duration) {
    const LIMIT: u64 = 32;
    let chats = Policy::parse("chats", "32/5s@concurrent").unwrap();
    let server = Server::start();
    let processes = [process(&server).await, process(&server).await];
    let (end, held) = (Instant::now() + lasts, Arc::new(AtomicU64::new(0)));
    let callers = (0..64_u64).map(|caller| {
        let limiter = processes[usize::from(caller % 2 == 1)].clone();
        let (chats, held) = (chats.clone(), Arc::clone(&held));
        tokio::spawn(async move {
            let (mut taken, mut most) = (0, 0);
            while Instant::now() < end {
                let charge = Charge::new(&chats, acme(), 1);
                let slot = limiter.acquire_slot([charge], Duration::ZERO).await;
                if let Ok(Ok(Some(slot))) = slot {
                    most = most.max(held.fetch_add(1, Relaxed) + 1);
                    taken += 1;
                    sleep(Duration::from_millis(caller % 20)).await;
                    held.fetch_sub(1, Relaxed);
                    drop(slot);
                } else {
                    sleep(Duration::from_millis(1)).await;
                }
            }
            (taken, most)
        })
    });
    let callers: Vec<_> = callers.collect();
    while Instant::now() < end {
        sleep(kills).await;
        server.run::<u32>("CLIENT KILL TYPE normal");
    }
    let callers = join_all(callers).await;
    let last = Instant::now();
    let callers = callers.into_iter().map(Result::unwrap);
    let (taken, most) = callers.fold((0, 0), |all, it| (all.0 + it.0, all.1.max(it.1)));
    assert!(taken > 100 && most <= LIMIT, "{taken} taken, {most} held");
    let onlooker = process(&server).await;
    let mut free = 0;
    while free < LIMIT && last.elapsed() < Duration::from_secs(1) {
        free = left(&onlooker, &chats).await;
    }
    assert_eq!(free, LIMIT);
}

#[tokio::test]
async fn two_releases_with_another_expiry_hold_and_return_their_own_slots() {
    let server = Server::start();
    let processes = [process(&server).await, process(&server).await];
    let mut held = Vec::new();
    let releases =
        ["1/1s@concurrent", "1/2s@concurrent"].map(|rule| Policy::parse("jobs", rule).unwrap());
    let charge = |release: &Policy| [Charge::new(release, acme(), 1)];
    for (limiter, release) in processes.iter().zip(&releases) {
        let slot = limiter.acquire_slot(charge(release), Duration::ZERO).await;
        held.push(slot.unwrap().unwrap().unwrap());
    }
    // Longer than both expiries: they are renewed.
    let start = Instant::now();
    let waiting = processes.iter().zip(&releases).map(|(limiter, release)| {
        limiter.acquire_slot(charge(release), Duration::from_millis(2_500))
    });
    for slot in join_all(waiting).await {
        assert!(slot.unwrap().is_err());
    }
    assert!(start.elapsed() > Duration::from_secs(2) && held.iter().all(Slot::is_held));
    let sets = || server.run::<Vec<String>>("KEYS *:jobs@*").len();
    assert_eq!(sets(), 2);
    drop(held);
    for limiter in &processes {
        limiter.return_slots().await;
    }
    assert_eq!(sets(), 0);
}

#[tokio::test]
async fn slots_are_returned_where_they_were_taken_when_a_reload_changes_the_expiry() {
    let server = Server::start();
    let limiter = process(&server).await;
    let releases =
        ["3/30s@concurrent", "3/10s@concurrent"].map(|rule| Policy::parse("chats", rule).unwrap());
    let [old, new] = releases.clone().map(|it| Policies::new([it]).unwrap());
    let live = ReloadablePolicies::new(old);
    let layer = RateLimitLayer::new(limiter.clone())
        .limit_concurrent(live.policy("chats").unwrap(), acme())
        .meter_costs();
    let all = async || {
        [
            left(&limiter, &releases[0]).await,
            left(&limiter, &releases[1]).await,
        ]
    };
    let sets = || server.run::<Vec<String>>("KEYS *@*").len();
    let first = chat(&layer).await;
    live.replace(new).unwrap();
    let second = chat(&layer).await;
    assert_eq!((all().await, sets()), ([2, 2], 2));
    drop(first);
    until(|| sets() == 1).await;
    assert_eq!(all().await, [3, 2]);
    drop(second);
    limiter.return_slots().await;
    assert_eq!((all().await, sets()), ([3, 3], 0));
}

#[tokio::test]
async fn twenty_slots_fit_in_a_kilobyte() {
    let server = Server::start();
    let limiter = process(&server).await;
    for _ in 0..20 {
        let admitted = limiter.check([Charge::new(&chat_slots(20), acme(), 1)]);
        assert!(admitted.await.unwrap().is_allowed());
    }
    let keys: Vec<String> = server.run("KEYS *chats@*");
    let bytes: usize = server.run(&format!("MEMORY USAGE {}", keys[0]));
    println!("{bytes} bytes");
    assert!(bytes <= 1_024, "{bytes}");
}
