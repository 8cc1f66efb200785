//! The first of several limits that has room, in a layer.

use sluicegate::middleware::IntoPolicySelector;
use support::first_of::{names, used, user};

use crate::prelude::*;

/// Both are of the user in `x-user`.
fn plan_and_credits(plan: &str, credits: &str) -> [(Policy, Header); 2] {
    let of_user = |name, rules| (policy(name, rules), Header::new("x-user"));
    [of_user("plan", plan), of_user("credits", credits)]
}

/// Limits of alice.
fn alices<const N: usize>(limits: [(&str, &str); N]) -> [(Policy, Key); N] {
    limits.map(|(name, rules)| (policy(name, rules), user("alice")))
}

fn request() -> Request<String> {
    with(&[("x-user", "alice")])
}

async fn ask(layer: &RateLimitLayer, request: Request<String>) -> Response<String> {
    send(&layer.clone().decisions_in_response(), request).await
}

async fn get(layer: &RateLimitLayer) -> Response<String> {
    ask(layer, request()).await
}

/// The status, and the names of the policies that were charged, or that deny: `200 api+plan`.
fn charged(response: &Response<String>) -> String {
    let names = names(decisions(response).iter().next().unwrap());
    format!("{} {}", response.status().as_u16(), names.join("+"))
}

/// The same of several requests, one after the other.
async fn all_charged<const N: usize>(layer: &RateLimitLayer) -> [String; N] {
    let mut seen = Vec::new();
    for _ in 0..N {
        seen.push(charged(&get(layer).await));
    }
    seen.try_into().unwrap()
}

/// A layer with a limit of alice beside no others.
fn of_credits(rules: &str) -> RateLimitLayer {
    empty().limit(policy("credits", rules), user("alice"))
}

answers! { told;
    the_fields_show_the_alternative_that_was_charged_and_promise_no_reset_of_a_stock [request()]:
        empty().limit_first_of(plan_and_credits("1/1h@fixed", "1/36500d@fixed")).headers(all_styles()) =>
        r#"200 | ratelimit: "plan";r=0;t=3600 | ratelimit-limit: 1 | ratelimit-policy: "plan";q=1;w=3600 | ratelimit-remaining: 0 | ratelimit-reset: 3600 | x-ratelimit-limit: 1 | x-ratelimit-limit-requests: 1 | x-ratelimit-remaining: 0 | x-ratelimit-remaining-requests: 0 | x-ratelimit-reset: 3600 | x-ratelimit-reset-requests: 1h0m0s"#,
        r#"200 | ratelimit: "credits";r=0 | ratelimit-limit: 1 | ratelimit-policy: "credits";q=1 | ratelimit-remaining: 0 | x-ratelimit-limit: 1 | x-ratelimit-limit-requests: 1 | x-ratelimit-remaining: 0 | x-ratelimit-remaining-requests: 0"#,
        // The plan is free first.
        r#"429 Denied | ratelimit: "plan";r=0;t=3600 | ratelimit-limit: 1 | ratelimit-policy: "plan";q=1;w=3600 | ratelimit-remaining: 0 | ratelimit-reset: 3600 | retry-after: 3600 | retry-after-ms: 3600000 | x-ratelimit-limit: 1 | x-ratelimit-limit-requests: 1 | x-ratelimit-remaining: 0 | x-ratelimit-remaining-requests: 0 | x-ratelimit-reset: 3600 | x-ratelimit-reset-requests: 1h0m0s"#;
    without_a_plan_nothing_is_promised [request()]: of_credits("0/36500d@fixed,1/36500d").headers(all_styles()) =>
        r#"429 Denied | ratelimit: "credits/36500d@fixed";r=0 | ratelimit-limit: 0 | ratelimit-policy: "credits/36500d@fixed";q=0, "credits/36500d";q=1 | ratelimit-remaining: 0 | x-ratelimit-limit: 0 | x-ratelimit-limit-requests: 0 | x-ratelimit-remaining: 0 | x-ratelimit-remaining-requests: 0"#;
    a_stock_that_is_used_up_promises_nothing [request()]: of_credits("1/36500d@fixed").headers(all_styles()) =>
        r#"200 | ratelimit: "credits";r=0 | ratelimit-limit: 1 | ratelimit-policy: "credits";q=1 | ratelimit-remaining: 0 | x-ratelimit-limit: 1 | x-ratelimit-limit-requests: 1 | x-ratelimit-remaining: 0 | x-ratelimit-remaining-requests: 0"#,
        r#"429 Denied | ratelimit: "credits";r=0 | ratelimit-limit: 1 | ratelimit-policy: "credits";q=1 | ratelimit-remaining: 0 | x-ratelimit-limit: 1 | x-ratelimit-limit-requests: 1 | x-ratelimit-remaining: 0 | x-ratelimit-remaining-requests: 0"#;
    a_client_that_pays_by_credits_waits_for_a_rate_and_not_for_its_plan [request()]:
        empty().limit(policy("rate", "2/1s@exact"), user("alice")).limit_first_of(plan_and_credits("1/30d@exact", "9/36500d@fixed")) =>
        r#"200 | ratelimit: "rate";r=1;t=2 | ratelimit: "plan";r=0;t=2592001 | ratelimit-policy: "rate";q=2;w=1 | ratelimit-policy: "plan";q=1;w=2592000"#,
        r#"200 | ratelimit: "rate";r=0;t=2 | ratelimit: "credits";r=8 | ratelimit-policy: "rate";q=2;w=1 | ratelimit-policy: "credits";q=9"#,
        r#"429 Denied | ratelimit: "rate";r=0;t=2 | ratelimit-policy: "rate";q=2;w=1 | ratelimit-policy: "credits";q=9 | retry-after: 2"#;
}

