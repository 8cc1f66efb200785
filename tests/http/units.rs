//! The units of policies: in the quota headers, by unit for client libraries of language models, and hidden.

use std::convert::Infallible;

use http::{HeaderMap, Request, Response, StatusCode};
use sluicegate::{
    Key, MemoryStore, Policy, RateLimitLayer,
    middleware::{HeaderStyle, MakeRejection},
    policies::Unit,
};
use tower::{Layer, Service, ServiceExt, service_fn};

fn requests() -> Policy {
    Policy::parse("requests", "60/1h").unwrap()
}

fn tokens() -> Policy {
    let policy = Policy::parse("tokens", "10000/1d,3000/1h").unwrap();
    policy.unit(Unit::TOKENS)
}

fn alice() -> Key {
    Key::new("user", "alice")
}

/// 2500 tokens for each request.
fn layer(store: &MemoryStore) -> RateLimitLayer {
    RateLimitLayer::new(store.clone())
        .limit(requests(), alice())
        .limit(tokens(), alice())
        .cost(|_, policy| {
            if policy.counted_in() == "tokens" {
                2_500
            } else {
                1
            }
        })
}

async fn ask<R: MakeRejection<String>>(layer: &RateLimitLayer<R>) -> Response<String> {
    let hello =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new("hello".to_owned())));
    answer(layer.layer(hello)).await
}

async fn answer<S>(service: S) -> Response<String>
where
    S: Service<Request<()>, Response = Response<String>, Error = Infallible>,
{
    service.oneshot(Request::new(())).await.unwrap()
}

fn value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_quota_names_its_unit_unless_that_is_requests() {
    let pages = Policy::parse("pages", "9/1m").unwrap();
    let pages = pages.unit("pages".parse().unwrap());
    let response = ask(&layer(&MemoryStore::new()).limit(pages, alice())).await;
    assert_eq!(
        value(response.headers(), "ratelimit-policy"),
        Some(
            r#""requests";q=60;w=3600, "tokens/1d";q=10000;qu="tokens";w=86400, "tokens/1h";q=3000;qu="tokens";w=3600, "pages";q=9;qu="pages";w=60"#
        )
    );
}

#[tokio::test]
async fn headers_by_unit_have_the_tightest_rule_of_each() {
    let store = MemoryStore::new();
    let layer = layer(&store).headers(HeaderStyle::X_RATE_LIMIT_BY_UNIT);
    let response = ask(&layer).await;
    for (name, expected) in [
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-limit-tokens", "3000"),
        ("x-ratelimit-remaining-tokens", "500"),
    ] {
        assert_eq!(value(response.headers(), name), Some(expected), "{name}");
    }
    // An hour, and a minute at most, since units are counted in steps.
    for name in ["x-ratelimit-reset-requests", "x-ratelimit-reset-tokens"] {
        let reset = value(response.headers(), name).unwrap();
        assert!(reset.starts_with("1h0m") || reset == "1h1m0s", "{reset}");
    }
    assert!(!response.headers().contains_key("ratelimit"));

    let denied = ask(&layer).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        value(denied.headers(), "x-ratelimit-remaining-tokens"),
        Some("500")
    );
    assert!(denied.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn headers_by_unit_of_layers_around_each_other_have_the_tightest_of_all() {
    let (inner, outer) = (MemoryStore::new(), MemoryStore::new());
    let hello =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new("hello".to_owned())));
    let inner = layer(&inner).headers(HeaderStyle::X_RATE_LIMIT_BY_UNIT);
    let everybody = Policy::parse("everybody", "5/1h").unwrap();
    let many = Policy::parse("many", "1000000/1h").unwrap();
    let outer = RateLimitLayer::new(outer)
        .limit(everybody, alice())
        .limit(many.unit(Unit::TOKENS), alice());
    // Also in the style of the inner layer alone: its headers must not promise more than is left here.
    for outer in [
        outer.clone().headers(HeaderStyle::X_RATE_LIMIT_BY_UNIT),
        outer.headers(HeaderStyle::X_RATE_LIMIT),
    ] {
        let response = answer(outer.layer(inner.clone().cost(|_, _| 1).layer(hello))).await;
        let headers = response.headers();
        assert_eq!(value(headers, "x-ratelimit-limit-requests"), Some("5"));
        assert_eq!(value(headers, "x-ratelimit-limit-tokens"), Some("3000"));
    }
}

