//! A shadow decides, charges and reports, and never denies, even after a failure.

use crate::prelude::*;

/// A layer with one policy that counts and one shadow. The headers show both.
fn layer(limiter: impl Into<Limiter>) -> RateLimitLayer {
    support::layer(limiter)
        .headers(HeaderStyle::DRAFT_11.with_shadows())
        .limit(policy("now", "10/1m"), everybody())
        .limit(policy("soon", "5/1m,9/1h").shadow(), everybody())
}

/// Answers shadows in this way, and allows all other charges.
fn to_shadows(
    answer: impl Fn(&Check) -> Result<Decision, StoreError> + Send + Sync + 'static,
) -> Arc<Scripted> {
    Scripted::new(move |check| {
        let is_shadow = check.charges()[0].policy().is_shadow();
        StoreFuture::ready(if is_shadow {
            answer(check)
        } else {
            allowed(check)
        })
    })
}

fn denying_shadows() -> Arc<Scripted> {
    to_shadows(|check| denied(check, 5_000))
}

fn shadowed_as_a_whole() -> RateLimitLayer {
    support::layer(Scripted::denying_for(1_000))
        .shadow()
        .headers(HeaderStyle::DRAFT_11.with_shadows())
        .limit(policy("now", "10/1m"), everybody())
        .limit(policy("soon", "5/1m"), everybody())
}

/// A shadow of the layer, and one that a closure chooses.
fn telling_nothing(style: HeaderStyle) -> RateLimitLayer {
    let chosen = policy("trial", "5/1m").shadow();
    layer(denying_shadows())
        .limit(move |_: &Parts| chosen.clone(), Key::new("a", "b"))
        .headers(style)
}

fn chosen() -> RateLimitLayer {
    let trial = policy("trial", "5/1m").shadow();
    support::layer(Scripted::allowing())
        .limit(policy("now", "10/1m"), everybody())
        .limit(move |_: &Parts| trial.clone(), everybody())
        .headers(HeaderStyle::DRAFT_11.with_shadows())
}

fn never_chosen() -> RateLimitLayer {
    let choose = |_: &Parts| Err::<Policy, _>(ExtractError::missing("no tier"));
    support::layer(Scripted::allowing()).limit(choose, everybody())
}

fn trial(extractor: impl KeyExtractor) -> RateLimitLayer {
    support::layer(Scripted::allowing()).limit(policy("trial", "5/1m").shadow(), extractor)
}

fn absent() -> RateLimitLayer {
    support::layer(Scripted::allowing()).limit(policy("a", "1/1m"), Header::new("x-api-key"))
}