#[tokio::test]
async fn other_limits_of_the_layer_are_part_of_each_try() {
    let limiter = still();
    let api = policy("api", "3/1h");
    let layer = support::layer(limiter.clone())
        .limit(api.clone(), user("alice"))
        .limit_first_of(plan_and_credits("1/1h", "9/1h"));
    // The other limit denies in the end, with either.
    let expected = [
        "200 api+plan",
        "200 api+credits",
        "200 api+credits",
        "429 api+plan",
    ];
    assert_eq!(all_charged(&layer).await, expected);
    assert_eq!(used(&limiter, &api, &user("alice")).await, 3);
    let key = Header::new("x-user").key("alice");
    assert_eq!(used(&limiter, &policy("credits", "9/1h"), &key).await, 2);
}

#[tokio::test]
async fn a_route_that_all_alternatives_skip_needs_no_key() {
    let skipping = |name| Routes::new(policy(name, "0/1h")).route("/health", Route::skip());
    let key = || Header::new("x-missing");
    let layer = empty().limit_first_of([(skipping("plan"), key()), (skipping("credits"), key())]);
    assert_eq!(send(&layer, to("/health")).await.status(), 200);
    assert_eq!(get(&layer).await.status(), 400);
}

#[tokio::test]
async fn several_choices_are_made_one_by_one() {
    let layer = empty()
        .limit_first_of(plan_and_credits("2/1h", "9/1h"))
        .limit_first_of(alices([("near", "1/1h"), ("far", "9/1h")]));
    let expected = ["200 plan+near", "200 plan+far", "200 credits+far"];
    assert_eq!(all_charged(&layer).await, expected);
}

#[tokio::test]
async fn an_alternative_without_a_key_or_a_policy_is_passed_over() {
    let subscriber = |head: &Parts| {
        let plan = head.headers.contains_key("x-subscriber");
        plan.then(|| policy("plan", "9/1h"))
    };
    let credits = policy("credits", "9/1h").into_selector();
    let layer = empty().limit_first_of([
        (subscriber.into_selector(), Header::new("x-user")),
        (credits, Header::new("x-wallet")),
    ]);
    for (fields, expected) in [
        (&["x-user", "x-subscriber", "x-wallet"][..], "200 plan"),
        (&["x-user", "x-wallet"], "200 credits"),
        (&["x-subscriber", "x-wallet"], "200 credits"),
    ] {
        let fields: Vec<_> = fields.iter().map(|name| (*name, "alice")).collect();
        let response = ask(&layer, with(&fields)).await;
        assert_eq!(charged(&response), expected, "{fields:?}");
    }
    let neither = ask(&layer, with(&[("x-subscriber", "alice")])).await;
    assert_eq!(neither.status(), 400);
}

