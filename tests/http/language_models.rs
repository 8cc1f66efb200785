//! Answers to client libraries of language models: the exact wait, an error in their form, and a warning of denials that
//! are too long for them. Plain requests over connections stand for the clients; `./test chat` runs real ones.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::Body,
    middleware::{Next, from_fn},
    routing::{any, post},
};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::{Value, json};
use sluicegate::{
    FailurePolicy, Header, Key, KeyExtractor, Limiter, MemoryStore, Policy, RateLimitLayer,
    manual_clock::ManualClock,
    middleware::{HeaderStyle, OpenAiJson},
    policies::Unit,
};
use tokio::{net::TcpListener, process::Command};
use tower::{Layer, ServiceExt, service_fn};

use support::{scripted::Scripted, trace::traced};

const START_MS: u64 = 1_700_000_000_123;

type ForModels = RateLimitLayer<OpenAiJson>;

fn alice() -> Key {
    Key::new("user", "alice")
}

fn policy(rules: &str) -> Policy {
    Policy::parse("tokens", rules).unwrap().unit(Unit::TOKENS)
}

fn layer(limiter: impl Into<Limiter>) -> ForModels {
    RateLimitLayer::new(limiter.into())
        .headers(HeaderStyle::X_RATE_LIMIT_BY_UNIT.and(HeaderStyle::RETRY_AFTER_MS))
        .rejection(OpenAiJson)
}

/// Serves on a free port, for one request after another.
async fn serve(layer: ForModels) -> impl AsyncFn(Method) -> (StatusCode, HeaderMap, Bytes) {
    let app = Router::new().route("/", any(async || "hello")).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    let client = Client::builder(TokioExecutor::new()).build_http();
    async move |method| {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{address}/"));
        let response = client
            .request(request.body(Empty::<Bytes>::new()).unwrap())
            .await;
        let (head, body) = response.unwrap().into_parts();
        (
            head.status,
            head.headers,
            body.collect().await.unwrap().to_bytes(),
        )
    }
}

/// The error in the answer to a `GET`.
async fn error(layer: ForModels) -> (u16, HeaderMap, Value) {
    let (status, headers, body) = serve(layer).await(Method::GET).await;
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["cache-control"], "no-store");
    (
        status.as_u16(),
        headers,
        serde_json::from_slice(&body).unwrap(),
    )
}

#[tokio::test]
async fn a_client_that_waits_as_long_as_the_header_says_is_served_and_not_a_millisecond_earlier() {
    for rules in ["3/50s", "3+60/1m@bucket", "3/40s@exact"] {
        let clock = ManualClock::new(START_MS);
        let store = MemoryStore::new().clock(clock.clone());
        let ask = serve(layer(store).limit(policy(rules), alice())).await;
        for _ in 0..3 {
            let (status, headers, _) = ask(Method::GET).await;
            assert_eq!(status, StatusCode::OK);
            assert!(!headers.contains_key("retry-after-ms"));
        }
        clock.advance(Duration::from_millis(7));
        let (status, headers, body) = ask(Method::GET).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        let number = |name: &str| -> u64 { headers[name].to_str().unwrap().parse().unwrap() };
        let wait = number("retry-after-ms");
        assert_eq!(number("retry-after"), wait.div_ceil(1_000));
        assert!((1..60_000).contains(&wait), "{rules}: {wait}");
        assert_eq!(headers["x-ratelimit-remaining-tokens"], "0");
        let body: Value = serde_json::from_slice(&body).unwrap();
        let wait = Duration::from_millis(wait);
        let error = json!({
            "message": format!("The rate limit tokens is reached. Try again in {wait:?}."),
            "type": "rate_limit_error",
            "param": null,
            "code": "rate_limit_exceeded",
        });
        assert_eq!(body, json!({ "error": error }));

        clock.advance(wait - Duration::from_millis(1));
        let (_, headers, _) = ask(Method::GET).await;
        assert_eq!(headers["retry-after-ms"], "1");
        clock.advance(Duration::from_millis(1));
        assert_eq!(ask(Method::GET).await.0, StatusCode::OK);
    }
}

/// Serves one request in 50 s, and lets a program make three. Asserts that the last waited as its denial said, and was
/// served: a wait of the library's own would be shorter.
async fn waits_and_is_served(program: &str, script: &str) {
    let folder = std::env::var("CHAT_CLIENTS").expect("CHAT_CLIENTS names a folder");
    let seen = Arc::<Mutex<Vec<_>>>::default();
    let see = {
        let seen = Arc::clone(&seen);
        move |request, next: Next| {
            let (seen, arrived) = (Arc::clone(&seen), Instant::now());
            async move {
                let response = next.run(request).await;
                let wait = response.headers().get("retry-after-ms");
                let wait = wait.map(|ms| ms.to_str().unwrap().parse().unwrap());
                let seen_now = (arrived, response.status(), wait.map(Duration::from_millis));
                seen.lock().unwrap().push(seen_now);
                response
            }
        }
    };
    let answer = json!({ "choices": [{ "message": { "role": "assistant", "content": "hello" } }] });
    let chat = post(async move || Json(answer));
    let app = Router::new()
        .route("/chat/completions", chat)
        .layer(layer(MemoryStore::new()).limit(policy("1/50s"), alice()))
        .layer(from_fn(see));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, app).await });

    let mut client = Command::new(program.replace("FOLDER", &folder));
    client.arg(format!("{folder}/{script}")).arg(url);
    let output = client.env("NO_PROXY", "*").output().await.unwrap();
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    let [first, denied, last] = said.lines().collect::<Vec<_>>()[..] else {
        panic!("{output:?}");
    };
    assert_eq!((first, last), ("hello", "hello"));
    assert!(
        denied.contains("The rate limit tokens is reached. Try again in "),
        "{denied}"
    );
    let seen = seen.lock().unwrap();
    let statuses: Vec<u16> = seen.iter().map(|(_, status, _)| status.as_u16()).collect();
    assert_eq!(statuses, [200, 429, 429, 200]);
    let (denied, _, wait) = seen[2];
    assert!(seen[3].0.duration_since(denied) >= wait.unwrap());
}

