//! Contributors of a limit in the layer.

use crate::prelude::*;

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
    let inner = answering(move |_| answer(status));
    let fields: Vec<_> = user.map(|it| ("x-user", it)).into_iter().collect();
    layer.layer(inner).oneshot(with(&fields)).await.unwrap()
}

/// The contributors with their units, and the units of all: `user=alice 2 of 2`.
async fn told(limiter: &Limiter, name: &str) -> String {
    let told = limiter.contributors(&policy(name), &acme()).await.unwrap();
    let list = told
        .iter()
        .map(|it| format!("{} {}", it.label(), it.units()));
    format!(
        "{} of {}",
        list.collect::<Vec<_>>().join(", "),
        told.total()
    )
}

#[tokio::test]
async fn a_request_without_a_label_is_served_and_in_no_list() {
    let limiter = support::limiter(MemoryStore::new());
    let layer = support::layer(limiter.clone())
        .limit(policy("api"), acme())
        .contributors(user);
    for user in [Some("alice"), None, Some("alice"), None] {
        assert_eq!(ask(&layer, user, 200).await.status(), 200);
    }
    assert_eq!(told(&limiter, "api").await, "user=alice 2 of 2");
}

#[tokio::test]
async fn contributors_are_about_the_limit_before_them() {
    let limiter = support::limiter(MemoryStore::new());
    let layer = support::layer(limiter.clone())
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
    for (name, expected) in [
        ("first", " of 0"),
        ("second", "user=alice 1 of 1"),
        ("fourth", " of 0"),
        ("fifth", "user=alice 3 of 3"),
        ("sixth", "user=alice 1 of 1"),
    ] {
        assert_eq!(told(&limiter, name).await, expected, "{name}");
    }
    assert!(told(&limiter, "third").await.starts_with("header=#"));
}

#[tokio::test]
async fn failures_alone_are_contributed_where_they_alone_count() {
    let limiter = support::limiter(MemoryStore::new());
    let layer = support::layer(limiter.clone())
        .limit(policy("wrong-passwords"), acme())
        .contributors(user)
        .settle(|response, charge| {
            let failed = response.status == StatusCode::UNAUTHORIZED;
            if failed { charge.cost() } else { 0 }
        });
    for (user, status) in [("alice", 200), ("bob", 401), ("alice", 200), ("bob", 401)] {
        ask(&layer, Some(user), status).await;
    }
    assert_eq!(told(&limiter, "wrong-passwords").await, "user=bob 2 of 2");
}

#[tokio::test(start_paused = true)]
async fn a_label_is_in_no_log_and_no_response() {
    let log = Log::in_full();
    let limiter = support::limiter(MemoryStore::new()).observer(log.clone());
    let layer = support::layer(limiter.clone())
        .limit(Policy::parse("api", "2/1h").unwrap(), acme())
        .contributors(user);
    let mut seen = format!("{layer:?} {limiter:?}");
    for _ in 0..4 {
        let response = ask(&layer, Some("alice"), 200).await;
        seen += &format!("{response:?}");
    }
    sleep(Duration::from_secs(3)).await;
    let told = limiter.contributors(&policy("api"), &acme()).await.unwrap();
    assert_eq!(told.iter().next().unwrap().label(), "user=alice");
    seen += &format!("{told:?} {}", log.lines().join(""));
    let charge = Charge::new(&policy("api"), acme(), 1).with_contributor(Key::new("user", "alice"));
    seen += &format!("{charge:?}");
    assert!(!seen.contains("alice") && !seen.contains("acme"), "{seen}");
}

panics! {
    contributors_without_a_limit_before_them_are_a_mistake: support::layer(MemoryStore::new()).contributors(user.or_skip()) => "there is none";
}