#[tokio::test]
async fn an_unreadable_key_is_rejected_and_a_limit_that_every_alternative_skips_does_not_apply() {
    let malformed = |_: &Parts| Err::<Key, _>(ExtractError::malformed("unreadable"));
    let boxed = |extractor: Box<dyn KeyExtractor>| extractor;
    let layer = empty().limit_first_of([
        (policy("plan", "9/1h"), boxed(Box::new(malformed))),
        (policy("credits", "9/1h"), boxed(Box::new(user("alice")))),
    ]);
    assert_eq!(get(&layer).await.status(), 400);

    let skip = |_: &Parts| Keys::skip();
    let skipped = ["plan", "credits"].map(|name| (policy(name, "0/1h"), skip));
    let layer = empty().limit_first_of(skipped);
    assert_eq!(get(&layer).await.status(), 200);
}

#[tokio::test]
async fn a_request_is_charged_the_weight_of_its_route_under_the_alternative() {
    let limiter = still();
    let by_route = |policy: Policy| {
        let look = Route::new(policy.clone()).weight(0);
        let table = Routes::new(policy).route("GET /me/limits", look);
        (table, user("alice"))
    };
    let credits = policy("credits", "9/1h");
    let layer = support::layer(limiter.clone())
        .limit_first_of([by_route(policy("plan", "0/1h")), by_route(credits.clone())]);
    assert_eq!(charged(&ask(&layer, to("/me/limits")).await), "200 plan");
    assert_eq!(charged(&get(&layer).await), "200 credits");
    assert_eq!(used(&limiter, &credits, &user("alice")).await, 1);
}

/// Of the metered costs, only those of the alternative that was charged are settled, and the other names are no mistake.
#[test]
fn meters_go_to_the_alternative_that_was_charged_and_no_warning_names_the_other() {
    let meter_both = |meter: &CostMeter, credits| {
        meter.under("plan").add(7);
        meter.under("credits").add(credits);
    };
    let lines = traced(false, async {
        let limiter = still();
        let layer = support::layer(limiter.clone())
            .limit_first_of(alices([("plan", "0/1h"), ("credits", "100/1h")]))
            .meter_costs();
        let service = service_fn(async |request: Request<String>| {
            meter_both(request.extensions().get().unwrap(), 30);
            Ok::<_, Infallible>(Response::new(Body::empty()))
        });
        let response = layer.layer(service).oneshot(request()).await.unwrap();
        drop(response.into_body().collect().await);
        support::finished(&limiter).await;
        let used = async |name| used(&limiter, &policy(name, "100/1h"), &user("alice")).await;
        assert_eq!((used("credits").await, used("plan").await), (30, 0));

        // The same for a check of a handler.
        let lists = alices([("plan", "0/1h"), ("credits", "100/1h")]);
        let lists = lists.map(|(policy, key)| [Charge::new(&policy, key, 1)]);
        let meter = limiter.meter(&limiter.check_first(lists).await.unwrap());
        meter_both(&meter, 20);
        drop(meter);
        support::finished(&limiter).await;
        assert_eq!(used("credits").await, 50);
    });
    assert_eq!(lines, [""; 0]);
}

#[tokio::test]
async fn a_slot_is_held_beside_the_alternative_that_was_charged() {
    let limiter = still();
    let exports = policy("exports", "2/30s@concurrent");
    let layer = support::layer(limiter.clone())
        .limit_concurrent(exports.clone(), user("alice"))
        .limit_first_of(alices([("plan", "1/1h"), ("credits", "1/1h")]));
    let service =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let mut bodies = Vec::new();
    // An empty body ends at once, and a denied try holds no slot.
    for expected in [200, 200, 429] {
        let response = layer.layer(service).oneshot(request()).await.unwrap();
        assert_eq!(response.status(), expected);
        bodies.push(response);
        settled().await;
        assert_eq!(used(&limiter, &exports, &user("alice")).await, 0);
    }
}

