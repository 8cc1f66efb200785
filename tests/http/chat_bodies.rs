//! The sample of `max_tokens` with bodies as client libraries write them: null and absent fields, both fields of tokens,
//! several answers, streams and denials. `./test chat` runs it.

use axum::{body::to_bytes, response::IntoResponse};
use serde_json::{Value, json};
use support::example::{Example, build};
use tokio::process::Command;

use crate::prelude::*;

/// The answers that each library expects, as events for a stream.
fn answer(path: &str, text: &str, is_stream: bool) -> Response<Body> {
    let (whole, event) = if path.ends_with("/messages") {
        let content = json!([{ "type": "text", "text": text }]);
        let stop = json!({ "type": "message_stop" });
        (json!({ "type": "message", "content": content }), stop)
    } else {
        let message = json!({ "role": "assistant", "content": text });
        let choices = text.lines().map(|_| json!({ "message": message }));
        let choices = choices.collect::<Vec<_>>();
        (json!({ "choices": choices }), json!({ "choices": [] }))
    };
    if is_stream {
        let kind = event["type"].as_str().unwrap_or("message");
        let body = format!("event: {kind}\ndata: {event}\n\ndata: [DONE]\n\n");
        return ([("content-type", "text/event-stream")], body).into_response();
    }
    Json(whole).into_response()
}

/// Asks the sample, and answers in the form of a model's service.
async fn ask(sample: SocketAddr, request: Request<Body>) -> Response<Body> {
    let (mut head, body) = request.into_parts();
    let body = to_bytes(body, 65_536).await.unwrap();
    let asked: Value = serde_json::from_slice(&body).unwrap();
    let path = head.uri.path().to_owned();
    head.uri = format!("http://{sample}/chat").parse().unwrap();
    let request = Request::from_parts(head, Full::new(body));
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = client.request(request).await.unwrap().map(Body::new);
    if response.status() != 200 {
        return response;
    }
    let quota = response.headers()["ratelimit"].clone();
    let text = to_bytes(response.into_body(), 65_536).await.unwrap();
    let is_stream = asked["stream"] == json!(true);
    let mut answered = answer(&path, std::str::from_utf8(&text).unwrap(), is_stream);
    answered.headers_mut().insert("ratelimit", quota);
    answered
}

async fn is_charged_alike(program: &str, script: &str) {
    let folder = std::env::var("CHAT_CLIENTS").expect("CHAT_CLIENTS names a folder");
    let mut sample = std::process::Command::new(build("max_tokens"));
    let sample = Example::run(sample.arg("127.0.0.1:0"));
    let address = sample.address();
    let service = move |request: Request<Body>| ask(address, request);
    let site = Site::start(Router::new().fallback(service)).await;
    let mut client = Command::new(program.replace("FOLDER", &folder));
    client.arg(format!("{folder}/{script}"));
    client.arg(format!("http://{}", site.address()));
    let output = client.env("NO_PROXY", "*").output().await.unwrap();
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    println!("{said}");
    let left = |units| format!("200 \"tokens\";r={units} true");
    let mut expected: Vec<String> = [98, 90, 91, 83, 77, 73, 65].map(left).into();
    expected.extend(["429 RateLimitError", "413 "].map(str::to_owned));
    expected.extend([98, 96, 94].map(left));
    expected.extend(["429 RateLimitError", "413 "].map(str::to_owned));
    let said = said.replace("True", "true");
    let said: Vec<&str> = said.lines().collect();
    let is_alike = said.len() == expected.len()
        && said
            .iter()
            .zip(&expected)
            .all(|(said, expected)| said.starts_with(expected));
    assert!(is_alike, "{said:#?}\n{output:?}");
}

#[tokio::test]
#[ignore = "needs libraries, in CHAT_CLIENTS: run ./test chat"]
async fn the_bodies_of_libraries_for_python_are_charged() {
    is_charged_alike("FOLDER/python/bin/python", "chat_bodies.py").await;
}

#[tokio::test]
#[ignore = "needs libraries, in CHAT_CLIENTS: run ./test chat"]
async fn the_bodies_of_libraries_for_javascript_are_charged() {
    is_charged_alike("node", "chat_bodies.mjs").await;
}
