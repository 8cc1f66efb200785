//! Answers to client libraries of language models: the exact wait, an error in their form, and a warning of denials that
//! are too long for them. Plain requests over connections stand for the clients; `./test chat` runs real ones.

use serde_json::{Value, json};
use sluicegate::middleware::OpenAiJson;
use std::time::Instant;
use tokio::process::Command;

use crate::prelude::*;

const START_MS: u64 = 1_700_000_000_123;

type ForModels = RateLimitLayer<OpenAiJson>;

fn tokens(rules: &str) -> Policy {
    policy("tokens", rules).unit(Unit::TOKENS)
}

fn layer(limiter: impl Into<Limiter>) -> ForModels {
    support::layer(limiter.into())
        .headers(HeaderStyle::X_RATE_LIMIT_BY_UNIT.and(HeaderStyle::RETRY_AFTER_MS))
        .rejection(OpenAiJson)
}

async fn serve(layer: ForModels) -> Site {
    Site::start(Router::new().route("/", any(async || "hello")).layer(layer)).await
}

#[tokio::test]
async fn a_client_that_waits_as_long_as_the_header_says_is_served_and_not_a_millisecond_earlier() {
    for rules in ["3/50s", "3+60/1m@bucket", "3/40s@exact"] {
        let clock = ManualClock::new(START_MS);
        let store = MemoryStore::new().clock(clock.clone());
        let site = serve(layer(store).limit(tokens(rules), alice())).await;
        for _ in 0..3 {
            let (status, headers, _) = site.get("/", &[]).await;
            assert_eq!(status, 200);
            assert!(!headers.contains_key("retry-after-ms"));
        }
        clock.advance(Duration::from_millis(7));
        let (status, headers, body) = site.get("/", &[]).await;
        assert_eq!(status, 429);
        let number = |name: &str| -> u64 { field(&headers, name).parse().unwrap() };
        let wait = number("retry-after-ms");
        assert_eq!(number("retry-after"), wait.div_ceil(1_000));
        assert!((1..60_000).contains(&wait), "{rules}: {wait}");
        assert_eq!(number("x-ratelimit-remaining-tokens"), 0);
        let wait = Duration::from_millis(wait);
        let error = json!({
            "message": format!("The rate limit tokens is reached. Try again in {wait:?}."),
            "type": "rate_limit_error",
            "param": null,
            "code": "rate_limit_exceeded",
        });
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body, json!({ "error": error }));

        clock.advance(wait - Duration::from_millis(1));
        let (_, headers, _) = site.get("/", &[]).await;
        assert_eq!(field(&headers, "retry-after-ms"), "1");
        clock.advance(Duration::from_millis(1));
        assert_eq!(site.status("/").await, 200);
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
        .layer(layer(MemoryStore::new()).limit(tokens("1/50s"), alice()))
        .layer(from_fn(see));
    let site = Site::start(app).await;
    let url = format!("http://{}", site.address());
    let mut client = Command::new(program.replace("FOLDER", &folder));
    client.arg(format!("{folder}/{script}")).arg(url);
    let output = client.env("NO_PROXY", "*").output().await.unwrap();
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    let [first, denied, last] = said.lines().collect::<Vec<_>>()[..] else {
        panic!("{output:?}");
    };
    assert_eq!((first, last), ("hello", "hello"));
    let is_expected = denied.contains("The rate limit tokens is reached. Try again in ");
    assert!(is_expected, "{denied}");
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

/// The status, the type, the code and the message of an error, and the times to wait.
fn error(response: &Response<String>) -> String {
    let headers = response.headers();
    assert_eq!(field(headers, "content-type"), "application/json");
    assert_eq!(field(headers, "cache-control"), "no-store");
    let body: Value = serde_json::from_str(response.body()).unwrap();
    let error = &body["error"];
    let waits = ["retry-after", "retry-after-ms"].map(|name| field(headers, name));
    let (status, [s, ms]) = (response.status().as_u16(), waits);
    let [kind, code, message] = ["type", "code", "message"].map(|it| &error[it]);
    format!("{status} {kind} {code} {message} in {s} s, {ms} ms")
}

fn of(limiter: Limiter, rules: &str) -> ForModels {
    layer(limiter).limit(tokens(rules), alice())
}

fn denying() -> Limiter {
    support::limiter(Scripted::denying_for(1_500))
}

fn blocked() -> Limiter {
    let limiter = still();
    let until = Duration::from_secs(99);
    futures::executor::block_on(limiter.block(&alice(), until)).unwrap();
    limiter
}

answers! { error;
    a_cost_that_never_fits_is_an_invalid_request: of(still(), "5/1h").cost(|_, _| 6) =>
        r#"413 "invalid_request_error" null "This request costs more than a limit allows. It will never pass." in - s, - ms"#;
    a_limit_of_0_names_no_time: of(still(), "0/1h") =>
        r#"429 "rate_limit_error" "rate_limit_exceeded" "A limit of 0 denies all requests at present." in - s, - ms"#;
    a_hidden_limit_is_not_named: layer(denying()).limit(tokens("5/1h").hidden(), alice()) =>
        r#"429 "rate_limit_error" "rate_limit_exceeded" "A rate limit is reached. Try again in 1.5s." in 2 s, 1500 ms"#;
    several_limits_are_named: of(denying(), "5/1h,1/1m") =>
        r#"429 "rate_limit_error" "rate_limit_exceeded" "The rate limits tokens/1h, tokens/1m are reached. Try again in 1.5s." in 2 s, 1500 ms"#;
    an_absent_key_is_named: layer(still()).limit(tokens("5/1h"), Header::new("x-api-key")) =>
        r#"400 "invalid_request_error" null "the header that identifies the client is absent or empty: `x-api-key`" in - s, - ms"#;
    a_client_that_has_to_authenticate_learns_so: layer(still()).limit(tokens("5/1h"), challenging()) =>
        r#"401 "authentication_error" null "the client has to authenticate" in - s, - ms"#;
    a_blocked_client_is_not_permitted: of(blocked(), "5/1h") =>
        r#"403 "permission_error" null "This client is blocked." in - s, - ms"#;
    a_client_on_a_deny_list_is_not_permitted: of(still(), "5/1h").deny(|_| true) =>
        r#"403 "permission_error" null "Forbidden" in - s, - ms"#;
    a_service_that_cannot_decide_is_at_fault: of(closed(Scripted::failing()), "5/1h") =>
        r#"503 "server_error" null "Service Unavailable" in 1 s, 250 ms"#;
}

#[tokio::test]
async fn head_gets_the_length_of_the_error_and_a_grpc_call_a_status() {
    let site = serve(of(denying(), "5/1h")).await;
    let (_, _, body) = site.get("/", &[]).await;
    let (status, headers, none) = site.ask(Method::HEAD, "/", &[]).await;
    assert_eq!((status.as_u16(), none.len()), (429, 0));
    assert_eq!(field(&headers, "content-length"), body.len().to_string());

    let call = Request::post("/").header("content-type", "application/grpc");
    let call = call.body(String::new()).unwrap();
    let answer = send(&of(denying(), "5/1h"), call).await;
    assert_eq!(field(answer.headers(), "grpc-status"), "8");
}

#[test]
fn a_denial_for_which_these_clients_do_not_wait_is_warned_of_once() {
    let warnings = |ms, style| {
        traced(false, async move {
            let layer = layer(support::limiter(Scripted::denying_for(ms))).headers(style);
            let layer = layer.limit(tokens("5/1h"), alice());
            for _ in 0..3 {
                assert_eq!(ask(&layer).await.status(), 429);
            }
        })
    };
    assert_eq!(warnings(59_999, HeaderStyle::RETRY_AFTER_MS), [""; 0]);
    assert_eq!(warnings(3_600_000, HeaderStyle::DRAFT_11), [""; 0]);
    let lines = warnings(60_000, HeaderStyle::RETRY_AFTER_MS);
    assert_one(&lines, &["60 s or longer", r#"policy="tokens""#]);
}
