//! An MCP server whose tools have limits of their own, and a client that learns when to call again, with the library rmcp.
//!
//!     cargo run -p example-mcp
//!
//! Two searches a minute, and a hundred other messages:
//!
//!     cargo run -p example-mcp -- call http://127.0.0.1:3000
//!     # found tea
//!     # found tea
//!     # HTTP 429, call again in
//!     # the time is
//!
//! The body of the 429 is an error of JSON-RPC, with the id of the call:
//!
//!     curl -i localhost:3000/mcp -d '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"search"}}'    # 429, "id":7, "code":429
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum reqwest serde tokio -F axum/json,serde/derive,tokio/full
//!     cargo add rmcp -F client,transport-streamable-http-client-reqwest,transport-streamable-http-server
//!     cargo add --path ../sluicegate -F axum,json

use std::{env, error::Error, net::SocketAddr, sync::Arc, time::SystemTime};

use axum::{
    Json, Router,
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use rmcp::{
    ErrorData, ServerHandler, ServiceError, ServiceExt,
    handler::server::wrapper::Parameters,
    model::{
        CallToolRequestParams, ClientJsonRpcMessage, ClientRequest, ErrorCode, JsonRpcMessage,
        ServerJsonRpcMessage,
    },
    schemars::{self, JsonSchema},
    tool, tool_handler, tool_router,
    transport::{
        StreamableHttpClientTransport, StreamableHttpService,
        streamable_http_client::{HttpStatusError, StreamableHttpError},
        streamable_http_server::session::local::LocalSessionManager,
    },
};
use serde::Deserialize;
use sluicegate::{
    MemoryStore, PeerIp, Policy, RateLimitLayer,
    middleware::{ParsedBody, ReadBodyLayer, Rejection},
};
use tokio::net::TcpListener;

#[derive(Clone)]
struct Tools;

#[derive(Deserialize, JsonSchema)]
struct Search {
    query: String,
}

#[tool_router]
impl Tools {
    #[tool(description = "Search the documents")]
    fn search(Parameters(Search { query }): Parameters<Search>) -> String {
        format!("found {query}")
    }

    #[tool(description = "Say the time")]
    fn time() -> String {
        format!("the time is {:?}", SystemTime::now())
    }
}

#[tool_handler]
impl ServerHandler for Tools {}

/// Other messages, and requests without a body, call no tool.
fn tool_of(head: &Parts) -> Option<&str> {
    match ParsedBody::<ClientJsonRpcMessage>::of(head)? {
        JsonRpcMessage::Request(message) => match &message.request {
            ClientRequest::CallToolRequest(call) => Some(&call.params.name),
            _ => None,
        },
        _ => None,
    }
}

fn too_many(_: &Rejection, head: &Parts) -> Response {
    let Some(ClientJsonRpcMessage::Request(message)) = ParsedBody::of(head) else {
        return StatusCode::TOO_MANY_REQUESTS.into_response(); // a notification is never answered
    };
    let id = Some(message.id.clone());
    // JSON-RPC reserves the codes from -32768 to -32000.
    let error = ErrorData::new(ErrorCode(429), "too many calls", None);
    let error = ServerJsonRpcMessage::error(error, id);
    (StatusCode::TOO_MANY_REQUESTS, Json(error)).into_response()
}

async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let searches = Policy::parse("searches", "2/1m")?;
    let messages = Policy::parse("messages", "100/1m")?;
    let by_tool = move |head: &Parts| match tool_of(head) {
        Some("search") => searches.clone(),
        _ => messages.clone(),
    };
    let limits = RateLimitLayer::new(MemoryStore::new())
        .limit(by_tool, PeerIp)
        .reject_denied_with(too_many);
    let sessions = Arc::<LocalSessionManager>::default();
    let tools = StreamableHttpService::new(|| Ok(Tools), sessions, Default::default());
    let app = Router::new()
        .nest_service("/mcp", tools)
        .layer(limits)
        .layer(ReadBodyLayer::json::<ClientJsonRpcMessage>(1 << 20));

    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

/// The library does not read the body of a 429.
fn waits(error: &ServiceError) -> Option<&HttpStatusError> {
    let ServiceError::TransportSend(error) = error else {
        return None;
    };
    match error.error.downcast_ref()? {
        StreamableHttpError::<reqwest::Error>::HttpStatus(answer) => Some(answer),
        _ => None,
    }
}

async fn call(url: &str) -> Result<(), Box<dyn Error>> {
    let transport = StreamableHttpClientTransport::from_uri(format!("{url}/mcp"));
    let client = ().serve(transport).await?;
    let query = [("query".to_owned(), "tea".into())].into_iter().collect();
    let search = CallToolRequestParams::new("search").with_arguments(query);
    let time = CallToolRequestParams::new("time");
    for call in [search.clone(), search.clone(), search, time] {
        match client.call_tool(call).await {
            Ok(answer) => println!("{:?}", answer.content[0].as_text().map(|it| &it.text)),
            Err(error) => {
                let HttpStatusError {
                    status,
                    retry_after,
                    ..
                } = waits(&error).ok_or("failed")?;
                let seconds = retry_after.as_deref().unwrap_or("∞");
                println!("HTTP {status}, call again in {seconds} s");
            }
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match &env::args().skip(1).collect::<Vec<_>>()[..] {
        [] => serve("127.0.0.1:3000").await,
        [address] => serve(address).await,
        [_call, url, ..] => call(url).await,
    }
}