answers! { told;
    a_shadow_that_denies_says_so_and_lets_the_request_pass: layer(denying_shadows()) => r#"200 | ratelimit: "now";r=9;t=60, "soon/1m";r=0;t=5;sluicegate-shadow, "soon/1h";r=0;t=5;sluicegate-shadow | ratelimit-policy: "now";q=10;w=60, "soon/1m";q=5;w=60;sluicegate-shadow, "soon/1h";q=9;w=3600;sluicegate-shadow"#;
    a_shadow_that_allows_tells_what_it_leaves: layer(Scripted::allowing()) => r#"200 | ratelimit: "now";r=9;t=60, "soon/1m";r=4;t=60;sluicegate-shadow, "soon/1h";r=8;t=3600;sluicegate-shadow | ratelimit-policy: "now";q=10;w=60, "soon/1m";q=5;w=60;sluicegate-shadow, "soon/1h";q=9;w=3600;sluicegate-shadow"#;
    a_request_that_is_denied_is_not_charged_to_a_shadow: layer(Scripted::denying_for(1_000)) => r#"429 Denied | ratelimit: "now";r=0;t=1 | ratelimit-policy: "now";q=10;w=60, "soon/1m";q=5;w=60;sluicegate-shadow, "soon/1h";q=9;w=3600;sluicegate-shadow | retry-after: 1"#;
    a_layer_can_become_a_shadow_as_a_whole: layer(Scripted::denying_for(1_000)).shadow() => r#"200 | ratelimit: "now";r=0;t=1;sluicegate-shadow, "soon/1m";r=0;t=1;sluicegate-shadow, "soon/1h";r=0;t=1;sluicegate-shadow | ratelimit-policy: "now";q=10;w=60;sluicegate-shadow, "soon/1m";q=5;w=60;sluicegate-shadow, "soon/1h";q=9;w=3600;sluicegate-shadow"#;
    a_layer_can_be_a_shadow_before_its_limits: shadowed_as_a_whole() => r#"200 | ratelimit: "now";r=0;t=1;sluicegate-shadow, "soon";r=0;t=1;sluicegate-shadow | ratelimit-policy: "now";q=10;w=60;sluicegate-shadow, "soon";q=5;w=60;sluicegate-shadow"#;
    headers_that_can_tell_of_one_rule_only_do_not_tell_of_a_shadow: layer(denying_shadows()).headers(HeaderStyle::X_RATE_LIMIT) => r#"200 | x-ratelimit-limit: 10 | x-ratelimit-remaining: 9 | x-ratelimit-reset: 60"#;
    headers_that_can_tell_of_one_rule_only_do_not_tell_of_a_shadow_layer: layer(Scripted::allowing()).shadow().headers(HeaderStyle::X_RATE_LIMIT) => "200";
    no_header_tells_of_a_shadow_unless_asked_for: telling_nothing(HeaderStyle::default()) => r#"200 | ratelimit: "now";r=9;t=60 | ratelimit-policy: "now";q=10;w=60"#;
    no_header_of_any_style_tells_of_a_shadow_unless_asked_for: telling_nothing(all_styles()) => r#"200 | ratelimit: "now";r=9;t=60 | ratelimit-limit: 10 | ratelimit-policy: "now";q=10;w=60 | ratelimit-remaining: 9 | ratelimit-reset: 60 | x-ratelimit-limit: 10 | x-ratelimit-limit-requests: 10 | x-ratelimit-remaining: 9 | x-ratelimit-remaining-requests: 9 | x-ratelimit-reset: 60 | x-ratelimit-reset-requests: 1m0s"#;
    no_header_tells_of_a_shadow_layer_unless_asked_for: telling_nothing(HeaderStyle::default()).shadow() => "200";
    no_header_of_any_style_tells_of_a_shadow_layer_unless_asked_for: telling_nothing(all_styles()).shadow() => "200";
    a_shadow_that_cannot_be_decided_is_left_out_though_the_failure_policy_is_closed: layer(closed(to_shadows(|_| Err(unavailable())))) => r#"200 | ratelimit: "now";r=9;t=60 | ratelimit-policy: "now";q=10;w=60, "soon/1m";q=5;w=60;sluicegate-shadow, "soon/1h";q=9;w=3600;sluicegate-shadow"#;
    a_shadow_layer_over_a_store_that_fails_is_as_if_it_were_not_there: layer(closed(Scripted::failing())).shadow() => "200";
    a_shadow_layer_over_a_silent_store_is_as_if_it_were_not_there: layer(closed(Scripted::silent()).timeout(Duration::from_millis(1))).shadow() => "200";
    a_shadow_that_finds_no_key_is_left_out: trial(Header::new("x-api-key")).limit(policy("b", "1/1m"), everybody()) => r#"200 | ratelimit: "b";r=0;t=60 | ratelimit-policy: "b";q=1;w=60"#;
    a_limit_that_finds_no_key_rejects: absent() => "400 MissingKey";
    a_limit_of_a_shadow_layer_that_finds_no_key_rejects_nobody: absent().shadow() => "200";
    a_policy_chosen_by_the_request_may_be_a_shadow: chosen() => r#"200 | ratelimit: "now";r=9;t=60 | ratelimit: "trial";r=4;t=60;sluicegate-shadow | ratelimit-policy: "now";q=10;w=60 | ratelimit-policy: "trial";q=5;w=60;sluicegate-shadow"#;
    a_policy_chosen_by_the_request_is_a_shadow_in_a_shadow_layer: chosen().shadow() => r#"200 | ratelimit: "now";r=9;t=60;sluicegate-shadow | ratelimit: "trial";r=4;t=60;sluicegate-shadow | ratelimit-policy: "now";q=10;w=60;sluicegate-shadow | ratelimit-policy: "trial";q=5;w=60;sluicegate-shadow"#;
    a_policy_that_cannot_be_chosen_is_no_shadow: never_chosen() => "400 MissingKey";
    a_policy_that_cannot_be_chosen_is_a_shadow_in_a_shadow_layer: never_chosen().shadow() => "200";
    a_deny_list_blocks_beside_a_shadow: trial(everybody()).deny(|_| true) => "403 OnDenyList";
    a_deny_list_blocks_in_a_shadow_layer: trial(everybody()).deny(|_| true).shadow() => "403 OnDenyList";
    a_deny_list_of_keys_blocks_beside_a_shadow: trial(everybody()).deny_keys(|_| true) => "403 OnDenyList";
    a_deny_list_of_keys_blocks_in_a_shadow_layer: trial(everybody()).deny_keys(|_| true).shadow() => "403 OnDenyList";
}

