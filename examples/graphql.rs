//! The cost of a GraphQL query, also of one that the server has stored and that clients name by its hash.
//!
//!     cargo run --example graphql --features axum,json
//!
//! A query costs a point for each level, in this stand-in for a GraphQL library:
//!
//!     curl -i localhost:3000/graphql -H 'x-user: ann' -d '{"query":"{ me { name } }"}'                      # 200, r=98
//!     curl -i localhost:3000/graphql -H 'x-user: ann' -d '{"query":"{ me { friends { name } } }","variables":null,"extensions":null}'  # 200, r=95
//!
//! A client that sends a hash alone is charged what the stored query costs. An unknown hash costs a point, and the client
//! sends the query next:
//!
//!     curl -i localhost:3000/graphql -H 'x-user: ann' -d '{"extensions":{"persistedQuery":{"version":1,"sha256Hash":"5e1f"}}}'          # 200, r=45
//!     curl -i localhost:3000/graphql -H 'x-user: ann' -d '{"query":null,"extensions":{"persistedQuery":{"sha256Hash":"0000"}}}'        # 200, r=44, PersistedQueryNotFound
//!     curl -i localhost:3000/graphql -H 'x-user: ann' -d '{"query":"{ me }","extensions":{"persistedQuery":{"sha256Hash":"5e1f"}}}'    # 200, r=43
//!     curl -i localhost:3000/graphql -H 'x-user: ann' -d '{"extensions":{"persistedQuery":{"sha256Hash":"5e1f"}}}'                     # 429, retry-after
//!     curl -i localhost:3000/graphql -H 'x-user: ann' -d '{"query":"me"}'                                   # 400, cannot be parsed
//!     curl -i localhost:3000/graphql -H 'x-user: ann' -d '{"variables":{}}'                                 # 400, cannot be parsed
//!     curl -i 'localhost:3000/graphql?query={me}' -H 'x-user: ann'                                          # 413
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add axum serde serde_json tokio -F serde/derive,tokio/full
//!     cargo add --path ../sluicegate -F axum,json

use std::{env, error::Error};
use tokio::net::TcpListener;

use axum::{Extension, Router, body::Bytes, http::request::Parts, routing::post};
use serde::Deserialize;
use sluicegate::{
    Header, MemoryStore, Policy, RateLimitLayer,
    error::ConfigError,
    middleware::{BodyError, ParsedBody, ReadBodyLayer},
};

#[derive(Deserialize)]
struct Request {
    query: Option<String>,
    extensions: Option<Extensions>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Extensions {
    persisted_query: Option<Persisted>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Persisted {
    sha256_hash: String,
}

enum Cost {
    Points(u64),
    UnknownHash,
}

/// By your GraphQL library, without executing the query.
fn points_of(query: &str) -> Option<u64> {
    let levels = query.matches('{').count() as u64;
    (levels > 0).then_some(levels)
}

/// By the stored queries of your service.
fn points_of_stored(hash: &str) -> Option<u64> {
    (hash == "5e1f").then_some(50)
}

fn read(_: &Parts, body: &Bytes) -> Result<Cost, BodyError> {
    let unreadable = || BodyError::new("The query cannot be parsed.");
    let request: Request = serde_json::from_slice(body).map_err(|_| unreadable())?;
    if let Some(query) = request.query {
        return points_of(&query).map(Cost::Points).ok_or_else(unreadable); // whatever the hash says
    }
    let stored = request.extensions.and_then(|it| it.persisted_query);
    let hash = stored.ok_or_else(unreadable)?.sha256_hash;
    Ok(points_of_stored(&hash).map_or(Cost::UnknownHash, Cost::Points))
}

async fn graphql(Extension(cost): Extension<ParsedBody<Cost>>) -> &'static str {
    match *cost {
        Cost::Points(_) => r#"{"data":{}}"#,
        Cost::UnknownHash => r#"{"errors":[{"message":"PersistedQueryNotFound"}]}"#,
    }
}

fn app() -> Result<Router, ConfigError> {
    let points = RateLimitLayer::new(MemoryStore::new())
        .limit(Policy::parse("points", "100/1h")?, Header::new("x-user"))
        .cost(|head, _| match ParsedBody::of(head) {
            Some(Cost::Points(points)) => *points,
            Some(Cost::UnknownHash) => 1,
            None => u64::MAX, // no body was read, as of a `GET`
        });
    Ok(Router::new()
        .route("/graphql", post(graphql))
        .layer(points)
        .layer(ReadBodyLayer::new(65_536, read)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The first argument is another address to listen on.
    let address = env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app()?).await?)
}
