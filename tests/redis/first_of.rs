//! The first of several policies that has room, over Redis: units are charged to exactly one, and none above its limit.

use std::{convert::Infallible, time::Duration};

use axum::body::Body;
use futures::future::join_all;
use http::{Request, Response, StatusCode};
use sluicegate::{
    Charge, FailurePolicy, Limiter, MemoryStore, Policy, RateLimitLayer, RedisStore, Store,
    manual_clock::ManualClock, store::Leases,
};
use support::{
    first_of::{CREDITS, Charged, PLAN, credits, lists, names, plan, rush, used, user},
    redis::Server,
};
use tower::{Layer, ServiceExt, service_fn};

/// Processes with a connection each; no failure passes unseen.
async fn processes<S: Store>(
    server: &Server,
    number: usize,
    around: impl Fn(RedisStore) -> S,
) -> Vec<Limiter> {
    let processes = (0..number).map(async |_| {
        let store = RedisStore::connect(server.url()).await.unwrap();
        let store = store.clock(ManualClock::new(1_804_500_000_000));
        Limiter::new(around(store))
            .on_failure(FailurePolicy::Closed)
            .timeout(Duration::from_secs(60))
    });
    join_all(processes).await
}

const EXACT: Charged = Charged {
    plan: PLAN,
    credits: CREDITS,
    denied: 48 - PLAN - CREDITS,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_charge_each_unit_once_and_none_above_a_limit() {
    let server = Server::start();
    for caches in [false, true] {
        let limiters = processes(&server, 8, |store| store).await;
        let limiters = limiters.into_iter().map(|it| it.cache_denials(caches));
        let limiters: Vec<Limiter> = limiters.collect();
        let alice = user(&format!("alice-{caches}"));
        assert_eq!(
            rush(&limiters, &alice, &alice).await,
            EXACT,
            "cache: {caches}"
        );
        assert_eq!(used(&limiters[0], &plan(), &alice).await, PLAN);
        assert_eq!(used(&limiters[0], &credits(), &alice).await, CREDITS);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_share_calls_are_charged_like_others() {
    let server = Server::start();
    let limiters = processes(&server, 1, |store| store).await;
    let (alice, bob) = (user("alice"), user("bob"));
    assert_eq!(rush(&limiters, &alice, &bob).await, EXACT);
    assert_eq!(used(&limiters[0], &credits(), &alice).await, 0);
    assert_eq!(used(&limiters[0], &credits(), &bob).await, CREDITS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_charge_no_unit_above_a_limit() {
    let server = Server::start();
    let limiters = processes(&server, 4, Leases::new).await;
    let alice = user("alice");
    let charged = rush(&limiters, &alice, &alice).await;
    assert!(
        charged.plan <= PLAN && charged.credits <= CREDITS,
        "{charged:?}"
    );
    assert_eq!(charged.plan + charged.credits + charged.denied, 48);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_redis_is_away_each_process_has_its_share_of_both() {
    let mut server = Server::start();
    let limiters = processes(&server, 1, |store| store).await;
    let clock = ManualClock::new(1_804_500_000_000);
    let memory = MemoryStore::new().clock(clock);
    let local = limiters[0].clone().timeout(Duration::from_millis(100));
    let local = local
        .on_failure(FailurePolicy::Local)
        .replicas(5)
        .local_store(memory);
    server.kill();
    let alice = user("alice");
    let charged = rush(&[local], &alice, &alice).await;
    assert_eq!((charged.plan, charged.credits), (PLAN / 5, CREDITS / 5));
}

#[tokio::test]
async fn a_block_ends_the_tries_and_shadows_go_with_the_admitted_one() {
    let server = Server::start();
    let limiter = processes(&server, 1, |store| store).await.remove(0);
    let none = Policy::parse("none", "0/1h").unwrap();
    let trial = |name| Policy::parse(name, "9/1h").unwrap().shadow();
    let lists = || {
        let [_, credits] = lists(&user("alice"), &user("bob"));
        let shadow = |name| Charge::new(&trial(name), user("alice"), 1);
        let plan = vec![Charge::new(&none, user("alice"), 1), shadow("first")];
        [plan, [&credits[..], &[shadow("second")]].concat()]
    };
    let admitted = limiter.check_first(lists()).await.unwrap();
    assert_eq!(names(&admitted), ["all", "credits"]);
    assert_eq!(names(admitted.usage().shadow().unwrap()), ["second"]);

    let hour = Duration::from_secs(3_600);
    limiter.block(&user("alice"), hour).await.unwrap();
    let blocked = limiter.check_first(lists()).await.unwrap();
    assert!(!blocked.is_allowed() && names(&blocked).is_empty());
    assert_eq!(used(&limiter, &credits(), &user("bob")).await, 1);
}

/// Slots come back when a response ends, so no time has to pass.
#[tokio::test]
async fn a_request_waits_for_a_slot_of_the_alternative_that_is_free_first() {
    let server = Server::start();
    let limiter = processes(&server, 1, |store| store).await.remove(0);
    let slots = |name, number: u32| {
        let rules = format!("{number}/3600s@concurrent");
        (Policy::parse(name, &rules).unwrap(), user("alice"))
    };
    let (all, key) = slots("all-slots", 9);
    let layer = RateLimitLayer::new(limiter.clone())
        .limit_concurrent(all, key)
        .limit_first_of([slots("own", 1), slots("shared", 1)])
        .max_wait(Duration::from_secs(60));
    let service = service_fn(async |_: Request<()>| {
        let endless = futures::stream::pending::<Result<Vec<u8>, Infallible>>();
        Ok::<_, Infallible>(Response::new(Body::from_stream(endless)))
    });
    let ask = async || {
        layer
            .layer(service)
            .oneshot(Request::new(()))
            .await
            .unwrap()
    };
    let [own, shared] = ["own", "shared"].map(|name| slots(name, 1).0);
    let (first, _second) = (ask().await, ask().await);
    assert_eq!(used(&limiter, &own, &user("alice")).await, 1);
    assert_eq!(used(&limiter, &shared, &user("alice")).await, 1);
    let (third, ()) = futures::join!(ask(), async {
        tokio::task::yield_now().await;
        drop(first);
    });
    assert_eq!(third.status(), StatusCode::OK);
    assert_eq!(used(&limiter, &own, &user("alice")).await, 1);
}

#[tokio::test]
async fn a_reset_of_all_deletes_what_every_policy_has_counted_and_a_report_shows_it() {
    let server = Server::start();
    let limiter = processes(&server, 1, |store| store).await.remove(0);
    let alice = user("alice");
    let tokens = Policy::parse("tokens", "100/1h,500/1d").unwrap();
    let exports = Policy::parse("exports", "2/3600s@concurrent").unwrap();
    let charges = [(&tokens, 30), (&exports, 1)];
    let charges = charges.map(|(policy, cost)| Charge::new(policy, alice.clone(), cost));
    limiter.check(charges).await.unwrap();
    limiter
        .check([Charge::new(&tokens, user("bob"), 1)])
        .await
        .unwrap();
    let remaining = async |key| {
        let report = limiter.report([&tokens, &exports], key).await.unwrap();
        report
            .limits
            .iter()
            .map(|it| it.remaining)
            .collect::<Vec<u64>>()
    };
    assert_eq!(remaining(&alice).await, [70, 470, 1]);
    limiter.reset_all(&alice).await.unwrap();
    assert_eq!(remaining(&alice).await, [100, 500, 2]);
    assert_eq!(remaining(&user("bob")).await, [99, 499, 2]);

    limiter
        .block(&alice, Duration::from_secs(60))
        .await
        .unwrap();
    let report = limiter.report([&tokens], &alice).await.unwrap();
    assert_eq!(report.blocked.unwrap().source, "operator");
    assert_eq!(report.limits.len(), 2);
}
