//! The policies in `RateLimit-Policy`.

use std::convert::Infallible;

use http::{Request, Response};
use sluicegate::{
    Header, Key, KeyExtractor, MemoryStore, Policy, RateLimitLayer,
    middleware::PolicySelector,
    policies::{Policies, ReloadablePolicies},
};
use tower::{Layer, ServiceExt, service_fn};

const ALL: &str = r#""all";q=9;w=86400"#;

fn policy(name: &str, rules: &str) -> Policy {
    Policy::parse(name, rules).unwrap()
}

/// A limit for all requests, and one for requests with a key.
fn layer(user: impl Into<PolicySelector>) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new())
        .limit(policy("all", "9/1d"), Key::new("service", "all"))
        .limit(user.into(), Header::new("x-api-key").or_skip())
}

fn live() -> ReloadablePolicies {
    ReloadablePolicies::new(Policies::new([policy("user", "5/1d")]).unwrap())
}

/// The listed policies for a request with this key.
async fn listed(layer: &RateLimitLayer, key: Option<&str>) -> Vec<String> {
    let inner =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let mut request = Request::get("/");
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    let request = request.body(String::new()).unwrap();
    let response = layer.layer(inner).oneshot(request).await.unwrap();
    let lines = response.headers().get_all("ratelimit-policy").iter();
    let items = lines.flat_map(|line| line.to_str().unwrap().split(", "));
    items.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_skipped_limit_is_listed_whether_or_not_its_policy_can_be_replaced() {
    let live = live();
    let fixed = layer(policy("user", "5/1d"));
    let replaceable = layer(live.policy("user").unwrap());
    let expected = [ALL, r#""user";q=5;w=86400"#];
    for key in [None, Some("alice")] {
        assert_eq!(listed(&fixed, key).await, expected, "{key:?}");
        assert_eq!(listed(&replaceable, key).await, expected, "{key:?}");
    }
    live.replace(Policies::new([policy("user", "7/1d")]).unwrap())
        .unwrap();
    assert_eq!(
        listed(&replaceable, None).await,
        [ALL, r#""user";q=7;w=86400"#]
    );
}

#[tokio::test]
async fn a_skipped_limit_of_a_shadow_layer_is_not_listed() {
    for user in [
        PolicySelector::from(policy("user", "5/1d")),
        live().policy("user").unwrap().into(),
    ] {
        assert!(listed(&layer(user).shadow(), None).await.is_empty());
    }
}
