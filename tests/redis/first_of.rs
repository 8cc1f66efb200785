//! The first of several policies that has room, over Redis: units are charged to exactly one, and none above its limit.

use support::first_of::{CREDITS, Charged, PLAN, credits, plan, rush, used};

use crate::prelude::*;

/// A process with its own connection; no failure passes unseen.
async fn process(server: &Server) -> Limiter {
    let store = connect(server)
        .await
        .clock(ManualClock::new(1_804_500_000_000));
    patient(store).on_failure(FailurePolicy::Closed)
}

const EXACT: Charged = Charged {
    plan: PLAN,
    credits: CREDITS,
    denied: 48 - PLAN - CREDITS,
};

/// As do callers that share calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_charge_each_unit_once_and_none_above_a_limit() {
    let server = Server::start();
    for (number, caches, pays) in [(8, false, "alice"), (8, true, "alice"), (1, false, "bob")] {
        let limiters = join_all((0..number).map(|_| process(&server))).await;
        let limiters = limiters.into_iter().map(|it| it.cache_denials(caches));
        let limiters: Vec<Limiter> = limiters.collect();
        let of = |name| user(format!("{name}-{number}-{caches}"));
        let (alice, payer) = (of("alice"), of(pays));
        assert_eq!(rush(&limiters, &alice, &payer).await, EXACT, "{alice:?}");
        assert_eq!(used(&limiters[0], &plan(), &alice).await, PLAN);
        let credits_of = async |key| used(&limiters[0], &credits(), key).await;
        assert_eq!(credits_of(&payer).await, CREDITS);
        assert!(alice == payer || credits_of(&alice).await == 0);
    }
}

/// Slots come back when a response ends, so no time has to pass.
#[tokio::test]
async fn a_request_waits_for_a_slot_of_the_alternative_that_is_free_first() {
    let server = Server::start();
    let limiter = process(&server).await;
    let slots = |name, number: u32| {
        let rules = format!("{number}/3600s@concurrent");
        (policy(name, &rules), user("alice"))
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
    let (first, _second) = (ask().await, ask().await);
    for name in ["own", "shared"] {
        assert_eq!(used(&limiter, &slots(name, 1).0, &user("alice")).await, 1);
    }
    let (third, ()) = futures::join!(ask(), async {
        yield_now().await;
        drop(first);
    });
    assert_eq!(third.status(), StatusCode::OK);
    assert_eq!(used(&limiter, &slots("own", 1).0, &user("alice")).await, 1);
}

#[tokio::test]
async fn a_reset_of_all_deletes_what_every_policy_has_counted_and_a_report_shows_it() {
    let server = Server::start();
    let limiter = process(&server).await;
    let (alice, bob) = (user("alice"), user("bob"));
    let tokens = policy("tokens", "100/1h,500/1d");
    let exports = policy("exports", "2/3600s@concurrent");
    let charges = [charge(&tokens, "alice", 30), charge(&exports, "alice", 1)];
    limiter.check(charges).await.unwrap();
    take(&limiter, &tokens, "bob").await;
    let report = async |key| limiter.report([&tokens, &exports], key).await.unwrap();
    let remaining = async |key| {
        let limits = report(key).await.limits.into_iter();
        limits.map(|it| it.remaining).collect::<Vec<u64>>()
    };
    assert_eq!(remaining(&alice).await, [70, 470, 1]);
    limiter.reset_all(&alice).await.unwrap();
    assert_eq!(remaining(&alice).await, [100, 500, 2]);
    assert_eq!(remaining(&bob).await, [99, 499, 2]);
    limiter.block(&alice, HOUR).await.unwrap();
    let report = report(&alice).await;
    assert_eq!(report.blocked.unwrap().source, "operator");
    assert_eq!(report.limits.len(), 3);
}