#[tokio::test]
#[ignore = "needs a library, in CHAT_CLIENTS: run ./test chat"]
async fn the_library_for_python_waits_as_long_as_the_header_says() {
    waits_and_is_served("FOLDER/python/bin/python", "chat_client.py").await;
}

#[tokio::test]
#[ignore = "needs a library, in CHAT_CLIENTS: run ./test chat"]
async fn the_library_for_javascript_waits_as_long_as_the_header_says() {
    waits_and_is_served("node", "chat_client.mjs").await;
}

#[tokio::test]
async fn each_rejection_says_its_reason_in_the_form_of_an_error() {
    let memory = || Limiter::new(MemoryStore::new());
    let blocked = memory();
    blocked
        .block(&alice(), Duration::from_secs(99))
        .await
        .unwrap();
    let closed = Limiter::new(Scripted::failing()).on_failure(FailurePolicy::Closed);
    let hidden = Limiter::new(Scripted::denying_for(1_500));
    let secret = Header::new("x-api-key");
    for (layer, status, kind, message) in [
        (
            layer(memory())
                .limit(policy("5/1h"), alice())
                .cost(|_, _| 6),
            413,
            "invalid_request_error",
            "This request costs more than a limit allows. It will never pass.",
        ),
        (
            layer(memory()).limit(policy("0/1h"), alice()),
            429,
            "rate_limit_error",
            "A limit of 0 denies all requests at present.",
        ),
        (
            layer(hidden.clone()).limit(policy("5/1h").hidden(), alice()),
            429,
            "rate_limit_error",
            "A rate limit is reached. Try again in 1.5s.",
        ),
        (
            layer(hidden).limit(policy("5/1h,1/1m"), alice()),
            429,
            "rate_limit_error",
            "The rate limits tokens/1h, tokens/1m are reached. Try again in 1.5s.",
        ),
        (
            layer(memory()).limit(policy("5/1h"), secret.clone()),
            400,
            "invalid_request_error",
            "the header that identifies the client is absent or empty: `x-api-key`",
        ),
        (
            layer(memory()).limit(
                policy("5/1h"),
                secret.or_unauthorized(HeaderValue::from_static("Bearer")),
            ),
            401,
            "authentication_error",
            "the client has to authenticate",
        ),
        (
            layer(blocked).limit(policy("5/1h"), alice()),
            403,
            "permission_error",
            "This client is blocked.",
        ),
        (
            layer(memory())
                .limit(policy("5/1h"), alice())
                .deny(|_| true),
            403,
            "permission_error",
            "Forbidden",
        ),
        (
            layer(closed).limit(policy("5/1h"), alice()),
            503,
            "server_error",
            "Service Unavailable",
        ),
    ] {
        let (found, headers, body) = error(layer).await;
        let error = &body["error"];
        assert_eq!(
            (found, &error["message"], &error["type"]),
            (status, &json!(message), &json!(kind))
        );
        assert_eq!(error["code"].is_null(), status != 429);
        let waits = message.contains("Try again") || status == 503;
        assert_eq!(headers.contains_key("retry-after-ms"), waits, "{message}");
        assert_eq!(headers.contains_key("retry-after"), waits, "{message}");
    }
}

#[tokio::test]
async fn head_gets_the_length_of_the_error_and_a_grpc_call_a_status() {
    let denying =
        || layer(Limiter::new(Scripted::denying_for(1_500))).limit(policy("5/1h"), alice());
    let (_, _, body) = serve(denying()).await(Method::GET).await;
    let (status, headers, none) = serve(denying()).await(Method::HEAD).await;
    assert_eq!((status.as_u16(), none.len()), (429, 0));
    assert_eq!(headers["content-length"], body.len().to_string());

    let call = Request::post("/").header("content-type", "application/grpc");
    let hello = service_fn(async |_: Request<Body>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty()))
    });
    let answer = denying()
        .layer(hello)
        .oneshot(call.body(Body::empty()).unwrap())
        .await;
    assert_eq!(answer.unwrap().headers()["grpc-status"], "8");
}

#[test]
fn a_denial_for_which_these_clients_do_not_wait_is_warned_of_once() {
    let warnings = |ms, style| {
        traced(false, async move {
            let layer = layer(Limiter::new(Scripted::denying_for(ms))).headers(style);
            let layer = layer.limit(policy("5/1h"), alice());
            let hello = service_fn(async |_: Request<()>| {
                Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
            });
            let service = layer.layer(hello);
            for _ in 0..3 {
                let denied = service.clone().oneshot(Request::new(())).await.unwrap();
                assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
            }
        })
    };
    assert_eq!(warnings(59_999, HeaderStyle::RETRY_AFTER_MS), [""; 0]);
    assert_eq!(warnings(3_600_000, HeaderStyle::DRAFT_11), [""; 0]);
    let lines = warnings(60_000, HeaderStyle::RETRY_AFTER_MS);
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        line.contains("60 s or longer") && line.contains(r#"policy="tokens""#),
        "{line}"
    );
}
