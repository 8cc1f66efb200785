//! Extractors of your own: a type, a closure, and one that has to look something up.
//!
//!     cargo run --example custom_extractor
//!
//! No server: five requests are made, and the answers printed. The tenant `acme` may make 4 requests, its owner 3:
//! three requests are served and two are denied, the first of them by the owner's limit. A request without a tenant is
//! answered with 400.

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
        })
        .cost(|head| {
            if head.method == http::Method::GET {
                1
            } else {
                2
            }
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
