//! Looked-up policies, keys and costs.

use sluicegate::extract::IntoCharges;

use crate::prelude::*;

fn charge(name: &str, key: &'static str, cost: u64) -> Charge {
    Charge::new(&policy(name, "5/1d"), Key::new("user", key), cost)
}

async fn ask(layer: &RateLimitLayer, user: &str) -> Response<String> {
    send(layer, with(&[("x-user", user)])).await
}

async fn status(layer: &RateLimitLayer, user: &str) -> u16 {
    ask(layer, user).await.status().as_u16()
}

/// A layer with a single limit that returns this.
fn answering<C: IntoCharges + Clone + Send + Sync + 'static>(
    limiter: impl Into<Limiter>,
    answer: C,
) -> RateLimitLayer {
    support::layer(limiter.into()).charge_async(move |_| ready(answer.clone()))
}

#[tokio::test(start_paused = true)]
async fn the_policy_the_key_and_the_cost_are_those_that_were_looked_up() {
    let tiers = [("alice", "free", "2/1d", 1), ("bob", "pro", "9/1d", 3)];
    let layer = empty().charge_async(move |head| {
        let user = head.headers["x-user"].to_str().unwrap().to_owned();
        async move {
            sleep(Duration::from_millis(20)).await;
            let tier = tiers.iter().find(|(name, ..)| *name == user);
            tier.map(|(_, name, rules, cost)| {
                Charge::new(&policy(name, rules), Key::new("user", &user), *cost)
            })
        }
    });
    for (user, status, quota) in [
        ("alice", 200, r#""free";r=1;t=87840"#),
        ("bob", 200, r#""pro";r=6;t=87840"#),
        ("alice", 200, r#""free";r=0;t=87840"#),
        ("bob", 200, r#""pro";r=3;t=87840"#),
        ("bob", 200, r#""pro";r=0;t=87840"#),
        ("alice", 429, r#""free";r=0;t=87840"#),
        ("bob", 429, r#""pro";r=0;t=87840"#),
        ("mallory", 400, "-"),
    ] {
        let response = ask(&layer, user).await;
        assert_eq!(response.status(), status, "{user}");
        assert_eq!(field(response.headers(), "ratelimit"), quota);
    }
}

#[tokio::test]
async fn a_look_up_answers_several_charges() {
    let store = Scripted::allowing();
    let several = [("a", 2), ("b", 3), ("a", 4)].map(|(name, cost)| charge(name, "x", cost));
    let layer = answering(store.clone(), several.to_vec());
    assert_eq!(ask(&layer, "").await.status(), 200);
    assert_eq!(store.only_check(), ["a user 6", "b user 3"]);
}

fn failing(limiter: Limiter, error: ExtractError) -> RateLimitLayer {
    answering(limiter, Err::<Charge, _>(error))
}

fn open() -> Limiter {
    support::limiter(Scripted::allowing())
}

answers! { code;
    a_look_up_may_answer_no_charges: answering(open(), Vec::<Charge>::new()) => 200;
    a_look_up_may_find_nobody: answering(open(), None::<Charge>) => 400;
    a_look_up_may_find_somebody: answering(open(), Ok(Some(charge("a", "x", 1)))) => 200;
    a_look_up_may_fail: failing(open(), ExtractError::unavailable("told to")) => 200;
    a_look_up_may_fail_under_a_closed_policy: failing(closed(Scripted::allowing()), ExtractError::unavailable("told to")) => 503;
    a_look_up_may_ask_a_client_to_authenticate: failing(open(), ExtractError::unauthenticated("Bearer")) => 401;
    a_look_up_may_find_a_mistake_of_the_service: failing(open(), ExtractError::misconfigured("no pool in the extensions")) => 500;
}

#[tokio::test(start_paused = true)]
async fn look_ups_run_at_the_same_time_under_one_timeout_and_are_charged_in_their_order() {
    let store = Scripted::allowing();
    let log = Log::default();
    let charging = |ms, name: &'static str| {
        move |_: &Parts| sleep(Duration::from_millis(ms)).map(move |()| charge(name, "x", 1))
    };
    let over = |limiter: Limiter| {
        support::layer(limiter.observer(log.clone()))
            .charge_async(charging(90, "late"))
            .charge_async(charging(10, "soon"))
            .limit(policy("head", "5/1d"), everybody())
    };
    let layer = over(support::limiter(store.clone()));
    let start = Instant::now();
    assert_eq!(status(&layer, "").await, 200);
    assert_eq!(start.elapsed(), Duration::from_millis(90));
    let expected = ["head service 1", "late user 1", "soon user 1"];
    assert_eq!(store.only_check(), expected);

    // A look-up that is too late follows the failure policy; the other limits are charged.
    let layer = layer.charge_async(charging(1001, "never"));
    let start = Instant::now();
    assert_eq!(status(&layer, "").await, 200);
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    assert_eq!(store.checks()[1].charges().len(), 3);
    assert_eq!(log.lines()[1], "? unavailable passed");
    let layer = over(closed(store.clone())).charge_async(charging(1001, "never"));
    assert_eq!(status(&layer, "").await, 503);
    assert_eq!(store.checks().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_look_up_slower_than_the_store_may_be_limits_all_the_same() {
    let slow = |_: &Parts| sleep(Duration::from_millis(150)).map(|()| charge("a", "x", 5));
    let over = |limiter: Limiter| support::layer(limiter).charge_async(slow);
    let limiter = support::limiter(MemoryStore::new());
    let layer = over(limiter.clone());
    assert_eq!(status(&layer, "").await, 200);
    assert_eq!(status(&layer, "").await, 429);

    let hurried = |layer: RateLimitLayer| layer.look_up_timeout(Duration::from_millis(149));
    assert_eq!(status(&hurried(layer), "").await, 200);
    let closed = over(limiter.on_failure(FailurePolicy::Closed));
    assert_eq!(status(&hurried(closed), "").await, 503);
}

panics! {
    a_timeout_of_zero_for_look_ups_is_an_error_when_built: support::layer(MemoryStore::new()).look_up_timeout(Duration::ZERO) => "a timeout of zero leaves no time to look up";
}

#[tokio::test(start_paused = true)]
async fn a_look_up_that_is_always_busy_is_too_late_all_the_same() {
    let store = Scripted::allowing();
    let busy = |_: &Parts| async {
        tokio::task::yield_now().await;
        tokio::time::advance(Duration::from_secs(1)).await;
        // The future returns only because it has used up the task's budget.
        for _ in 0..100_000 {
            tokio::task::consume_budget().await;
        }
        charge("a", "x", 1)
    };
    let layer = support::layer(closed(store.clone())).charge_async(busy);
    assert_eq!(status(&layer, "").await, 503);
    assert!(store.checks().is_empty());
}

#[tokio::test]
async fn no_look_up_begins_when_the_head_alone_rejects() {
    let begun = Arc::new(Mutex::new(0));
    let count = begun.clone();
    let layer = support::layer(MemoryStore::new())
        .limit(policy("ip", "5/1d"), PeerIp)
        .charge_async(move |_| {
            *count.lock().unwrap() += 1;
            ready(charge("a", "x", 1))
        });
    assert_eq!(status(&layer, "").await, 500);
    assert_eq!(*begun.lock().unwrap(), 0);
}

#[tokio::test]
async fn lists_and_shadows_apply_to_charges_that_were_looked_up() {
    let store = Scripted::allowing();
    let both = || vec![charge("a", "partner", 1), charge("a", "other", 1)];
    let layer = answering(store.clone(), both());
    let is_partner = |key: &Key| key.value() == b"partner";
    assert_eq!(status(&layer.clone().deny_keys(is_partner), "").await, 403);
    assert!(store.checks().is_empty());
    assert_eq!(status(&layer.clone().skip_keys(is_partner), "").await, 200);
    assert_eq!(store.checks()[0].charges(), [charge("a", "other", 1)]);
    assert_eq!(status(&layer.shadow(), "").await, 200);
    assert!(store.checks()[1].charges().is_empty());
    assert_eq!(store.checks()[1].shadow_charges().len(), 2);
}

#[tokio::test]
async fn two_policies_of_one_name_for_one_key_are_a_mistake_of_the_service() {
    let clash = vec![
        charge("a", "x", 1),
        Charge::new(&policy("a", "6/1d"), Key::new("user", "x"), 1),
    ];
    let layer = answering(Scripted::allowing(), clash);
    assert_eq!(status(&layer, "").await, 500);
    let layer = answering(Scripted::allowing(), charge("a", "x", 1));
    let fixed = layer.limit(policy("a", "6/1d"), Key::new("user", "x"));
    assert_eq!(status(&fixed, "").await, 500);
}

#[tokio::test]
async fn a_look_up_can_begin_with_the_key_of_another_extractor() {
    let store = Scripted::allowing();
    let layer = support::layer(store.clone()).charge_async(|head: &Parts| {
        let keys = PeerIp.extract(head);
        async move {
            let tier = policy("tier", "5/1d");
            let charge = |key| Charge::new(&tier, key, 1);
            Ok::<Vec<Charge>, ExtractError>(Keys::into_iter(keys?).map(charge).collect())
        }
    });
    assert_eq!(status(&layer, "").await, 500);
    let mut request = to("/");
    request.extensions_mut().insert(PEER);
    assert_eq!(send(&layer, request).await.status(), 200);
    assert_eq!(store.only_check(), ["tier ip 1"]);
}

#[test]
fn one_warning_says_that_look_ups_fail_and_another_that_they_have_recovered() {
    let lines = traced(false, async {
        let takes = Arc::new(Mutex::new(Duration::from_secs(60)));
        let now = takes.clone();
        let layer = empty().charge_async(move |_| {
            let takes = *now.lock().unwrap();
            sleep(takes).map(|()| Some(charge("tier", "alice", 0)))
        });
        for _ in 0..50 {
            assert_eq!(status(&layer, "alice").await, 200);
        }
        *takes.lock().unwrap() = Duration::from_millis(150);
        assert_eq!(status(&layer, "alice").await, 200);
        tokio::time::advance(Duration::from_secs(10)).await;
        for _ in 0..50 {
            assert_eq!(status(&layer, "alice").await, 200);
        }
    });
    let [begins, ends] = &lines[..] else {
        panic!("{lines:?}");
    };
    for said in [
        "WARN requests pass without a limit",
        "look_up_timeout",
        "Closed",
    ] {
        assert!(begins.contains(said), "{begins}");
    }
    assert!(ends.starts_with("WARN look-ups have recovered"), "{ends}");
}