panics! {
    a_policy_and_its_own_shadow_are_an_error_when_built:
        support::layer(MemoryStore::new()).limit(policy("all", "1/1s"), everybody()).limit(policy("all", "1/1s").shadow(), everybody()) => "same name";
}

/// The checked policies: how many count, and how many are shadows.
fn checked(store: &Scripted) -> Vec<[usize; 2]> {
    let checks = store.checks().into_iter();
    checks
        .map(|it| [it.charges().len(), it.shadow_charges().len()])
        .collect()
}

#[tokio::test]
async fn shadows_are_decided_in_the_same_call_beside_the_others_and_not_where_one_denies() {
    let store = Scripted::allowing();
    ask(&layer(store.clone()).limit(policy("also", "1/1s"), everybody())).await;
    assert_eq!(checked(&store), [[2, 1]]);
    let store = Scripted::denying_for(1_000);
    ask(&layer(store.clone())).await;
    assert_eq!(checked(&store), [[1, 1]]);
}

#[tokio::test]
async fn a_shadow_changes_nothing_about_what_the_others_admit() {
    let layer = layer(MemoryStore::new()).decisions_in_response();
    let mut denied_by_shadow = 0;
    for _ in 0..10 {
        let response = ask(&layer).await;
        assert_eq!(response.status(), 200);
        let decision = decisions(&response).iter().next().unwrap();
        let shadow = decision.usage().shadow().unwrap();
        denied_by_shadow += usize::from(!shadow.is_allowed());
    }
    assert_eq!(denied_by_shadow, 5);
    assert_eq!(ask(&layer).await.status(), 429);
}

#[tokio::test]
async fn shadows_alone_are_allowed_whatever_fails() {
    let trial = policy("trial", "5/1m").shadow();
    for on_failure in [FailurePolicy::Open, FailurePolicy::Closed] {
        let limiter = support::limiter(Scripted::failing()).on_failure(on_failure);
        let charge = || [Charge::new(&trial, everybody(), 1)];
        assert!(limiter.try_acquire(charge()).await);
        let decision = limiter.check(charge()).await.unwrap();
        assert!(decision.is_allowed() && decision.usage().shadow().is_none());
    }
}

#[tokio::test]
async fn a_shadow_with_many_keys_takes_no_room_from_the_others() {
    let keys = |n: u64| {
        let key = |n: u64| Key::new("n", n.to_string());
        move |_: &Parts| Ok((0..n).map(key).collect::<Keys>())
    };
    let store = Scripted::allowing();
    let layer = support::layer(store.clone())
        .limit(policy("many", "1/1m").shadow(), keys(65))
        .limit(policy("as-many", "1/1m"), keys(64));
    assert_eq!(ask(&layer).await.status(), 200);
    assert_eq!(checked(&store), [[64, 64]]);
}

#[tokio::test(start_paused = true)]
async fn a_look_up_that_never_ends_rejects_nothing_in_a_shadow_layer() {
    let store = Scripted::allowing();
    let layer = support::layer(closed(store.clone()))
        .charge_async(|_| pending::<Charge>())
        .charge_async(|_| async { Charge::new(&policy("user", "2/1m"), everybody(), 1) });
    assert_eq!(ask(&layer.clone().shadow()).await.status(), 200);
    assert_eq!(checked(&store), [[0, 1]]);
    assert_eq!(ask(&layer).await.status(), 503);
}