#[tokio::test]
async fn a_shadow_layer_reports_the_alternative_that_it_would_charge() {
    let layer = empty().limit_first_of(plan_and_credits("1/1h", "1/1h"));
    let layer = layer.shadow();
    for expected in [("plan", true), ("credits", true), ("plan", false)] {
        let response = get(&layer).await;
        assert_eq!(response.status(), 200);
        let decision = decisions(&response).iter().next().unwrap();
        let shadow = decision.usage().shadow().unwrap();
        assert_eq!((names(shadow)[0], shadow.is_allowed()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_may_wait_waits_for_the_alternative_that_is_free_first() {
    let clock = ManualClock::new(0);
    let limiter = support::limiter(MemoryStore::new().clock(clock.clone()));
    let layer = support::layer(limiter)
        .limit_first_of(alices([("plan", "1/10s@exact"), ("credits", "1/2s@exact")]))
        .max_wait(Duration::from_secs(5));
    let start = Instant::now();
    // The store's clock is that of the paused runtime.
    let runs = async {
        loop {
            sleep(Duration::from_millis(1)).await;
            clock.set(u64::try_from(start.elapsed().as_millis()).unwrap());
        }
    };
    let asks = async {
        for (seconds, expected) in [(0, "plan"), (0, "credits"), (2, "credits"), (4, "credits")] {
            let response = get(&layer).await;
            assert_eq!(charged(&response), format!("200 {expected}"));
            assert_eq!(start.elapsed().as_secs(), seconds);
        }
    };
    tokio::select! {
        () = asks => {}
        () = runs => unreachable!(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_is_denied_at_once_if_no_alternative_is_free_in_time() {
    let layer = empty().limit_first_of(plan_and_credits("0/1h", "1/1h"));
    let layer = layer.max_wait(Duration::from_secs(5));
    let start = Instant::now();
    // The plan never has room.
    assert_eq!(all_charged(&layer).await, ["200 credits", "429 credits"]);
    assert!(start.elapsed() < Duration::from_secs(5));
    // A rejection is made from the denial that ends first.
    let layer = layer.rejection(|it: &Rejection, _: &Parts| Response::new(it.to_string()));
    let text = send(&layer, request()).await.into_body();
    let is_expected = text.starts_with("denied by `1/1h` of policy `credits`");
    assert!(is_expected, "{text}");
}

#[tokio::test]
async fn a_failure_follows_the_policy_of_the_try_and_goes_no_further() {
    let store = Scripted::failing();
    for (failure, status) in [(FailurePolicy::Open, 200), (FailurePolicy::Closed, 503)] {
        let limiter = support::limiter(store.clone()).on_failure(failure);
        let before = store.checks().len();
        let layer = support::layer(limiter).limit_first_of(plan_and_credits("9/1h", "9/1h"));
        assert_eq!(get(&layer).await.status(), status);
        assert_eq!(store.checks().len(), before + 1);
    }
}

fn first_of<const N: usize>(
    policies: [Policy; N],
) -> Result<RateLimitLayer, impl std::error::Error> {
    let alternatives = policies.map(|policy| (policy, user("a")));
    let layer = empty().limit(policy("beside", "1/1h"), user("a"));
    layer.try_limit_first_of(alternatives)
}

refusals! { says;
    a_choice_has_an_alternative: first_of([]) => "at least one alternative";
    alternatives_are_shadows_all_or_none: first_of([policy("plan", "9/1h"), policy("credits", "9/1h").shadow()]) => "`credits` is one, and `plan` is not";
    alternatives_of_one_name_do_not_differ: first_of([policy("plan", "9/1h"), policy("plan", "1/1h")]) => "same name and differ";
    an_alternative_does_not_differ_from_its_namesake_beside: first_of([policy("beside", "9/1h")]) => "same name and differ";
    an_alternative_has_no_slots: first_of([policy("slots", "9/30s@concurrent")]) => "limit_concurrent";
}
