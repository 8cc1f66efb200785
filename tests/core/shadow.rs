//! A shadow decides, charges and reports, and never denies, even after a failure.

use sluicegate::{
    Header, KeyExtractor,
    error::ExtractError,
    extract::Keys,
    middleware::{Decisions, HeaderStyle, Rejection},
};
use support::prelude::*;

fn everybody() -> Key {
    Key::new("service", "all")
}

fn closed(store: Arc<Scripted>) -> Limiter {
    support::limiter(store).on_failure(FailurePolicy::Closed)
}

/// A layer with one policy that counts and one shadow. The headers show both.
fn layer(limiter: impl Into<Limiter>) -> RateLimitLayer {
    support::layer(limiter)
        .headers(HeaderStyle::DRAFT_11.with_shadows())
        .limit(policy("now", "10/1m"), everybody())
        .limit(policy("soon", "5/1m,9/1h").shadow(), everybody())
}

async fn ask(layer: RateLimitLayer) -> Response<String> {
    send(&layer.decisions_in_response(), to("/")).await
}

async fn status(layer: RateLimitLayer) -> StatusCode {
    ask(layer).await.status()
}

/// Answers shadows in this way, and allows all other charges.
fn to_shadows(
    answer: impl Fn(&Check) -> StoreFuture<Decision> + Send + Sync + 'static,
) -> Arc<Scripted> {
    Scripted::new(move |check| match check.charges()[0].policy().is_shadow() {
        true => answer(check),
        false => StoreFuture::ready(allowed(check)),
    })
}

/// The checked policies: the names of those that count, and those of the shadows.
fn checked(store: &Scripted) -> Vec<[Vec<String>; 2]> {
    let names = |charges: &[Charge]| charges.iter().map(|it| it.policy().name().into()).collect();
    let checks = store.checks().into_iter();
    checks
        .map(|it| [names(it.charges()), names(it.shadow_charges())])
        .collect()
}

fn shadow_of<B>(response: &Response<B>) -> Option<&Decision> {
    let decisions: &Decisions = response.extensions().get().unwrap();
    decisions.iter().next().unwrap().usage().shadow()
}

#[tokio::test]
async fn a_shadow_that_denies_says_so_and_lets_the_request_pass() {
    let store = to_shadows(|check| StoreFuture::ready(denied(check, 5_000)));
    let response = ask(layer(store)).await;
    assert_eq!(response.status(), StatusCode::OK);
    let (listed, left) = (
        r#""now";q=10;w=60, "soon/1m";q=5;w=60;sluicegate-shadow, "soon/1h";q=9;w=3600;sluicegate-shadow"#,
        r#""now";r=9;t=60, "soon/1m";r=0;t=5;sluicegate-shadow, "soon/1h";r=0;t=5;sluicegate-shadow"#,
    );
    assert_eq!(response.headers()["ratelimit-policy"], listed);
    assert_eq!(response.headers()["ratelimit"], left);
    assert!(!response.headers().contains_key("retry-after"));
    let Some(Decision::Denied(denial)) = shadow_of(&response) else {
        panic!("{:?}", shadow_of(&response));
    };
    assert_eq!(denial.policy().name(), "soon");
}

#[tokio::test]
async fn a_shadow_that_allows_tells_what_it_leaves() {
    let response = ask(layer(Scripted::allowing())).await;
    assert_eq!(
        response.headers()["ratelimit"],
        r#""now";r=9;t=60, "soon/1m";r=4;t=60;sluicegate-shadow, "soon/1h";r=8;t=3600;sluicegate-shadow"#
    );
    assert!(shadow_of(&response).unwrap().is_allowed());
}

#[tokio::test]
async fn shadows_are_decided_in_the_same_call_beside_the_others() {
    let store = Scripted::allowing();
    ask(layer(store.clone()).limit(policy("also", "1/1s"), everybody())).await;
    assert_eq!(checked(&store), [[vec!["now", "also"], vec!["soon"]]]);
}

