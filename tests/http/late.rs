//! A request whose check was answered too late costs what it has used, or nothing if it was not served.

use support::fated::{Asked, Fate, Fated};

use crate::prelude::*;

const LATE: Duration = Duration::from_millis(150);

/// A store that decides at once, and answers after the timeout.
fn late() -> (MemoryStore, Fated) {
    let memory = MemoryStore::new();
    let store = Fated::new(memory.clone(), |asked| match asked {
        Asked::Check(_) => Fate::Late(LATE),
        _ => Fate::Answered,
    });
    (memory, store)
}

fn tokens() -> Policy {
    policy("tokens", "10000/1h")
}

async fn stored(memory: &MemoryStore) -> u64 {
    let limiter = support::limiter(memory.clone());
    10_000 - left_of(&limiter, &tokens(), &alice()).await
}

/// Meters seven units.
fn meters_seven() -> Router {
    Router::new().route(
        "/",
        get(async |meter: CostMeter| {
            meter.add(7);
            "seven"
        }),
    )
}

/// A layer that charges 500 tokens.
fn charging(limiter: &Limiter) -> RateLimitLayer {
    let layer = RateLimitLayer::new(limiter.clone()).limit(tokens(), alice());
    layer.cost(|_, _| 500)
}

fn refunding<R, E>(layer: RateLimitLayer<R, E>, refunds: bool) -> RateLimitLayer<R, E> {
    match refunds {
        true => layer.refund_unanswered(),
        false => layer,
    }
}

/// The status of a request to a router in this layer, whose response is read to its end.
async fn send_through<L>(layer: &L, router: Router) -> StatusCode
where
    L: Layer<axum::routing::Route> + Clone + Send + Sync + 'static,
    L::Service: Service<Request<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    <L::Service as Service<Request<Body>>>::Response: axum::response::IntoResponse + 'static,
    <L::Service as Service<Request<Body>>>::Future: Send + 'static,
{
    let service = router.layer(layer.clone());
    let request = Request::builder().uri("/").body(Body::empty()).unwrap();
    let response = service.oneshot(request).await.unwrap();
    let status = response.status();
    let _ = response.into_body().collect().await;
    status
}

#[tokio::test(start_paused = true)]
async fn a_metered_request_costs_what_it_has_used_under_each_failure_policy() {
    use FailurePolicy::{Closed, Local, Open};
    for (failure, status, expected) in [(Open, 200, 21), (Local, 200, 21), (Closed, 503, 0)] {
        for answers_first in [false, true] {
            let (memory, store) = late();
            let limiter = support::limiter(store).on_failure(failure);
            let layer = charging(&limiter).meter_costs();
            let wait = 2 * LATE * u32::from(answers_first);
            for _ in 0..3 {
                let handler = async move |meter: CostMeter| {
                    meter.add(7);
                    sleep(wait).await;
                    "seven"
                };
                let router = Router::new().route("/", get(handler));
                assert_eq!(send_through(&layer, router).await, status);
            }
            support::finished(&limiter).await;
            let which = format!("{failure:?} {answers_first}");
            assert_eq!(stored(&memory).await, expected, "{which}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_passes_undecided_is_settled_by_its_head_and_waits_for_nothing() {
    let (memory, store) = late();
    let limiter = support::limiter(store);
    let settle = |head: &http::response::Parts, charge: &Charge| match head.status.as_u16() {
        200 => 3,
        _ => charge.cost(),
    };
    let layer = charging(&limiter).settle(settle);
    let begin = Instant::now();
    assert_eq!(send_through(&layer, meters_seven()).await, 200);
    assert!(begin.elapsed() < LATE);
    assert_eq!(send_through(&layer, Router::new()).await, 404);
    support::finished(&limiter).await;
    assert_eq!(stored(&memory).await, 503);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_passes_undecided_and_gets_no_response_is_refunded_if_the_layer_does_that() {
    for (refunds, expected) in [(true, 0), (false, 500)] {
        let (memory, store) = late();
        let limiter = support::limiter(store);
        let layer = refunding(charging(&limiter), refunds);
        let never = Router::new().route("/", get(pending::<()>));
        let sent = tokio::time::timeout(Duration::from_secs(1), send_through(&layer, never));
        assert!(sent.await.is_err());
        support::finished(&limiter).await;
        assert_eq!(stored(&memory).await, expected, "{refunds}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_the_store_decides_is_refunded_if_the_layer_does_that() {
    for (refunds, expected) in [(true, 0), (false, 5_000)] {
        let (memory, store) = late();
        let limiter = support::limiter(store);
        let layer = refunding(charging(&limiter).meter_costs(), refunds);
        for _ in 0..10 {
            let sent = send_through(&layer, meters_seven());
            let left = tokio::time::timeout(Duration::from_millis(9), sent).await;
            assert!(left.is_err());
        }
        support::finished(&limiter).await;
        assert_eq!(stored(&memory).await, expected, "{refunds}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_an_alternative_is_tried_is_refunded() {
    let (memory, store) = late();
    let (plan, shadow) = (policy("plan", "0/1h"), policy("trial", "0/1h").shadow());
    for alternatives in [vec![plan, tokens()], vec![shadow, tokens().shadow()]] {
        let limiter = support::limiter(store.clone()).timeout(Duration::from_secs(1));
        let first_of = alternatives.into_iter().map(|it| (it, alice()));
        let layer = RateLimitLayer::new(limiter.clone())
            .limit(policy("all", "10/1h"), alice())
            .limit_first_of(first_of.collect::<Vec<_>>())
            .cost(|_, _| 5)
            .refund_unanswered();
        for wait in [10, 160, 310] {
            let never = Router::new().route("/", get(pending::<()>));
            let sent = send_through(&layer, never);
            let left = tokio::time::timeout(Duration::from_millis(wait), sent).await;
            assert!(left.is_err());
        }
        support::finished(&limiter).await;
        assert_eq!(stored(&memory).await, 0);
        let all = policy("all", "10/1h");
        let limiter = support::limiter(memory.clone());
        assert_eq!(left_of(&limiter, &all, &alice()).await, 10);
    }
}

#[tokio::test(start_paused = true)]
async fn a_metered_shadow_alone_costs_what_it_has_used() {
    for failure in [FailurePolicy::Open, FailurePolicy::Closed] {
        let (memory, store) = late();
        let limiter = support::limiter(store).on_failure(failure);
        let layer = RateLimitLayer::new(limiter.clone())
            .limit(tokens().shadow(), alice())
            .cost(|_, _| 500)
            .meter_costs();
        assert_eq!(send_through(&layer, meters_seven()).await, 200);
        support::finished(&limiter).await;
        assert_eq!(stored(&memory).await, 7, "{failure:?}");
    }
}
