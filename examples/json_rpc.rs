//! Methods of JSON-RPC and tools of an MCP server, each with a limit; a batch is one check.
//!
//!     cargo run --example json_rpc --features axum,json
//!
//! Two searches a minute, and a hundred other calls. A denied call gets an error with its id:
//!
//!     curl -i localhost:3000 -H 'x-user: ann' -d '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search"}}'  # 200
//!     curl -i localhost:3000 -H 'x-user: ann' -d '[{"id":2,"method":"tools/call","params":{"name":"search"}},{"id":"x","method":"tools/list"},{"method":"notifications/progress"},{"id":3,"method":"tools/call","params":{"name":"search"}}]'  # 429, retry-after, [{"error":{"code":429,"message":"Too many calls"},"id":2,"jsonrpc":"2.0"}, "id":"x", "id":3,"jsonrpc":"2.0"}]
//!     curl -i localhost:3000 -H 'x-user: ann' -d '{"id":4,"method":"tools/call","params":{"name":"search"}}'  # 200
//!     curl -i localhost:3000 -H 'x-user: ann' -d '{"id":5,"method":"tools/call","params":{"name":"search"}}'  # 429, "id":5
//!
//! A batch with more searches than any minute has gets the same form, without a time to retry:
//!
//!     curl -i localhost:3000 -H 'x-user: bob' -d '[{"id":1,"method":"tools/call","params":{"name":"search"}},{"id":2,"method":"tools/call","params":{"name":"search"}},{"id":3,"method":"tools/call","params":{"name":"search"}}]'  # 413, "id":3, "code":413
//!
//! MCP's notifications cost nothing. A call without an id is a notification, too: it is charged, and never answered.
//!
//!     curl -i localhost:3000 -H 'x-user: ann' -d '{"jsonrpc":"2.0","method":"notifications/initialized"}'    # 202
//!     curl -i localhost:3000 -H 'x-user: ann' -d '{"method":"tools/call","params":{"name":"search"}}'        # 429, content-length: 0
//!     curl -i localhost:3000 -H 'x-user: ann' -d '{"id":6,"method":"tools/list","params":null}'              # 200
//!     curl -i localhost:3000 -H 'x-user: ann' -d '[]'                                                        # 400, "code":-32700, an empty batch
//!     curl -i localhost:3000 -H 'x-user: ann'                                                                # 405
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum serde serde_json tokio -F serde/derive,tokio/full
//!     cargo add --path ../sluicegate -F axum,json

use std::{env, error::Error};
use tokio::net::TcpListener;

use std::collections::BTreeMap;

use axum::{
    Extension, Json, Router,
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
    routing::post,
};
use serde::Deserialize;
use serde_json::{Value, json};
use sluicegate::{
    Charge, Key, MemoryStore, Policy, RateLimitLayer,
    error::{ConfigError, ExtractError},
    middleware::{BodyError, ParsedBody, ReadBodyLayer, Rejection},
};

/// A call, a notification, or an answer to the server.
#[derive(Deserialize)]
struct Message {
    id: Option<Value>,
    method: Option<String>,
    params: Option<Value>,
}

struct Messages {
    all: Vec<Message>,
    is_batch: bool,
}

fn read(_: &Parts, body: &axum::body::Bytes) -> Result<Messages, BodyError> {
    let is_batch = body.trim_ascii_start().starts_with(b"[");
    let all = match is_batch {
        true => serde_json::from_slice(body),
        false => serde_json::from_slice(body).map(|one| vec![one]),
    };
    let all: Vec<Message> = all.map_err(|_| BodyError::new("This is no JSON-RPC."))?;
    match all.is_empty() {
        true => Err(BodyError::new("This is an empty batch.")),
        false => Ok(Messages { all, is_batch }),
    }
}

impl Message {
    /// The limit that counts the message; `None` if it costs nothing.
    fn limit(&self) -> Option<&'static str> {
        let method = self.method.as_deref()?;
        let tool = || self.params.as_ref()?.get("name")?.as_str();
        match (method, tool()) {
            ("tools/call", Some("search")) => Some("searches"),
            _ if method.starts_with("notifications/") => None,
            _ => Some("calls"),
        }
    }
}

fn reject(rejection: &Rejection, head: &Parts) -> Response {
    let status = rejection.status();
    let Some(messages) = ParsedBody::<Messages>::of(head) else {
        let error = json!({ "code": -32700, "message": rejection.to_string() });
        let error = json!({ "jsonrpc": "2.0", "id": null, "error": error });
        return (status, Json(error)).into_response(); // the reader's answer
    };
    let error = json!({ "code": status.as_u16(), "message": "Too many calls" });
    let answered = messages.all.iter().filter(|it| it.id.is_some());
    let errors = answered.map(|it| json!({ "jsonrpc": "2.0", "id": it.id, "error": error }));
    let mut errors: Vec<Value> = errors.collect();
    match (errors.pop(), messages.is_batch) {
        (None, _) => status.into_response(), // notifications alone
        (Some(error), false) => (status, Json(error)).into_response(),
        (Some(last), true) => {
            errors.push(last);
            (status, Json(errors)).into_response()
        }
    }
}

/// Stands for your server.
async fn answer(Extension(messages): Extension<ParsedBody<Messages>>) -> Response {
    match messages.all.iter().find_map(|it| it.id.as_ref()) {
        Some(id) => Json(json!({ "jsonrpc": "2.0", "id": id, "result": {} })).into_response(),
        None => StatusCode::ACCEPTED.into_response(),
    }
}

fn app() -> Result<Router, ConfigError> {
    let searches = Policy::parse("searches", "2/1m")?;
    let calls = Policy::parse("calls", "100/1m")?;
    let limits = RateLimitLayer::new(MemoryStore::new())
        .charge(move |head| {
            let Some(messages) = ParsedBody::<Messages>::of(head) else {
                return Ok(Vec::new()); // without a body, the handler answers
            };
            let user = head.headers.get("x-user");
            let user = Key::new("user", user.ok_or(ExtractError::missing("no x-user"))?);
            let mut counts = BTreeMap::new();
            for limit in messages.all.iter().filter_map(Message::limit) {
                *counts.entry(limit).or_insert(0) += 1;
            }
            let charge = |(limit, count)| {
                let policy = if limit == "searches" {
                    &searches
                } else {
                    &calls
                };
                Charge::new(policy, user.clone(), count)
            };
            Ok(counts.into_iter().map(charge).collect())
        })
        .reject_with(reject);
    Ok(Router::new()
        .route("/", post(answer))
        .layer(limits)
        .layer(ReadBodyLayer::new(65_536, read).reject_with(reject)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app()?).await?)
}