#[tokio::test]
async fn a_request_that_is_denied_is_not_charged_to_a_shadow() {
    let store = Scripted::denying_for(1_000);
    let response = ask(layer(store.clone())).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["ratelimit"], r#""now";r=0;t=1"#);
    assert!(response.body().contains(r#""violated-policies":["now"]"#));
    assert_eq!(store.checks().len(), 1);
}

#[tokio::test]
async fn a_shadow_changes_nothing_about_what_the_others_admit() {
    let layer = layer(MemoryStore::new());
    let mut denied_by_shadow = 0;
    for _ in 0..10 {
        let response = ask(layer.clone()).await;
        assert_eq!(response.status(), StatusCode::OK);
        denied_by_shadow += usize::from(!shadow_of(&response).unwrap().is_allowed());
    }
    assert_eq!(denied_by_shadow, 5);
    assert_eq!(ask(layer).await.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_layer_can_be_a_shadow_as_a_whole() {
    for layer in [
        layer(Scripted::denying_for(1_000)).shadow(),
        support::layer(Scripted::denying_for(1_000))
            .shadow()
            .headers(HeaderStyle::DRAFT_11.with_shadows())
            .limit(policy("now", "10/1m"), everybody())
            .limit(policy("soon", "5/1m,9/1h"), everybody()),
    ] {
        let response = ask(layer).await;
        assert_eq!(response.status(), StatusCode::OK);
        let field = response.headers()["ratelimit"].to_str().unwrap();
        let begins = r#""now";r=0;t=1;sluicegate-shadow, "#;
        assert!(field.starts_with(begins), "{field}");
        let field = response.headers()["ratelimit-policy"].to_str().unwrap();
        assert_eq!(field.matches(";sluicegate-shadow").count(), 3, "{field}");
        assert!(!shadow_of(&response).unwrap().is_allowed());
        assert!(response.extensions().get::<Rejection>().is_none());
    }
}

#[tokio::test]
async fn headers_that_can_tell_of_one_rule_only_do_not_tell_of_a_shadow() {
    let store = to_shadows(|check| StoreFuture::ready(denied(check, 5_000)));
    let response = ask(layer(store).headers(HeaderStyle::X_RATE_LIMIT)).await;
    assert_eq!(response.headers()["x-ratelimit-limit"], "10");
    let whole = layer(Scripted::allowing()).shadow();
    let response = ask(whole.headers(HeaderStyle::X_RATE_LIMIT)).await;
    assert!(!response.headers().contains_key("x-ratelimit-limit"));
}

#[tokio::test]
async fn no_header_tells_of_a_shadow_unless_asked_for() {
    let trial = policy("trial", "5/1m").shadow();
    let all = HeaderStyle::DRAFT_11.and(HeaderStyle::DRAFT_6);
    let all = all.and(HeaderStyle::X_RATE_LIMIT);
    for style in [HeaderStyle::default(), all] {
        let store = to_shadows(|check| StoreFuture::ready(denied(check, 5_000)));
        let chosen = trial.clone();
        let layer = layer(store).limit(move |_: &Parts| chosen.clone(), Key::new("a", "b"));
        let layer = layer.headers(style);
        let response = ask(layer.clone()).await;
        assert!(!shadow_of(&response).unwrap().is_allowed());
        let headers = format!("{:?}", response.headers());
        assert!(headers.contains("now"), "{headers}");
        for hidden in ["soon", "trial", "shadow", "5;w=60"] {
            assert!(!headers.contains(hidden), "{headers}");
        }
        let response = ask(layer.shadow()).await;
        assert!(response.headers().is_empty(), "{:?}", response.headers());
    }
}

// Failures

#[tokio::test]
async fn a_shadow_that_cannot_be_decided_is_left_out_though_the_failure_policy_is_closed() {
    let store = to_shadows(|_| StoreFuture::ready(Err(unavailable())));
    let response = ask(layer(closed(store))).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["ratelimit"], r#""now";r=9;t=60"#);
    assert!(shadow_of(&response).is_none());
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

#[tokio::test(start_paused = true)]
async fn a_shadow_layer_that_cannot_decide_is_as_if_it_were_not_there() {
    for store in [Scripted::failing(), Scripted::silent()] {
        let response = ask(layer(closed(store)).shadow()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key("ratelimit"));
        assert!(!response.headers().contains_key("ratelimit-policy"));
        assert!(response.extensions().get::<Decisions>().is_none());
    }
}

#[tokio::test]
async fn a_shadow_that_finds_no_key_is_left_out() {
    let store = Scripted::allowing();
    let layer = support::layer(store.clone())
        .limit(policy("a", "1/1m").shadow(), Header::new("x-api-key"))
        .limit(policy("b", "1/1m"), everybody());
    assert_eq!(ask(layer.clone()).await.status(), StatusCode::OK);
    assert_eq!(checked(&store), [[vec!["b"], vec![]]]);

    let layer = support::layer(store).limit(policy("a", "1/1m"), Header::new("x-api-key"));
    assert_eq!(status(layer.clone()).await, 400);
    assert_eq!(status(layer.shadow()).await, 200);
}

fn keys(n: u64) -> impl KeyExtractor {
    let key = |n: u64| Key::new("n", n.to_string());
    move |_: &Parts| Ok((0..n).map(key).collect::<Keys>())
}

#[tokio::test]
async fn a_shadow_with_many_keys_takes_no_room_from_the_others() {
    let store = Scripted::allowing();
    let layer = support::layer(store.clone())
        .limit(policy("many", "1/1m").shadow(), keys(65))
        .limit(policy("as-many", "1/1m"), keys(64));
    assert_eq!(ask(layer).await.status(), StatusCode::OK);
    let sizes = checked(&store).remove(0).map(|it| it.len());
    assert_eq!(sizes, [64, 64]);
}

#[tokio::test(start_paused = true)]
async fn a_look_up_that_never_ends_rejects_nothing_in_a_shadow_layer() {
    let store = Scripted::allowing();
    let layer = support::layer(closed(store.clone()))
        .charge_async(|_| pending::<Charge>())
        .charge_async(|_| async { Charge::new(&policy("user", "2/1m"), everybody(), 1) });
    let response = ask(layer.clone().shadow()).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(checked(&store), [[vec![], vec!["user"]]]);
    assert_eq!(status(layer).await, 503);
}

// Other features of a layer

#[tokio::test]
async fn a_policy_chosen_by_the_request_may_be_a_shadow() {
    let trial = policy("trial", "5/1m").shadow();
    let layer = support::layer(Scripted::allowing())
        .limit(policy("now", "10/1m"), everybody())
        .limit(move |_: &Parts| trial.clone(), everybody())
        .headers(HeaderStyle::DRAFT_11.with_shadows());
    let response = ask(layer.clone()).await;
    let fields = response.headers().get_all("ratelimit").iter();
    let expected = [r#""now";r=9;t=60"#, r#""trial";r=4;t=60;sluicegate-shadow"#];
    assert!(fields.eq(expected), "{response:?}");

    let response = ask(layer.shadow()).await;
    let mut fields = response.headers().get_all("ratelimit").iter();
    assert!(fields.all(|it| it.as_bytes().ends_with(b";sluicegate-shadow")));
}

#[tokio::test]
async fn a_policy_that_cannot_be_chosen_is_no_shadow_unless_the_layer_is() {
    let choose = |_: &Parts| Err::<Policy, _>(ExtractError::missing("no tier"));
    let layer = support::layer(Scripted::allowing()).limit(choose, everybody());
    assert_eq!(status(layer.clone()).await, 400);
    assert_eq!(status(layer.shadow()).await, 200);
}

#[tokio::test]
async fn a_deny_list_blocks_beside_a_shadow_and_in_a_shadow_layer() {
    let layer =
        support::layer(Scripted::allowing()).limit(policy("trial", "5/1m").shadow(), everybody());
    for layer in [layer.clone().deny(|_| true), layer.deny_keys(|_| true)] {
        assert_eq!(ask(layer.clone()).await.status(), StatusCode::FORBIDDEN);
        assert_eq!(ask(layer.shadow()).await.status(), StatusCode::FORBIDDEN);
    }
}

// Without HTTP

#[tokio::test]
async fn what_a_shadow_charged_is_settled_with_the_rest() {
    let limiter = support::limiter(MemoryStore::new());
    let (now, soon) = (policy("now", "10/1h"), policy("soon", "5/1h").shadow());
    let left = |usage: &Usage| {
        let shadow = usage.shadow().unwrap().usage();
        [usage, shadow].map(|usage| remaining(usage)[0])
    };
    let charges = || [&soon, &now].map(|policy| Charge::new(policy, everybody(), 4));
    let decision = limiter.check(charges()).await.unwrap();
    let cost = |charge: &Charge| u64::from(charge.policy().name() == "now");
    let settled = limiter.settle(decision.usage(), cost).await.unwrap();
    assert_eq!(left(&settled), [9, 5]);
    assert_eq!(left(&limiter.peek(charges()).await.unwrap()), [9, 5]);
    let again = limiter.settle(decision.usage(), cost).await.unwrap_err();
    assert_eq!(again.kind(), StoreErrorKind::InvalidRequest);
}

#[tokio::test]
async fn shadows_alone_are_settled_once() {
    let limiter = support::limiter(MemoryStore::new());
    let soon = policy("soon", "5/1h").shadow();
    let charge = || [Charge::new(&soon, everybody(), 4)];
    let decision = limiter.check(charge()).await.unwrap();
    limiter.settle(decision.usage(), |_| 1).await.unwrap();
    let left = limiter.peek(charge()).await.unwrap();
    let left = left.shadow().unwrap().usage();
    assert_eq!(remaining(left)[0], 4);
    let again = limiter.settle(decision.usage(), |_| 1).await.unwrap_err();
    assert_eq!(again.kind(), StoreErrorKind::InvalidRequest);
}

#[tokio::test]
async fn what_a_shadow_has_counted_counts_when_it_is_none_any_more() {
    let limiter = support::limiter(MemoryStore::new());
    let soon = policy("soon", "5/1h");
    let charge = |policy: &Policy| [Charge::new(policy, everybody(), 4)];
    for _ in 0..2 {
        assert!(limiter.try_acquire(charge(&soon.clone().shadow())).await);
    }
    assert!(!limiter.try_acquire(charge(&soon)).await);
}

#[test]
#[should_panic(expected = "same name")]
fn a_policy_and_its_own_shadow_are_an_error_when_built() {
    let policy = policy("all", "1/1s");
    let _ = support::layer(Scripted::allowing())
        .limit(policy.clone(), everybody())
        .limit(policy.shadow(), everybody());
}
