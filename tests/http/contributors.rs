//! Contributors of a limit in the layer.

use std::{convert::Infallible, future::ready, time::Duration};

use http::{Request, Response, StatusCode, request::Parts};
use sluicegate::{Charge, Header, Key, KeyExtractor, Limiter, MemoryStore, Policy, RateLimitLayer};
use support::log::Log;
use tower::{Layer, ServiceExt, service_fn};

fn policy(name: &str) -> Policy {
    Policy::parse(name, "100/1h").unwrap()
}

fn acme() -> Key {
    Key::new("account", "acme")
}

fn user(head: &Parts) -> Option<Key> {
    Some(Key::new("user", head.headers.get("x-user")?))
}

async fn ask(layer: &RateLimitLayer, user: Option<&str>, status: u16) -> Response<String> {
    let inner = service_fn(move |_: Request<String>| {
        let mut response = Response::new(String::new());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        ready(Ok::<_, Infallible>(response))
    });
    let mut request = Request::get("/");
    if let Some(user) = user {
        request = request.header("x-user", user);
    }
    let request = request.body(String::new()).unwrap();
    layer.clone().layer(inner).oneshot(request).await.unwrap()
}

async fn told(limiter: &Limiter, policy: &Policy) -> (Vec<(String, u64)>, u64) {
    let told = limiter.contributors(policy, &acme()).await.unwrap();
    let list = told.iter().map(|it| (it.label().to_owned(), it.units()));
    (list.collect(), told.total())
}

fn list(list: &[(&str, u64)]) -> Vec<(String, u64)> {
    let owned = |(label, units): &(&str, u64)| ((*label).to_owned(), *units);
    list.iter().map(owned).collect()
}

#[tokio::test]
async fn a_request_without_a_label_is_served_and_in_no_list() {
    let limiter = Limiter::new(MemoryStore::new());
    let layer = RateLimitLayer::new(limiter.clone())
        .limit(policy("api"), acme())
        .contributors(user);
    for user in [Some("alice"), None, Some("alice"), None] {
        assert_eq!(ask(&layer, user, 200).await.status(), 200);
    }
    let (list_, total) = told(&limiter, &policy("api")).await;
    assert_eq!((list_, total), (list(&[("user=alice", 2)]), 2));
}

#[tokio::test]
async fn contributors_are_about_the_limit_before_them() {
    let limiter = Limiter::new(MemoryStore::new());
    let layer = RateLimitLayer::new(limiter.clone())
        .limit(policy("first"), acme())
        .limit(policy("second"), acme())
        .contributors(user)
        .charge_async(|_| ready(Charge::new(&policy("third"), acme(), 1)))
        .contributors(Header::new("x-user"))
        .limit(policy("fourth"), acme())
        .charge_async(|head| {
            let user = user(head);
            ready(user.map(|user| Charge::new(&policy("fifth"), acme(), 3).with_contributor(user)))
        })
        .contributors(|_: &Parts| Key::new("user", "nobody"))
        .charge_async(|_| ready(Charge::new(&policy("sixth"), acme(), 1)))
        .contributors(user);
    ask(&layer, Some("alice"), 200).await;
    let labels = async |name| told(&limiter, &policy(name)).await.0;
    assert_eq!(labels("first").await, []);
    assert_eq!(labels("second").await, list(&[("user=alice", 1)]));
    assert!(labels("third").await[0].0.starts_with("header=#"));
    assert_eq!(labels("fourth").await, []);
    assert_eq!(labels("fifth").await, list(&[("user=alice", 3)]));
    assert_eq!(labels("sixth").await, list(&[("user=alice", 1)]));
}

#[tokio::test]
async fn failures_alone_are_contributed_where_they_alone_count() {
    let limiter = Limiter::new(MemoryStore::new());
    let layer = RateLimitLayer::new(limiter.clone())
        .limit(policy("wrong-passwords"), acme())
        .contributors(user)
        .settle(|response, charge| {
            let failed = response.status == StatusCode::UNAUTHORIZED;
            if failed { charge.cost() } else { 0 }
        });
    for (user, status) in [("alice", 200), ("bob", 401), ("alice", 200), ("bob", 401)] {
        ask(&layer, Some(user), status).await;
    }
    let (list_, total) = told(&limiter, &policy("wrong-passwords")).await;
    assert_eq!((list_, total), (list(&[("user=bob", 2)]), 2));
}

#[tokio::test(start_paused = true)]
async fn a_label_is_in_no_log_and_no_response() {
    let log = Log {
        in_full: true,
        ..Log::default()
    };
    let limiter = Limiter::new(MemoryStore::new()).observer(log.clone());
    let layer = RateLimitLayer::new(limiter.clone())
        .limit(Policy::parse("api", "2/1h").unwrap(), acme())
        .contributors(user);
    let mut seen = format!("{layer:?} {limiter:?}");
    for _ in 0..4 {
        let response = ask(&layer, Some("alice"), 200).await;
        seen += &format!("{response:?}");
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let told = limiter.contributors(&policy("api"), &acme()).await.unwrap();
    assert_eq!(told.iter().next().unwrap().label(), "user=alice");
    seen += &format!("{told:?} {}", log.lines().join(""));
    let charge = Charge::new(&policy("api"), acme(), 1).with_contributor(Key::new("user", "alice"));
    seen += &format!("{charge:?}");
    assert!(!seen.contains("alice") && !seen.contains("acme"), "{seen}");
}

#[test]
#[should_panic(expected = "there is none")]
fn contributors_without_a_limit_before_them_are_a_mistake() {
    let _ = RateLimitLayer::new(MemoryStore::new()).contributors(user.or_skip());
}
