//! Slots are returned at any time, by any process: so a denial for want of a slot is repeated for a tenth of a second.

use support::prelude::*;

/// A limiter that caches denials, and the clock.
fn cache() -> (Limiter, ManualClock) {
    let (store, clock) = memory();
    let limiter = support::limiter(store).cache_denials(true);
    (limiter.denial_clock(clock.clone()), clock)
}

#[tokio::test]
async fn a_slot_that_is_returned_through_the_cache_ends_the_denial_at_once() {
    let (cache, _) = cache();
    let (rate, exports) = (
        policy("rate", "9/1m"),
        policy("exports", "1/30s@concurrent"),
    );
    let both = async || {
        let charges = [&rate, &exports].map(|it| charge(it, "alice", 1));
        cache.check(charges).await.unwrap()
    };
    let slot = cache.hold(&both().await).unwrap();
    assert!(!both().await.usage().is_cached());
    assert!(both().await.usage().is_cached());
    drop(slot);
    support::finished(&cache).await;
    assert!(both().await.is_allowed());
}

#[tokio::test]
async fn a_ban_in_a_layer_around_the_slots_holds_for_a_client_that_keeps_them_full() {
    let (cache, clock) = cache();
    // The decisions that the store was asked for.
    let asked = Log::of(|event| match event {
        Event::Decision { decision, .. } => (!decision.is_cached()).then(String::new),
        _ => None,
    });
    let limiter = cache.observer(asked.clone());
    let alice = user("alice");
    let rate = policy("rate", "100/1m");
    let rate = rate.ban("5/10m=1h".parse().unwrap());
    let slots = policy("exports", "3/30s@concurrent");
    let service = ServiceBuilder::new()
        .layer(support::layer(limiter.clone()).limit(rate, alice.clone()))
        .layer(support::layer(limiter.clone()).limit_concurrent(slots, alice))
        .service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new("an export".to_owned()))
        });
    let mut answers = Vec::new();
    for ms in 0..10_000 {
        clock.set(START_MS + ms);
        let response = service.clone().oneshot(Request::new(())).await.unwrap();
        limiter.strikes_counted().await;
        answers.push(response);
    }
    let served = answers.iter().filter(|it| it.status() == StatusCode::OK);
    assert_eq!(served.count(), 3);
    let wait = |number: usize| &answers[number].headers()["retry-after"];
    assert_eq!(wait(104), "61", "the rate denies");
    assert_eq!(wait(200), "3600", "the ban holds");
    let calls = asked.lines().len();
    assert!(calls <= 250, "{calls}");
    drop(answers); // with the slots
    let banned = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(banned.status(), StatusCode::TOO_MANY_REQUESTS);
}
