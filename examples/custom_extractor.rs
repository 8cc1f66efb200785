//! Extractors of your own: a type, and a closure that looks something up.
//!
//! No server: the example makes six requests and prints the answers. The tenant `acme` may make 4 requests, its owner
//! 3. The owner's limit denies the first denied request, which is then charged to neither. The path `/` names no
//! tenant.
//!
//!     cargo run --example custom_extractor
//!     # /acme/1  200 OK served
//!     # /acme/2  200 OK served
//!     # /acme/3  200 OK served
//!     # /acme/4  429 Too Many Requests
//!     # /acme/5  429 Too Many Requests
//!     # /        400 Bad Request
//!
//! In a crate of your own, beside a clone of this one:
//!
//!     cargo add http tokio tower -F tokio/full,tower/util
//!     cargo add --path ../sluicegate

use std::{convert::Infallible, error::Error};

use http::{Request, Response, request::Parts};
use sluicegate::{
    Key, KeyExtractor, MemoryStore, Policy, RateLimitLayer, error::ExtractError, extract::Keys,
};
use tower::{ServiceBuilder, ServiceExt};

/// The first part of the path: `/acme/orders` belongs to `acme`.
struct Tenant;

impl KeyExtractor for Tenant {
    fn extract(&self, head: &Parts) -> Result<Keys, ExtractError> {
        match tenant(head) {
            "" => Err(ExtractError::missing("the path names no tenant")),
            name => Ok(Key::new("tenant", name).into()),
        }
    }
}

fn tenant(head: &Parts) -> &str {
    head.uri.path().split('/').nth(1).unwrap_or_default()
}

/// Stands for a database.
async fn owner_of(tenant: String) -> Option<Key> {
    (tenant == "acme").then(|| Key::new("user", "alice"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let layer = RateLimitLayer::new(MemoryStore::new())
        .limit(Policy::parse("tenant", "4/1m")?, Tenant)
        .limit_async(Policy::parse("owner", "3/1m")?, |head: &Parts| {
            owner_of(tenant(head).to_owned())
        });
    let service = ServiceBuilder::new()
        .layer(layer)
        .service_fn(async |_| Ok::<_, Infallible>(Response::new("served".to_owned())));
    for path in ["/acme/1", "/acme/2", "/acme/3", "/acme/4", "/acme/5", "/"] {
        let request = Request::get(path).body(String::new())?;
        let response = service.clone().oneshot(request).await?;
        println!("{path:8} {} {}", response.status(), response.body());
    }
    Ok(())
}