#[tokio::test]
#[ignore = "needs a program made of chat_client.go, in CHAT_CLIENTS: run ./test chat"]
async fn a_client_library_of_language_models_reads_the_headers_by_unit() {
    let folder = std::env::var("CHAT_CLIENTS").expect("CHAT_CLIENTS names a folder");
    let layer = layer(&MemoryStore::new())
        .cost(|_, policy| {
            if policy.counted_in() == "tokens" {
                500
            } else {
                1
            }
        })
        .headers(HeaderStyle::DRAFT_11.and(HeaderStyle::X_RATE_LIMIT_BY_UNIT));
    let answer = r#"{"choices":[{"message":{"role":"assistant","content":"hello"}}]}"#;
    let chat = axum::routing::post(async move || ([("content-type", "application/json")], answer));
    let router = axum::Router::new().route("/chat/completions", chat.layer(layer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, router).await });
    let mut client = tokio::process::Command::new(format!("{folder}/chat"));
    let output = client.arg(url).output().await.unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "59 of 60 requests, 2500 of 3000 tokens, all in 1h0m0s\n\
         58 of 60 requests, 2000 of 3000 tokens, all in 1h0m0s\n"
    );
}

#[tokio::test]
async fn a_hidden_policy_is_in_no_header_and_no_body() {
    let all = HeaderStyle::DRAFT_11.and(HeaderStyle::X_RATE_LIMIT);
    let all = all.and(HeaderStyle::X_RATE_LIMIT_BY_UNIT);
    let store = MemoryStore::new();
    let secret = Policy::parse("secret", "1/1h").unwrap().hidden();
    let layer = RateLimitLayer::new(store)
        .limit(requests(), alice())
        .limit(secret, alice())
        .headers(all);
    let response = ask(&layer).await;
    let headers = response.headers();
    let told = value(headers, "ratelimit").unwrap();
    assert!(
        told.starts_with(r#""requests";r=59;t="#) && !told.contains(','),
        "{told}"
    );
    assert_eq!(
        value(headers, "ratelimit-policy"),
        Some(r#""requests";q=60;w=3600"#)
    );
    assert_eq!(value(headers, "x-ratelimit-limit"), Some("60"));
    assert_eq!(value(headers, "x-ratelimit-limit-requests"), Some("60"));

    let denied = ask(&layer).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(denied.headers().contains_key("retry-after"));
    assert!(!format!("{:?}{}", denied.headers(), denied.body()).contains("secret"));
    assert!(!denied.headers().contains_key("x-ratelimit-limit"));
    assert!(!denied.headers().contains_key("ratelimit"));

    // A hidden policy of which little is left shows no others.
    let below = RateLimitLayer::new(MemoryStore::new())
        .limit(Policy::parse("secret", "1/1h").unwrap().hidden(), alice())
        .limit(requests(), alice())
        .headers(HeaderStyle::DRAFT_11.only_below(50));
    assert!(!ask(&below).await.headers().contains_key("ratelimit"));
}

#[tokio::test]
async fn policies_of_one_name_in_two_units_are_an_error_when_built() {
    let layer = RateLimitLayer::new(MemoryStore::new()).limit(tokens(), alice());
    let other = tokens().unit(Unit::CONTENT_BYTES);
    let error = layer.try_limit(other, alice()).unwrap_err().to_string();
    assert!(
        error.contains("in tokens") && error.contains("in content-bytes"),
        "{error}"
    );
}
