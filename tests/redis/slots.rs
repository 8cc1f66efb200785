//! Slots of several processes over a real server: held, renewed, returned, and released when a process dies.

use std::{future::ready, sync::atomic::Ordering::Relaxed};

use futures::future::BoxFuture;
use sluicegate::{
    Rule,
    limiter::{Slot, SlotWatch},
    middleware::{CostMeter, FollowedBody, ProblemJson, ToBodyEnd},
};

use crate::{prelude::*, shared_calls::Busy};

const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than the timeout of a limiter.
const STALL: Duration = Duration::from_millis(300);

/// With the default timeout.
async fn process(server: &Server) -> Limiter {
    Limiter::new(connect(server).await)
}

/// Slots under these rules, and one of them for one identity.
fn job(rules: &str) -> (Policy, [Charge; 1]) {
    let jobs = policy("jobs", rules);
    let one = one(&jobs, "acme");
    (jobs, one)
}

async fn acquire(limiter: &Limiter, charge: [Charge; 1], max_wait: Duration) -> Option<Slot> {
    let slot = limiter.acquire_slot(charge, max_wait).await.unwrap();
    slot.ok().map(|slot| slot.expect("the policy has slots"))
}

fn tokens() -> Policy {
    policy("tokens", "10000/1h")
}

async fn left(limiter: &Limiter, policy: &Policy) -> u64 {
    crate::prelude::left(limiter, policy, "acme").await
}

#[tokio::test]
async fn a_settlement_that_has_left_the_queue_can_be_made_again() {
    let server = Server::start();
    let store = connect(&server).await;
    let limiter = Limiter::new(store.clone());
    let trial = policy("trial", "100/1h").shadow();
    for shadows in [vec![], vec![charge(&trial, "acme", 50)]] {
        limiter.reset(&tokens(), &user("acme")).await.unwrap();
        let charges = [vec![charge(&tokens(), "acme", 50)], shadows].concat();
        let admitted = limiter.check(charges).await.unwrap();
        let busy = Busy::hold(&server, &store, 2).await;
        let error = limiter.settle(admitted.usage(), |_| 7).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Timeout);
        assert!(error.is_unsent());
        busy.go_on(Vec::new()).await;
        assert_eq!(left(&limiter, &tokens()).await, 9_950);
        limiter.settle(admitted.usage(), |_| 7).await.unwrap();
        assert_eq!(left(&limiter, &tokens()).await, 9_993);
    }
}

#[tokio::test]
async fn a_settlement_that_was_sent_cannot_be_made_again_after_its_timeout() {
    let server = Server::start();
    let limiter = process(&server).await;
    let admitted = limiter.check([charge(&tokens(), "acme", 50)]).await;
    let admitted = admitted.unwrap();
    server.stop();
    let error = limiter.settle(admitted.usage(), |_| 7).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    assert!(!error.is_unsent());
    server.cont();
    let again = limiter.settle(admitted.usage(), |_| 7).await;
    assert_eq!(kind(again), Some(StoreErrorKind::InvalidRequest));
    assert_eq!(left(&limiter, &tokens()).await, 9_993);
}

/// A layer that takes one of this many slots, and 50 tokens until the response has ended.
fn chats(limiter: Limiter, slots: u64) -> RateLimitLayer<ProblemJson, ToBodyEnd> {
    RateLimitLayer::new(limiter)
        .limit_concurrent(chat_slots(slots), user("acme"))
        .limit(tokens(), user("acme"))
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
    let store = connect(&server).await;
    for waits_in_queue in [true, false] {
        let limiter = Limiter::new(store.clone());
        limiter.reset(&tokens(), &user("acme")).await.unwrap();
        let layer = chats(limiter.clone(), 1);
        let (response, _) = chat(&layer).await;
        assert_eq!(response.status(), StatusCode::OK);
        if waits_in_queue {
            let busy = Busy::hold(&server, &store, 2).await;
            drop(response);
            sleep(STALL).await;
            busy.go_on(Vec::new()).await;
        } else {
            server.stop();
            drop(response);
            sleep(STALL).await;
            server.cont();
        }
        support::finished(&limiter).await; // waits for what goes on in the background
        assert_eq!(left(&limiter, &tokens()).await, 9_993);
        assert_eq!(left(&limiter, &chat_slots(1)).await, 1);
    }
}

/// Two responses end without memory, and three slots that are held have to be renewed.
#[tokio::test]
async fn a_second_without_memory_loses_no_cost_and_no_slot() {
    let server = Server::start();
    let log = Log::of(|event| match event {
        Event::Error { call, error, .. } => {
            assert_eq!(error.code(), Some("OOM"));
            Some(format!("{:?} failed", call.kind))
        }
        Event::Completion { call, .. } => Some(format!("{:?}", call.kind)),
        _ => None,
    });
    let count = |line: &str| log.lines().iter().filter(|it| *it == line).count();
    let limiter = process(&server).await.observer(log.clone());
    let limiter = limiter.probe_interval(Duration::ZERO); // each failure is that of the server
    let layer = chats(limiter.clone(), 2);
    let responses = [chat(&layer).await, chat(&layer).await];
    // The renewal of two slots of one key frees their memory first. That of one fails.
    let exports = ["1/3s@concurrent", "2/3s@concurrent"].map(|it| policy(&it[..1], it));
    let export = |place: usize| acquire(&limiter, one(&exports[place], "acme"), Duration::ZERO);
    let mut held = Vec::new();
    for place in [0, 1, 1] {
        held.push(export(place).await.unwrap());
    }
    assert_eq!(left(&limiter, &chat_slots(2)).await, 0);

    server.run::<()>("CONFIG SET maxmemory 1");
    drop(responses);
    let all_fails = || count("Settle failed") >= 2 && count("Renew failed") >= 1;
    eventually("all fails", all_fails).await;
    server.run::<()>("CONFIG SET maxmemory 0");
    let before = count("Renew");
    eventually("slots are renewed", || count("Renew") > before + 1).await;
    assert!(held.iter().all(Slot::is_held));
    for place in [0, 1] {
        assert!(export(place).await.is_none(), "the store has them, too");
    }
    support::finished(&limiter).await; // waits for what goes on in the background
    assert_eq!(left(&limiter, &chat_slots(2)).await, 2);
    assert_eq!(left(&limiter, &tokens()).await, 10_000 - 2 * 7);
    drop(held);
}

#[tokio::test]
async fn a_check_whose_caller_has_left_the_queue_takes_no_slot() {
    let server = Server::start();
    let store = connect(&server).await;
    let limiter = Limiter::new(store.clone());
    let take = |limiter: Limiter| async move {
        acquire(&limiter, job("1/1s@concurrent").1, Duration::ZERO).await
    };
    drop(take(limiter.clone()).await); // the server knows the script
    support::finished(&limiter).await;
    let busy = Busy::hold(&server, &store, 2).await;
    let mut asking: BoxFuture<'static, _> = Box::pin(take(limiter.clone()));
    assert!(futures::poll!(&mut asking).is_pending());
    drop(asking);
    busy.go_on(Vec::new()).await;
    support::finished(&limiter).await;
    // The two in flight, after three for a slot that came and went: a check that was not sent needs no return.
    assert_eq!(server.calls("evalsha") + server.calls("eval"), 5);
    assert!(take(limiter).await.is_some());
}

/// A closed policy serves none, and an open one all, without a slot. Locally, a process has its share, and at least one.
#[tokio::test]
async fn while_the_server_is_away_the_failure_policy_decides_about_slots() {
    let server = Server::start();
    let mut layers = Vec::new();
    use FailurePolicy::{Closed, Local, Open};
    let of_two = [(200, true), (200, true), (429, false)];
    for (policy, replicas, answers) in [
        (Open, 1, &[(200, false); 6][..]),
        (Closed, 1, &[(503, false); 6]),
        (Local, 2, &of_two),
        (Local, 9, &of_two[1..]),
    ] {
        let limiter = process(&server).await.on_failure(policy);
        let layer = chats(limiter.replicas(replicas), 4);
        assert!(chat(&layer).await.1);
        layers.push((layer, answers));
    }
    server.stop();
    for (layer, answers) in &layers {
        for _ in 0..2 {
            let mut held = Vec::new();
            for answer in *answers {
                let (response, holds) = chat(layer).await;
                assert_eq!((response.status().as_u16(), holds), *answer);
                held.push(response);
            }
            drop(held);
            yield_now().await; // returned in the background, to the memory of this process
        }
    }
    server.cont();
    let back = Instant::now();
    for (layer, _) in &layers {
        // A probe of the breaker finds the server again.
        while !chat(layer).await.1 || back.elapsed() < Duration::from_millis(500) {
            assert!(back.elapsed() < PATIENCE);
            sleep(Duration::from_millis(10)).await;
        }
        let (response, holds) = chat(layer).await;
        assert_eq!((response.status(), holds), (StatusCode::OK, true));
    }
}

/// Two processes, each with 32 callers. All of their connections die at once, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_die_take_no_slot_along() {
    let (chats, _) = job("32/5s@concurrent");
    let server = Server::start();
    let processes = [process(&server).await, process(&server).await];
    let (end, held) = (Instant::now() + 2 * SOON, Arc::new(AtomicU64::new(0)));
    let callers = (0..64_u64).map(|caller| {
        let limiter = processes[usize::from(caller % 2 == 1)].clone();
        let (chats, held) = (chats.clone(), Arc::clone(&held));
        tokio::spawn(async move {
            let (mut taken, mut most) = (0, 0);
            while Instant::now() < end {
                let slot = limiter.acquire_slot(one(&chats, "acme"), Duration::ZERO);
                if let Ok(Ok(Some(slot))) = slot.await {
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
        sleep(SOON / 5).await;
        server.run::<u32>("CLIENT KILL TYPE normal");
    }
    let callers = join_all(callers).await.into_iter().map(Result::unwrap);
    let (taken, most) = callers.fold((0, 0), |all, it| (all.0 + it.0, all.1.max(it.1)));
    assert!(taken > 100 && most <= 32, "{taken} taken, {most} held");
    let onlooker = process(&server).await;
    let are_free = async || left(&onlooker, &chats).await == 32;
    assert!(until("all are free", are_free).await < SOON);
}

#[tokio::test]
async fn twenty_slots_fit_in_a_kilobyte() {
    let server = Server::start();
    let limiter = process(&server).await;
    for _ in 0..20 {
        assert!(take(&limiter, &chat_slots(20), "acme").await.is_allowed());
    }
    let keys: Vec<String> = server.run("KEYS *chats@*");
    let bytes: usize = server.run(&format!("MEMORY USAGE {}", keys[0]));
    assert!(bytes <= 1_024, "{bytes}");
}
